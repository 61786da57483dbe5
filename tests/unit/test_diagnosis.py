"""The rules of the diagnosis, the order of causes, and what remedies are expected to gain."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_evidence import PHASES, command, evidence, two_ranks
from make_results import demo, node_record, plan_of, rank_record

from hpcncf.job.spec import Remedies
from hpcncf.monitor.node_traffic import network_link_mib_s
from hpcncf_analysis.diagnosis import diagnose, rules_input, thresholds
from hpcncf_analysis.diagnosis import expected_gain as gains
from hpcncf_analysis.diagnosis.diagnose import RULES, diagnose_evidence
from hpcncf_analysis.diagnosis.evidence import (
    CAUSES,
    IN_PROGRAM,
    Cause,
    Evidence,
    Finding,
    Gpus,
    RemedyCode,
    Traffic,
)
from hpcncf_analysis.diagnosis.facts import RankTimes
from hpcncf_analysis.diagnosis.from_records import traffic_of

SLOW_INPUT = {"input": 0.7, "forward": 0.1, "backward": 0.1, "optimizer": 0.1}
HEAVY = {"input": 0.01, "forward": 0.01, "backward": 0.07, "optimizer": 0.9, "other": 0.01}
FEW_ROWS: dict[str, Any] = {"phases": HEAVY, "rows_per_step": 1500, "table_rows": 300_000}
PER_SAMPLE = {"loader": "per_sample", "engine": "reference", "sync": "dense"}
FULL = {"evaluation": "full"}


def bound(**changes: Any) -> Evidence:
    """Two usable cores, one of them in use, and threads that wait for a core."""
    seen: dict[str, Any] = {"affinity_changed": True, "runqueue_s": 90.0, "runnable": 1.9}
    return evidence(allocated=2, used=1.0, **(seen | changes))


def per_sample(**changes: Any) -> Evidence:
    return evidence(**({"training": PER_SAMPLE, "phases": SLOW_INPUT} | changes))


def rank(number: int, sync_s: float, instances: int = 1000, cpu_s: float = 95.0) -> RankTimes:
    return RankTimes(number, f"node{number + 1}", 95.0, sync_s, instances, cpu_s)


def exchanging(**changes: Any) -> Evidence:
    """Two ranks that arrive together, and wait for 0.4 of a step."""
    return two_ranks(rank(0, 38.0), rank(1, 38.0), **changes)


def two_threads(threads: int, runnable: float) -> Evidence:
    return evidence(allocated=2, runnable=runnable, threads=threads, world_size=2)


def found(cause: Cause, seen: Evidence) -> Finding | None:
    """By the rule alone, whatever else there is to say."""
    every = [each for rule in RULES if (each := rule(seen))]
    return next((each for each in every if each.cause == cause), None)


HELD = evidence(used=0.4, others_cores=0.6, runnable=1.0, runqueue_s=60.0)
BRIEF = evidence(elapsed_s=6.0, startup_s=3.0, training_s=3.0)
LATE = two_ranks(rank(0, 60.0), rank(1, 2.0))
MORE_WORK = two_ranks(rank(0, 60.0), rank(1, 2.0, instances=3000))
UNEQUAL_CPU = (RankTimes(0, "node1", cpu_s=30.0), RankTimes(1, "node1", cpu_s=96.0))
SHORT = {"elapsed_s": 25.0, "startup_s": 22.0, "training_s": 3.0}
SLOW_START = {"elapsed_s": 25.0, "startup_s": 12.0, "training_s": 12.0, "used": 0.25}
AT_LIMIT = {"memory_peak_mib": 240.0, "memory_limit_mib": 256.0, "used": 0.5}
BESIDE = {"others_cores": 0.75, "runnable": 1.0, "runqueue_s": 18.75}
THREADS: dict[str, Any] = {"workers": 2, "children_s": 0.0, "phases": SLOW_INPUT}
FOUND: list[tuple[Cause, float, Evidence]] = [
    ("one_core_confinement", 0.8, evidence(allocated=5, usable=1)),
    ("one_core_confinement", 0.5, evidence(allocated=2, used=1.0, throttled_s=80.0)),
    ("one_core_confinement", 0.5, bound()),
    ("oversubscribed", 0.75, evidence(allocated=2, runnable=8.0)),
    # Without a measurement the threads that were asked for.
    ("oversubscribed", 0.5, evidence(allocated=2, runnable=None, threads=4)),
    ("oversubscribed", 1 - 2 / 4.4, two_threads(1, 4.4)),
    ("oversubscribed", 1 - 2 / 2.7, two_threads(2, 2.7)),
    ("neighbour_load", 0.6, HELD),
    ("neighbour_load", 0.4, evidence(steal=0.4)),
    ("serial_step", 0.675, evidence(allocated=4, used=1.0, threads=1)),
    # One thread that a neighbour starves is serial still.
    ("serial_step", 0.5, evidence(2, used=0.4, runnable=1.0, runqueue_s=60.0, phases={})),
    ("too_short_to_judge", 0.5, BRIEF),
    ("too_short_to_judge", 0.0, command(elapsed_s=4.0)),
    ("startup_bound", 0.88, evidence(**SHORT)),
    ("startup_bound", 0.48, evidence(**SLOW_START)),
    ("evaluation_bound", 0.5, evidence(evaluation_s=50.0)),
    ("checkpoint_bound", 0.33, evidence(checkpoint_s=33.0)),
    ("memory_pressure", 0.4, evidence(memory_pressure_s=40.0)),
    # What no thread computed for itself.
    ("memory_pressure", 0.7, evidence(major_faults=50_000, system_s=20.0, **AT_LIMIT)),
    ("gpu_underused", 0.8, evidence(gpus=Gpus(1, 0.2))),
    ("python_input", 0.7 * 0.95, per_sample()),
    ("python_input", 0.7 * 0.95, per_sample(workers=2, children_s=150.0)),
    ("python_input", 0.7 * 0.95, command(phases=SLOW_INPUT, training_s=95.0)),
    ("python_input", 0.7 * 0.95, per_sample(used=0.4, runnable=1.0, runqueue_s=60.0)),
    ("input_io", 0.7 * 0.95, command(phases=SLOW_INPUT, training_s=95.0, used=0.35)),
    ("input_io", 0.6, command(used=0.3, iowait_s=60.0)),
    ("worker_overhead", 0.7 * 0.95, per_sample(workers=2, children_s=19.0)),
    ("worker_overhead", 0.4, evidence(workers=2, children_s=1.0, first_batch_s=40.0)),
    ("dense_optimizer", 0.9 * 0.95 * 0.995, evidence(**FEW_ROWS)),
    ("sync_bound", 0.4 * 0.95, exchanging()),
    # Useful 35 and 93 s: as fast as rank 0, rank 1 would save 58 of 95 s, which rank 0 waits.
    ("straggler", 58 / 95 * 0.95, LATE),
    ("load_imbalance", 58 / 95 * 0.95, MORE_WORK),
    ("load_imbalance", 1 - 63 / 96, command(ranks=UNEQUAL_CPU, world_size=2)),
]


@pytest.mark.parametrize(("cause", "share", "seen"), FOUND)
def test_a_cause_is_found_with_its_cost(cause: Cause, share: float, seen: Evidence) -> None:
    finding = found(cause, seen)
    assert finding
    assert finding.share == pytest.approx(share)
    in_cores = ("one_core_confinement", "neighbour_load", "serial_step")
    by_cpu_time = cause == "load_imbalance" and not seen.phases
    assert (finding.of == "cores") == (cause in in_cores or by_cpu_time)


def test_every_rule_finds_something() -> None:
    inside = {"loop_code", "interpreter_lock", "too_few_workers", "memory_growth"}
    inside |= {"small_operations", "slowing_steps", "excess_arithmetic", "costly_option"}
    inside |= {"frequent_call", "worker_memory"}
    assert {cause for cause, *_ in FOUND} == set(CAUSES) - inside


NOT_FOUND: list[tuple[Cause, Evidence]] = [
    ("one_core_confinement", evidence(allocated=5, used=1.0)),
    ("one_core_confinement", bound(affinity_changed=False)),
    ("one_core_confinement", bound(runqueue_s=5.0)),
    ("one_core_confinement", bound(others_cores=1.0)),
    ("oversubscribed", evidence(allocated=2, runnable=None, threads=2)),
    ("oversubscribed", evidence(allocated=2, runnable=2.4)),  # a helper
    ("oversubscribed", two_threads(1, 2.7)),  # threads that fit hand work over
    # A core that it did not want, and threads that wait for their own siblings.
    ("neighbour_load", evidence(allocated=2, used=1.0, others_cores=1.0)),
    ("neighbour_load", evidence(allocated=2, others_cores=0.3, runnable=8.0, runqueue_s=600.0)),
    # Cores idle while one thread makes the input.
    ("serial_step", evidence(2, used=1.0, phases={"input": 0.9, "forward": 0.1})),
    ("serial_step", command(allocated=2, used=0.3)),
    ("serial_step", evidence(allocated=1, used=0.9)),
    ("too_short_to_judge", evidence()),
    ("too_short_to_judge", command(elapsed_s=20.0)),
    ("too_short_to_judge", evidence(**SHORT)),  # its start-up is what there is to say
    ("startup_bound", evidence(**SLOW_START, **BESIDE)),
    ("startup_bound", evidence(elapsed_s=8.0, startup_s=4.0)),
    ("checkpoint_bound", evidence(checkpoint_s=5.0)),
    ("memory_pressure", evidence(memory_pressure_s=4.0)),
    ("memory_pressure", evidence(memory_peak_mib=255.0, memory_limit_mib=256.0)),
    ("memory_pressure", evidence(major_faults=500, **AT_LIMIT)),
    ("gpu_underused", evidence(gpus=Gpus(1, 0.9))),
    ("gpu_underused", evidence(**SHORT, evaluation_s=0.0, gpus=Gpus(1, 0.4, training=True))),
    ("python_input", evidence(phases=SLOW_INPUT)),  # whole batches
    ("python_input", per_sample(workers=2, children_s=19.0)),
    ("python_input", command(phases=SLOW_INPUT, training_s=95.0, used=0.35)),
    ("input_io", per_sample(used=0.4, runnable=1.0, runqueue_s=60.0, others_cores=0.6)),
    ("input_io", command(used=0.3)),
    ("worker_overhead", per_sample(workers=2, children_s=150.0)),
    ("worker_overhead", evidence(first_batch_s=40.0)),
    ("worker_overhead", evidence(training={"workers": "thread"}, **THREADS)),
    ("dense_optimizer", evidence(**FEW_ROWS | {"rows_per_step": 1000, "table_rows": 1700})),
    ("dense_optimizer", evidence(**FEW_ROWS | {"rows_per_step": None})),
    ("dense_optimizer", evidence(training={"engine": "rowwise"}, **FEW_ROWS)),
    ("dense_optimizer", evidence(training={"sparse": True}, **FEW_ROWS)),
    ("dense_optimizer", evidence(training={"weight_decay": 0.1}, **FEW_ROWS)),
    ("sync_bound", evidence()),
    ("sync_bound", LATE),
    ("load_imbalance", LATE),
    ("straggler", MORE_WORK),
    ("straggler", two_ranks(rank(0, 8.0), rank(1, 2.0))),
    ("straggler", two_ranks(rank(0, 60.0), RankTimes(1, "node2"))),  # its record is missing
]


@pytest.mark.parametrize(("cause", "seen"), NOT_FOUND)
def test_a_cause_is_not_found_without_ground(cause: Cause, seen: Evidence) -> None:
    assert found(cause, seen) is None


QUOTA = evidence(allocated=2, used=1.0, throttled_s=80.0)
BY_CPU = command(gpus=Gpus(1, 0.2))
SAID: list[tuple[Cause, Evidence, str]] = [
    ("one_core_confinement", evidence(allocated=5, usable=1), "5 cores allocated, 1 usable"),
    ("one_core_confinement", evidence(allocated=5, usable=1), "srun -c 5"),
    ("one_core_confinement", QUOTA, "80 s"),
    (
        "oversubscribed",
        evidence(2, runnable=8.0),
        "8.0 threads wanted to run at a time on 2 usable",
    ),
    ("neighbour_load", HELD, "0.6 of its 1 core,"),
    ("too_short_to_judge", BRIEF, "of start-up"),
    ("gpu_underused", evidence(gpus=Gpus(1, 0.2), phases={**PHASES, "input": 0.6}), "input-bound"),
    ("gpu_underused", evidence(gpus=Gpus(2, 0.2, watts=120.0)), "launch-bound"),
    ("gpu_underused", BY_CPU, "is not known"),
    ("input_io", command(used=0.3, iowait_s=60.0, read_mib=700.0), "700 MiB"),
    ("sync_bound", exchanging(sync_bytes_per_step=2.0 * 2**20), "2 MiB"),
    ("sync_bound", exchanging(sync_how=None), "training.sync rows"),
    ("straggler", LATE, "rank 1 on node node2 needs 1.45 times"),
    ("straggler", LATE, "for 61\u202f% of a step"),
    ("load_imbalance", MORE_WORK, "rank 1 has 3,000 instances, the mean is 2,000"),
]


@pytest.mark.parametrize(("cause", "seen", "text"), SAID)
def test_a_finding_shows_its_evidence(cause: Cause, seen: Evidence, text: str) -> None:
    finding = found(cause, seen)
    assert finding
    assert text in "; ".join((*finding.evidence, finding.remedy))


@pytest.mark.parametrize(
    ("training", "is_dense", "rows"),
    [({}, True, True), ({"sparse": True}, False, True), ({"weight_decay": 0.1}, True, False)],
)
def test_a_dense_all_reduce_of_sparse_gradients_is_named(
    training: dict[str, Any], is_dense: bool, rows: bool
) -> None:
    """Weight decay moves every row, so rows alone cannot be sent."""
    known: dict[str, Any] = {"rows_per_step": 700, "table_rows": 300_000}
    finding = found("sync_bound", exchanging(training={"sync": "dense"} | training, **known))
    assert finding
    assert ("dense all-reduce of sparse gradients" in " ".join(finding.evidence)) == is_dense
    assert bool(finding.changes) == rows


def anew(**changes: Any) -> Evidence:
    """Workers whose batches are awaited longer than they take to make."""
    return evidence(**({"workers": 2, "children_s": 19.0, "phases": SLOW_INPUT} | changes))


STARTED = {"loader": "batched", "persistent_workers": False}
MANY = (RankTimes(0, "node1", 95.0, 0.0, instances=1_200_000),)
# Cause, evidence, settings, and the factor that is expected: None where there is no ground for one.
GAINS: list[tuple[Cause, Evidence, dict[str, Any], float | None]] = [
    ("serial_step", evidence(allocated=4, used=1.0, threads=1), {"cpus_per_task": 1}, 0.25),
    (
        "evaluation_bound",
        evidence(evaluation_s=50.0, training=FULL),
        {"evaluation": "sampled"},
        0.515,
    ),
    ("evaluation_bound", evidence(evaluation_s=50.0), {}, None),
    ("checkpoint_bound", evidence(checkpoint_s=33.0), {"checkpoint_every": 0}, 0.67),
    # A 25th of the input stays, and of the other 0.3 four fifths.
    ("python_input", per_sample(), {"loader": "vectorized"}, 1 / (0.028 + 0.24)),
    # The optimiser empties the caches: the rest of a step gains nothing.
    (
        "python_input",
        per_sample(parameters=12_000_000),
        {"loader": "vectorized"},
        1 / (0.028 + 0.3),
    ),
    ("python_input", command(phases=SLOW_INPUT, training_s=95.0), {}, None),
    ("worker_overhead", anew(), {"num_workers": 0}, 1 / (0.3 + (19 - 0.06) / 95)),
    # 200 starts of 0.03 s: 13 of 95 s make batches.
    (
        "worker_overhead",
        anew(epochs=100, training=STARTED),
        {"num_workers": 0, "persistent_workers": True},
        1 / (0.3 + 13 / 95),
    ),
    # Input is 0.7 of the steps, 57 of 95 s of it an epoch's first: 0.1 of waiting goes from the
    # 0.3 that a running step takes, and 9.5 s of making batches come to it.
    (
        "worker_overhead",
        anew(workers=1, children_s=9.53, first_batch_s=57.0, running_step=0.3),
        {"num_workers": 0},
        1 / (0.3 - 0.1 + 0.1),
    ),
    # 183 MiB are walked in a step. Left: 0.4 of the input, other, 3 forward passes, and 2 x 300,000
    # rows to catch up for 1,200,000 instances: a third of a pass.
    (
        "dense_optimizer",
        evidence(parameters=12_000_000, epochs=2, ranks=MANY, **FEW_ROWS),
        {"engine": "rowwise"},
        1 / (0.004 + 0.01 + 3.335 * 0.01),
    ),
    # 1,500 rows to catch up for 1,000 instances: one pass more.
    ("sync_bound", exchanging(), {"engine": "rowwise", "sync": "rows"}, 1 / (0.04 + 5.005 * 0.3)),
    ("sync_bound", exchanging(sync_how=None), {"engine": "rowwise", "sync": "rows"}, 1 / 1.5415),
]


@pytest.mark.parametrize(("cause", "seen", "changes", "factor"), GAINS)
def test_a_remedy_has_its_settings_and_its_gain(
    cause: Cause, seen: Evidence, changes: dict[str, Any], factor: float | None
) -> None:
    finding = found(cause, seen)
    assert finding
    assert {key.partition(".")[2]: value for key, value in finding.changes.items()} == changes
    assert (finding.gain and finding.gain.factor) == (factor and pytest.approx(factor))


def test_a_gain_lies_in_its_interval() -> None:
    for cause, seen, _, factor in GAINS:
        finding = found(cause, seen)
        if finding and finding.gain and factor:
            low, high = sorted((finding.gain.low, finding.gain.high))
            assert low <= finding.gain.factor <= high
            in_hours = cause in ("serial_step", "evaluation_bound", "checkpoint_bound")
            assert finding.gain.what == ("core_hours" if in_hours else "instances_per_s")
    python = found("python_input", per_sample())
    assert python
    assert python.gain
    assert (python.gain.low, python.gain.high) == pytest.approx((1 / (0.14 + 0.3), 1.55 / 0.3))


def test_where_the_tables_fit_the_caches_a_rowwise_step_is_more_forward_passes() -> None:
    seen = RankTimes(0, "node1", 95.0, 0.0, instances=10**9)
    small = evidence(phases=HEAVY, parameters=80_000, table_rows=2_000, ranks=(seen,))
    assert gains.rowwise(small).factor == pytest.approx(1 / (0.014 + 4.5 * 0.01), rel=1e-3)


@pytest.mark.parametrize(
    ("cause", "seen", "changes"),
    [
        (
            "dense_optimizer",
            evidence(
                training={"engine": "reference", "adam": "fused", "compile": "torchscript"},
                **FEW_ROWS,
            ),
            {"adam": "default", "compile": "none", "engine": "rowwise"},
        ),
        (
            "python_input",
            per_sample(
                training={"loader": "per_sample", "num_workers": 2, "prefetch_factor": 4},
                workers=2,
                children_s=150.0,
            ),
            {"num_workers": 0, "prefetch_factor": 2, "loader": "vectorized"},
        ),
        (
            "dense_optimizer",
            evidence(world_size=2, **FEW_ROWS),
            {"engine": "rowwise", "sync": "rows"},
        ),
    ],
)
def test_settings_that_a_remedy_overrules_go_back_to_their_defaults(
    cause: Cause, seen: Evidence, changes: dict[str, Any]
) -> None:
    finding = found(cause, seen)
    assert finding
    assert finding.changes == {f"training.{key}": value for key, value in changes.items()}


def finding(cause: Cause, share: float) -> Finding:
    return Finding(cause, share, "time", (), "")


FAILED = "rank 0 failed: MemoryError"
BRIEFLY: dict[str, Any] = {"elapsed_s": 4.0, "training_s": 2.0, "startup_s": 1.5, "allocated": 4}
NO_STEP: dict[str, Any] = {"elapsed_s": 120.0, "startup_s": 120.0, "phases": {}, "training_s": None}


@pytest.mark.parametrize(
    ("seen", "verdict", "missing"),
    [
        (evidence(allocated=2), "healthy", ""),
        (command(used=0.3), "unknown", "why 70\u202f% of the usable cores' time was not used"),
        (evidence(world_size=2), "healthy", "the record of 1 rank"),
        (evidence(failed=FAILED), "unknown", FAILED),
        # A cause does not hide the failure.
        (evidence(failed=FAILED, evaluation_s=90.0), "evaluation_bound", FAILED),
        (evidence(failed="stopped", **NO_STEP), "startup_bound", "stopped"),
        # A short run is judged by the cores that it may use, and by nothing else.
        (evidence(usable=1, **BRIEFLY), "one_core_confinement too_short_to_judge", ""),
        (per_sample(**BRIEFLY), "too_short_to_judge", ""),
        # The forum's run and one confined to a core both used one core of five: 20 %.
        (per_sample(allocated=5, used=1.0, threads=5), "python_input", ""),
        (per_sample(allocated=5, usable=1), "one_core_confinement", ""),
    ],
)
def test_a_run_has_its_verdict(seen: Evidence, verdict: str, missing: str) -> None:
    judged = diagnose_evidence(seen)
    causes = " ".join(each.cause for each in judged.findings)
    assert (causes or judged.verdict).startswith(verdict)
    assert missing in "; ".join(judged.missing)
    assert bool(missing) == bool(judged.missing)


@pytest.mark.parametrize("phases", [{}, {"phases": SLOW_INPUT, "training": PER_SAMPLE}])
def test_memory_that_grows_is_an_alert_whatever_the_verdict(phases: dict[str, Any]) -> None:
    [seen] = diagnose_evidence(evidence(memory_growth_mib=2048.0, **phases)).alerts
    assert seen.startswith("memory grew steadily, by 2,048")
    assert diagnose_evidence(evidence(**phases)).alerts == ()


@pytest.mark.parametrize(
    ("first", "second", "inside"),
    [
        (("python_input", 0.4), ("evaluation_bound", 0.3), False),
        # Confinement stands before the threads that compete for its core, but for twice as much.
        (("one_core_confinement", 0.5), ("oversubscribed", 0.75), False),
        (("oversubscribed", 0.9), ("one_core_confinement", 0.25), False),
        # A program's own causes stand before a neighbour, unless without it too little is left.
        (("sync_bound", 0.6), ("neighbour_load", 0.5), True),
        (("neighbour_load", 0.5), ("sync_bound", 0.25), True),
        (("neighbour_load", 0.5), ("oversubscribed", 0.25), True),
        (("oversubscribed", 0.6), ("neighbour_load", 0.5), True),
        (("straggler", 0.25), ("neighbour_load", 0.5), True),
    ],
)
def test_causes_are_ordered(
    first: tuple[Cause, float], second: tuple[Cause, float], inside: bool
) -> None:
    both = [finding(*second), finding(*first)]
    assert [each.cause for each in diagnose.ordered(both, inside)] == [first[0], second[0]]


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
    seen = diagnose_evidence(
        evidence(allocated=8, used=used, trained=trained, elapsed_s=elapsed_s, **odd)
    )
    assert seen.verdict in ("cause", "healthy", "unknown")
    assert all(0 <= found.share <= 1 for found in seen.findings)


@pytest.mark.parametrize("cause", diagnose.EXPLAINS)
def test_nothing_explains_what_explains_it(cause: Cause) -> None:
    for explained in diagnose.EXPLAINS[cause]:
        assert cause not in diagnose.EXPLAINS.get(explained, ())


DOCS = Path(__file__).parents[2] / "docs"
LEFT, _, LEFT_AT_WORST = gains.VECTORIZED
GAINED, GAINED_AT_BEST, GAINED_AT_WORST = gains.CACHES
SAMPLED, _, SAMPLED_AT_WORST = gains.SAMPLED_LEFT
FORMULAS = {
    "python_input": [LEFT, GAINED, gains.CORE_CACHES_MIB, LEFT_AT_WORST, GAINED_AT_BEST],
    "worker_overhead": [thresholds.WORKER_START_S],
    "dense_optimizer": [
        *(gains.ROWS_INPUT, gains.COLD_PASSES, gains.CAUGHT_UP, gains.WARM_PASSES),
        *(gains.CORE_CACHES_MIB, gains.ROWWISE),
    ],
    "dense_optimizer` on ranks": [
        *(gains.ROWS_INPUT, gains.EXCHANGED, gains.CAUGHT_UP, gains.EXCHANGE),
    ],
    "serial_step": [gains.SERIAL_LEFT[2]],
    "evaluation_bound": [1 - SAMPLED, 1 - SAMPLED_AT_WORST],
    "checkpoint_bound": [gains.SAVED_LEFT[2]],
}
REASONS = {
    "loader: vectorized": [LEFT, GAINED_AT_WORST, GAINED_AT_BEST],
    "engine: rowwise": [
        *(gains.WARM_PASSES, gains.COLD_PASSES, gains.ROWS_INPUT, gains.CAUGHT_UP),
    ],
    "sync: rows": [gains.EXCHANGED],
    "cpus_per_task: 1": [gains.SERIAL_LEFT[2]],
    "evaluation: sampled": [SAMPLED],
}


def numbers(document: str, heading: str, first_cell: str) -> set[float]:
    """The numbers in the row of the table below the heading whose first cell begins so."""
    section = (DOCS / document).read_text().partition(f"## {heading}\n")[2]
    rows = [line for line in section.splitlines() if line.startswith(f"| `{first_cell}")]
    assert rows, f"{document} has no row {first_cell}"
    return {float(found) for found in re.findall(r"(?<![\w.])\d+(?:\.\d+)?", rows[0])}


@pytest.mark.parametrize(
    ("document", "heading", "constants"),
    [
        ("diagnosis.md", "Predicted gains", FORMULAS),
        ("metrics.md", "What a remedy brings", REASONS),
    ],
)
def test_documents_have_the_constants_in_use(
    document: str, heading: str, constants: dict[str, list[float]]
) -> None:
    for row, expected in constants.items():
        found = numbers(document, heading, row)
        assert {round(constant, 6) for constant in expected} <= found, row


def test_the_gain_of_rowwise_worked_by_hand() -> None:
    """128 MiB of 16 bytes each are 8 Mi parameters; L = 0.004 + 0.01 + passes x 0.04."""
    phases = {"input": 0.01, "forward": 0.04, "other": 0.01}
    first, second = (
        gains.rowwise(
            evidence(
                phases=phases,
                parameters=128 * 2**20 // gains.OPTIMISED_BYTES,
                table_rows=200_000,
                ranks=(RankTimes(0, "node1", 95.0, 0.0, instances=instances),),
            )
        )
        for instances in (400_000, 4_000_000)
    )
    assert 1 / first.factor == pytest.approx(0.014 + (3 + 0.67 / 2) * 0.04)
    assert 1 / second.factor == pytest.approx(0.014 + (3 + 0.67 / 20) * 0.04)
    assert (first.low, first.high) == pytest.approx((first.factor / 1.3, first.factor * 1.3))


def exchanged(nodes: int, traffic: Traffic) -> Evidence:
    """Of two ranks that spend 0.4 of their steps in the exchange."""
    ranks = [RankTimes(at, f"n{at % nodes}", 95.0, 38.0, 1000, 95.0) for at in (0, 1)]
    return two_ranks(*ranks, traffic=traffic)


def waiting(traffic: Traffic) -> Evidence:
    return evidence(used=0.3, phases={"input": 0.7, "forward": 0.3}, traffic=traffic)


OVER_NETWORK = "the files come over the network"


@pytest.mark.parametrize(
    ("cause", "seen", "said"),
    [
        # 80 MiB/s of all time are 200 while they exchange, of 2 x 120 that the link carries.
        ("sync_bound", exchanged(2, Traffic(80.0, 0.0, 0.0, 120.0)), "the network is the limit"),
        ("sync_bound", exchanged(2, Traffic(8.0, 0.0, 0.0, 120.0)), "latency or a slow rank is"),
        ("sync_bound", exchanged(2, Traffic(80.0, 0.0, 0.0)), "speed of its link is not known"),
        ("sync_bound", exchanged(1, Traffic(0.0, 50.0, 0.0, 120.0)), "50 MiB/s over loopback"),
        ("sync_bound", exchanged(1, Traffic(0.0, 0.0, 0.0)), "stays in the node's memory"),
        ("input_io", waiting(Traffic(2.0, 0.0, 90.0)), "90 MiB/s, its network carried 2 MiB/s"),
        ("input_io", waiting(Traffic(40.0, 0.0, 1.0, 1000.0)), OVER_NETWORK),
        ("input_io", waiting(Traffic(100.0, 0.0, 1.0, 120.0)), f"{OVER_NETWORK}, which is the"),
    ],
)
def test_traffic_is_evidence(cause: Cause, seen: Evidence, said: str) -> None:
    (found,) = [each for each in diagnose.find(seen) if each.cause == cause]
    assert said in found.evidence[-1]
    assert (OVER_NETWORK in said) == (OVER_NETWORK in found.evidence[-1])


def test_traffic_is_the_busiest_nodes_while_it_trained(tmp_path: Path) -> None:
    run = plan_of(demo(tmp_path, repeats=1)).runs[0]
    rank = rank_record(run, 0)
    quiet = node_record(run, windows=60)
    length_s = quiet.length_s[0]
    # The first windows are the start: what was read then is not the training's.
    series: dict[str, Any] = {"disk_mib": [9000.0] + [3.0 * length_s] * 59}
    busy = quiet.model_copy(update=series | {"network_mib": [5.0 * length_s] * 60})
    found = traffic_of([quiet, busy], [rank])
    assert found
    assert (found.network, found.disk) == pytest.approx((5.0, 3.0), rel=1e-3)
    assert traffic_of([], [rank]) is None


def test_only_a_physical_interface_says_what_the_network_carries(tmp_path: Path) -> None:
    for name, speed, physical in (
        ("eth0", "1000", True),
        ("veth1", "10000", False),
        ("ib0", "-1", True),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "speed").write_text(f"{speed}\n")
        if physical:
            (tmp_path / name / "device").mkdir()
    assert network_link_mib_s(tmp_path) == pytest.approx(119.2, rel=1e-3)
    assert network_link_mib_s(tmp_path / "veth1") is None


@pytest.mark.parametrize(
    ("remedy", "words", "codes"),
    [
        (
            rules_input.KEEP_WORKERS,
            ["persistent_workers", "workers=0"],
            "persistent_workers workers",
        ),
        ("Beside others: hpcncf run --with threads=3.", ["threads=3"], "threads"),
        ("Same result: hpcncf.remedies.rowwise(model, optimizer).", ["rowwise"], "rowwise"),
        ("Draw them at once: hpcncf.remedies.NegativeSampler.", [], "NegativeSampler"),
        ("Ask for fewer cores: the others idle by --with threads=1.", [], "other"),
    ],
)
def test_codes_of_a_remedy_follow_its_sentence(remedy: str, words: list[str], codes: str) -> None:
    found = Finding("serial_step", 0.5, "time", (), remedy)
    assert list(found.with_remedies) == words
    assert " ".join(found.remedy_codes) == codes
    for word in words:
        assert str(Remedies.parse(f"workers=1,{word}" if "persistent" in word else word))


def test_every_remedy_of_with_has_a_code() -> None:
    assert set(Remedies.model_fields) <= set(get_args(RemedyCode))
    assert set(IN_PROGRAM) <= set(get_args(RemedyCode))
