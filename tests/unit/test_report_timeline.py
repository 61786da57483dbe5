"""A run's steps over its time: where they stand, and what stood still between them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import make_results
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from test_collect_columns import PLAIN_RUN, changed

from hpcncf.job.spec import Training
from hpcncf.records.schema import Batches, Epoch, TrainingRecord
from hpcncf_analysis.report.figure_style import report_style
from hpcncf_analysis.report.sections import timeline
from hpcncf_analysis.report.sections.timeline import (
    CHECKPOINT,
    EVALUATION,
    FIRST,
    SLOW,
    Timeline,
    timeline_figure,
)


def epoch(number: int, steps: int = 10, **changes: Any) -> Epoch:
    plain: dict[str, Any] = {
        "training_s": 1.0,
        "evaluation_s": 0.5,
        "checkpoint_s": 0.25,
        "first_batch_s": 0.0,
        "instances": 100,
        "loss": 0.5,
    }
    return Epoch(epoch=number, steps=steps, **(plain | changes))


def record(
    steps: Sequence[float],
    epochs: Sequence[Epoch],
    every: int = 1,
    pauses: Sequence[tuple[int, int, float]] = (),
    **changes: Any,
) -> TrainingRecord:
    """A rank whose steps took so long, recorded as the training's clock does."""
    whole = len(steps) - len(steps) % every
    seen = [{"epoch": each, "step": at, "seconds": seconds} for each, at, seconds in pauses]
    sums = [sum(steps[at : at + every]) for at in range(0, whole, every)]
    run = changed(PLAIN_RUN, training=Training(), repeat=0)
    return make_results.training_record(run).model_copy(
        update={
            "warmup_steps": 0,
            "steps": len(steps),
            "training_s": sum(steps),
            "epochs": list(epochs),
            "batches": Batches(every=every, seconds=sums, pauses=seen),
            **changes,
        }
    )


def built(part: TrainingRecord) -> Timeline:
    found = timeline.build_timeline(part)
    assert found is not None
    return found


def test_steps_stand_where_they_were_taken_and_the_rest_between_them() -> None:
    """Two epochs of ten steps of 0.1 s, 0.5 s of evaluation and 0.25 s of checkpoint after each."""
    found = built(record([0.1] * 20, [epoch(0), epoch(1)]))
    assert found.ended_s == pytest.approx(3.5)
    assert [(stop.kind, stop.begun_s) for stop in found.stops] == [
        (EVALUATION, pytest.approx(1.0)),
        (CHECKPOINT, pytest.approx(1.5)),
        (EVALUATION, pytest.approx(2.75)),
        (CHECKPOINT, pytest.approx(3.25)),
    ]
    assert found.stretches[10].begun_s == pytest.approx(1.75)
    assert {round(each.step_s, 9) for each in found.stretches} == {0.1}


def test_waits_for_first_batches_and_slow_steps_are_stops_where_they_were_taken() -> None:
    """The fourteenth step of all is slow; the first step of epoch 1 only waits for its batch."""
    steps = [0.9, *[0.1] * 9, 0.4, *[0.1] * 2, 2.0, *[0.1] * 6]
    epochs = [epoch(0, first_batch_s=0.8), epoch(1, first_batch_s=0.3)]
    found = built(record(steps, epochs, every=2, pauses=[(1, 0, 0.4), (1, 3, 2.0)]))
    assert found.seconds(FIRST) == [0.8, 0.3]
    (slow,) = [stop for stop in found.stops if stop.kind == SLOW]
    assert slow.seconds == 2.0
    assert slow.begun_s == pytest.approx(1.8 + 0.75 + 0.5 + 1.05)  # its sum's mean is 1.05 s a step
    assert found.ended_s == pytest.approx(sum(steps) + 1.5)


def test_a_sum_counts_once_however_many_pieces_a_slow_step_cuts_it_into() -> None:
    steps, slow = [*[0.1] * 12, *[0.1, 2.0] * 4], [13, 15, 17, 19]
    found = built(
        record(steps, [epoch(0, len(steps))], every=2, pauses=[(0, at, 2.0) for at in slow])
    )
    assert len(found.seconds(SLOW)) == 4
    assert found.step_s == pytest.approx(0.1)


def test_the_last_steps_that_no_sum_says_are_there() -> None:
    """Nineteen steps by two: the last took 0.7 s."""
    found = built(record([0.1] * 18 + [0.7], [epoch(0), epoch(1, steps=9)], every=2))
    assert found.stretches[-1].step_s == pytest.approx(0.7)
    assert found.ended_s == pytest.approx(2.5 + 1.5)


def test_a_resumed_run_begins_where_its_attempt_began() -> None:
    """Epoch 1 from its sixth step: its waits and checkpoints are sums over both attempts."""
    epochs = [epoch(0), epoch(1, first_batch_s=0.3), epoch(2, first_batch_s=0.05)]
    steps = [0.1] * 7 + [3.0] + [0.1] * 7
    found = built(record(steps, epochs, pauses=[(2, 2, 3.0)], resumed_epoch=1, resumed_step=5))
    assert [(stop.kind, stop.begun_s) for stop in found.stops] == [
        (EVALUATION, pytest.approx(0.5)),
        (FIRST, pytest.approx(1.0)),
        (SLOW, pytest.approx(1.2)),
        (EVALUATION, pytest.approx(4.9)),
        (CHECKPOINT, pytest.approx(5.4)),
    ]


def test_too_few_steps_have_no_timeline() -> None:
    assert timeline.build_timeline(record([0.1] * 8, [epoch(0, steps=8)])) is None
    assert timeline.build_timeline(record([0.1] * 20, [])) is None


@given(
    st.lists(st.floats(0.001, 1.0), min_size=9, max_size=60),
    st.integers(1, 5),
    st.lists(st.integers(1, 30), min_size=1, max_size=8),
)
def test_nothing_is_lost_and_nothing_overlaps(
    steps: list[float], every: int, sizes: list[int]
) -> None:
    """Whatever the epochs: steps, evaluations and checkpoints lie one after another, and add up."""
    epochs, left = [], len(steps)
    for number, size in enumerate([*sizes, 60]):
        if left > 0:
            epochs.append(epoch(number, steps=min(size, left)))
            left -= size
    found = timeline.build_timeline(record(steps, epochs, every))
    if found is None:
        assert len(steps) // every < 9
        return
    parts = [(each.begun_s, each.ended_s) for each in found.stretches]
    parts += [(stop.begun_s, stop.begun_s + stop.seconds) for stop in found.stops]
    parts.sort()
    assert parts[0][0] == 0
    assert all(one[1] == pytest.approx(other[0], abs=1e-9) for one, other in pairwise(parts))
    assert found.ended_s == pytest.approx(sum(steps) + 0.75 * len(epochs))


def figure_of(**seen: Timeline) -> Figure:
    with report_style():
        figure = timeline_figure(seen)
    assert figure is not None
    return figure


def test_a_panel_has_a_lane_for_each_kind_of_stop_each_as_wide_as_it_is_long() -> None:
    epochs = [epoch(0, first_batch_s=0.3), epoch(1, first_batch_s=0.2)]
    one = built(record([0.5, *[0.1] * 9, 0.4, *[0.1] * 9], epochs))
    steps, lanes = figure_of(run=one).axes
    assert steps.get_title("left") == "run: 100 ms"
    assert [text.get_text() for text in lanes.get_yticklabels()] == [FIRST, EVALUATION, CHECKPOINT]
    assert steps.get_xlim() == lanes.get_xlim() == (0, one.ended_s)
    widths = [[path.get_extents().width for path in bars.get_paths()] for bars in lanes.collections]
    assert widths == [pytest.approx(each) for each in ([0.3, 0.2], [0.5, 0.5], [0.25, 0.25])]
    seen = [text.get_text().replace("\u202f", " ") for text in lanes.texts]
    assert seen == ["2 × 0.25 s", "2 × 0.5 s", "2 × 0.25 s"]
    assert timeline_figure({}) is None


def test_few_steps_beyond_all_others_do_not_flatten_them() -> None:
    even, one_far = [0.1] * 60, [0.1] * 59 + [9.0]
    (steps, _) = figure_of(run=built(record(one_far, [epoch(0, steps=60)]))).axes
    assert steps.get_ylim()[1] == pytest.approx(1.15 * 200)
    assert [line.get_marker() for line in steps.lines] == ["None", "^"]
    (steps, _) = figure_of(run=built(record(even, [epoch(0, steps=60)]))).axes
    assert [line.get_marker() for line in steps.lines] == ["None"]


def test_a_long_title_stays_within_the_figure() -> None:
    one = built(record([0.1] * 20, [epoch(0, steps=20)]))
    figure = figure_of(**{" · ".join(["2 ranks × 1 core"] * 8): one})
    figure.draw_without_rendering()
    box = figure.axes[0]._left_title.get_window_extent()  # type: ignore[attr-defined]
    assert box.x1 <= figure.bbox.x1
    assert box.y1 <= figure.bbox.y1
