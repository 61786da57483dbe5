"""The rules of the diagnosis, the order of causes, and what remedies are expected to gain."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_evidence import PHASES, command, evidence, two_ranks
from make_results import demo, node_record, plan_of, rank_record

from hpcncf.monitor.node import network_link_mib_s
from hpcncf_analysis.diagnosis import diagnose, thresholds
from hpcncf_analysis.diagnosis import expected_gain as gains
from hpcncf_analysis.diagnosis.diagnose import find
from hpcncf_analysis.diagnosis.evidence import (
    CAUSES,
    Cause,
    Evidence,
    Finding,
    Gpus,
    RankTimes,
    Traffic,
)
from hpcncf_analysis.diagnosis.expected_gain import rowwise
from hpcncf_analysis.diagnosis.from_records import traffic_of
from hpcncf_analysis.diagnosis.rules_cores import (
    gpu_underused,
    memory_pressure,
    neighbour_load,
    one_core_confinement,
    oversubscribed,
    serial_step,
)
from hpcncf_analysis.diagnosis.rules_input import input_io, python_input, worker_overhead
from hpcncf_analysis.diagnosis.rules_ranks import balance, load_imbalance, straggler, sync_bound
from hpcncf_analysis.diagnosis.rules_time import (
    checkpoint_bound,
    dense_optimizer,
    evaluation_bound,
    startup_bound,
    too_short_to_judge,
)


def test_one_core_usable_of_five_allocated_costs_four_fifths_of_the_cores() -> None:
    found = one_core_confinement(evidence(allocated=5, usable=1))
    assert (found.share, found.of) == (0.8, "cores")
    assert "5 cores allocated, 1 usable" in found.evidence
    assert "srun -c 5" in found.remedy


def test_all_cores_usable_is_no_confinement() -> None:
    assert one_core_confinement(evidence(allocated=5, used=1.0)) is None


def test_a_quota_that_ranks_share_confines_them_to_what_was_used() -> None:
    found = one_core_confinement(evidence(allocated=2, used=1.0, throttled_s=80.0))
    assert found.share == 0.5
    assert "80 s" in " ".join(found.evidence)


def bound(**changes: Any) -> Evidence:
    seen: dict[str, Any] = {"affinity_changed": True, "runqueue_s": 90.0, "runnable": 1.9}
    return evidence(allocated=2, used=1.0, **(seen | changes))


def test_threads_that_wait_beside_an_idle_core_were_bound_to_one() -> None:
    found = one_core_confinement(bound())
    assert found.share == 0.5


@pytest.mark.parametrize(
    "changes", [{"affinity_changed": False}, {"runqueue_s": 5.0}, {"others_cores": 1.0}]
)
def test_a_core_that_idles_for_another_reason_is_no_binding(changes: dict[str, float]) -> None:
    assert one_core_confinement(bound(**changes)) is None


def test_eight_threads_that_want_two_cores_wait_three_quarters_of_their_time() -> None:
    found = oversubscribed(evidence(allocated=2, runnable=8.0))
    assert (found.share, found.of) == (0.75, "time")
    assert found.evidence[0] == "8.0 threads wanted to run at a time on 2 usable cores"


def test_without_a_measurement_the_threads_asked_for_count() -> None:
    assert oversubscribed(evidence(allocated=2, runnable=None, threads=2)) is None
    found = oversubscribed(evidence(allocated=2, runnable=None, threads=4))
    assert found.share == 0.5


@pytest.mark.parametrize("runnable", [1.0, 2.0, 2.4])
def test_as_many_threads_as_cores_and_a_helper_are_no_oversubscription(runnable: float) -> None:
    assert oversubscribed(evidence(allocated=2, runnable=runnable)) is None


@pytest.mark.parametrize(("threads", "runnable", "found"), [(1, 2.7, 0), (1, 4.4, 1), (2, 2.7, 1)])
def test_ranks_whose_threads_fit_may_hand_work_over(
    threads: int, runnable: float, found: int
) -> None:
    two = evidence(allocated=2, runnable=runnable, threads=threads, world_size=2)
    assert (oversubscribed(two) is not None) == bool(found)


def test_a_neighbour_costs_the_core_time_that_our_threads_waited_for() -> None:
    found = neighbour_load(evidence(used=0.4, others_cores=0.6, runnable=1.0, runqueue_s=60.0))
    assert found.share == pytest.approx(0.6)
    assert "0.6 of its 1 core," in found.evidence[0]


def test_a_neighbour_on_a_core_that_we_did_not_want_costs_nothing() -> None:
    assert neighbour_load(evidence(allocated=2, used=1.0, others_cores=1.0)) is None


def test_threads_that_wait_for_their_own_siblings_blame_no_neighbour() -> None:
    seen = evidence(allocated=2, others_cores=0.3, runnable=8.0, runqueue_s=600.0)
    assert neighbour_load(seen) is None


def test_what_the_hypervisor_took_counts_as_a_neighbour() -> None:
    found = neighbour_load(evidence(steal=0.4))
    assert (found.share, len(found.evidence)) == (0.4, 1)


def test_one_thread_on_four_cores_leaves_three_quarters_idle() -> None:
    found = serial_step(evidence(allocated=4, used=1.0, threads=1))
    assert found.share == pytest.approx(0.675)
    assert found.of == "cores"
    assert found.changes == {"resources.cpus_per_task": 1}
    assert (found.gain.factor, found.gain.what) == (0.25, "core_hours")


def test_cores_that_idle_while_one_thread_makes_the_input_are_not_the_steps_fault() -> None:
    phases = {"input": 0.9, "forward": 0.05, "backward": 0.05}
    assert serial_step(evidence(allocated=2, used=1.0, phases=phases)) is None


def test_a_program_that_waits_is_not_serial() -> None:
    assert serial_step(command(allocated=2, used=0.3)) is None


def test_one_thread_that_a_neighbour_starves_is_serial_still() -> None:
    seen = evidence(allocated=2, used=0.4, runnable=1.0, runqueue_s=60.0, phases={})
    found = serial_step(seen)
    assert found.share == pytest.approx(0.5)


def test_one_core_per_rank_cannot_be_serial() -> None:
    assert serial_step(evidence(allocated=1, used=0.9)) is None


def test_three_seconds_after_start_up_are_too_short() -> None:
    found = too_short_to_judge(evidence(elapsed_s=6.0, startup_s=3.0, training_s=3.0))
    assert "after" in found.evidence[0]
    assert too_short_to_judge(evidence()) is None


def test_a_command_of_four_seconds_is_too_short() -> None:
    assert too_short_to_judge(command(elapsed_s=4.0)) is not None
    assert too_short_to_judge(command(elapsed_s=20.0)) is None


def test_a_long_start_up_is_said_even_where_little_follows() -> None:
    seen = evidence(elapsed_s=25.0, startup_s=22.0, training_s=3.0)
    found = startup_bound(seen)
    assert found.share == pytest.approx(0.88)
    assert too_short_to_judge(seen) is None


def test_imports_that_a_neighbour_made_slow_are_not_the_starts_fault() -> None:
    seen = {"elapsed_s": 25.0, "startup_s": 12.0, "training_s": 12.0, "used": 0.25}
    assert startup_bound(evidence(**seen)) is not None
    beside = {"others_cores": 0.75, "runnable": 1.0, "runqueue_s": 18.75}
    assert startup_bound(evidence(**seen, **beside)) is None


def test_imports_of_a_short_run_are_no_start_up_to_complain_of() -> None:
    assert startup_bound(evidence(elapsed_s=8.0, startup_s=4.0)) is None


def test_a_full_evaluation_has_a_setting_against_it() -> None:
    seen = evidence(evaluation_s=50.0, training={"evaluation": "full"})
    found = evaluation_bound(seen)
    assert found.changes == {"training.evaluation": "sampled"}
    assert found.gain.what == "core_hours"
    assert found.gain.factor == pytest.approx(0.515)


def test_a_sampled_evaluation_has_none() -> None:
    found = evaluation_bound(evidence(evaluation_s=50.0))
    assert found.changes == {}


def test_checkpoints_that_cost_a_third() -> None:
    found = checkpoint_bound(evidence(checkpoint_s=33.0))
    assert found.changes == {"training.checkpoint_every": 0}
    assert found.gain.factor == pytest.approx(0.67)
    assert checkpoint_bound(evidence(checkpoint_s=5.0)) is None


def test_waiting_for_memory_is_pressure() -> None:
    seen = evidence(memory_pressure_s=40.0, memory_peak_mib=255.0, memory_limit_mib=256.0)
    found = memory_pressure(seen)
    assert found.share == pytest.approx(0.4)
    assert memory_pressure(evidence(memory_pressure_s=4.0)) is None


def test_being_near_the_limit_alone_costs_nothing() -> None:
    seen = evidence(memory_peak_mib=255.0, memory_limit_mib=256.0)
    assert memory_pressure(seen) is None


def test_pages_read_again_and_again_at_the_limit_cost_what_is_not_computed() -> None:
    seen = evidence(
        memory_peak_mib=240.0, memory_limit_mib=256.0, major_faults=50_000, used=0.5, system_s=20.0
    )
    found = memory_pressure(seen)
    assert found.share == pytest.approx(0.5 + 0.2)
    few = evidence(memory_peak_mib=240.0, memory_limit_mib=256.0, major_faults=500, used=0.5)
    assert memory_pressure(few) is None


def test_a_gpu_that_waits_for_batches_is_input_bound() -> None:
    waits = {**PHASES, "input": 0.6}
    found = gpu_underused(evidence(gpus=Gpus(1, 0.2), phases=waits))
    assert found.share == 0.8
    assert any(each.startswith("input-bound") for each in found.evidence)


def test_a_gpu_that_waits_for_small_kernels_is_launch_bound() -> None:
    found = gpu_underused(evidence(gpus=Gpus(2, 0.2, watts=120.0)))
    assert any(each.startswith("launch-bound") for each in found.evidence)
    assert gpu_underused(evidence(gpus=Gpus(1, 0.9))) is None


def test_a_gpu_that_idles_in_a_training_of_seconds_is_no_cause() -> None:
    short = {"elapsed_s": 25.0, "startup_s": 22.0, "training_s": 3.0, "evaluation_s": 0.0}
    assert gpu_underused(evidence(**short, gpus=Gpus(1, 0.4, training=True))) is None


def test_without_phases_it_is_not_known_what_a_gpu_waits_for() -> None:
    found = gpu_underused(command(gpus=Gpus(1, 0.2)))
    assert "not known" in found.evidence[-1]


SLOW_INPUT = {"input": 0.7, "forward": 0.1, "backward": 0.1, "optimizer": 0.1}


def per_sample(**changes: Any) -> Evidence:
    training = {"loader": "per_sample", "engine": "reference", "sync": "dense"}
    plain: dict[str, Any] = {"training": training, "phases": SLOW_INPUT}
    return evidence(**(plain | changes))


def test_samples_made_one_by_one_cost_the_time_that_steps_wait_for_them() -> None:
    found = python_input(per_sample())
    assert found.share == pytest.approx(0.7 * 0.95)
    assert found.changes == {"training.loader": "vectorized"}
    # A 25th of the input stays, and of the other 0.3 four fifths.
    assert found.gain.factor == pytest.approx(1 / (0.028 + 0.24))
    assert found.gain.low == pytest.approx(1 / (0.14 + 0.3))
    assert found.gain.high == pytest.approx(1.55 / 0.3)


def test_where_the_optimiser_empties_the_caches_the_rest_of_a_step_gains_nothing() -> None:
    found = python_input(per_sample(parameters=12_000_000))
    assert found.gain.factor == pytest.approx(1 / (0.028 + 0.3))
    assert found.gain.high == pytest.approx(1 / 0.3)


def test_whole_batches_are_not_blamed_for_python() -> None:
    assert python_input(evidence(phases=SLOW_INPUT)) is None


def test_a_command_that_computes_its_input_makes_it_in_python() -> None:
    found = python_input(command(phases=SLOW_INPUT, training_s=95.0))
    assert found.changes == {}
    assert found.gain is None


def test_an_input_during_which_nobody_computes_waits_for_files() -> None:
    seen = command(phases=SLOW_INPUT, training_s=95.0, used=0.35, read_mib=700.0, iowait_s=60.0)
    assert python_input(seen) is None
    found = input_io(seen)
    assert found.share == pytest.approx(0.65)
    assert any("700 MiB" in each for each in found.evidence)


def test_an_input_that_waits_for_a_core_does_not_wait_for_files() -> None:
    seen = per_sample(used=0.4, runnable=1.0, runqueue_s=60.0, others_cores=0.6)
    assert input_io(seen) is None
    assert python_input(seen) is not None


def test_a_command_without_phases_waits_for_files_where_the_kernel_says_so() -> None:
    found = input_io(command(used=0.3, iowait_s=60.0))
    assert found.share == pytest.approx(0.6)
    assert input_io(command(used=0.3)) is None


def test_workers_whose_batches_are_awaited_longer_than_they_take_to_make() -> None:
    seen = evidence(workers=2, children_s=19.0, phases=SLOW_INPUT)
    found = worker_overhead(seen)
    assert found.changes == {"training.num_workers": 0}
    assert found.gain.factor == pytest.approx(1 / (0.3 + (19 - 0.06) / 95))
    assert python_input(per_sample(workers=2, children_s=19.0)) is None


def test_workers_that_compute_all_the_time_are_not_overhead() -> None:
    seen = per_sample(workers=2, children_s=150.0)
    assert worker_overhead(seen) is None
    assert python_input(seen) is not None


def test_starting_workers_anew_is_not_making_batches() -> None:
    training = {"loader": "batched", "persistent_workers": False}
    seen = evidence(
        workers=2, epochs=100, children_s=19.0, phases=SLOW_INPUT, training=training, training_s=95
    )
    found = worker_overhead(seen)
    # 200 starts of 0.03 s: 13 of 95 s make batches.
    assert found.gain.factor == pytest.approx(1 / (0.3 + 13 / 95))


def test_a_fork_makes_more_than_an_epochs_first_batch_late() -> None:
    known: dict[str, Any] = {"first_batch_s": 57.0, "running_step": 0.3}
    seen = evidence(workers=1, children_s=9.53, phases=SLOW_INPUT, **known)
    found = worker_overhead(seen)
    # Input is 0.7 of the steps, 57 of 95 s of it an epoch's first: 0.1 of waiting goes from the
    # 0.3 that a running step takes, and 9.5 s of making batches come to it.
    assert found.gain.factor == pytest.approx(1 / (0.3 - 0.1 + 0.1))
    assert found.gain.high == pytest.approx(1 / (0.3 - 0.1))


def test_epochs_that_wait_for_their_workers_to_start() -> None:
    found = worker_overhead(evidence(workers=2, children_s=1.0, first_batch_s=40.0))
    assert found.share == pytest.approx(0.4)
    assert worker_overhead(evidence(first_batch_s=40.0)) is None


HEAVY = {"input": 0.01, "forward": 0.01, "backward": 0.07, "optimizer": 0.9, "other": 0.01}


def test_an_optimiser_that_walks_rows_nobody_read() -> None:
    seen = RankTimes(0, "node1", 95.0, 0.0, instances=1_200_000)
    known: dict[str, Any] = {"rows_per_step": 1500, "table_rows": 300_000, "ranks": (seen,)}
    found = dense_optimizer(evidence(phases=HEAVY, parameters=12_000_000, epochs=2, **known))
    assert found.share == pytest.approx(0.9 * 0.95 * (1 - 0.005))
    assert found.changes == {"training.engine": "rowwise"}
    # 183 MiB are walked in a step. Left: 0.4 of the input, other, 3 forward passes, and 2 x 300,000
    # rows to catch up for 1,200,000 instances: a third of a pass.
    assert found.gain.factor == pytest.approx(1 / (0.004 + 0.01 + 3.335 * 0.01))


def test_where_the_tables_fit_the_caches_a_rowwise_step_is_more_forward_passes() -> None:
    seen = RankTimes(0, "node1", 95.0, 0.0, instances=10**9)
    small = evidence(phases=HEAVY, parameters=80_000, table_rows=2_000, ranks=(seen,))
    assert rowwise(small).factor == pytest.approx(1 / (0.014 + 4.5 * 0.01), rel=1e-3)


@pytest.mark.parametrize(
    "changes",
    [
        {"rows_per_step": 1000, "table_rows": 1700},
        {"rows_per_step": None},
        {"training": {"engine": "rowwise"}},
        {"training": {"engine": "reference", "sparse": True}},
        {"training": {"engine": "reference", "weight_decay": 0.1}},
    ],
    ids=["most rows are read", "not known", "rowwise", "sparse gradients", "weight decay"],
)
def test_an_optimiser_is_not_blamed_without_reason(changes: dict[str, Any]) -> None:
    plain: dict[str, Any] = {"phases": HEAVY, "rows_per_step": 1500, "table_rows": 300_000}
    seen = plain | changes
    assert dense_optimizer(evidence(**seen)) is None


def test_what_the_rowwise_engine_knows_nothing_of_goes_back_to_its_default() -> None:
    training = {"engine": "reference", "adam": "fused", "compile": "torchscript", "seed": 3}
    seen = evidence(phases=HEAVY, rows_per_step=1500, table_rows=300_000, training=training)
    found = dense_optimizer(seen)
    assert found.changes == {
        "training.adam": "default",
        "training.compile": "none",
        "training.engine": "rowwise",
    }


def test_without_workers_their_settings_go_back_to_their_defaults() -> None:
    found = python_input(
        per_sample(
            training={"loader": "per_sample", "num_workers": 2, "prefetch_factor": 4},
            workers=2,
            children_s=150.0,
        )
    )
    assert found.changes == {
        "training.num_workers": 0,
        "training.prefetch_factor": 2,
        "training.loader": "vectorized",
    }


def test_threads_that_make_batches_are_not_reported_from_the_rank() -> None:
    seen = evidence(workers=2, children_s=0.0, phases=SLOW_INPUT, training={"workers": "thread"})
    assert worker_overhead(seen) is None


def test_ranks_that_get_the_rowwise_engine_exchange_rows() -> None:
    seen = evidence(phases=HEAVY, rows_per_step=1500, table_rows=300_000, world_size=2)
    found = dense_optimizer(seen)
    assert found.changes == {"training.engine": "rowwise", "training.sync": "rows"}


def rank(number: int, sync_s: float, instances: int = 1000, cpu_s: float = 95.0) -> RankTimes:
    return RankTimes(number, f"node{number + 1}", 95.0, sync_s, instances, cpu_s)


def test_ranks_that_arrive_together_and_wait_are_bound_by_their_exchange() -> None:
    seen = two_ranks(rank(0, 38.0), rank(1, 38.0), sync_bytes_per_step=2.0 * 2**20)
    found = sync_bound(seen)
    assert found.share == pytest.approx(0.4 * 0.95)
    assert "2 MiB" in found.evidence[1]
    assert found.changes == {"training.engine": "rowwise", "training.sync": "rows"}
    # 1,500 rows to catch up for 1,000 instances: one pass more.
    assert found.gain.factor == pytest.approx(1 / (0.04 + 5.005 * 0.3))


def test_an_older_record_that_says_nothing_of_its_exchange_is_taken_at_its_settings() -> None:
    seen = two_ranks(rank(0, 38.0), rank(1, 38.0), sync_how=None)
    found = sync_bound(seen)
    assert found.changes["training.sync"] == "rows"
    assert "training.sync rows" in found.remedy


def test_a_dense_all_reduce_of_sparse_gradients_is_said_apart() -> None:
    seen = two_ranks(rank(0, 38.0), rank(1, 38.0), rows_per_step=700, table_rows=300_000)
    found = sync_bound(seen)
    assert any("dense all-reduce of sparse gradients" in each for each in found.evidence)
    assert "rows that a step read" in found.remedy


@pytest.mark.parametrize("setting", [{"sparse": True}, {"weight_decay": 0.1}])
def test_sparse_gradients_and_weight_decay_are_not_asked_to_send_rows(
    setting: dict[str, Any],
) -> None:
    known: dict[str, Any] = {"rows_per_step": 700, "table_rows": 300_000}
    seen = two_ranks(rank(0, 38.0), rank(1, 38.0), training={"sync": "dense"} | setting, **known)
    found = sync_bound(seen)
    dense = any("dense all-reduce of sparse" in each for each in found.evidence)
    assert (dense, found.changes == {}) == (not setting.get("sparse"), "weight_decay" in setting)


def test_a_slow_rank_is_named_and_the_exchange_is_not_blamed() -> None:
    seen = two_ranks(rank(0, 60.0), rank(1, 2.0))
    assert sync_bound(seen) is None
    assert load_imbalance(seen) is None
    found = straggler(seen)
    # Useful 35 and 93 s: as fast as rank 0, rank 1 would save 58 of 95 s, which rank 0 waits.
    assert found.share == pytest.approx(58 / 95 * 0.95)
    assert "for 61\u202f% of a step" in found.evidence[1]
    assert found.evidence[0].startswith("rank 1 on node node2 needs 1.45 times")


def test_a_rank_with_more_instances_is_not_slow() -> None:
    seen = two_ranks(rank(0, 60.0, instances=1000), rank(1, 2.0, instances=3000))
    assert straggler(seen) is None
    found = load_imbalance(seen)
    assert found.evidence[0] == "rank 1 has 3,000 instances, the mean is 2,000"


def test_ranks_that_differ_a_little_are_alike() -> None:
    seen = two_ranks(rank(0, 8.0), rank(1, 2.0))
    assert straggler(seen) is None
    assert load_imbalance(seen) is None


def test_without_phases_unequal_cpu_time_is_an_imbalance() -> None:
    both = (RankTimes(0, "node1", cpu_s=30.0), RankTimes(1, "node1", cpu_s=96.0))
    found = load_imbalance(command(ranks=both, world_size=2))
    assert found.share == pytest.approx(1 - 63 / 96)
    assert found.of == "cores"


def test_one_rank_waits_for_nobody() -> None:
    assert balance(evidence().ranks) is None
    assert sync_bound(evidence()) is None


def test_a_rank_whose_record_is_missing_leaves_the_others_unjudged() -> None:
    assert balance((rank(0, 60.0), RankTimes(1, "node2"))) is None


PER_SAMPLE = {"loader": "per_sample", "engine": "reference", "sync": "dense"}


def finding(cause: Cause, share: float) -> Finding:
    return Finding(cause, share, "time", (), "")


def causes(*found: Finding) -> list[str]:
    return [each.cause for each in diagnose.ordered(found)]


def test_a_run_that_keeps_its_cores_busy_is_healthy() -> None:
    seen = diagnose.diagnose_evidence(evidence(allocated=2))
    assert (seen.verdict, seen.findings, seen.missing) == ("healthy", (), ())


@pytest.mark.parametrize("phases", [{}, {"phases": SLOW_INPUT, "training": PER_SAMPLE}])
def test_memory_that_grows_is_an_alert_whatever_the_verdict(phases: dict[str, Any]) -> None:
    [seen] = diagnose.diagnose_evidence(evidence(memory_growth_mib=2048.0, **phases)).alerts
    assert seen.startswith("memory grew steadily, by 2,048")
    assert diagnose.diagnose_evidence(evidence(**phases)).alerts == ()


def test_idle_cores_that_nothing_explains_are_unknown() -> None:
    seen = diagnose.diagnose_evidence(command(used=0.3))
    assert seen.verdict == "unknown"
    assert seen.missing[0] == "why 70\u202f% of the usable cores' time was not used"


def test_the_costliest_finding_is_the_primary_one() -> None:
    assert causes(finding("evaluation_bound", 0.3), finding("python_input", 0.4)) == [
        "python_input",
        "evaluation_bound",
    ]


@pytest.mark.parametrize(
    ("cause", "share", "first"),
    [
        ("sync_bound", 0.6, "sync_bound"),
        ("sync_bound", 0.25, "neighbour_load"),  # without the neighbour too little would be left
        ("oversubscribed", 0.25, "neighbour_load"),  # nor here
        ("oversubscribed", 0.6, "oversubscribed"),
        ("straggler", 0.25, "straggler"),  # its waits for a core are not in it
    ],
)
def test_a_programs_own_causes_stand_before_a_neighbour(
    cause: Cause, share: float, first: Cause
) -> None:
    found = [finding(cause, share), finding("neighbour_load", 0.5)]
    assert diagnose.ordered(found, inside=True)[0].cause == first


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


def test_the_forums_run_is_reported_from_one_confined_to_a_core() -> None:
    """Both used one core of five: 20 %."""
    naive = evidence(allocated=5, used=1.0, training=PER_SAMPLE, phases=SLOW_INPUT, threads=5)
    bound = evidence(allocated=5, usable=1, training=PER_SAMPLE, phases=SLOW_INPUT)
    for seen, cause in ((naive, "python_input"), (bound, "one_core_confinement")):
        judged = diagnose.diagnose_evidence(seen)
        assert judged.primary.cause == cause


def test_records_that_lack_a_rank_say_so() -> None:
    assert "the record of 1 rank" in diagnose.diagnose_evidence(evidence(world_size=2)).missing


def test_a_run_that_did_not_complete_is_not_called_healthy() -> None:
    seen = diagnose.diagnose_evidence(evidence(failed="rank 0 failed: MemoryError"))
    assert seen.verdict == "unknown"
    assert "MemoryError" in seen.missing[0]


def test_a_cause_in_a_run_that_failed_does_not_hide_the_failure() -> None:
    seen = diagnose.diagnose_evidence(
        evidence(failed="rank 0 failed: MemoryError", evaluation_s=90.0)
    )
    assert seen.verdict == "cause"
    assert "MemoryError" in seen.missing[0]


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
    seen = diagnose.diagnose_evidence(
        evidence(allocated=8, used=used, trained=trained, elapsed_s=elapsed_s, **odd)
    )
    assert seen.verdict in ("cause", "healthy", "unknown")
    assert all(0 <= found.share <= 1 for found in seen.findings)


@pytest.mark.parametrize("cause", diagnose.EXPLAINS)
def test_nothing_explains_what_explains_it(cause: Cause) -> None:
    for explained in diagnose.EXPLAINS[cause]:
        assert cause not in diagnose.EXPLAINS.get(explained, ())


def test_a_run_that_never_came_to_its_first_step_was_bound_by_its_start() -> None:
    seen = diagnose.diagnose_evidence(
        evidence(elapsed_s=120.0, startup_s=120.0, phases={}, training_s=None, failed="stopped")
    )
    assert seen.primary.cause == "startup_bound"
    assert seen.secondary == ()


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


@pytest.mark.parametrize("cause", FORMULAS)
def test_formulas_have_the_constants_in_use(cause: str) -> None:
    found = numbers("diagnosis.md", "Predicted gains", cause)
    assert {round(constant, 6) for constant in FORMULAS[cause]} <= found


@pytest.mark.parametrize("remedy", REASONS)
def test_reasons_have_the_constants_in_use(remedy: str) -> None:
    found = numbers("metrics.md", "What a remedy brings", remedy)
    assert {round(constant, 6) for constant in REASONS[remedy]} <= found


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


LIMIT = "the network is the limit"


def exchange(nodes: int, traffic: Traffic) -> str:
    """What is said of two ranks that spend 0.4 of their steps in the exchange."""
    ranks = [RankTimes(at, f"n{at % nodes}", 95.0, 38.0, 1000, 95.0) for at in (0, 1)]
    (finding,) = [f for f in find(two_ranks(*ranks, traffic=traffic)) if f.cause == "sync_bound"]
    return finding.evidence[-1]


@pytest.mark.parametrize(
    ("nodes", "traffic", "said"),
    [
        # 80 MiB/s of all time are 200 while they exchange, of 2 x 120 that the link carries.
        (2, Traffic(80.0, 0.0, 0.0, link=120.0), LIMIT),
        (2, Traffic(8.0, 0.0, 0.0, link=120.0), "latency or a slow rank is the limit"),
        (2, Traffic(80.0, 0.0, 0.0), "the speed of its link is not known"),
        (1, Traffic(0.0, 50.0, 0.0, link=120.0), "50 MiB/s over loopback"),
        (1, Traffic(0.0, 0.0, 0.0), "stays in the node's memory"),
    ],
)
def test_an_exchange_says_whether_the_network_is_its_limit(
    nodes: int, traffic: Traffic, said: str
) -> None:
    assert said in exchange(nodes, traffic)


@pytest.mark.parametrize(
    ("traffic", "said"),
    [
        (Traffic(2.0, 0.0, 90.0), "90 MiB/s, its network carried 2 MiB/s"),
        (Traffic(40.0, 0.0, 1.0, link=1000.0), "the files come over the network"),
        (
            Traffic(100.0, 0.0, 1.0, link=120.0),
            "the files come over the network, which is the limit",
        ),
    ],
)
def test_files_that_a_run_waits_for_are_placed(traffic: Traffic, said: str) -> None:
    waits = {"input": 0.7, "forward": 0.3}
    seen = evidence(used=0.3, phases=waits, traffic=traffic)
    (finding,) = [f for f in find(seen) if f.cause == "input_io"]
    assert finding.evidence[-1].endswith(said)


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
