"""What a test may ask the fake Slurm for; that it is like Slurm: tests/slurm/conformance."""

from __future__ import annotations

import os
import select
import socket
import subprocess
from pathlib import Path

import pytest
from conftest import FakeSlurm, alive, within


def said(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout


def failed(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    return done.stderr


def submitted(script: str, *options: str) -> str:
    return said("sbatch", "--parsable", "--output=/dev/null", *options, f"--wrap={script}").strip()


def state(job: str) -> str:
    return said("squeue", "--noheader", "--states=all", "--format=%T %r", "-j", job).strip()


@pytest.fixture
def running(fake_slurm: FakeSlurm) -> FakeSlurm:
    fake_slurm.run_jobs()
    fake_slurm.set(second_s=0.01)
    return fake_slurm


@pytest.mark.usefixtures("fake_slurm")
def test_unasked_it_starts_nothing() -> None:
    assert state(submitted("true")) == "PENDING None"


def test_thousands_of_elements_are_submitted_at_once_and_listed(fake_slurm: FakeSlurm) -> None:
    fake_slurm.set(max_array_size=10001)
    job = submitted("true", "--array=0-4999%100")
    assert len(said("squeue", "--array", "--noheader", "-j", job).splitlines()) == 5000
    assert said("squeue", "--noheader", "--format=%i", "-j", job) == f"{job}_[0-4999%100]\n"
    assert len(fake_slurm.submitted) == 1


def test_a_dead_node_takes_its_jobs_back_to_the_queue(running: FakeSlurm) -> None:
    job = submitted("sleep 60")
    assert within(120, lambda: state(job).startswith("RUNNING"))
    running.set(requeue_delay_s=6000)
    running.fail_node("node1")
    assert within(120, lambda: state(job) == "PENDING BeginTime")
    rows = said("sacct", "-n", "-P", "-X", "-D", "-j", job, "--format=State,NodeList")
    assert rows.splitlines() == ["NODE_FAIL|node1", "PENDING|None assigned"]
    assert "down" in said("sinfo", "--noheader", "--Node", "--format=%N %t", "--partition=cpu")
    running.mend_node("node1")
    assert "down" not in said("sinfo", "--noheader", "--format=%t")


def test_a_job_that_may_not_be_requeued_ends_with_its_node(running: FakeSlurm) -> None:
    job = submitted("sleep 60", "--no-requeue")
    assert within(120, lambda: state(job).startswith("RUNNING"))
    running.fail_node("node1")
    assert within(120, lambda: state(job).startswith("NODE_FAIL"))


def test_a_rank_without_memory_is_told_in_its_steps_row(running: FakeSlurm) -> None:
    job = submitted("srun sleep 60")
    shown = ["sacct", "-n", "-P", "-j", job, "--format=JobID,State,ExitCode"]
    assert within(120, lambda: f"{job}.0|RUNNING" in said(*shown))
    running.starve(job)
    assert within(120, lambda: f"{job}.0|OUT_OF_MEMORY|0:125" in said(*shown))
    assert within(120, lambda: state(job).startswith("FAILED"))


def test_a_preempted_job_comes_back(running: FakeSlurm) -> None:
    job = submitted("[ $SLURM_RESTART_COUNT ] || sleep 60")
    assert within(120, lambda: state(job).startswith("RUNNING"))
    running.preempt(job)
    assert within(120, lambda: state(job).startswith("COMPLETED"))
    assert "PREEMPTED" in said("sacct", "-n", "-X", "-D", "-j", job, "--format=State")


def test_daemons_that_are_away_say_so_as_slurm_does(fake_slurm: FakeSlurm) -> None:
    fake_slurm.set(controller=False)
    assert "Unable to contact slurm controller" in failed("squeue")
    fake_slurm.set(controller=True, database=False)
    assert "Connection refused" in failed("sacct")
    fake_slurm.set(accounting=False)
    assert failed("sacct") == "Slurm accounting storage is disabled\n"


def test_a_command_that_is_killed_as_it_asks_keeps_no_other_waiting(
    fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submitted("true")
    monkeypatch.chdir(fake_slurm.folder)  # a socket's path may be short only
    read, write = os.pipe()
    with socket.socket(socket.AF_UNIX) as killed:
        killed.connect("controller.socket")
        socket.send_fds(killed, [b"99\n"], [write] * 3)  # and none of the 99 bytes
    os.close(write)
    assert state(job) == "PENDING None"
    assert select.select([read], [], [], 0)[0], "its files are closed"
    os.close(read)


def test_a_user_may_have_so_many_jobs_and_no_more(fake_slurm: FakeSlurm) -> None:
    fake_slurm.set(max_submit=3)
    submitted("true", "--array=0-2")
    assert "AssocMaxSubmitJobLimit" in failed("sbatch", "--wrap=true")


def test_nothing_of_it_is_left_when_it_ends(running: FakeSlurm, tmp_path: Path) -> None:
    job = submitted(f"srun sh -c 'echo $$ > {tmp_path}/pid; sleep 60'")
    pid = tmp_path / "pid"
    assert within(120, lambda: pid.exists() and pid.read_text() != "")
    assert state(job).startswith("RUNNING")
    running.end()
    assert within(120, lambda: not alive(int(pid.read_text())))
