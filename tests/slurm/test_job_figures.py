"""`hpcncf explain JOBID` on a real Slurm: live states, tasks, parts, other people's jobs."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from slurm.conftest import User, eventually

pytestmark = pytest.mark.slurm


def submits(user: User, *words: str) -> str:
    """The job's id."""
    return user.shell("sbatch", "--parsable", "-o", "log", "-p", "cpu", *words).stdout.strip()


def explained(user: User, job: str) -> list[dict[str, Any]]:
    said = json.loads(user.types("explain", job, "--json"))
    return [each["fields"] for each in said["jobs"]]


def refused(user: User, job: str) -> str:
    done = user.attempt("explain", job)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_explain_says_the_live_state_at_once(user: User) -> None:
    job = submits(user, "--mem=300", "-t", "5", "--wrap", "sleep 300")
    eventually(lambda: " R " in user.shell("squeue", "-h", "-j", job).stdout)
    (fields,) = explained(user, job)
    assert (fields["id"], fields["state"], fields["cores"]) == (job, "RUNNING", 1)
    assert (fields["limit_s"], fields["memory_asked_mib"]) == (300, 300)
    user.shell("scancel", job)
    eventually(lambda: " CA " in user.shell("squeue", "-h", "-t", "all", "-j", job).stdout)
    (fields,) = explained(user, job)
    assert fields["state"] == "CANCELLED"


def test_explain_reads_a_task_of_an_array(user: User) -> None:
    job = submits(user, "--mem=100", "--array=3-6%1", "--wrap", "sleep 300")
    eventually(lambda: " R " in user.shell("squeue", "-h", "-j", job).stdout)
    assert f"job {job}: an array; give one of its tasks, such as {job}_" in refused(user, job)
    (runs,), (waits,) = explained(user, f"{job}_3"), explained(user, f"{job}_5")
    assert (runs["id"], runs["state"]) == (f"{job}_3", "RUNNING")
    assert (waits["id"], waits["state"]) == (f"{job}_5", "PENDING")
    assert re.match("it waits: .*ArrayTaskLimit", waits["notes"][0])


def test_explain_reads_the_parts_of_a_het_job(user: User) -> None:
    job = submits(user, "--mem=100", "-n1", ":", "-p", "cpu", "--mem=100", "-n2", "--wrap", "true")
    user.is_through()
    eventually(lambda: len(explained(user, job)) == 2)
    parts = explained(user, job)
    assert [each["id"] for each in parts] == [f"{job}+0", f"{job}+1"]
    (second,) = explained(user, f"{job}+1")
    assert second["cores"] == parts[1]["cores"]


def test_explain_names_whose_job_it_is(people: list[User]) -> None:
    ada, ben = people
    job = submits(ada, "--mem=100", "--wrap", "true")
    ada.is_through()
    (fields,) = explained(ben, job)
    assert fields["notes"][0] == "a job of ada"
    assert "sacct knows no such job of yours" in refused(ben, "99999999")
