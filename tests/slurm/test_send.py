"""What fits is submitted and the rest is reported; nothing is lost and nothing sent twice."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from slurm.conftest import Cluster, User, eventually

pytestmark = pytest.mark.slurm

JOB = """\
name: tiny
data: {{path: {data}}}
site: site.yaml
resources: {{mem_gb: 1, timeout_min: 10}}
training: {{epochs: 1, global_batch_size: 200}}
repeats: {repeats}
"""


def sends(user: User, data: Path, repeats: int, *words: str) -> tuple[int, dict[str, Any]]:
    """The exit code of `submit`, and what it says as JSON."""
    (user.folder / "job.yaml").write_text(JOB.format(data=data, repeats=repeats))
    done = user.attempt("submit", "job.yaml", "--cluster", "slurm", "--json", *words)
    assert done.returncode in (0, 3), done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, said


def limited(cluster: Cluster, most: int) -> None:
    """Root's account takes so many jobs from now on; -1: any number."""
    asked = ["where", "name=root", "account=root", "set", f"maxsubmitjobs={most}"]
    cluster.run("sacctmgr", "-i", "modify", "user", *asked)
    shown = ["scontrol", "--oneliner", "show", "assoc_mgr", "flags=assoc", "users=root"]
    seen = re.compile(r" UserName=root\(0\) .* MaxSubmitJobs=(\d*)")
    wanted = [str(most) if most >= 0 else ""]
    # slurmdbd informs slurmctld a moment later.
    eventually(lambda: seen.findall(cluster.run(*shown)) == wanted)


def test_five_thousand_runs_are_submitted_in_few_calls(user: User, tiny_data: Path) -> None:
    (user.folder / "site.yaml").write_text("additional_parameters: {hold: true}\n")
    code, said = sends(user, tiny_data, 5000)
    queue = user.cluster.run("squeue", "--me", "--noheader", "--format=%F").split()
    assert (code, len(said["submitted"])) == (0, 5000)
    assert len(set(queue)) == 5, "one array for each 1001"
    code, said = sends(user, tiny_data, 5000)
    assert (said["submitted"], len(said["not_submitted"])) == ([], 5000)


def test_what_an_account_allows_is_submitted_and_the_command_for_the_rest_sends_it(
    user: User, tiny_data: Path
) -> None:
    (user.folder / "site.yaml").write_text("additional_parameters: {hold: true}\n")
    user.leaves()  # a job of the conformance cases would count
    limited(user.cluster, 4)
    try:
        code, said = sends(user, tiny_data, 10)
        left = {each["run"] for each in said["not_submitted"] if each["why"] == "no_room"}
        assert (code, len(said["submitted"]), len(left)) == (3, 4, 6)
        assert "runs_per_task=2" in said["commands"]["all_at_once"]
        user.cluster.run("scancel", "--me")
        limited(user.cluster, 6)
        done = user.attempt(*said["commands"]["rest"].split()[1:], "--json")
        assert left & set(json.loads(done.stdout)["submitted"])
    finally:
        limited(user.cluster, -1)


def test_runs_share_a_task_and_a_report_follows_them(user: User, tiny_data: Path) -> None:
    code, _ = sends(user, tiny_data, 2, "--report", "-s", "resources.runs_per_task=2")
    assert code == 0
    runs = user.ends()
    assert [run["state"] for run in runs] == ["completed"] * 2
    assert len({run["job_id"] for run in runs}) == 1
    page = user.folder / "results/tiny/report/report.html"
    eventually(page.exists)
