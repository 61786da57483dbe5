"""`hpcncf explain --since` on a real Slurm's accounting."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slurm.conftest import User, eventually

pytestmark = pytest.mark.slurm


def submits(user: User, *words: str) -> str:
    """The job's id."""
    options = ("--parsable", "-o", "/dev/null", "-p", "cpu", "--mem=100")
    return user.shell("sbatch", *options, *words).stdout.strip()


def workloads(user: User, *words: str) -> dict[str, Any]:
    said = json.loads(user.types("explain", "--since", "1hour", "--json", *words))
    return {each["name"]: each for each in said["workloads"]}


def runs(user: User, *words: str) -> dict[str, dict[str, int]]:
    return {name: each["states"] for name, each in workloads(user, *words).items()}


def test_each_job_is_counted_once(user: User) -> None:
    submits(user, "-J", "since-array", "--array=1-3", "--wrap", "sleep 1")
    submits(user, "-J", "since-steps", "-n2", "--wrap", "srun sleep 1; srun -n1 sleep 1")
    submits(user, "-J", "since-het", "-n1", ":", "-p", "cpu", "--mem=100", "--wrap", "sleep 1")
    long = submits(user, "-J", "since-requeued", "--requeue", "--wrap", "sleep 300")
    eventually(lambda: " R " in user.shell("squeue", "-h", "-j", long).stdout)
    user.shell("scontrol", "requeue", long)
    eventually(lambda: "1" in user.shell("squeue", "-hO", "RestartCnt", "-j", long).stdout)
    user.shell("scancel", long)
    user.is_through()
    one = {"COMPLETED": 1}
    expected = {"since-array": {"COMPLETED": 3}, "since-steps": one, "since-het": one}
    eventually(lambda: expected.items() <= runs(user).items(), runs(user))
    found = workloads(user, "--name", "since-array,since-het")
    assert sorted(found) == ["since-array", "since-het"]
    assert len(found["since-het"]["shape"]) == 2
    assert found["since-array"]["not_enough"] == "not enough evidence: 0 of 3 completed runs"
    # Its last start never began.
    assert "since-requeued" not in workloads(user)
    text = user.types("explain", "--since", "1hour", "--user", "root", "--name", "since-*")
    assert "since-array" in text
    refused = user.attempt("explain", "--since", "1hour", "--user", "nobody-of-this-name")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
