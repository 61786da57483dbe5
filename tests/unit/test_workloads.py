"""Past jobs become workloads, and what is requested next is safe."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest

from hpcncf.errors import UsageError
from hpcncf.explain.fields import JobFields
from hpcncf.explain.workloads import MOST_WORKLOADS, PastJob, Workload, group
from hpcncf.slurm.past_jobs import parse_since

RUN = JobFields(
    "sacct",
    "7",
    "COMPLETED",
    exit_code=0,
    nodes=1,
    cores=8,
    elapsed_s=3600.0,
    limit_s=86_400.0,
    cpu_s=1.02 * 3600,
    memory_mib=3000.0,
    memory_asked_mib=65_536.0,
)
TIMEOUT = replace(RUN, state="TIMEOUT", elapsed_s=86_400.0, cpu_s=7.5 * 86_400)
HUNG = replace(TIMEOUT, cpu_s=60.0)
KILLED = replace(RUN, state="OUT_OF_MEMORY", memory_mib=65_000.0)


def only(*jobs: JobFields) -> Workload:
    (workload,) = group(PastJob("train", (job,)) for job in jobs).all.values()
    return workload


def test_three_completed_runs_size_memory_and_time() -> None:
    workload = only(RUN, replace(RUN, memory_mib=4000.0), replace(RUN, elapsed_s=5400.0))
    advice = workload.advice()
    assert (advice.request.memory_mib, advice.request.limit_s) == (5 * 1024, 8100)
    assert (advice.request.cores, advice.not_enough) == (None, "")
    assert workload.core_hours_idle == pytest.approx(8 * 3.5 - 1.02 * 3)
    assert any(note.startswith("cores: 1.02 of 8 busy at most") for note in advice.notes)


@pytest.mark.parametrize(
    "third",
    [
        replace(RUN, state="FAILED", exit_code=1),
        replace(RUN, state="CANCELLED"),
        replace(RUN, elapsed_s=30.0, cpu_s=30.0),
        replace(RUN, cpu_s=None),
        replace(RUN, cpu_s=0.0),
        replace(RUN, cpu_s=9 * 3600.0),
    ],
    ids=["failed", "cancelled", "short", "no CPU time", "zero CPU time", "impossible CPU time"],
)
def test_two_completed_runs_are_not_enough(third: JobFields) -> None:
    advice = only(RUN, RUN, third).advice()
    assert advice.not_enough == "not enough evidence: 2 of 3 completed runs"
    assert (advice.request.memory_mib, advice.request.limit_s) == (None, None)


@pytest.mark.parametrize(
    "others",
    [
        replace(RUN, memory_mib=None),
        replace(RUN, memory_mib=40.0),
        replace(RUN, memory_mib=70_000.0),
        replace(RUN, memory_mib=64_000.0),
        replace(RUN, memory_counted="mean"),
        replace(RUN, elapsed_s=200.0, cpu_s=204.0),
    ],
    ids=["none", "of a shell", "above the cgroup's limit", "at the limit", "a mean", "minutes"],
)
def test_memory_that_was_not_counted_sizes_nothing(others: JobFields) -> None:
    advice = only(RUN, RUN, others).advice()
    assert advice.not_enough == ""
    assert advice.request.memory_mib is None


def test_memory_is_raised_after_a_kill_and_never_below_it() -> None:
    assert only(RUN, RUN, RUN, KILLED).advice().request.memory_mib == 96 * 1024
    more = replace(RUN, memory_asked_mib=512 * 1024.0)
    assert only(KILLED, more, more, more).advice().request.memory_mib == 96 * 1024
    close = replace(RUN, memory_asked_mib=90 * 1024.0)
    assert only(KILLED, close, close, close).advice().request.memory_mib is None


def test_memory_of_several_nodes_is_not_sized() -> None:
    job = replace(RUN, nodes=2)
    assert only(job, job, job).advice().request.memory_mib is None


def test_time_is_never_shortened_after_a_timeout_nor_raised_for_a_hang() -> None:
    assert only(RUN, RUN, RUN, TIMEOUT).advice().request.limit_s == 2 * 86_400
    assert only(RUN, RUN, RUN, HUNG).advice().request.limit_s is None
    assert only(RUN, RUN, RUN, replace(TIMEOUT, cpu_s=None)).advice().request.limit_s is None
    # It worked, but less than half as much as the runs that completed: most likely it hung late.
    busy = replace(RUN, cpu_s=7.5 * 3600)
    slow = replace(TIMEOUT, cpu_s=2.0 * 86_400)
    advice = only(busy, busy, busy, slow).advice()
    assert advice.request.limit_s is None
    assert any("more time would not help" in note for note in advice.notes)
    # Today's limit is longer than the one that was reached.
    longer = replace(RUN, limit_s=200_000.0)
    assert only(TIMEOUT, longer, longer, longer).advice().request.limit_s is None


def test_failed_run_that_took_longer_counts_for_the_time() -> None:
    failed = replace(RUN, state="FAILED", exit_code=1, elapsed_s=20_000.0)
    assert only(RUN, RUN, RUN, failed).advice().request.limit_s == 30_000


def test_jobs_that_do_not_count_are_left_out() -> None:
    states = ("RUNNING", "PENDING", "NODE_FAIL", "BOOT_FAIL")
    jobs = [replace(RUN, state=state) for state in states]
    never = replace(RUN, state="CANCELLED", elapsed_s=0.0)
    found = group(PastJob("train", (job,)) for job in [*jobs, never, RUN])
    assert (found.runs, found.running, found.node_failed) == (1, 1, 2)


def test_names_with_numbers_are_one_workload_and_shapes_are_several() -> None:
    wide = replace(RUN, cores=16)
    jobs = [("seed-1 lr1e-3", RUN), ("seed-2 lr0.01", RUN), ("seed-3 lr5", wide), ("x", RUN)]
    found = group(PastJob(name, (job,)) for name, job in jobs)
    named = {(each.name, each.cores, each.runs) for each in found.all.values()}
    assert named == {("seed-* lr*", 8, 2), ("seed-3 lr5", 16, 1), ("x", 8, 1)}


def test_parts_of_a_het_job_are_one_run() -> None:
    parts = (replace(RUN, id="7+0"), replace(RUN, id="7+1", cores=2))
    (workload,) = group([PastJob("het", parts)] * 3).all.values()
    assert (workload.runs, workload.cores, workload.mean_cores_used) == (3, 10, 2.04)
    assert workload.core_hours == pytest.approx(30)
    advice = workload.advice()
    assert (advice.request.memory_mib, advice.request.limit_s) == (None, None)
    assert advice.notes[0] == "parts of a heterogeneous job are not sized: hpcncf explain 7+0"


def test_random_names_are_gathered() -> None:
    letters = str.maketrans("0123456789", "abcdefghij")
    names = (f"{number:06}".translate(letters) for number in range(MOST_WORKLOADS + 10))
    found = group(PastJob(name, (RUN,)) for name in names)
    assert len(found.all) == MOST_WORKLOADS + 1
    assert found.runs == MOST_WORKLOADS + 10
    assert "(further names)" in {each.name for each in found.all.values()}


NOW = datetime(2026, 11, 27, 12, 0)


@pytest.mark.parametrize(
    ("text", "since"),
    [
        ("7days", datetime(2026, 11, 20, 12, 0)),
        ("1 day", datetime(2026, 11, 26, 12, 0)),
        ("2w", datetime(2026, 11, 13, 12, 0)),
        ("12hours", datetime(2026, 11, 27, 0, 0)),
        ("2026-11-01", datetime(2026, 11, 1)),
        ("2026-11-01T08:30", datetime(2026, 11, 1, 8, 30)),
    ],
)
def test_since_is_a_span_or_a_date(text: str, since: datetime) -> None:
    assert parse_since(text, NOW) == since


@pytest.mark.parametrize("text", ["7", "", "yesterday", "2026-13-01", "99999weeks", "2026-12-01"])
def test_since_names_what_is_possible(text: str) -> None:
    with pytest.raises(UsageError, match=r"--since .*(7days|future)"):
        parse_since(text, NOW)
