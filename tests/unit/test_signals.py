"""A stopped run is put back into Slurm's queue, so often and no more, and its record says so."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from hpcncf.launcher.requeue import BY_TASK, RequeueDecision, decide_requeue, requeue_job, restart
from hpcncf.launcher.signals import graceful

JOB = {"SLURM_JOB_ID": "9", "SLURM_STEP_NUM_TASKS": "1"}
ELEMENT = JOB | {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts a command of that name on PATH; returns the file that its answers are read from."""
    command = tmp_path / "scontrol"
    command.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/calls\n. {tmp_path}/says\n')
    command.chmod(0o755)
    (tmp_path / "says").write_text("true\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path / "says"


@pytest.mark.usefixtures("scontrol")
@pytest.mark.parametrize(
    ("env", "job_id", "seen"),
    [
        (JOB, "9", "; put back into the queue, time 1 of 3"),
        (ELEMENT | {"SLURM_RESTART_COUNT": "2"}, "7_2", "; put back into the queue, time 3 of 3"),
        (
            JOB | {"SLURM_RESTART_COUNT": "3"},
            None,
            "; not put back into the queue: was put back 3 times already, resources.requeues 3",
        ),
        (JOB | {BY_TASK: "1"}, None, "; put back into the queue, time 1 of 3"),
        (JOB | {"HPCNCF_LAUNCHED_BY": "local"}, None, ""),
        ({}, None, ""),
    ],
)
def test_a_warning_puts_the_job_back_within_its_bound(
    env: dict[str, str], job_id: str | None, seen: str
) -> None:
    assert decide_requeue(signal.SIGUSR2, 3, env) == RequeueDecision(job_id, seen)


def test_without_scontrol_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    seen = "; not put back into the queue: there is no scontrol on this node"
    assert decide_requeue(signal.SIGUSR2, 3, JOB) == RequeueDecision(None, seen)


@pytest.mark.parametrize(
    ("said", "back"),
    [
        ("JobId=9 JobState=RUNNING PreemptEligibleTime=2026 PreemptTime=2026-01-31T12:00:00", True),
        ("JobId=9 JobState=RUNNING PreemptEligibleTime=2026 PreemptTime=None", False),
        ("JobId=9 JobState=CANCELLED PreemptTime=2026-01-31T12:00:00", False),
    ],
)
def test_sigterm_puts_back_only_what_is_preempted(scontrol: Path, said: str, back: bool) -> None:
    scontrol.write_text(f"echo '{said}'\n")
    assert (decide_requeue(signal.SIGTERM, 3, JOB).job_id is not None) == back
    calls = scontrol.with_name("calls").read_text()
    assert calls == "show job --oneliner 9\n"


def test_what_slurm_says_against_it_is_reported(scontrol: Path) -> None:
    assert requeue_job("7_2") is None
    scontrol.write_text("echo 'Job is not requeueable' >&2; exit 1\n")
    refused = requeue_job("7_2")
    assert refused is not None
    assert "Job is not requeueable" in refused


@pytest.mark.parametrize(
    ("env", "signals"),
    [
        (JOB, {signal.SIGUSR2, signal.SIGTERM}),
        (JOB | {"HPCNCF_LAUNCHED_BY": "local"}, {signal.SIGUSR2}),
        ({}, {signal.SIGUSR2}),
    ],
)
def test_sigterm_waits_for_the_next_step_under_slurm_only(
    env: dict[str, str], signals: set[int]
) -> None:
    assert graceful(env) == signals


def test_which_start_of_its_job_this_is() -> None:
    assert restart({}) is None
    assert restart(JOB) == 0
    assert restart(JOB | {"SLURM_RESTART_COUNT": "2"}) == 2
