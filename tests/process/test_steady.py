"""Drift and pauses within a run, and repeats far from the others: marked by known rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcncf.collect import repeats
from hpcncf.collect.training_columns import drift, figures_steady, unsteady
from hpcncf.records.schema import Batches, Phases, TrainingRecord


def trained(
    seconds: Sequence[float], pauses: Sequence[float] = (), warmup: int = 0, every: int = 1
) -> TrainingRecord:
    """A rank whose steps took so long."""
    told = [{"epoch": 0, "step": 5, "seconds": each} for each in pauses]
    names = ("input_s", "forward_s", "backward_s", "sync_s", "optimizer_s", "other_s")
    return TrainingRecord(
        device="cpu",
        backend="gloo",
        threads=1,
        parameters=1,
        startup_s=1.0,
        training_s=10.0,
        evaluation_s=0.0,
        checkpoint_s=0.0,
        steps=len(seconds) * every,
        instances=100,
        warmup_steps=warmup,
        counted_steps=len(seconds) * every - warmup,
        counted_instances=100,
        counted_s=10.0,
        phases=Phases(**dict.fromkeys(names, 0.0)),
        epochs=[],
        batches=Batches(every=every, seconds=list(seconds), pauses=told),
        model_sha256=None,
        resumed_epoch=None,
    )


def test_drift_is_the_last_thirds_median_over_the_firsts() -> None:
    """Medians 2 and 3: a half more, whatever lies between."""
    assert drift(trained([2, 2, 9, 7, 7, 7, 3, 3, 1])) == pytest.approx(0.5)


@pytest.mark.parametrize("seconds", [[], [1.0] * 8, [0.0] * 9])
def test_too_few_steps_have_no_drift(seconds: list[float]) -> None:
    assert drift(trained(seconds)) is None


def test_warm_up_steps_do_not_count_as_drift() -> None:
    """Five warm-up steps lie in the first three entries of two steps each."""
    assert drift(trained([9.0] * 3 + [1.0] * 9, warmup=5, every=2)) == 0


def test_the_rank_that_drifts_most_and_the_one_that_pauses_most_speak_for_the_run() -> None:
    slower, faster = trained([1.0] * 6 + [1.2] * 3), trained([1.0] * 6 + [0.5] * 3, [0.5, 1.5])
    assert figures_steady([slower, faster]) == {"step_drift": -0.5, "pause_share": 0.2}


@pytest.mark.parametrize(
    ("drift", "pauses", "said"),
    [
        (0.25, 0.0, ["unsteady: steps took 25% longer in the last third than in the first"]),
        (-0.25, 0.0, ["unsteady: steps took 25% shorter in the last third than in the first"]),
        (0.1, 0.05, []),
        (None, None, []),
    ],
)
def test_an_unsteady_run_says_so(
    drift: float | None, pauses: float | None, said: list[str]
) -> None:
    assert unsteady({"step_drift": drift, "pause_share": pauses}) == said


def test_pauses_make_a_run_unsteady() -> None:
    (said,) = unsteady({"step_drift": 0.0, "pause_share": 0.2})
    assert said.startswith("unsteady: 20% of the steps' time went to single steps")


@pytest.mark.parametrize(
    ("values", "far"),
    [
        ([100.0, 101.0, 60.0], {"2": 0.6}),
        ([100.0, 100.0, 150.0], {"2": 1.5}),
        ([100.0, 100.1, 104.0], {}),
        ([1.0, 2.0, 3.0, 4.0, 10.0], {"4": 10 / 3}),  # by hand: 0.6745 x 7 / 1 = 4.7
        ([1.0, 2.0, 3.0, 4.0, 8.0], {}),  # 3.4
        ([100.0, 60.0], {}),
        ([100.0, 120.0, 140.0], {}),
        ([100.0, 100.0, 100.0], {}),
    ],
)
def test_an_outlier_is_far_by_its_score_and_by_its_share(
    values: list[float], far: dict[str, float]
) -> None:
    """104 is 40 MADs from 100.1, and 4 %: repeats that agree so well have no outlier."""
    found = repeats.outliers({str(at): value for at, value in enumerate(values)})
    assert found == pytest.approx(far, abs=0.01)


@given(st.lists(st.floats(1, 1000), min_size=3, max_size=9), st.sampled_from([0.25, 4.0]))
def test_another_unit_makes_no_other_outliers(values: list[float], unit: float) -> None:
    plain = repeats.outliers({str(at): value for at, value in enumerate(values)})
    scaled = repeats.outliers({str(at): value * unit for at, value in enumerate(values)})
    assert len(plain) <= len(values) / 2
    assert scaled == plain


def repeat(run_id: str, speed: float | None, **changes: Any) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "config": "a",
        "state": "completed",
        "retired": False,
        "instances_per_s": speed,
        "elapsed_s": 10.0,
        "warnings": ["cold"],
    } | changes


def test_an_outlier_keeps_its_place_and_gets_a_warning() -> None:
    rows = repeats.mark_outliers([repeat("x", 100.0), repeat("y", 101.0), repeat("z", 50.0)])
    assert [row["outlier"] for row in rows] == [None, None, 0.5]
    assert rows[0]["warnings"] == ["cold"]
    assert rows[2]["warnings"][1].startswith("an outlier: its speed is 0.50 times the median")


def test_commands_without_a_speed_are_judged_by_their_time() -> None:
    times = {"x": 10.0, "y": 10.1, "z": 20.0}
    rows = [repeat(name, None, elapsed_s=seconds) for name, seconds in times.items()]
    assert "its elapsed time is 1.98 times" in repeats.mark_outliers(rows)[2]["warnings"][1]


@pytest.mark.parametrize("changes", [{"state": "failed"}, {"retired": True}, {"config": "b"}])
def test_only_completed_repeats_of_one_configuration_are_compared(changes: dict[str, Any]) -> None:
    rows = [repeat("x", 100.0), repeat("y", 101.0), repeat("z", 50.0, **changes)]
    assert [row["outlier"] for row in repeats.mark_outliers(rows)] == [None, None, None]
