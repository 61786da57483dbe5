"""What a choice costs and saves, by hand."""

from __future__ import annotations

from make_configurations import configuration

from hpcncf_analysis.advice.pareto import Choices, build_choices
from hpcncf_analysis.advice.recommend import (
    compute_saving,
    describe_predicted_cost,
    describe_price,
    describe_savings,
)


def choices(**more: object) -> Choices:
    """Core-seconds an epoch: 100 on one core, 120 on two, 800 on sixteen."""
    found = build_choices(
        [
            configuration("one", seconds=100.0, **more),
            configuration("two", seconds=60.0, cores=2, **more),
            configuration("sixteen", seconds=50.0, cores=16, **more),
        ]
    )
    assert found is not None
    return found


def test_against_what_was_asked_for() -> None:
    found = choices()
    saves = compute_saving(found.knee, found, "sixteen")
    assert saves is not None
    assert (3600 * saves.core_h, saves.seconds, saves.gpu_h) == (680.0, -10.0, 0.0)
    assert describe_savings(saves, "epoch") == (
        "Against what was asked for, sixteen, it saves 0.189\u202fcore-h (85\u202f%), takes "
        "10\u202fs more (20\u202f%), for an epoch."
    )


def test_what_costs_more_says_so() -> None:
    found = choices()
    saves = compute_saving(found.knee, found, "one")
    assert saves is not None
    assert describe_savings(saves, "run") == (
        "Against what was asked for, one, it costs 20\u202fcore-s more (20\u202f%), takes "
        "40\u202fs less (40\u202f%), for a run."
    )


def test_what_makes_the_comparison_worth_less_stands_behind_it() -> None:
    found = choices()
    saves = compute_saving(found.knee, choices(cpu_model="Other"), "sixteen")
    assert saves is not None
    assert describe_savings(saves, "epoch").endswith(
        "for an epoch. Mind: different CPU models (Example CPU against Other)."
    )


def test_where_the_choice_was_asked_for_the_dearest_stands_beside_it() -> None:
    found = choices()
    saves = compute_saving(found.knee, found, "two")
    assert saves is not None
    assert (saves.was_asked, saves.against.label) == (False, "sixteen")
    alone = build_choices([configuration("one")])
    assert alone is not None
    assert compute_saving(alone.knee, alone, None) is None


def test_a_prediction_is_told_with_its_interval() -> None:
    """100 core-seconds, to become 40, or 30 to 50."""
    (one,) = [each for each in choices().standings if each.label == "one"]
    assert describe_predicted_cost(one, (0.4, 0.3, 0.5), "epoch") == (
        "Predicted: 40\u202fcore-s (30\u202fcore-s to 50\u202fcore-s) for an epoch instead of "
        "100\u202fcore-s."
    )


def test_gpu_hours_are_told_beside_core_hours() -> None:
    """Each has one GPU: 60 s of it are 60 GPU-seconds."""
    found = choices(gpus_per_node=1)
    assert found.knee.label == "sixteen", "the least GPU time, whatever its cores"
    (two,) = [each for each in found.standings if each.label == "two"]
    assert describe_price(two, "epoch") == (
        "60\u202fs, 120\u202fcore-s and 60\u202fGPU-s for an epoch"
    )
    saves = compute_saving(found.knee, found, "two")
    assert saves is not None
    assert "saves 10\u202fGPU-s (17\u202f%)" in describe_savings(saves, "epoch")
