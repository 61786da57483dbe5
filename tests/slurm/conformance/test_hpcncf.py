"""hpcncf on either Slurm, as a user types it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm.conformance.conftest import LIKE_THE_REAL, Slurm, wait

HPCNCF = str(Path(sys.executable).with_name("hpcncf"))
JOB = """\
name: {name}
data: {{path: {data}}}
site: site.yaml
resources: {{mem_gb: 1, timeout_min: 10}}
training: {{epochs: {epochs}, global_batch_size: 64}}
grid: {{training.seed: [1, 2]}}
"""


@pytest.fixture(scope="module", autouse=True)
def site(slurm: Slurm) -> Iterator[None]:
    (slurm.folder / "site.yaml").write_text("partition: cpu\narray_parallelism: 1\n")
    if slurm.fake:
        slurm.fake.set(second_s=1)  # training takes as long as it takes
    yield
    if slurm.fake:
        slurm.fake.set(**LIKE_THE_REAL)


def submitted(slurm: Slurm, name: str, data: Path, epochs: int) -> str:
    text = JOB.format(name=name, data=data, epochs=epochs)
    (slurm.folder / f"{name}.yaml").write_text(text)
    return slurm.run(HPCNCF, "submit", f"{name}.yaml", "--cluster", "slurm")


def runs(slurm: Slurm, name: str) -> list[dict[str, Any]]:
    said = json.loads(slurm.run(HPCNCF, "status", f"results/{name}", "--json"))
    found: list[dict[str, Any]] = said["jobs"][0]["runs"]
    return found


def states(slurm: Slurm, name: str) -> list[str]:
    return sorted(run["state"] for run in runs(slurm, name))


def gone(slurm: Slurm, name: str) -> None:
    """Nothing of it is queued or runs. `hpcncf status`, asked all the time, would slow the runs."""
    left = ["squeue", "--noheader", "--states=R,PD", f"--name={name}"]
    wait(lambda: slurm.run(*left) == "", lambda: slurm.run(*left))


def test_runs_are_submitted_watched_and_collected(slurm: Slurm, tiny_data: Path) -> None:
    submitted(slurm, "whole", tiny_data, epochs=1)
    gone(slurm, "whole")
    wait(lambda: states(slurm, "whole") == ["completed"] * 2, lambda: runs(slurm, "whole"))
    slurm.run(HPCNCF, "collect", "results/whole")
    assert len((slurm.folder / "results/whole/tables/runs.csv").read_text().splitlines()) == 3
    assert "2 completed already" in submitted(slurm, "whole", tiny_data, epochs=1)


def test_runs_are_cancelled_whether_they_run_or_wait(slurm: Slurm, tiny_data: Path) -> None:
    submitted(slurm, "ended", tiny_data, epochs=100000)
    under_way = ["pending", "running"]
    wait(lambda: states(slurm, "ended") == under_way, lambda: runs(slurm, "ended"))
    slurm.run(HPCNCF, "cancel", "--all", "results/ended")
    wait(lambda: states(slurm, "ended") == ["cancelled"] * 2, lambda: runs(slurm, "ended"))
    gone(slurm, "ended")
