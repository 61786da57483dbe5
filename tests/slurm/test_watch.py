"""What `status`, `logs` and `cancel` say of runs that end in every way, on a real Slurm."""

from __future__ import annotations

import getpass
from typing import Any

import pytest

from slurm.conftest import Cluster, User, eventually

pytestmark = pytest.mark.slurm

# Runs that take no core from the other tests.
JOB = """\
name: tiny
site: site.yaml
workload: {{command: [sleep, "{{seconds}}"]}}
resources: {{mem_gb: 0.5, timeout_min: 15}}
grid: {{seconds: {seconds}}}
"""


def job(runs: int = 1) -> str:
    return JOB.format(seconds=list(range(901, 901 + runs)))


def runs_begin(user: User) -> None:
    eventually(lambda: user.records("claim.json") != [])
    user.waits(lambda states: states == ["running"])


def by_element(user: User) -> dict[str, dict[str, Any]]:
    return {run["job_id"].partition("_")[2]: run for run in user.runs()}


@pytest.mark.slow
def test_each_way_to_end_is_distinguished(user: User) -> None:
    """Out of memory, cancelled by somebody, killed, ended well without a record."""
    hog = 'python3 -c "x = bytearray(900 << 20)"'
    user_site = user.folder / "site.yaml"
    user_site.write_text(
        "setup:\n"
        "  - 'case $SLURM_ARRAY_TASK_ID in'\n"
        f"  - '0) srun --ntasks=1 {hog}; exit 1;;'\n"
        "  - '1) echo the module is missing >&2; exit 7;;'\n"
        "  - '2) exit 0;;'\n"
        "  - 'esac'\n"
    )
    user.submits(job(4))
    eventually(lambda: user.records("claim.json") != [])
    eventually(lambda: by_element(user)["3"]["state"] == "running")
    user.cluster.run("scancel", by_element(user)["3"]["job_id"])
    eventually(lambda: by_element(user)["3"]["state"] == "cancelled")
    eventually(lambda: by_element(user)["0"]["state"] == "out_of_memory")
    eventually(lambda: getpass.getuser() in by_element(user)["3"]["reason"])
    eventually(lambda: by_element(user)["1"]["state"] == "failed")
    assert "exit code 7" in by_element(user)["1"]["reason"]
    page = user.types("status", "--failures")
    assert "the module is missing" in page
    eventually(lambda: by_element(user)["2"]["state"] == "failed")
    assert "with exit code 0, but left no record" in by_element(user)["2"]["reason"]


def test_what_waits_says_why(user: User) -> None:
    (user.folder / "site.yaml").write_text("additional_parameters: {hold: true}\n")
    user.submits(job(2))
    eventually(lambda: "held by its user" in str(user.runs()[0]["reason"]))
    seen = " ".join(user.types("status").split())
    assert "0 of 2 done, 2 pending: held by its user" in seen
    user.types("cancel", "--all", "results/tiny")
    assert {run["state"] for run in user.ends()} == {"cancelled"}
    eventually(lambda: not user.cluster.run("squeue", "--noheader", "--me"))


def test_one_run_of_a_task_is_cancelled_and_the_others_go_on(user: User) -> None:
    user.submits(job(3), "resources.runs_per_task=3")
    eventually(lambda: user.records("claim.json") != [])
    first, second, third = user.waits(lambda states: states[0] == "running")
    assert [second["state"], third["state"]] == ["pending", "pending"]
    user.types("cancel", first["id"], second["id"])
    user.waits(lambda states: states == ["cancelled", "cancelled", "running"])
    user.types("cancel", third["id"])
    user.waits(lambda states: states == ["cancelled"] * 3)


def test_while_slurmctld_and_slurmdbd_are_down_records_speak(
    user: User, breakable: Cluster
) -> None:
    user.submits(job())
    runs_begin(user)
    breakable.dbd("stop")
    assert [run["state"] for run in user.runs()] == ["running"]
    breakable.slurmctld("stop")
    said = user.types("status")
    assert "1 running" in said
    assert "squeue: " in said
    breakable.slurmctld("start")
    breakable.dbd("start")
    user.types("cancel", "--all", "results/tiny")
    assert [run["state"] for run in user.ends()] == ["cancelled"]


def test_a_node_that_dies_fails_the_run_that_may_not_be_put_back(
    user: User, breakable: Cluster
) -> None:
    (user.folder / "site.yaml").write_text("additional_parameters: {no-requeue: true}\n")
    user.submits(job())
    runs_begin(user)
    (claim,) = user.records("claim.json")
    breakable.crash(claim["node"])
    (run,) = user.waits(lambda states: states == ["node_failed"])
    assert "NODE_FAIL" in run["reason"]
    assert "1 run node failed: " in user.types("status", "--failures")
