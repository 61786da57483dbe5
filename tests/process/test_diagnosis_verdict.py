"""Which finding comes first, and when there is nothing to say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_evidence import command, evidence

from hpcncf_analysis.diagnosis import diagnose
from hpcncf_analysis.diagnosis.evidence import CAUSES, Cause, Finding

SLOW_INPUT = {"input": 0.7, "forward": 0.1, "backward": 0.1, "optimizer": 0.1}
PER_SAMPLE = {"loader": "per_sample", "engine": "reference", "sync": "dense"}


def finding(cause: Cause, share: float) -> Finding:
    return Finding(cause, share, "time", (), "")


def causes(*found: Finding) -> list[str]:
    return [each.cause for each in diagnose.ordered(found)]


def test_a_run_that_keeps_its_cores_busy_is_healthy() -> None:
    told = diagnose.diagnose_evidence(evidence(allocated=2))
    assert (told.verdict, told.findings, told.missing) == ("healthy", (), ())


@pytest.mark.parametrize("phases", [{}, {"phases": SLOW_INPUT, "training": PER_SAMPLE}])
def test_memory_that_grows_is_an_alert_whatever_the_verdict(phases: dict[str, Any]) -> None:
    [told] = diagnose.diagnose_evidence(evidence(memory_growth_mib=2048.0, **phases)).alerts
    assert told.startswith("memory grew steadily, by 2,048")
    assert diagnose.diagnose_evidence(evidence(**phases)).alerts == ()


def test_idle_cores_that_nothing_explains_are_unknown() -> None:
    told = diagnose.diagnose_evidence(command(used=0.3))
    assert told.verdict == "unknown"
    assert told.missing[0] == "why 70\u202f% of the usable cores' time was not used"


def test_the_costliest_finding_is_the_primary_one() -> None:
    assert causes(finding("evaluation_bound", 0.3), finding("python_input", 0.4)) == [
        "python_input",
        "evaluation_bound",
    ]


def test_confinement_stands_before_the_threads_that_fight_for_its_core() -> None:
    found = [finding("oversubscribed", 0.75), finding("one_core_confinement", 0.5)]
    assert causes(*found)[0] == "one_core_confinement"


def test_what_costs_more_than_twice_as_much_needs_no_explaining() -> None:
    found = [finding("oversubscribed", 0.9), finding("one_core_confinement", 0.25)]
    assert causes(*found)[0] == "oversubscribed"


def test_a_short_run_is_judged_by_the_cores_it_may_use_and_by_nothing_else() -> None:
    short: dict[str, Any] = {"elapsed_s": 4.0, "training_s": 2.0, "startup_s": 1.5, "allocated": 4}
    confined = [
        found.cause for found in diagnose.diagnose_evidence(evidence(usable=1, **short)).findings
    ]
    assert confined[:2] == ["one_core_confinement", "too_short_to_judge"]
    slow = evidence(training=PER_SAMPLE, phases=SLOW_INPUT, **short)
    first = diagnose.diagnose_evidence(slow).primary
    assert first
    assert first.cause == "too_short_to_judge"


def test_the_forums_run_is_told_from_one_confined_to_a_core() -> None:
    """Both used one core of five: 20 %."""
    naive = evidence(allocated=5, used=1.0, training=PER_SAMPLE, phases=SLOW_INPUT, threads=5)
    bound = evidence(allocated=5, usable=1, training=PER_SAMPLE, phases=SLOW_INPUT)
    for told, cause in ((naive, "python_input"), (bound, "one_core_confinement")):
        judged = diagnose.diagnose_evidence(told)
        assert judged.primary is not None
        assert judged.primary.cause == cause


def test_records_that_lack_a_rank_say_so() -> None:
    assert "the record of 1 rank" in diagnose.diagnose_evidence(evidence(world_size=2)).missing


def test_a_run_that_did_not_complete_is_not_called_healthy() -> None:
    told = diagnose.diagnose_evidence(evidence(failed="rank 0 failed: MemoryError"))
    assert told.verdict == "unknown"
    assert "MemoryError" in told.missing[0]


def test_a_cause_in_a_run_that_failed_does_not_hide_the_failure() -> None:
    told = diagnose.diagnose_evidence(
        evidence(failed="rank 0 failed: MemoryError", evaluation_s=90.0)
    )
    assert told.verdict == "cause"
    assert "MemoryError" in told.missing[0]


share = st.floats(0.0, 1.0)
some = st.lists(st.builds(finding, st.sampled_from(CAUSES), share), max_size=6)


@given(some)
def test_ordering_loses_and_invents_nothing(found: list[Finding]) -> None:
    assert sorted(map(repr, diagnose.ordered(found))) == sorted(map(repr, found))


number = st.one_of(st.none(), st.floats(0.0, 1e6))
seconds = ("startup_s", "training_s", "evaluation_s", "checkpoint_s", "runqueue_s", "iowait_s")
others = ("runnable", "others_cores", "throttled_s", "memory_pressure_s", "rows_per_step")


@given(
    st.fixed_dictionaries(dict.fromkeys((*seconds, *others), number)),
    st.booleans(),
    st.floats(0.0, 64.0),
    st.sampled_from([0.0, 1e-9, 30.0]),
)
def test_no_record_is_too_odd_to_judge(
    odd: dict[str, Any], trained: bool, used: float, elapsed_s: float
) -> None:
    told = diagnose.diagnose_evidence(
        evidence(allocated=8, used=used, trained=trained, elapsed_s=elapsed_s, **odd)
    )
    assert told.verdict in ("cause", "healthy", "unknown")
    assert all(0 <= found.share <= 1 for found in told.findings)


@pytest.mark.parametrize("cause", diagnose.EXPLAINS)
def test_nothing_explains_what_explains_it(cause: Cause) -> None:
    for explained in diagnose.EXPLAINS[cause]:
        assert cause not in diagnose.EXPLAINS.get(explained, ())


def test_a_run_that_never_came_to_its_first_step_was_bound_by_its_start() -> None:
    told = diagnose.diagnose_evidence(
        evidence(elapsed_s=120.0, startup_s=120.0, phases={}, training_s=None, failed="stopped")
    )
    assert told.primary is not None
    assert told.primary.cause == "startup_bound"
    assert told.secondary == ()
