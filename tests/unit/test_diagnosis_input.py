"""Samples made in Python, waiting for files, workers that do not pay, rows that nobody read."""

from __future__ import annotations

from typing import Any

import pytest
from make_evidence import command, evidence

from hpcncf_analysis.diagnosis.evidence import Evidence, RankTimes
from hpcncf_analysis.diagnosis.expected_gain import rowwise
from hpcncf_analysis.diagnosis.rules_input import input_io, python_input, worker_overhead
from hpcncf_analysis.diagnosis.rules_time import dense_optimizer

SLOW_INPUT = {"input": 0.7, "forward": 0.1, "backward": 0.1, "optimizer": 0.1}


def per_sample(**changes: Any) -> Evidence:
    training = {"loader": "per_sample", "engine": "reference", "sync": "dense"}
    plain: dict[str, Any] = {"training": training, "phases": SLOW_INPUT}
    return evidence(**(plain | changes))


def test_samples_made_one_by_one_cost_the_time_that_steps_wait_for_them() -> None:
    found = python_input(per_sample())
    assert found is not None
    assert found.share == pytest.approx(0.7 * 0.95)
    assert found.changes == {"training.loader": "vectorized"}
    assert found.gain is not None
    # A 25th of the input stays, and of the other 0.3 four fifths.
    assert found.gain.factor == pytest.approx(1 / (0.028 + 0.24))
    assert found.gain.low == pytest.approx(1 / (0.14 + 0.3))
    assert found.gain.high == pytest.approx(1.55 / 0.3)


def test_where_the_optimiser_empties_the_caches_the_rest_of_a_step_gains_nothing() -> None:
    found = python_input(per_sample(parameters=12_000_000))
    assert found is not None
    assert found.gain is not None
    assert found.gain.factor == pytest.approx(1 / (0.028 + 0.3))
    assert found.gain.high == pytest.approx(1 / 0.3)


def test_whole_batches_are_not_blamed_for_python() -> None:
    assert python_input(evidence(phases=SLOW_INPUT)) is None


def test_a_command_that_computes_its_input_makes_it_in_python() -> None:
    found = python_input(command(phases=SLOW_INPUT, training_s=95.0))
    assert found is not None
    assert found.changes == {}
    assert found.gain is None


def test_an_input_during_which_nobody_computes_waits_for_files() -> None:
    told = command(phases=SLOW_INPUT, training_s=95.0, used=0.35, read_mib=700.0, iowait_s=60.0)
    assert python_input(told) is None
    found = input_io(told)
    assert found is not None
    assert found.share == pytest.approx(0.65)
    assert any("700 MiB" in each for each in found.evidence)


def test_an_input_that_waits_for_a_core_does_not_wait_for_files() -> None:
    told = per_sample(used=0.4, runnable=1.0, runqueue_s=60.0, others_cores=0.6)
    assert input_io(told) is None
    assert python_input(told) is not None


def test_a_command_without_phases_waits_for_files_where_the_kernel_says_so() -> None:
    found = input_io(command(used=0.3, iowait_s=60.0))
    assert found is not None
    assert found.share == pytest.approx(0.6)
    assert input_io(command(used=0.3)) is None


def test_workers_whose_batches_are_awaited_longer_than_they_take_to_make() -> None:
    told = evidence(workers=2, children_s=19.0, phases=SLOW_INPUT)
    found = worker_overhead(told)
    assert found is not None
    assert found.changes == {"training.num_workers": 0}
    assert found.gain is not None
    assert found.gain.factor == pytest.approx(1 / (0.3 + (19 - 0.06) / 95))
    assert python_input(per_sample(workers=2, children_s=19.0)) is None


def test_workers_that_compute_all_the_time_are_not_overhead() -> None:
    told = per_sample(workers=2, children_s=150.0)
    assert worker_overhead(told) is None
    assert python_input(told) is not None


def test_starting_workers_anew_is_not_making_batches() -> None:
    training = {"loader": "batched", "persistent_workers": False}
    told = evidence(
        workers=2, epochs=100, children_s=19.0, phases=SLOW_INPUT, training=training, training_s=95
    )
    found = worker_overhead(told)
    assert found is not None
    assert found.gain is not None
    # 200 starts of 0.03 s: 13 of 95 s make batches.
    assert found.gain.factor == pytest.approx(1 / (0.3 + 13 / 95))


def test_a_fork_makes_more_than_an_epochs_first_batch_late() -> None:
    known: dict[str, Any] = {"first_batch_s": 57.0, "running_step": 0.3}
    told = evidence(workers=1, children_s=9.53, phases=SLOW_INPUT, **known)
    found = worker_overhead(told)
    assert found is not None
    assert found.gain is not None
    # Input is 0.7 of the steps, 57 of 95 s of it an epoch's first: 0.1 of waiting goes from the
    # 0.3 that a running step takes, and 9.5 s of making batches come to it.
    assert found.gain.factor == pytest.approx(1 / (0.3 - 0.1 + 0.1))
    assert found.gain.high == pytest.approx(1 / (0.3 - 0.1))


def test_epochs_that_wait_for_their_workers_to_start() -> None:
    found = worker_overhead(evidence(workers=2, children_s=1.0, first_batch_s=40.0))
    assert found is not None
    assert found.share == pytest.approx(0.4)
    assert worker_overhead(evidence(first_batch_s=40.0)) is None


HEAVY = {"input": 0.01, "forward": 0.01, "backward": 0.07, "optimizer": 0.9, "other": 0.01}


def test_an_optimiser_that_walks_rows_nobody_read() -> None:
    told = RankTimes(0, "node1", 95.0, 0.0, instances=1_200_000)
    known: dict[str, Any] = {"rows_per_step": 1500, "table_rows": 300_000, "ranks": (told,)}
    found = dense_optimizer(evidence(phases=HEAVY, parameters=12_000_000, epochs=2, **known))
    assert found is not None
    assert found.share == pytest.approx(0.9 * 0.95 * (1 - 0.005))
    assert found.changes == {"training.engine": "rowwise"}
    assert found.gain is not None
    # 183 MiB are walked in a step. Left: 0.4 of the input, other, 3 forward passes, and 2 x 300,000
    # rows to catch up for 1,200,000 instances: a third of a pass.
    assert found.gain.factor == pytest.approx(1 / (0.004 + 0.01 + 3.335 * 0.01))


def test_where_the_tables_fit_the_caches_a_rowwise_step_is_more_forward_passes() -> None:
    told = RankTimes(0, "node1", 95.0, 0.0, instances=10**9)
    small = evidence(phases=HEAVY, parameters=80_000, table_rows=2_000, ranks=(told,))
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
    told = plain | changes
    assert dense_optimizer(evidence(**told)) is None


def test_what_the_rowwise_engine_knows_nothing_of_goes_back_to_its_default() -> None:
    training = {"engine": "reference", "adam": "fused", "compile": "torchscript", "seed": 3}
    told = evidence(phases=HEAVY, rows_per_step=1500, table_rows=300_000, training=training)
    found = dense_optimizer(told)
    assert found is not None
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
    assert found is not None
    assert found.changes == {
        "training.num_workers": 0,
        "training.prefetch_factor": 2,
        "training.loader": "vectorized",
    }


def test_threads_that_make_batches_are_not_told_from_the_rank() -> None:
    told = evidence(workers=2, children_s=0.0, phases=SLOW_INPUT, training={"workers": "thread"})
    assert worker_overhead(told) is None


def test_ranks_that_get_the_rowwise_engine_exchange_rows() -> None:
    told = evidence(phases=HEAVY, rows_per_step=1500, table_rows=300_000, world_size=2)
    found = dense_optimizer(told)
    assert found is not None
    assert found.changes == {"training.engine": "rowwise", "training.sync": "rows"}
