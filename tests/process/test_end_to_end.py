"""The whole path as a user walks it: a job file, this machine, two gloo ranks, a report."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_security import SECRET

from hpcncf.monitor.cgroup import usable_cpus

JOB = """\
# Does a second rank help?
name: tiny
data: {{path: {data}}}
resources: {{timeout_min: 3}}
training: {{epochs: 2, global_batch_size: 64}}
points:
  - {{resources.tasks_per_node: 1}}
  - {{resources.tasks_per_node: 2}}
"""


def hpcncf(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hpcncf", *args],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as lines:
        return list(csv.DictReader(lines))


@pytest.mark.skipif(len(usable_cpus()) < 2, reason="two ranks want a core each")
def test_a_job_file_becomes_a_report(
    tmp_path: Path, tiny_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no secret of the environment is in anything that it leaves."""
    for name in ("WANDB_API_KEY", "SLURM_JWT", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, SECRET)
    (tmp_path / "tiny.yaml").write_text(JOB.format(data=tiny_data))

    submitted = hpcncf(tmp_path, "submit", "tiny.yaml", "--cluster", "local", "--wait")
    assert submitted.returncode == 0, submitted.stderr
    reported = hpcncf(tmp_path, "report", "results/tiny")
    assert reported.returncode == 0, reported.stdout + reported.stderr

    results = tmp_path / "results/tiny"
    runs = {row["tasks_per_node"]: row for row in rows(results / "tables/runs.csv")}
    assert {row["state"] for row in runs.values()} == {"completed"}
    # Two ranks see the same instances and sum the same gradients: the same model but for rounding.
    assert float(runs["1"]["loss"]) == pytest.approx(float(runs["2"]["loss"]), rel=1e-3)
    assert float(runs["1"]["mrr"]) == pytest.approx(float(runs["2"]["mrr"]), rel=0.02)
    assert len(rows(results / "tables/ranks.csv")) == 3
    assert len(rows(results / "tables/epochs.csv")) == 4
    page = (results / "report/report.html").read_text()
    assert "<svg" in page
    assert set(re.findall(r"https?://[^/]*", page)) == {"http://www.w3.org"}, "names, no addresses"
    assert (results / "report/report.md").read_text().startswith("# ")
    assert list(results.rglob("rank-0.json"))
    files = [path for path in results.rglob("*") if path.is_file()]
    assert not [path for path in files if SECRET in path.read_text("latin-1")]
