"""What `status` prints of many runs: arrays, failures once each, cores that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import make_results
import pytest
from conftest import FakeSlurm
from make_results import plan_of

from hpcncf import cli
from hpcncf.cli.progress import run_figures, sentence
from hpcncf.cli.wait import wait
from hpcncf.launch import cancel
from hpcncf.paths import ResultPaths
from hpcncf.records import schema, submissions
from hpcncf.records.schema import Claim, Progress
from hpcncf.records.submissions import Submission, SubmittedJob
from hpcncf.slurm.states import JobState
from hpcncf.state import status
from hpcncf.state.status import RunState

FAILED: dict[str, Any] = {
    "outcome": "failed",
    "error": {"type": "ValueError", "message": "bad row", "traceback": "in load\nValueError: bad"},
}


@pytest.fixture
def paths(tmp_path: Path) -> ResultPaths:
    """Six runs, of which four have one rank."""
    return make_results.demo(tmp_path, repeats=1)


def sent(paths: ResultPaths, per_task: int = 1) -> list[str]:
    """As after a submission of all runs to Slurm, `per_task` in each element of array 8."""
    runs = [run.id for run in plan_of(paths).runs]
    file = submissions.begin(paths, "slurm", runs, again=False)
    jobs = [
        SubmittedJob(id=f"8_{number}", runs=runs[first : first + per_task])
        for number, first in enumerate(range(0, len(runs), per_task))
    ]
    known = schema.read_record(file, Submission)
    schema.write_record(file, known.model_copy(update={"jobs": jobs, "report_job": "9"}))
    return runs


def ended(paths: ResultPaths, fake_slurm: FakeSlurm, status: int, printed: str) -> None:
    """Job 8_0 failed with this status, as `wait` has it, and had printed that on stderr."""
    log = paths.submitit("ann") / "8_0_0_log.err"
    log.parent.mkdir()
    log.write_text(printed)
    fake_slurm.answer("squeue", f"8_0|FAILED|NonZeroExitCode||||node1|{status}|0|\n")


def leave(paths: ResultPaths, number: int, job: str, **changes: Any) -> None:
    """The run with this number has been worked at by that job."""
    run = plan_of(paths).runs[number]
    make_results.leave(paths, run, slurm_job_id=job, **changes)
    taken = make_results.claim(run).model_copy(
        update={"slurm_job_id": job, "launched_by": "slurm", "node": "elsewhere"}
    )
    schema.write_record(paths.run(run.id).attempt(1).claim, taken)


def begin(paths: ResultPaths, number: int, job: str) -> None:
    leave(paths, number, job)
    for rank in paths.run(plan_of(paths).runs[number].id).attempt(1).rank_records():
        rank.unlink()


def printed(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert cli.main([str(word) for word in arguments]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_an_array_is_summed_up_in_a_line(
    paths: ResultPaths, fake_slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    sent(paths)
    leave(paths, 0, "8_0")
    rows = [f"8_{n}|PENDING|Priority|2026-01-05T14:05:00||||0|0|" for n in range(2, 6)]
    fake_slurm.answer("squeue", "\n".join(["8_1|RUNNING|None|||0:03|node[1-2]|0|0|", *rows]))
    seen = printed(capsys, "status", paths.folder)
    assert (
        "array 8: 1 of 6 done, 1 running, 4 pending: waiting for higher-priority jobs (Priority)"
        in seen
    )
    assert "the next expected on Jan 5 at 14:05" in seen
    assert "node[1-2], 3 s" in seen


def test_equal_failures_are_reported_once_with_the_end_of_their_traceback(
    paths: ResultPaths, fake_slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = sent(paths)
    for number in range(4):
        leave(paths, number, f"8_{number}", **FAILED)
    fake_slurm.answer("squeue", "8_4|TIMEOUT|TimeLimit\n8_5|RUNNING|None\n")
    seen = printed(capsys, "status", "--failures", paths.folder)
    assert "4 runs failed: rank 0: ValueError: bad row in load ValueError: bad runs" in seen
    assert "1 run timeout: Slurm job 8_4: TIMEOUT" in seen
    assert f"min; again with twice that: hpcncf retry {paths.folder} --escalate" in seen
    assert seen.startswith(f"demo ({paths.folder})")
    assert runs[4][:8] in seen


def test_an_error_that_a_user_can_mend_is_reported_whole_and_without_a_traceback(
    paths: ResultPaths, fake_slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    sent(paths)
    message = "train_rows.npy: not a whole array: prepare it again\ndata info says more"
    error = {"type": "DataError", "message": message, "traceback": ""}
    leave(paths, 0, "8_0", outcome="failed", error=error)
    ended(paths, fake_slurm, 256, "hpcncf: train_rows.npy: not a whole array\nsrun: error\n")
    seen = printed(capsys, "status", "--failures", paths.folder)
    first, second = message.splitlines()
    assert f"1 run failed: rank 0: DataError: {first} {second} runs " in seen
    assert "srun: error" not in seen
    assert "8_0_0_log.err" in seen
    (job,) = json.loads(printed(capsys, "status", "--json", paths.folder))["jobs"]
    (failed,) = (each for each in job["failures"] if each["state"] == "failed")
    assert (failed["traceback"], failed["message"]) == ([], message)


def test_where_a_command_failed_its_logs_end_says(
    paths: ResultPaths, fake_slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    sent(paths)
    error = {"type": "exit code", "message": "5", "traceback": ""}
    leave(paths, 0, "8_0", outcome="failed", error=error)
    ended(paths, fake_slurm, 1280, "KeyError: 'user'\n")
    seen = printed(capsys, "status", "--failures", paths.folder)
    assert "1 run failed: rank 0: exit code: 5 KeyError: 'user' runs " in seen


def test_where_no_record_says_the_logs_end_does(
    paths: ResultPaths, fake_slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    sent(paths)
    ended(paths, fake_slurm, 32512, "module: command not found\n\n")
    seen = printed(capsys, "status", "--failures", paths.folder)
    assert "failed: Slurm job 8_0: FAILED (exit code 127) module: command not found" in seen
    assert "8_0_0_log.err" in seen


@pytest.mark.parametrize(
    ("said", "state"), [("Killed", "failed"), ("Out Of Memory", "out_of_memory")]
)
def test_srun_names_the_rank_that_ended_and_left_no_record(
    paths: ResultPaths, fake_slurm: FakeSlurm, said: str, state: str
) -> None:
    """As Slurm 22.05 writes it; sacct, which knows of memory, is not asked or has no answer."""
    sent(paths)
    log = paths.submitit(submissions.user()) / "8_0_0_log.err"
    log.parent.mkdir()
    log.write_text(
        f"srun: error: node1: task 1: {said}\n"
        "srun: launch/slurm: _step_signal: Terminating StepId=8.0\n"
        "srun: error: node2: task 0: Exited with exit code 143\n"
        "srun: Force Terminated StepId=8.0\n"
    )
    fake_slurm.answer("squeue", "8_0|FAILED|NonZeroExitCode||||node1|2304|0|\n")
    first = status.states(paths, plan_of(paths))[0]
    assert first.state == state
    assert f"Slurm job 8_0: FAILED (exit code 9); srun: task 1 on node1: {said}" in first.reason
    fake_slurm.answer("squeue", "8_0|FAILED|NonZeroExitCode||||node1|2304|1|\n")
    again = status.states(paths, plan_of(paths))[0]
    assert (again.state, "srun" in again.reason) == ("failed", False), "it may be an earlier start"


def test_a_command_that_was_killed_is_ending_until_slurm_says_why(
    paths: ResultPaths, fake_slurm: FakeSlurm
) -> None:
    sent(paths)
    leave(paths, 0, "8_0", outcome="failed", exit_code=-9)
    fake_slurm.answer("squeue", "8_0|RUNNING|None||||node1|0|0|\n")
    assert status.states(paths, plan_of(paths))[0].state == "running"
    before = {"8_0": JobState("pending", "PENDING", "", remembered=True)}
    asked_then = status.states(paths, plan_of(paths), lambda _, __: before)[0]
    assert asked_then.state == "running"
    fake_slurm.answer("squeue", "8_0|FAILED|NonZeroExitCode||||node1|35072|0|\n")
    assert status.states(paths, plan_of(paths))[0].state == "failed"


def test_of_a_task_with_other_runs_a_killed_command_has_failed_at_once(
    paths: ResultPaths, fake_slurm: FakeSlurm
) -> None:
    sent(paths, per_task=2)
    leave(paths, 0, "8_0", outcome="failed", exit_code=-9)
    fake_slurm.answer("squeue", "8_0|RUNNING|None||||node1|0|0|\n")
    assert status.states(paths, plan_of(paths))[0].state == "failed"


def test_cores_that_cannot_be_used_are_reported_loudly(
    paths: ResultPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    run = plan_of(paths).runs[0]
    cores = make_results.rank_record(run, 0).cores
    fewer = cores.model_copy(update={"allocated": 5.0, "usable": 1.0, "cpus": [0]})
    for each in plan_of(paths).runs:
        if each.resources.world_size == 1:
            make_results.leave(paths, each, cores=fewer)
    seen = printed(capsys, "status", paths.folder)
    assert "! only 1 of 5 allocated cores usable in 4 runs" in seen


def test_many_runs_are_reported_by_numbers_unless_all_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = make_results.demo(tmp_path, repeats=10)
    assert len(printed(capsys, "status", paths.folder)) < 200
    seen = printed(capsys, "status", "--all", paths.folder)
    assert all(run.id[:8] in seen for run in plan_of(paths).runs)


def test_json_says_arrays_failures_and_slurms_words(
    paths: ResultPaths, fake_slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    sent(paths)
    leave(paths, 0, "8_0", **FAILED)
    fake_slurm.answer("squeue", "8_1|PENDING|Priority|2026-11-21T14:05:00|||||1|\n")
    (job,) = json.loads(printed(capsys, "status", "--json", paths.folder))["jobs"]
    assert job["arrays"][0]["states"]["failed"] == 1
    assert job["failures"][0]["traceback"] == ["in load", "ValueError: bad"]
    slurm = job["runs"][1]["slurm"]
    assert (slurm["state"], slurm["expected_start"]) == ("PENDING", "2026-11-21T14:05:00")


def found(paths: ResultPaths) -> list[tuple[str, str]]:
    states = status.states(paths, plan_of(paths))
    return [(state.state, state.reason) for state in states]


def test_runs_of_one_task_wait_for_one_another(paths: ResultPaths, fake_slurm: FakeSlurm) -> None:
    sent(paths, per_task=3)
    leave(paths, 0, "8_0")
    begin(paths, 1, "8_0")
    fake_slurm.answer("squeue", "8_0|RUNNING|None|||1:00|node1|0|0|\n8_1|PENDING|Priority\n")
    states = found(paths)
    assert [state for state, _ in states] == ["completed", "running"] + ["pending"] * 4
    assert states[2][1] == "behind 1 in its task (Slurm job 8_0 on node1)"


def test_packs_of_one_task_wait_for_packs(tmp_path: Path, fake_slurm: FakeSlurm) -> None:
    paths = make_results.demo(tmp_path, repeats=1, resources={"runs_per_node": 2})
    sent(paths, per_task=6)
    for number in (0, 1):
        begin(paths, number, "8_0")
    fake_slurm.answer("squeue", "8_0|RUNNING|None|||1:00|node1|0|0|\n")
    seen = [reason.partition(" in")[0] for state, reason in found(paths) if state == "pending"]
    assert seen == ["behind 1", "behind 1", "behind 2", "behind 2"]


def test_a_run_of_a_task_says_its_own_time_and_not_its_jobs(
    paths: ResultPaths, fake_slurm: FakeSlurm
) -> None:
    sent(paths, per_task=3)
    leave(paths, 0, "8_0")
    begin(paths, 1, "8_0")
    taken = paths.run(plan_of(paths).runs[1].id).attempt(1).claim
    now = schema.read_record(taken, Claim).model_copy(update={"claimed_at": schema.utc_now()})
    schema.write_record(taken, now)
    fake_slurm.answer("squeue", "8_0|RUNNING|None|||1:00:00|node1|0|0|\n8_1|RUNNING|None|||5:00\n")
    states = status.states(paths, plan_of(paths))
    assert 0 <= (run_figures(states[1])["elapsed_s"] or -1) < 600


@pytest.mark.parametrize(
    ("most", "epoch", "seen"),
    [
        (None, 0, "epoch 1/3 10 %"),
        (20, 0, "epoch 1/1 50 %"),
        (120, 1, "epoch 2/2 50 %"),
        (900, 1, "epoch 2/3 10 %"),
    ],
)
def test_per_cent_are_of_the_steps_that_will_be_done(
    paths: ResultPaths, most: int | None, epoch: int, seen: str
) -> None:
    run = plan_of(paths).runs[0]
    cut = run.model_copy(update={"training": run.training.model_copy(update={"max_steps": most})})
    assert seen in sentence(RunState(cut, "running", "", 1, [], at_work(epoch), []))


def at_work(epoch: int, **changes: Any) -> Progress:
    now: dict[str, Any] = {
        "run_id": "0123456789ab",
        "attempt": 1,
        "updated_at": schema.utc_now(),
        "elapsed_s": 5.0,
        "phase": "training",
        "epoch": epoch,
        "epochs": 3,
        "step": 10,
        "steps_per_epoch": 100,
        "instances_per_s": None,
        "cpu_efficiency": None,
    }
    return Progress(**now | changes)


def test_how_far_an_evaluation_is_can_be_seen(paths: ResultPaths) -> None:
    now = at_work(1, phase="evaluation", step=100, evaluated=0.346)
    seen = sentence(RunState(plan_of(paths).runs[0], "running", "", 1, [], now, []))
    assert "evaluation, epoch 2/3 35 %" in seen


def test_runs_whose_task_ended_before_their_turn_are_lost(
    paths: ResultPaths, fake_slurm: FakeSlurm
) -> None:
    sent(paths, per_task=3)
    begin(paths, 0, "8_0")
    fake_slurm.answer("squeue", "8_0|TIMEOUT|TimeLimit|||1:00|node1|0|0|\n8_1|PENDING|Priority\n")
    states = found(paths)
    assert [state for state, _ in states[:3]] == ["timeout", "lost", "lost"]
    assert "its task ended before its turn" in states[1][1]


def test_what_failed_in_a_task_that_went_on_is_not_what_ended_the_task(
    paths: ResultPaths, fake_slurm: FakeSlurm
) -> None:
    sent(paths, per_task=3)
    leave(paths, 0, "8_0", **FAILED)
    begin(paths, 1, "8_0")
    begin(paths, 2, "8_0")
    fake_slurm.answer("squeue", "8_0|NODE_FAIL|NodeDown|||1:00|node1|0|0|\n")
    states = found(paths)
    assert [state for state, _ in states[:3]] == ["failed", "lost", "node_failed"]
    assert "its task went on to the next run" in states[1][1]


def test_a_job_started_by_hand_is_asked_for_too(paths: ResultPaths, fake_slurm: FakeSlurm) -> None:
    begin(paths, 0, "77")
    fake_slurm.answer("squeue", "77|OUT_OF_MEMORY|OutOfMemory|||1:00|node1|0|0|\n")
    assert found(paths)[0][0] == "out_of_memory"


def test_a_requeued_run_says_how_often_and_how_far_it_was(
    paths: ResultPaths, fake_slurm: FakeSlurm
) -> None:
    sent(paths)
    begin(paths, 0, "8_0")
    fake_slurm.answer("squeue", "8_0|PENDING|BeginTime|2026-11-21T14:05:00||||0|2|\n")
    assert found(paths)[0] == ("pending", "requeued 2 times")


def test_slurm_that_does_not_answer_leaves_unknown_what_records_do_not_say(
    paths: ResultPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent(paths)
    leave(paths, 0, "8_0")
    silent = tmp_path / "bin"
    silent.mkdir()
    for name in ("squeue", "sacct"):
        words = f"{name}: error: Unable to contact slurm controller (connect failure)"
        (silent / name).write_text(f"#!/bin/sh\necho '{words}' >&2\nexit 1\n")
        (silent / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{silent}:/usr/bin:/bin")
    states = found(paths)
    assert [state for state, _ in states] == ["completed"] + ["unknown"] * 5
    assert "Unable to contact slurm controller" in states[1][1]


def test_waiting_ends_where_nobody_can_say(
    paths: ResultPaths, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = sent(paths)
    monkeypatch.setenv("PATH", "")
    assert wait(paths, runs, patience_s=0.01) == 3
    assert "the state of 6 runs has been unknown" in capsys.readouterr().err


def test_a_task_of_several_runs_is_cancelled_with_its_last(
    paths: ResultPaths, fake_slurm: FakeSlurm
) -> None:
    sent(paths, per_task=3)
    fake_slurm.answer("squeue", "8_0|PENDING|Priority\n8_1|PENDING|Priority\n")
    plan = plan_of(paths)
    cancel.cancel(paths, plan, plan.runs[:2])
    assert not [call for call in fake_slurm.calls if call.startswith("scancel")]
    assert [state for state, _ in found(paths)[:3]] == ["cancelled", "cancelled", "pending"]
    cancel.cancel(paths, plan, plan.runs[2:3])
    assert fake_slurm.calls[-1] == "scancel 8_[0]"
    cancel.cancel(paths, plan, plan.runs[3:])
    assert fake_slurm.calls[-1] == "scancel 8_[1] 9"


def test_watching_a_log_ends_when_nothing_is_under_way(
    paths: ResultPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    make_results.complete(paths)
    seen = printed(capsys, "status", "--watch", "1", paths.folder)
    assert seen.count("6 runs: 6 completed") == 1
