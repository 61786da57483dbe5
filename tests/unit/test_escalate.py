"""What ran out of memory or time gets more, up to a bound, and nothing else changes."""

from __future__ import annotations

from pathlib import Path

import make_results
from make_results import plan_of

from hpcncf.job.spec import Data, JobSpec, Resources
from hpcncf.launch import retry
from hpcncf.launch.retry import Change
from hpcncf.paths import ResultPaths
from hpcncf.records.claims import claim_attempt
from hpcncf.records.schema import End, read_record, utc_now, write_record
from hpcncf.records.submissions import Submission, begin
from hpcncf.state.status import RunState

JOB = JobSpec(name="demo", data=Data(path="/d"), resources=Resources(timeout_min=30))


def timed_out(folder: Path) -> ResultPaths:
    """The first run reached its limit, as the local queue says it."""
    paths = make_results.demo(folder, repeats=1)
    run = plan_of(paths).runs[0]
    attempt = claim_attempt(paths.run(run.id), "local")
    write_record(
        attempt.end,
        End(run_id=run.id, attempt=1, reason="timeout", exit_codes=[-15], ended_at=utc_now()),
    )
    return paths


def grown(paths: ResultPaths, refused: str | None = None) -> list[Change]:
    _, changes = retry.escalate(paths, JOB, lambda _: refused)
    return list(changes)


def test_what_timed_out_gets_twice_the_time_and_the_others_keep_theirs(tmp_path: Path) -> None:
    paths = timed_out(tmp_path)
    assert grown(paths) == [Change("timeout_min", 30, 60, "")]
    first, *others = plan_of(paths).runs
    assert first.resources.timeout_min == 60
    assert {run.resources.timeout_min for run in others} == {30}


def test_it_ends_at_a_multiple_of_what_the_job_file_asks(tmp_path: Path) -> None:
    paths = timed_out(tmp_path)
    for limit in (60, 120, 240):
        assert grown(paths)[0].after == limit
    (last,) = grown(paths)
    assert (last.after, plan_of(paths).runs[0].resources.timeout_min) == (240, 240)
    assert "8 times what the job file asks" in last.why_not


def test_what_the_cluster_would_refuse_is_left_as_it_is(tmp_path: Path) -> None:
    paths = timed_out(tmp_path)
    (change,) = grown(paths, "partition cpu allows 60 min")
    assert (change.after, change.why_not) == (30, "partition cpu allows 60 min")
    assert plan_of(paths).runs[0].resources.timeout_min == 30


def test_runs_that_slurm_had_no_room_for_since_do_not_get_still_more(tmp_path: Path) -> None:
    paths = timed_out(tmp_path)
    grown(paths)
    file = begin(paths, "slurm", [], again=False)
    left = {"left": [plan_of(paths).runs[0].id]}
    write_record(file, read_record(file, Submission).model_copy(update=left))
    assert grown(paths) == []


def test_memory_that_a_site_never_asks_for_is_not_said_to_grow(tmp_path: Path) -> None:
    paths = make_results.demo(tmp_path, repeats=1)
    run = plan_of(paths).runs[0]
    (tmp_path / "site.yaml").write_text("memory: none\n")
    starved = RunState(run, "out_of_memory", "", 1, [], None, [])
    assert retry.ran_out_of(starved) == "mem_gb"
    job = JOB.model_copy(update={"site": str(tmp_path / "site.yaml")})
    change = retry.enlarged(run, "mem_gb", job, lambda _: None)
    assert (change.after, change.before) == (change.before, run.resources.mem_gb)
    assert "asks Slurm for no memory" in change.why_not
    change = retry.enlarged(run, "mem_gb", JOB, lambda _: None)
    assert (change.after, change.why_not) == (2 * run.resources.mem_gb, "")
