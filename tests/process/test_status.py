"""The state of every run, read from a results folder."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path

import make_results
import psutil
import pytest
from conftest import FakeSlurm
from make_results import plan_of

from hpcncf.files import write_text
from hpcncf.job import packs
from hpcncf.paths import ResultPaths
from hpcncf.records.claims import claim_attempt
from hpcncf.records.schema import End, read_record, utc_now, write_record
from hpcncf.records.submissions import Submission, SubmittedJob, begin, cancel, files
from hpcncf.state import status
from hpcncf.state.status import RunState


def states(paths: ResultPaths) -> list[RunState]:
    return status.states(paths, plan_of(paths))


@pytest.fixture
def paths(tmp_path: Path) -> ResultPaths:
    return make_results.demo(tmp_path, repeats=1)


def finished(paths: ResultPaths) -> None:
    """Every run completed on another machine, some time ago."""
    make_results.complete(paths)
    for run in plan_of(paths).runs:
        attempt = paths.run(run.id).attempt(1)
        for sign in (attempt.claim, *attempt.node_records()):
            os.utime(sign, (0, 0))


def test_a_plan_alone_is_planned(paths: ResultPaths) -> None:
    assert {state.state for state in states(paths)} == {"planned"}


def test_runs_are_complete_by_the_records_of_all_ranks_of_their_last_attempt(
    paths: ResultPaths,
) -> None:
    """A corrupt record and a folder that cannot be read are named, and the rest is shown."""
    finished(paths)
    write_text(paths.submissions / "20260105.json", "[]")
    runs = plan_of(paths).runs
    (parallel, *_) = [run for run in runs if run.resources.world_size == 2]
    closed, again, torn, *others = [run for run in runs if run is not parallel]
    paths.run(parallel.id).attempt(1).rank(1).unlink()
    claim_attempt(paths.run(again.id), "train")
    broken = paths.run(torn.id).attempt(1).rank(0)
    broken.write_text("{torn")
    folder = paths.run(closed.id).folder
    shutil.rmtree(folder)
    folder.write_text("")  # root may look into any folder
    found = {state.run.id: state for state in states(paths)}
    assert found[parallel.id].state == found[torn.id].state == "lost"
    assert {found[run.id].state for run in others} == {"completed"}
    now = found[again.id]
    assert (now.state, now.attempt, now.ranks) == ("running", 2, [])
    now = found[closed.id]
    assert (now.state, now.reason) == ("unknown", "its folder cannot be read")
    problems = [problem for state in found.values() for problem in state.problems]
    assert sum("20260105.json: expected a record of kind 'submission'" in p for p in problems) == 1
    assert f"{folder}: cannot be read: Not a directory" in problems
    assert any(problem.startswith(f"{broken}: not JSON") for problem in problems)


def submitted(paths: ResultPaths, pid: int, started: float) -> None:
    """As after `hpcncf submit --cluster local`, its queue being the process `pid`."""
    runs = [run.id for run in plan_of(paths).runs]
    file = begin(paths, "local", runs, again=False)
    job = SubmittedJob(id=str(pid), runs=runs, process_started=started)
    known = read_record(file, Submission).model_copy(update={"jobs": [job]})
    write_record(file, known)


def test_runs_wait_in_their_order_while_the_queue_lives(paths: ResultPaths) -> None:
    submitted(paths, os.getpid(), psutil.Process().create_time())
    assert [(state.state, state.reason) for state in states(paths)][:3] == [
        ("pending", "next"),
        ("pending", "behind 1"),
        ("pending", "behind 2"),
    ]
    submitted(paths, os.getpid(), psutil.Process().create_time() - 100)
    assert {state.state for state in states(paths)} == {"lost"}, "another process has its number"


def test_runs_side_by_side_wait_for_packs(tmp_path: Path) -> None:
    """Six points of three repeats, two at a time: of their repeats six packs, three of the rest."""
    paths = make_results.demo(tmp_path, resources={"runs_per_node": 2})
    submitted(paths, os.getpid(), psutil.Process().create_time())
    waits = Counter(state.reason for state in states(paths))
    assert waits == {"next": 2, **{f"behind {number}": 2 for number in range(1, 9)}}
    first = packs.pack_runs(plan_of(paths).runs)[0][0]
    claim_attempt(paths.run(first.id), "local")
    waits = Counter(state.reason for state in states(paths) if state.state == "pending")
    assert waits["next"] == 3, "the one beside it begins with it; it is the next pack's turn"
    assert waits["behind 1"] == 2


def test_a_cancelled_run_is_cancelled_until_it_is_submitted_again(paths: ResultPaths) -> None:
    me = psutil.Process()
    submitted(paths, me.pid, me.create_time())
    run = plan_of(paths).runs[1].id
    cancel(paths, [run])
    assert [state.state for state in states(paths)][:3] == ["pending", "cancelled", "pending"]
    submitted(paths, me.pid, me.create_time())
    assert states(paths)[1].state == "pending"


def test_a_submission_that_broke_off_is_lost(paths: ResultPaths) -> None:
    file = begin(paths, "local", [run.id for run in plan_of(paths).runs], False)
    assert {state.reason for state in states(paths)} == {"being submitted"}
    gone = read_record(file, Submission).model_copy(update={"submitter_started": 1.0})
    write_record(file, gone)
    assert {state.state for state in states(paths)} == {"lost"}


@pytest.mark.parametrize(
    "broken", [{"error": "slurmctld is down"}, {"submitter_started": 1.0}, {"over": {"x": 1}}]
)
def test_what_an_earlier_submission_left_in_the_queue_outlives_one_that_broke_off(
    paths: ResultPaths, fake_slurm: FakeSlurm, broken: dict[str, object]
) -> None:
    in_slurm(paths)
    fake_slurm.answer("squeue", "".join(f"8_{n}|PENDING|Priority\n" for n in range(6)))
    file = begin(paths, "slurm", [run.id for run in plan_of(paths).runs], False)
    write_record(file, read_record(file, Submission).model_copy(update=broken))
    assert {state.state for state in states(paths)} == {"pending"}
    being_sent = {state.reason == "being submitted" for state in states(paths)}
    assert being_sent == {"over" in broken}


@pytest.mark.parametrize(("over", "state"), [(0, "failed"), (1, "pending")])
def test_whose_attempt_it_was_is_reported_by_its_number_and_not_by_two_hosts_clocks(
    paths: ResultPaths, over: int, state: str
) -> None:
    """Who submitted has a clock that is a year ahead."""
    first = plan_of(paths).runs[0].id
    attempt = claim_attempt(paths.run(first), "local")
    end = End(run_id=first, attempt=1, reason="exited", exit_codes=[1], ended_at=utc_now())
    write_record(attempt.end, end)
    submitted(paths, os.getpid(), psutil.Process().create_time())
    (file,) = files(paths)
    ahead = {"submitted_at": "2999-01-01T00:00:00+00:00", "over": {first: over}}
    write_record(file, read_record(file, Submission).model_copy(update=ahead))
    assert states(paths)[0].state == state


def in_slurm(paths: ResultPaths) -> None:
    runs = [run.id for run in plan_of(paths).runs]
    file = begin(paths, "slurm", runs, again=False)
    jobs = [SubmittedJob(id=f"8_{number}", runs=[run]) for number, run in enumerate(runs)]
    write_record(file, read_record(file, Submission).model_copy(update={"jobs": jobs}))


def test_slurm_is_asked_once_for_all_runs(paths: ResultPaths, fake_slurm: FakeSlurm) -> None:
    in_slurm(paths)
    fake_slurm.answer("squeue", "8_0|RUNNING|None\n8_1|PENDING|Priority\n")
    fake_slurm.answer("sacct", "8_2|TIMEOUT|0:0\n8_3|NODE_FAIL|0:0\n8_4|CANCELLED by 0|0:0\n")
    found = [state.state for state in states(paths)]
    assert found == ["running", "pending", "timeout", "node_failed", "cancelled", "lost"]
    assert [call.split()[0] for call in fake_slurm.calls] == ["squeue", "sacct"]


def test_slurm_is_not_asked_about_what_the_records_say(
    paths: ResultPaths, fake_slurm: FakeSlurm
) -> None:
    in_slurm(paths)
    finished(paths)
    assert {state.state for state in states(paths)} == {"completed"}
    assert fake_slurm.calls == []


def test_without_slurm_at_hand_its_jobs_are_unknown_and_it_is_said(
    paths: ResultPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_slurm(paths)
    monkeypatch.setenv("PATH", "")
    found = states(paths)
    assert {state.state for state in found} == {"unknown"}
    assert "squeue: not found" in found[0].problems[0]
