"""Start-up, evaluation, checkpoints, memory, GPUs, and runs too short to judge."""

from __future__ import annotations

import pytest
from make_evidence import PHASES, command, evidence

from hpcncf_analysis.diagnosis.evidence import Gpus
from hpcncf_analysis.diagnosis.rules_cores import (
    checkpoint_bound,
    evaluation_bound,
    gpu_underused,
    memory_pressure,
    startup_bound,
    too_short_to_judge,
)


def test_three_seconds_after_start_up_are_too_short() -> None:
    found = too_short_to_judge(evidence(elapsed_s=6.0, startup_s=3.0, training_s=3.0))
    assert found is not None
    assert "after" in found.evidence[0]
    assert too_short_to_judge(evidence()) is None


def test_a_command_of_four_seconds_is_too_short() -> None:
    assert too_short_to_judge(command(elapsed_s=4.0)) is not None
    assert too_short_to_judge(command(elapsed_s=20.0)) is None


def test_a_long_start_up_is_said_even_where_little_follows() -> None:
    told = evidence(elapsed_s=25.0, startup_s=22.0, training_s=3.0)
    found = startup_bound(told)
    assert found is not None
    assert found.share == pytest.approx(0.88)
    assert too_short_to_judge(told) is None


def test_imports_that_a_neighbour_made_slow_are_not_the_starts_fault() -> None:
    told = {"elapsed_s": 25.0, "startup_s": 12.0, "training_s": 12.0, "used": 0.25}
    assert startup_bound(evidence(**told)) is not None
    beside = {"others_cores": 0.75, "runnable": 1.0, "runqueue_s": 18.75}
    assert startup_bound(evidence(**told, **beside)) is None


def test_imports_of_a_short_run_are_no_start_up_to_complain_of() -> None:
    assert startup_bound(evidence(elapsed_s=8.0, startup_s=4.0)) is None


def test_a_full_evaluation_has_a_setting_against_it() -> None:
    told = evidence(evaluation_s=50.0, training={"evaluation": "full"})
    found = evaluation_bound(told)
    assert found is not None
    assert found.changes == {"training.evaluation": "sampled"}
    assert found.gain is not None
    assert found.gain.what == "core_hours"
    assert found.gain.factor == pytest.approx(0.515)


def test_a_sampled_evaluation_has_none() -> None:
    found = evaluation_bound(evidence(evaluation_s=50.0))
    assert found is not None
    assert found.changes == {}


def test_checkpoints_that_cost_a_third() -> None:
    found = checkpoint_bound(evidence(checkpoint_s=33.0))
    assert found is not None
    assert found.changes == {"training.checkpoint_every": 0}
    assert found.gain is not None
    assert found.gain.factor == pytest.approx(0.67)
    assert checkpoint_bound(evidence(checkpoint_s=5.0)) is None


def test_waiting_for_memory_is_pressure() -> None:
    told = evidence(memory_pressure_s=40.0, memory_peak_mib=255.0, memory_limit_mib=256.0)
    found = memory_pressure(told)
    assert found is not None
    assert found.share == pytest.approx(0.4)
    assert memory_pressure(evidence(memory_pressure_s=4.0)) is None


def test_being_near_the_limit_alone_costs_nothing() -> None:
    told = evidence(memory_peak_mib=255.0, memory_limit_mib=256.0)
    assert memory_pressure(told) is None


def test_pages_read_again_and_again_at_the_limit_cost_what_is_not_computed() -> None:
    told = evidence(
        memory_peak_mib=240.0, memory_limit_mib=256.0, major_faults=50_000, used=0.5, system_s=20.0
    )
    found = memory_pressure(told)
    assert found is not None
    assert found.share == pytest.approx(0.5 + 0.2)
    few = evidence(memory_peak_mib=240.0, memory_limit_mib=256.0, major_faults=500, used=0.5)
    assert memory_pressure(few) is None


def test_a_gpu_that_waits_for_batches_is_input_bound() -> None:
    waits = {**PHASES, "input": 0.6}
    found = gpu_underused(evidence(gpus=Gpus(1, 0.2), phases=waits))
    assert found is not None
    assert found.share == 0.8
    assert any(each.startswith("input-bound") for each in found.evidence)


def test_a_gpu_that_waits_for_small_kernels_is_launch_bound() -> None:
    found = gpu_underused(evidence(gpus=Gpus(2, 0.2, watts=120.0)))
    assert found is not None
    assert any(each.startswith("launch-bound") for each in found.evidence)
    assert gpu_underused(evidence(gpus=Gpus(1, 0.9))) is None


def test_a_gpu_that_idles_in_a_training_of_seconds_is_no_cause() -> None:
    short = {"elapsed_s": 25.0, "startup_s": 22.0, "training_s": 3.0, "evaluation_s": 0.0}
    assert gpu_underused(evidence(**short, gpus=Gpus(1, 0.4, training=True))) is None


def test_without_phases_it_is_not_known_what_a_gpu_waits_for() -> None:
    found = gpu_underused(command(gpus=Gpus(1, 0.2)))
    assert found is not None
    assert "not known" in found.evidence[-1]
