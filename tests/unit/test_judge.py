"""Where a run stands, decided from plain values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from make_results import claim, rank_record

from hpcncf.job.plan import Run, expand_job
from hpcncf.job.spec import Data, JobSpec, Resources
from hpcncf.records.code_version import CHANGED, ELSEWHERE
from hpcncf.records.schema import End
from hpcncf.records.submissions import Submission, SubmittedJob
from hpcncf.slurm.states import state_of
from hpcncf.state.decide import Attempt, Sent, decide, stale


def run_of(ranks: int = 2) -> Run:
    job = JobSpec(name="a", data=Data(path="/d"), resources=Resources(tasks_per_node=ranks))
    return expand_job(job, {"/d": "key"}).runs[0]


def attempt(run: Run, ranks: int = 0, alive: bool = False, **changes: Any) -> Attempt:
    """An attempt whose first `ranks` ranks left a record, all alike."""
    left = [rank_record(run, rank).model_copy(update=changes) for rank in range(ranks)]
    return Attempt(1, claim(run), left, None, None, alive)


def ended(
    run: Run, reason: Any = "exited", codes: tuple[int, ...] = (0, 0), **more: Any
) -> Attempt:
    moment = "2026-01-31T12:00:00+00:00"
    end = End(run_id=run.id, attempt=1, reason=reason, exit_codes=list(codes), ended_at=moment)
    whole = attempt(run, **more)
    return Attempt(1, whole.claim, whole.ranks, None, end, alive=True)


def sent(run: Run, cluster: Any = "local", job: bool = True, **changes: Any) -> Sent:
    again, error = changes.pop("again", False), changes.pop("error", None)
    over = changes.pop("over", {})
    one = SubmittedJob(id="12_3", runs=[run.id])
    submission = Submission(
        cluster=cluster,
        user="ann",
        host="login1",
        submitted_at="2026-01-05T12:00:00+00:00",
        submitter_pid=1,
        submitter_started=0.0,
        again=again,
        runs=[run.id],
        over=over,
        jobs=[one] if job else [],
        error=error,
    )
    plain: dict[str, Any] = {"started": False, "alive": True}
    return Sent(submission, one if job else None, **plain | changes)


RUN = run_of()
FAILED: dict[str, Any] = {
    "outcome": "failed",
    "error": {"type": "ValueError", "message": "bad row\nmore"},
}


@pytest.mark.parametrize(
    ("last", "by", "state", "reason"),
    [
        (None, None, "planned", "not submitted"),
        (None, sent(RUN, ahead="2 before it"), "pending", "2 before it"),
        (None, sent(RUN, alive=False), "lost", "local queue (process 12_3) has exited"),
        (None, sent(RUN, alive=None), "unknown", "on login1"),
        (None, sent(RUN, job=False), "pending", "being submitted"),
        (None, sent(RUN, job=False, alive=False), "lost", "was interrupted"),
        (None, sent(RUN, job=False, error="no space"), "failed", "not submitted: no space"),
        (None, sent(RUN, error="no space"), "pending", ""),  # of what Slurm took before it broke
        (None, sent(RUN, cancelled_by="bob"), "cancelled", "by bob, before it started"),
        (attempt(RUN, 2), None, "completed", ""),
        (attempt(RUN, 2), sent(RUN, alive=False), "completed", ""),
        (attempt(RUN, 2), sent(RUN, again=True, ahead="next"), "pending", "next"),
        (attempt(RUN, 2), sent(RUN, again=True, alive=False), "completed", ""),
        (attempt(RUN, 1, alive=True), None, "running", ""),
        (attempt(RUN, 0, alive=True), sent(RUN, alive=False), "running", ""),
        (attempt(RUN, 1), None, "lost", "without writing a record for rank 1"),
        (attempt(RUN, 0), None, "lost", "without writing a record for ranks 0, 1"),
        (attempt(RUN, 2, **FAILED), None, "failed", "rank 0: ValueError: bad row"),
        (attempt(RUN, 2, outcome="stopped"), None, "stopped", "asked to stop, before it was done"),
        (attempt(RUN, 2, outcome="stopped"), sent(RUN, started=True, cancelled_by="bob"),
         "cancelled", "by bob, while it ran"),
        (ended(RUN, "timeout", (-15, -9)), None, "timeout", "limit of 30 min"),
        (ended(RUN, "cancelled", (143, 143)), None, "cancelled", "while it ran"),
        (ended(RUN, "cancelled", (143, 143)), sent(RUN, started=True), "stopped",
         "queue was ended"),
        (ended(RUN, codes=(-15, -9)), None, "failed", "rank 1 was killed by signal 9 (SIGKILL)"),
        (ended(RUN, codes=(1, -11), ranks=1, **FAILED), None, "failed", "signal 11 (SIGSEGV)"),
        (ended(RUN, codes=(1, -15), ranks=1, **FAILED), None, "failed", "ValueError: bad row"),
        (ended(RUN, codes=(0, 3)), None, "failed", "rank 1 exited with code 3"),
        (ended(RUN, codes=(0, 0), ranks=1), None, "lost", "no record of rank 1"),
        (ended(RUN, ranks=2), None, "completed", ""),
    ],
)  # fmt: skip
def test_a_run_stands_where(last: Attempt | None, by: Sent | None, state: str, reason: str) -> None:
    found, why = decide(RUN, last, by)
    assert found == state
    assert reason in why
    assert bool(reason) == bool(why)


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
    by = sent(RUN, "slurm", started=True, slurm=state_of(word, "12_3"))
    assert decide(run, attempt(RUN, 1), by)[1].endswith(remedy)


def test_the_rank_that_was_killed_is_the_one_that_left_no_record() -> None:
    """srun ends the others by SIGTERM, so that they say of nothing else."""
    by = sent(RUN, "slurm", started=True, slurm=state_of("FAILED", "12_3"))
    seen = {"outcome": "stopped", "exit_code": 143, "error": None}
    state, why = decide(RUN, attempt(RUN, 1, **seen), by)
    assert (state, why.endswith("; no record of rank 1")) == ("failed", True)


@pytest.mark.parametrize(
    ("word", "started", "state", "reason"),
    [
        ("PENDING", False, "pending", "Priority"),
        ("RUNNING", False, "running", ""),
        ("COMPLETED", False, "failed", "left no record"),
        ("TIMEOUT", True, "timeout", "TIMEOUT"),
        ("OUT_OF_MEMORY", True, "out_of_memory", "OUT_OF_MEMORY"),
        ("NODE_FAIL", True, "node_failed", "NODE_FAIL"),
        ("CANCELLED by 0", True, "cancelled", "CANCELLED"),
        ("RUNNING", True, "running", ""),
        ("FAILED", True, "failed", "FAILED"),
        ("COMPLETED", True, "failed", "with exit code 0, but no record of rank 1"),
    ],
)
def test_under_slurm_its_word_counts_where_records_are_missing(
    word: str, started: bool, state: str, reason: str
) -> None:
    detail = "Priority" if word == "PENDING" else ""
    by = sent(RUN, "slurm", started=started, slurm=state_of(word, "12_3", detail))
    found, why = decide(RUN, attempt(RUN, 1) if started else None, by)
    assert found == state
    assert reason in why


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("RUNNING", "running"),
        ("COMPLETED", "running"),
        ("WORD_OF_A_LATER_SLURM", "running"),
        ("PENDING", "pending"),
        ("FAILED", "failed"),
        ("OUT_OF_MEMORY", "out_of_memory"),
        ("CANCELLED by 0", "cancelled"),
    ],
)
def test_slurm_knows_of_an_end_before_the_signs_of_life_grow_old(word: str, state: str) -> None:
    by = sent(RUN, "slurm", started=True, slurm=state_of(word, "12_3"))
    assert decide(RUN, attempt(RUN, 1, alive=True), by)[0] == state


def test_what_was_over_when_it_was_submitted_again_is_not_at_work() -> None:
    pending = state_of("PENDING", "12_3")
    for left in (attempt(RUN, 0, alive=True), attempt(RUN, 2, alive=True, **FAILED)):
        known = sent(RUN, "slurm", slurm=pending, over={RUN.id: 1})
        assert decide(RUN, left, known)[0] == "pending"
    other = sent(RUN, "slurm", slurm=pending, over={RUN.id: 0})
    assert decide(RUN, attempt(RUN, 0, alive=True), other)[0] == "running"


def test_a_job_that_slurm_does_not_know_is_said_to_be_unknown() -> None:
    assert decide(RUN, None, sent(RUN, "slurm"))[0] == "unknown"


def test_records_that_are_whole_stand_above_slurms_word() -> None:
    by = sent(RUN, "slurm", started=True, slurm=state_of("FAILED", "12_3"))
    assert decide(RUN, attempt(RUN, 2), by) == ("completed", "")


def test_what_other_code_or_other_data_made_is_stale() -> None:
    whole = attempt(RUN, 2).ranks
    assert stale(RUN, whole, "abc1234") is None
    assert stale(RUN, whole, None) is None
    assert stale(RUN, whole, "fffffff0") == "made by other code (abc1234, now fffffff)"
    elsewhere = f"{ELSEWHERE}/there, and were submitted by hpcncf (/here)"
    by_others = whole[0].model_copy(update={"warnings": [elsewhere]})
    seen = stale(RUN, [by_others], "abc1234")
    assert seen == f"ran other code than was submitted: {elsewhere}"
    warned = [whole[0].model_copy(update={"warnings": [f"{CHANGED}hpcncf (/here) is not"]})]
    seen = "ran other code than was submitted: hpcncf (/here) is not"
    assert stale(RUN, warned, None) == seen
    other = RUN.model_copy(update={"data_key": "other"})
    assert "other data (key, now other)" in (stale(other, whole, None) or "")


@pytest.mark.parametrize(
    ("started", "ended_ago_s", "state"),
    [
        (False, 5.0, "running"),
        (False, 90.0, "failed"),
        (False, None, "failed"),
        (True, 5.0, "running"),
        (True, 90.0, "failed"),
    ],
)
def test_a_record_has_a_minute_to_arrive_from_a_job_that_ended_well(
    started: bool, ended_ago_s: float | None, state: str
) -> None:
    """However lately its signs of life were written."""
    over = replace(state_of("COMPLETED", "12_3"), ended_ago_s=ended_ago_s)
    by = sent(RUN, "slurm", started=started, slurm=over)
    assert decide(RUN, attempt(RUN, 1, alive=started) if started else None, by)[0] == state


def test_a_run_that_stopped_still_runs_until_slurm_has_put_it_back_or_ended_it() -> None:
    left = attempt(RUN, 2, outcome="stopped", error={"type": "Stopped", "message": "warned"})
    running = sent(RUN, "slurm", started=True, slurm=state_of("RUNNING", "12_3"))
    assert decide(RUN, left, running) == ("running", "ending: warned")
    ended_by = sent(RUN, "slurm", started=True, slurm=state_of("TIMEOUT", "12_3"))
    assert decide(RUN, left, ended_by)[0] == "timeout"


def test_an_old_answer_does_not_call_a_run_pending_that_has_begun() -> None:
    old = replace(state_of("PENDING", "12_3"), remembered=True)
    by = sent(RUN, "slurm", started=True, slurm=old)
    assert decide(RUN, attempt(RUN, 0, alive=True), by)[0] == "running"


def test_a_job_started_by_hand_is_judged_by_slurms_word_too() -> None:
    gone = state_of("OUT_OF_MEMORY", "77")
    assert decide(RUN, attempt(RUN, 0, alive=True), None, gone)[0] == "out_of_memory"


def test_what_slurm_was_being_given_is_not_reported_as_lost() -> None:
    given = sent(RUN, "slurm", job=False, alive=False)
    assert decide(RUN, None, given)[0] == "lost"
    submission = given.submission.model_copy(update={"sending": [[RUN.id]]})
    state, why = decide(RUN, None, replace(given, submission=submission))
    assert (state, "interrupted while being sent" in why) == ("unknown", True)
