"""Runs side by side in one job of a real Slurm: cores of their own, one requeue for all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm.conftest import User, eventually

pytestmark = pytest.mark.slurm

JOB = """\
name: tiny
data: {{path: {data}}}
site: site.yaml
resources: {{mem_gb: 1, timeout_min: 15, runs_per_node: 2}}
training: {{epochs: 90, global_batch_size: 8}}
grid: {{training.lr: [0.001, 0.002]}}
"""


@pytest.mark.slow
def test_runs_of_one_job_have_cores_of_their_own_and_are_requeued_once(
    user: User, tiny_data: Path
) -> None:
    user.submits(JOB.format(data=tiny_data))
    eventually(lambda: sum(each["step"] > 0 for each in user.records("progress.json")) == 2)
    (job,) = {each["slurm_job_id"] for each in user.records("claim.json")}
    assert {run["state"] for run in user.runs()} == {"running"}
    user.cluster.run("scancel", "--signal=USR2", job)
    assert {run["state"] for run in user.ends()} == {"completed"}
    seen = user.records("rank-0.json")
    assert sorted(each["outcome"] for each in seen) == ["completed", "completed"] + ["stopped"] * 2
    assert {each["slurm_job_id"] for each in seen} == {job}
    for attempt in (1, 2):
        cpus = [each["cores"]["cpus"] for each in seen if each["attempt"] == attempt]
        assert [len(each) for each in cpus] == [1, 1]
        assert cpus[0] != cpus[1]
    assert all(len(each["packed"]["runs"]) == 2 for each in seen)
    assert {each["slurm_restart"] for each in user.records("claim.json")} == {0, 1}
