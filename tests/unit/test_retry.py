"""Retried runs may get more memory or time, up to a bound, and nothing that changes them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import make_results
import pytest
from make_results import plan_of

from hpcncf.errors import UsageError
from hpcncf.job.spec import Data, JobSpec, Resources
from hpcncf.launch import retry
from hpcncf.launch.retry import RequestChange
from hpcncf.paths import ResultPaths
from hpcncf.records.claims import claim_attempt
from hpcncf.records.plan_file import read_plan
from hpcncf.records.schema import End, read_record, utc_now, write_record
from hpcncf.records.submissions import Submission, begin
from hpcncf.slurm.preflight import Capacity, Limits
from hpcncf.slurm.site import Site
from hpcncf.state.status import RunState

JOB = JobSpec(name="demo", data=Data(path="/d"), resources=Resources(timeout_min=30))


@pytest.fixture
def timed_out(tmp_path: Path) -> ResultPaths:
    """Results whose first run reached its limit in a local queue."""
    paths = make_results.demo(tmp_path, repeats=1)
    run = plan_of(paths).runs[0]
    attempt = claim_attempt(paths.run(run.id), "local")
    end = End(run_id=run.id, attempt=1, reason="timeout", exit_codes=[-15], ended_at=utc_now())
    write_record(attempt.end, end)
    return paths


@dataclass(frozen=True)
class AtFullPartition(Limits):
    """Limits that every request exceeds."""

    why: str

    def refusal(self, resources: Resources) -> str | None:  # noqa: ARG002
        return self.why


def escalated(paths: ResultPaths, refused: str | None = None) -> list[RequestChange]:
    limits = AtFullPartition(Site(), Capacity(), refused) if refused else None
    _, changes = retry.escalate(paths, JOB, limits)
    return list(changes)


def test_a_run_that_timed_out_gets_twice_the_time_up_to_a_multiple(timed_out: ResultPaths) -> None:
    assert escalated(timed_out) == [RequestChange("timeout_min", 30, 60, "")]
    first, *others = plan_of(timed_out).runs
    assert first.resources.timeout_min == 60
    assert {run.resources.timeout_min for run in others} == {30}
    for limit in (120, 240):
        assert escalated(timed_out)[0].after == limit
    (last,) = escalated(timed_out)
    assert (last.after, plan_of(timed_out).runs[0].resources.timeout_min) == (240, 240)
    assert "8 times what the job file asks" in last.why_not


def test_a_request_that_the_cluster_would_refuse_stays(timed_out: ResultPaths) -> None:
    (change,) = escalated(timed_out, "partition cpu allows 60 min")
    assert (change.after, change.why_not) == (30, "partition cpu allows 60 min")
    assert plan_of(timed_out).runs[0].resources.timeout_min == 30


def test_escalated_runs_that_had_no_room_do_not_get_still_more(timed_out: ResultPaths) -> None:
    escalated(timed_out)
    file = begin(timed_out, "slurm", [], again=False)
    left = {"left": [plan_of(timed_out).runs[0].id]}
    write_record(file, read_record(file, Submission).model_copy(update=left))
    assert escalated(timed_out) == []


def test_memory_grows_only_if_the_site_requests_it(tmp_path: Path) -> None:
    run = plan_of(make_results.demo(tmp_path, repeats=1)).runs[0]
    assert retry.ran_out_of(RunState(run, "out_of_memory", "", 1, [], None, [])) == "mem_gb"
    change = retry.enlarged(run, "mem_gb", JOB, Limits.unknown(Site()))
    assert (change.after, change.why_not) == (2 * run.resources.mem_gb, "")
    change = retry.enlarged(run, "mem_gb", JOB, Limits.unknown(Site(memory="none")))
    assert (change.after, change.before) == (change.before, run.resources.mem_gb)
    assert "asks Slurm for no memory" in change.why_not


def test_settings_reach_incomplete_runs_and_stay_in_the_plan(tmp_path: Path) -> None:
    paths = make_results.demo(tmp_path, repeats=1)
    before = plan_of(paths).runs
    make_results.complete(paths, before[:2])
    settings = ["resources.mem_gb=7", "resources.timeout_min=99", "resources.runs_per_task=4"]
    plan = retry.amend(ResultPaths(paths.folder), settings)
    assert read_plan(paths) == plan
    assert plan.runs[:2] == before[:2]
    given = [run.resources for run in plan.runs[2:]]
    assert {(one.mem_gb, one.timeout_min, one.runs_per_task) for one in given} == {(7, 99, 4)}
    assert [run.id for run in plan.runs] == [run.id for run in before]


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("training.epochs=9", r"would make it a different run.*resources\.mem_gb, "),
        ("resources.cpus_per_task=2", "Submit the job file with that"),
        ("resources.timeout_min", "expected key=value"),
        ("resources.timeout_min=0", "timeout_min: .*greater than 0; came 0"),
        ("resources.mem_gb=much", "mem_gb: .*came 'much'"),
    ],
)
def test_a_setting_that_would_change_the_run_is_refused(
    tmp_path: Path, setting: str, complaint: str
) -> None:
    paths = make_results.demo(tmp_path, repeats=1)
    before = paths.plan.read_text()
    with pytest.raises(UsageError, match=complaint):
        retry.amend(paths, [setting])
    assert paths.plan.read_text() == before
