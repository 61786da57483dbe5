"""`hpcncf attach JOBID` on a real Slurm: steps of its own in a job that goes on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from slurm.conftest import User, eventually

pytestmark = pytest.mark.slurm

PROGRAM = """\
import sys, time
def computes():
    end = time.thread_time() + 0.05
    while time.thread_time() < end: pass
print("begun", flush=True)
for _ in range(int(sys.argv[1])):
    computes()
    time.sleep(0.02)
print("whole", flush=True)
"""


@contextmanager
def running(user: User, *words: str) -> Iterator[str]:
    """A job in which each task runs the program; its id, once all of them have begun."""
    (user.folder / "train.py").write_text(PROGRAM)
    script = f"#!/bin/bash\nsrun {sys.executable} train.py ${{TURNS:-100000}}\n"
    (user.folder / "job.sh").write_text(script)
    given = ("--partition=cpu", "--mem=300", "--cpus-per-task=2", "--output=%x-%A_%a.log", *words)
    done = user.shell("sbatch", "--parsable", *given, "job.sh")
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip()
    tasks = 2 if "--ntasks=2" in words else 1
    eventually(
        lambda: any(log.read_text().count("begun") >= tasks for log in user.folder.glob("*.log"))
    )
    yield job
    user.shell("scancel", job)


def steps(user: User, job: str) -> set[str]:
    shown = user.shell("squeue", "--noheader", "--steps", "--format=%i %j", "--jobs", job).stdout
    return {line.split()[1] for line in shown.splitlines() if line.strip()}


def test_job_on_two_nodes_is_watched_and_goes_on(user: User) -> None:
    with running(user, "--nodes=2", "--ntasks=2") as job:
        before = steps(user, job)
        found = json.loads(user.types("attach", "--job", job, "--seconds", "3", "--json"))
        assert [each["node"] for each in found["nodes"]] == ["node1", "node2"]
        for node in found["nodes"]:
            first = node["processes"][0]
            assert first["command"][1:] == ["train.py", "100000"]
            assert first["cpu_s"] > 0.2
            assert node["rank"]["cores"]["allocated"] == 2
            assert node["rank"]["memory"]["limit_mib"] == 300
            commands = str([each["command"] for each in node["processes"]])
            assert "hpcncf.attach" not in commands
            assert "py-spy" not in commands
            (profile,) = node["rank"]["program"]
            assert any(line["function"] == "computes" for line in profile["lines"])
        page = user.types("attach", "--job", job, "--seconds", "1")
        assert page.startswith(f"hpcncf attach: job {job}, job.sh\n")
        assert "\nnode node2\n" in page
        eventually(lambda: steps(user, job) == before)


def test_watch_changes_neither_end_nor_exit_code(user: User) -> None:
    with running(user, "--export=ALL,TURNS=120") as job:
        user.types("attach", "--job", job, "--seconds", "2")
        user.is_through()
        (log,) = user.folder.glob("*.log")
        assert log.read_text() == "begun\nwhole\n"
        state = user.shell("sacct", "-nXPj", job, "-o", "State,ExitCode").stdout.split()
        assert state == ["COMPLETED|0:0"]
        ended = user.attempt("attach", "--job", job)
        assert ended.returncode == 2
        assert re.search(
            rf"job {job} has ended \(COMPLETED\); `hpcncf explain {job}`", ended.stderr
        )


def test_interrupt_ends_the_watch_and_no_more(user: User) -> None:
    with running(user) as job:
        before = steps(user, job)
        variables = os.environ | {"SLURM_CONF": str(user.cluster.folder / "etc/slurm.conf")}
        words = [*user.hpcncf, "attach", "--job", job, "--seconds", "300", "--json"]
        with subprocess.Popen(
            words,
            env=variables,
            stdout=subprocess.PIPE,
            text=True,
            # As at a terminal: tests that run in the background inherit that it is ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        ) as watch:
            eventually(lambda: "hpcncf-attach" in steps(user, job))
            time.sleep(2)
            watch.send_signal(signal.SIGINT)
            out, _ = watch.communicate()
        assert watch.returncode == 0
        assert json.loads(out)["seconds"] < 100
        eventually(lambda: steps(user, job) == before)


def test_array_has_to_be_named_by_its_task(user: User) -> None:
    with running(user, "--array=1-2") as job:
        eventually(lambda: user.shell("squeue", "-hrtR", "-j", job).stdout.count("\n") == 2)
        whole = user.attempt("attach", "--job", job, "--seconds", "1")
        assert whole.returncode == 2
        assert f"is an array; name the part to watch, of those that run: {job}_" in whole.stderr
        found = json.loads(user.types("attach", f"{job}_2", "--seconds", "1", "--json"))
        assert found["watched"] == f"job {job}_2"
        assert found["nodes"][0]["processes"]


def test_job_of_another_user_is_not_entered(people: list[User]) -> None:
    ada, ben = people
    done = ada.shell("sbatch", "--parsable", "--partition=cpu", "--mem=100", "--wrap", "sleep 300")
    job = done.stdout.strip()
    eventually(lambda: ada.shell("squeue", "-hj", job, "-o", "%T").stdout.strip() == "RUNNING")
    refused = ben.attempt("attach", "--job", job)
    assert refused.returncode == 2
    assert "belongs to ada; Slurm lets only its owner start a step in it" in refused.stderr
    found = json.loads(ada.types("attach", "--job", job, "--seconds", "1", "--json"))
    assert "sleep" in str(found["nodes"][0]["processes"])
