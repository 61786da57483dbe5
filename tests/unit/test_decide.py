"""The state of a run, decided from plain values, and the exception that ended a command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import make_results
import pytest
from make_results import claim, plan_of, rank_record

from hpcncf.cli.failures import failures_page, grouped
from hpcncf.job.expand import expand_job
from hpcncf.job.spec import Data, JobSpec, Resources
from hpcncf.launch.retry import ran_out_of
from hpcncf.paths import ResultPaths
from hpcncf.records.code_version import CHANGED, ELSEWHERE
from hpcncf.records.schema import End, write_record
from hpcncf.records.submissions import Submission, SubmittedJob
from hpcncf.slurm.states import state_of
from hpcncf.state.decide import (
    Attempt,
    Sent,
    Turn,
    decide,
    explain_failure,
    find_stale_reason,
    last_exception,
)
from hpcncf.state.status import states

JOB = JobSpec(name="a", data=Data(path="/d"), resources=Resources(tasks_per_node=2))
RUN = expand_job(JOB, {"/d": "key"}).runs[0]


def attempt(ranks: int = 0, alive: bool = False, end: End | None = None, **changes: Any) -> Attempt:
    """An attempt whose first `ranks` ranks left a record, all alike."""
    left = [rank_record(RUN, rank).model_copy(update=changes) for rank in range(ranks)]
    return Attempt(1, claim(RUN), left, None, end, alive)


def ended(reason: Any = "exited", codes: tuple[int, ...] = (0, 0), **more: Any) -> Attempt:
    moment = "2026-01-31T12:00:00+00:00"
    end = End(run_id=RUN.id, attempt=1, reason=reason, exit_codes=list(codes), ended_at=moment)
    return attempt(end=end, alive=True, **more)


def sent(cluster: Any = "local", job: bool = True, **changes: Any) -> Sent:
    of_submission = {key: changes.pop(key) for key in {"again", "error", "over"} & set(changes)}
    one = SubmittedJob(id="12_3", runs=[RUN.id])
    submission = Submission(
        cluster=cluster,
        user="ann",
        host="login1",
        submitted_at="2026-01-05T12:00:00+00:00",
        submitter_pid=1,
        submitter_started=0.0,
        runs=[RUN.id],
        jobs=[one] if job else [],
        **of_submission,
    )
    plain: dict[str, Any] = {"started": False, "alive": True}
    return Sent(submission, one if job else None, **plain | changes)


def slurm(
    word: str,
    started: bool = True,
    detail: str = "",
    by: dict[str, Any] | None = None,
    **changes: Any,
) -> Sent:
    """A submission to Slurm, which reports its job with this word and these changes."""
    state = replace(state_of(word, "12_3", detail), **changes)
    return sent("slurm", started=started, slurm=state, **by or {})


FAILED: dict[str, Any] = {
    "outcome": "failed",
    "error": {"type": "ValueError", "message": "bad row\nmore"},
}
LATER, EARLIER = {"turn": Turn(passed=True)}, {"turn": Turn(before=2)}
STOPPED: dict[str, Any] = {"outcome": "stopped", "exit_code": 143, "error": None}
WARNED: dict[str, Any] = {
    "outcome": "stopped",
    "error": {"type": "Stopped", "message": "warned"},
}


@pytest.mark.parametrize(
    ("last", "by", "state", "reason"),
    [
        (None, None, "planned", "not submitted"),
        (None, sent(turn=Turn("2 before it")), "pending", "2 before it"),
        (None, sent(alive=False), "lost", "local queue (process 12_3) has exited"),
        (None, sent(alive=None), "unknown", "on login1"),
        (None, sent(job=False), "pending", "being submitted"),
        (None, sent(job=False, alive=False), "lost", "was interrupted"),
        (None, sent(job=False, error="no space"), "failed", "not submitted: no space"),
        (None, sent(error="no space"), "pending", ""),  # of what Slurm took before it broke
        (None, sent(cancelled_by="bob"), "cancelled", "by bob, before it started"),
        (attempt(2), None, "completed", ""),
        (attempt(2), sent(alive=False), "completed", ""),
        (attempt(2), sent(again=True, turn=Turn("next")), "pending", "next"),
        (attempt(2), sent(again=True, alive=False), "completed", ""),
        (attempt(1, alive=True), None, "running", ""),
        (attempt(0, alive=True), sent(alive=False), "running", ""),
        (attempt(1), None, "lost", "without writing a record for rank 1"),
        (attempt(0), None, "lost", "without writing a record for ranks 0, 1"),
        (attempt(2, **FAILED), None, "failed", "rank 0: ValueError: bad row"),
        (attempt(2, outcome="stopped"), None, "stopped", "asked to stop, before it was done"),
        (attempt(2, outcome="stopped"), sent(started=True, cancelled_by="bob"),
         "cancelled", "by bob, while it ran"),
        (ended("timeout", (-15, -9)), None, "timeout", "limit of 30 min"),
        (ended("cancelled", (143, 143)), None, "cancelled", "while it ran"),
        (ended("cancelled", (143, 143)), sent(started=True), "stopped",
         "queue was ended"),
        (ended(codes=(-15, -9)), None, "failed", "rank 1 was killed by signal 9 (SIGKILL)"),
        (ended(codes=(1, -11), ranks=1, **FAILED), None, "failed", "signal 11 (SIGSEGV)"),
        (ended(codes=(1, -15), ranks=1, **FAILED), None, "failed", "ValueError: bad row"),
        (ended(codes=(0, 3)), None, "failed", "rank 1 exited with code 3"),
        (ended(codes=(0, 0), ranks=1), None, "lost", "no record of rank 1"),
        (ended(ranks=2), None, "completed", ""),
        # Under Slurm its word counts if records are missing.
        (None, sent("slurm"), "unknown", "unknown to squeue and sacct"),
        (None, slurm("PENDING", False, "Priority"), "pending", "Priority"),
        (None, slurm("RUNNING", False), "running", ""),
        (None, slurm("COMPLETED", False), "failed", "left no record"),
        (attempt(1), slurm("TIMEOUT"), "timeout", "TIMEOUT"),
        (attempt(1), slurm("OUT_OF_MEMORY"), "out_of_memory", "OUT_OF_MEMORY"),
        (attempt(1), slurm("NODE_FAIL"), "node_failed", "NODE_FAIL"),
        (attempt(1), slurm("CANCELLED by 0"), "cancelled", "CANCELLED"),
        (attempt(1), slurm("RUNNING"), "running", "no heartbeat"),
        (attempt(1), slurm("FAILED"), "failed", "FAILED"),
        (attempt(1), slurm("COMPLETED"), "failed", "exit code 0, but no record of rank 1"),
        (attempt(2), slurm("FAILED"), "completed", ""),
        # srun ends the other ranks by SIGTERM: the rank without a record was killed.
        (attempt(1, **STOPPED), slurm("FAILED"), "failed", "; no record of rank 1"),
        # Slurm knows of an end before the heartbeat is old.
        (attempt(1, alive=True), slurm("RUNNING"), "running", ""),
        (attempt(1, alive=True), slurm("COMPLETED"), "running", "may be on its way"),
        (attempt(1, alive=True), slurm("WORD_OF_A_LATER_SLURM"), "running", ""),
        (attempt(1, alive=True), slurm("PENDING"), "pending", "requeued"),
        (attempt(1, alive=True), slurm("FAILED"), "failed", "FAILED"),
        (attempt(1, alive=True), slurm("OUT_OF_MEMORY"), "out_of_memory", "OUT_OF_MEMORY"),
        (attempt(1, alive=True), slurm("CANCELLED by 0"), "cancelled", "CANCELLED"),
        # An attempt that was over when its run was submitted again is not at work.
        (attempt(0, alive=True), slurm("PENDING", False, "a", {"over": {RUN.id: 1}}),
         "pending", "a"),
        (attempt(0, alive=True), slurm("PENDING", False, "a", {"over": {RUN.id: 0}}),
         "running", ""),
        # A record has a minute to arrive from a job that ended well, however old the heartbeat.
        (None, slurm("COMPLETED", False, ended_ago_s=5.0), "running", "on its way"),
        (None, slurm("COMPLETED", False, ended_ago_s=90.0), "failed", "left no record"),
        (attempt(1, alive=True), slurm("COMPLETED", ended_ago_s=5.0), "running", "on its way"),
        (attempt(1, alive=True), slurm("COMPLETED", ended_ago_s=90.0), "failed", "no record"),
        # A run that stopped runs until Slurm has requeued or ended it.
        (attempt(2, **WARNED), slurm("RUNNING"), "running", "ending: warned"),
        (attempt(2, **WARNED), slurm("RUNNING", restarts=2), "running",
         "starting again: requeued 2 times: warned"),
        (attempt(2, **WARNED), slurm("TIMEOUT"), "timeout", "TIMEOUT"),
        # An old answer of Slurm does not make a run pending that has begun.
        (attempt(0, alive=True), slurm("PENDING", remembered=True), "running", ""),
        # Its task went on to a later run, or ended before this one.
        (attempt(1), slurm("RUNNING", by=LATER), "lost", "went on to the next run"),
        (attempt(1), slurm("OUT_OF_MEMORY", by=LATER), "out_of_memory", "OUT_OF"),
        (None, slurm("RUNNING", False, by=EARLIER), "pending", "behind 2 in its task"),
        (None, slurm("TIMEOUT", False, by=EARLIER), "lost", "ended before its turn"),
    ],
)  # fmt: skip
def test_the_state_of_a_run(last: Attempt | None, by: Sent | None, state: str, reason: str) -> None:
    found, why = decide(RUN, last, by)
    assert found == state
    assert reason in why
    assert bool(reason) == bool(why)


def test_a_job_started_by_hand_is_judged_by_slurms_word_too() -> None:
    gone = state_of("OUT_OF_MEMORY", "77")
    assert decide(RUN, attempt(0, alive=True), None, gone)[0] == "out_of_memory"


def test_runs_that_slurm_was_being_given_are_not_lost() -> None:
    given = sent("slurm", job=False, alive=False)
    assert decide(RUN, None, given)[0] == "lost"
    submission = given.submission.model_copy(update={"sending": [[RUN.id]]})
    state, why = decide(RUN, None, replace(given, submission=submission))
    assert (state, "interrupted while being sent" in why) == ("unknown", True)


@pytest.mark.parametrize(
    ("word", "every", "remedy"),
    [
        ("TIMEOUT", 1, "; retry -s resources.timeout_min=N resumes at its last checkpoint"),
        ("TIMEOUT", 0, "; retry -s resources.timeout_min=N begins anew"),
        ("OUT_OF_MEMORY", 1, "; retry -s resources.mem_gb=N resumes at its last checkpoint"),
        ("NODE_FAIL", 1, "NODE_FAIL"),
    ],
)
def test_where_more_time_or_memory_helps_the_reason_says_how(
    word: str, every: int, remedy: str
) -> None:
    training = RUN.training.model_copy(update={"checkpoint_every": every})
    run = RUN.model_copy(update={"training": training})
    assert decide(run, attempt(1), slurm(word))[1].endswith(remedy)


def test_what_other_code_or_other_data_made_is_stale() -> None:
    whole = attempt(2).ranks
    assert find_stale_reason(RUN, whole, "abc1234") is None
    assert find_stale_reason(RUN, whole, None) is None
    assert find_stale_reason(RUN, whole, "fffffff0") == "made by other code (abc1234, now fffffff)"
    elsewhere = f"{ELSEWHERE}/there, and were submitted by hpcncf (/here)"
    by_others = whole[0].model_copy(update={"warnings": [elsewhere]})
    seen = find_stale_reason(RUN, [by_others], "abc1234")
    assert seen == f"ran other code than was submitted: {elsewhere}"
    warned = [whole[0].model_copy(update={"warnings": [f"{CHANGED}hpcncf (/here) is not"]})]
    seen = "ran other code than was submitted: hpcncf (/here) is not"
    assert find_stale_reason(RUN, warned, None) == seen
    other = RUN.model_copy(update={"data_key": "other"})
    assert "other data (key, now other)" in (find_stale_reason(other, whole, None) or "")


TRACEBACK = (
    'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\n    load()\n'
)


@pytest.mark.parametrize(
    ("log", "exception"),
    [
        (f"step 1\n{TRACEBACK}ValueError: no column b\n", "ValueError: no column b"),
        (f"{TRACEBACK}my.package.LoadError: gone\nbye\n", "my.package.LoadError: gone"),
        (f"{TRACEBACK}MemoryError\n", "MemoryError"),
        (
            f"{TRACEBACK}OSError: no\n{TRACEBACK}torch.distributed.errors.ChildFailedError: x\n",
            "OSError: no",
        ),
        ("Segmentation fault\n", ""),
        ("", ""),
    ],
)
def test_the_exception_is_the_last_one_of_the_log(tmp_path: Path, log: str, exception: str) -> None:
    (tmp_path / "log").write_text(log)
    assert last_exception([tmp_path / "log", tmp_path / "missing"]) == exception


@pytest.mark.parametrize(
    ("exception", "state"),
    [
        ("MemoryError", "out_of_memory"),
        ("numpy.core._exceptions._ArrayMemoryError: Unable to allocate 8 GiB", "out_of_memory"),
        ("RuntimeError: DefaultCPUAllocator: can't allocate memory: 8 bytes", "out_of_memory"),
        ("OSError: [Errno 12] Cannot allocate memory", "out_of_memory"),
        ("torch.OutOfMemoryError: CUDA out of memory", "failed"),
        ("ValueError: no", "failed"),
        ("", "failed"),
    ],
)
def test_lack_of_host_memory_is_a_state_of_its_own(exception: str, state: str) -> None:
    found, reason = explain_failure(("failed", "rank 0: exit code: 1"), exception)
    assert found == state
    assert reason == "rank 0: exit code: 1" + (f": {exception}" if exception else "")
    assert explain_failure(("lost", "gone"), exception) == ("lost", "gone")


def failed_commands(folder: Path, *logs: str) -> ResultPaths:
    """A command for each log, all of which ended with exit code 1."""
    paths = make_results.command_plan(folder)
    plan = plan_of(paths)
    runs = [plan.runs[0].model_copy(update={"id": f"{at:012}"}) for at in range(len(logs))]
    paths.plan.write_text(plan.model_copy(update={"runs": runs}).model_dump_json())
    error = {"type": "exit code", "message": "1", "traceback": ""}
    for run, log in zip(runs, logs, strict=True):
        attempt = paths.run(run.id).attempt(1)
        record = make_results.rank_record(run, 0)
        record = record.model_copy(update={"outcome": "failed", "exit_code": 1, "error": error})
        write_record(attempt.claim, make_results.claim(run))
        write_record(attempt.rank(0), record)
        attempt.log(0).write_text(log)
    return paths


def test_failures_are_grouped_by_their_exception_and_not_by_their_exit_code(
    tmp_path: Path,
) -> None:
    value, key = f"{TRACEBACK}ValueError: no\n", f"{TRACEBACK}KeyError: 'a'\n"
    paths = failed_commands(tmp_path, value, value, key, f"{TRACEBACK}MemoryError\n")
    found = states(paths, plan_of(paths))
    groups = [(len(each.runs), each.first.state, each.first.reason) for each in grouped(found)]
    assert groups == [
        (2, "failed", "rank 0: exit code: 1: ValueError: no"),
        (1, "failed", "rank 0: exit code: 1: KeyError: 'a'"),
        (1, "out_of_memory", "rank 0: exit code: 1: MemoryError"),
    ]
    assert [ran_out_of(state) for state in found] == [None, None, None, "mem_gb"]
    short, full = failures_page(paths, found), failures_page(paths, found, full=True)
    assert "Traceback" not in short
    assert 'File "train.py", line 7' in short
    assert "Traceback" in full
