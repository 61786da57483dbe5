"""Figures: what they show, and that their labels stay apart."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import make_results
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text
from test_configurations import row
from test_report_sections import rank

from hpcncf.collect.collect import collect
from hpcncf_analysis.configurations import Configuration, group_configurations
from hpcncf_analysis.report.figure_style import (
    fix_layout,
    report_style,
    save_figure,
    series_colours,
)
from hpcncf_analysis.report.sections.cores import core_heatmap, shares
from hpcncf_analysis.report.sections.efficiency import (
    efficiency_against_speed,
    nice_values,
    work_per_epoch,
)
from hpcncf_analysis.report.sections.ranks import ranks_figure
from hpcncf_analysis.report.sections.speed_up import speedup_figure
from hpcncf_analysis.report.sections.step import (
    phase_ms_per_step,
    step_time_figure,
    waterfall_figure,
)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> list[Configuration]:
    paths = make_results.demo(tmp_path_factory.mktemp("demo"))
    make_results.complete(paths)
    return group_configurations(collect(paths).runs)


@pytest.fixture(autouse=True)
def styled() -> Iterator[None]:
    with report_style():
        yield


@pytest.fixture(scope="module")
def drawn(demo: list[Configuration]) -> Figure:
    """The demo's efficiency against its speed."""
    with report_style():
        figure = efficiency_against_speed(demo)
        assert figure is not None
        fix_layout(figure)
    return figure


def numbers(figure: Figure) -> list[Annotation]:
    """The numbers of the points in the first axes."""
    found = [text for text in figure.axes[0].texts if text.get_text().isdigit()]
    return [text for text in found if isinstance(text, Annotation)]


def key(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def test_every_configuration_is_numbered_and_named_and_no_number_covers_another(
    demo: list[Configuration], drawn: Figure
) -> None:
    """And every run is a point."""
    found = numbers(drawn)
    assert sorted(text.get_text() for text in found) == [*"123456"]
    assert [line.partition(",")[0] for line in key(drawn)] == [
        f"{number}  {one.label}" for number, one in enumerate(demo, start=1)
    ]
    drawn.draw_without_rendering()
    boxes = [Text.get_window_extent(text) for text in found]
    assert not any(bool(one.overlaps(other)) for one, other in combinations(boxes, 2))
    frame = drawn.axes[0].get_window_extent()
    assert all(frame.x0 - 1 <= box.x0 and box.x1 <= frame.x1 + 1 for box in boxes)
    points = [line for line in drawn.axes[0].lines if line.get_marker() == "."]
    assert sum(np.size(line.get_xdata()) for line in points) == 18


CROWDED = [
    # cores, instances/s, CPU efficiency: found by a search among random ones
    (1, 118, 0.92),
    (2, 109, 0.72),
    (2, 133, 0.79),
    (1, 113, 0.86),
    (2, 147, 0.95),
    (2, 113, 0.98),
    (4, 148, 0.94),
    (1, 110, 0.79),
]


def test_no_number_lies_over_another_configurations_median_or_number() -> None:
    shown = group_configurations(
        [
            row(
                cores=cores,
                instances_per_s=speed,
                cpu_efficiency=busy,
                batch=256 << at,
                config=str(at),
            )
            for at, (cores, speed, busy) in enumerate(CROWDED)
        ]
    )
    figure = efficiency_against_speed(shown)
    figure.draw_without_rendering()
    axes = figure.axes[0]
    boxes = [Text.get_window_extent(text) for text in numbers(figure)]
    assert not any(bool(one.overlaps(other)) for one, other in combinations(boxes, 2))
    for text, box in zip(numbers(figure), boxes, strict=True):
        others = [one for at, one in enumerate(shown, start=1) if str(at) != text.get_text()]
        at = [(one.speed or 0.0, one.median("cpu_efficiency") or 0.0) for one in others]
        inside = [box.contains(*axes.transData.transform(point)) for point in at]
        assert not any(inside), text.get_text()


def test_a_figure_shows_equal_costs_waste_efficiencies_above_one_and_the_front(
    demo: list[Configuration],
) -> None:
    """At 1 core and 1,000 instances/s an epoch of 10,000 instances costs 10 core-seconds."""
    assert work_per_epoch(demo) == 5 * make_results.TRAIN_ROWS
    epoch = {"instances_per_epoch": 10_000}
    rows = [
        row(cores=1, instances_per_s=1000.0, cpu_efficiency=1.8, **epoch),
        row(cores=2, instances_per_s=990.0, cores_used=1.95, **epoch),
        row(cores=4, instances_per_s=4000.0, cores_used=1.3, **epoch),
    ]
    one, _, four = shown = group_configurations(rows)
    figure = efficiency_against_speed(shown, [four, one])
    upper, lower = figure.axes
    assert upper.get_ylim()[1] > 1.8
    (ten,) = [text for text in lower.texts if text.get_text() == "10"]
    assert isinstance(ten, Annotation)
    speed, cores = ten.xy
    assert cores * 10_000 / speed == pytest.approx(10)
    assert 5.0 in lower.get_yticks(minor=True), "between the counts, too"
    assert [line for line in key(figure) if "unused" in line] == [f"3  {four.label}, 2.7 unused"]
    (line,) = [line for line in lower.lines if line.get_linestyle() == "--"]
    assert list(zip(*line.get_data(), strict=True)) == [(1000.0, 1.0), (4000.0, 4.0)]


def test_epochs_of_different_sizes_have_no_common_iso_lines() -> None:
    shown = [row(instances_per_epoch=10), row("batched", instances_per_epoch=20)]
    assert work_per_epoch(group_configurations(shown)) is None


@pytest.mark.parametrize(
    ("low", "high", "values"),
    [(1.5, 30, [2, 5, 10, 20]), (0.04, 0.3, [0.05, 0.1, 0.2]), (3, 4, [])],
)
def test_nice_values_between_bounds(low: float, high: float, values: list[float]) -> None:
    assert nice_values(low, high) == pytest.approx(values)


def test_a_law_is_drawn_where_four_sizes_were_measured_and_not_far_beyond() -> None:
    """Amdahl with a serial share of a fifth: S(N) = N / (1 + (N - 1) / 5)."""
    rows = [row(cores=n, instances_per_s=100 * n / (1 + (n - 1) / 5)) for n in (1, 2, 4, 8)]
    figure = speedup_figure(group_configurations(rows))
    curve = next(line for line in figure.axes[0].lines if len(line.get_data()[0]) > 10)
    cores, gains = (np.asarray(each) for each in curve.get_data())
    assert gains == pytest.approx(cores / (1 + (cores - 1) / 5), rel=0.01)
    assert cores[-1] == pytest.approx(12)
    three = speedup_figure(group_configurations(rows[:3]))
    assert all(len(line.get_data()[0]) < 10 for line in three.axes[0].lines)


def test_speedup_needs_two_sizes_of_a_series() -> None:
    lone = group_configurations([row(), row("batched", cores=2)])
    assert speedup_figure(lone) is None
    pair = group_configurations([row(), row(cores=2, instances_per_s=150.0)])
    figure = speedup_figure(pair)
    assert [text.get_text() for text in numbers(figure)] == ["2"]
    assert key(figure) == ["2  2 cores · vectorized"]
    drawn = [np.array(line.get_data()).tolist() for line in figure.axes[0].lines]
    assert [[1, 2], [1, 1.5]] in drawn, "measured"
    assert [[1, 2], [1, 2]] in drawn, "ideal"


def test_a_bar_is_as_long_as_the_inverse_of_speed(demo: list[Configuration]) -> None:
    figure = step_time_figure(demo)
    ends: dict[int, float] = {}
    for patch in figure.axes[0].patches:
        y = round(patch.get_y() + patch.get_height() / 2)  # type: ignore[attr-defined]
        right = patch.get_x() + patch.get_width()  # type: ignore[attr-defined]
        ends[y] = max(ends.get(y, 0.0), right)
    assert [ends[number] for number in range(6)] == pytest.approx(
        [1e6 / (one.speed or 1) for one in demo]
    )


def test_the_heat_map_has_a_row_for_each_core_of_a_node_that_left_a_series(tmp_path: Path) -> None:
    """Others are what was busy and not ours; ours is never more than the core was busy."""
    paths = make_results.demo(tmp_path, points=[{"resources.cpus_per_task": 8}], repeats=1)
    node = make_results.node_record(make_results.plan_of(paths).runs[0], windows=2)
    figure = core_heatmap({"a": [node], "b": [node]})
    names = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert names == [f"CPU {number}" for number in range(8)]
    assert len(figure.axes) == 2
    one = {"cpus": [3], "busy": [[1.0, 0.5]], "ours": [[0.25, 0.6]]}
    ours, others = shares(node.model_copy(update=one))
    assert (ours.tolist(), others.tolist()) == ([[0.25, 0.5]], [[0.75, 0.0]])
    empty = node.model_copy(update={"start_s": [], "length_s": [], "busy": [[]], "ours": [[]]})
    assert core_heatmap({"a": [empty], "b": []}) is None


@pytest.mark.parametrize(
    "draw",
    [efficiency_against_speed, step_time_figure, speedup_figure],
)
def test_no_runs_draw_nothing(draw: Any) -> None:
    assert draw([]) is None


def test_the_same_runs_give_the_same_figure_with_its_text_as_text(
    demo: list[Configuration], drawn: Figure
) -> None:
    again = efficiency_against_speed(demo)
    assert again is not None
    fix_layout(again)
    first = save_figure(drawn, "a", "svg")
    assert save_figure(again, "a", "svg") == first
    assert "2 ranks × 1 core · vectorized</text>" in first.decode()


def test_figures_of_two_series_never_share_a_colour() -> None:
    found = series_colours(["b", "a", "b"])
    assert list(found) == ["a", "b"]
    assert found["a"] != found["b"]


def test_one_rank_stands_beside_no_other() -> None:
    assert ranks_figure([rank(0)], "") is None
    figure = ranks_figure([rank(0), rank(1)], "two")
    widths = [bar.get_width() for bar in figure.axes[0].patches[:3]]
    assert widths == pytest.approx([1, 7, 2])  # input, computing, waiting: all of 10 s


def test_a_step_falls_from_phase_to_phase() -> None:
    phases = ("input", "forward", "backward", "sync", "optimizer", "other", "fused")
    seconds = dict(zip((f"{phase}_s" for phase in phases), (1, 2, 3, 2, 2, 0, 0), strict=True))
    rows = [rank(0, **seconds), rank(1, **seconds | {"input_s": 3})]
    assert phase_ms_per_step(rows)["input"] == pytest.approx(20.0)  # (1 + 3) s over 200 steps
    assert "other" not in phase_ms_per_step(rows)
    figure = waterfall_figure({"a": rows[:1], "b": []})
    bars = [(bar.get_x(), bar.get_width()) for bar in figure.axes[0].patches]
    assert [each[0] for each in bars] == pytest.approx([0, 10, 30, 60, 80])
    assert [each[1] for each in bars] == pytest.approx([10, 20, 30, 20, 20])
    assert waterfall_figure({}) is None
