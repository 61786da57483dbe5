"""Quality over the time that training took to reach it; None where nobody evaluated it twice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from matplotlib.figure import Figure

from hpcncf_analysis.figures import placing, style
from hpcncf_analysis.figures.placing import Label
from hpcncf_analysis.summary import Configuration, fastest, marks

Row = Mapping[str, Any]

PIECES: Final = 12
TIMED: Final = ("training_s", "evaluation_s", "checkpoint_s")


def course(epochs: Iterable[Row]) -> list[tuple[float, float]]:
    """(seconds since the first step, HR@10) after each evaluated epoch of one run."""
    seconds, found = 0.0, []
    for row in epochs:
        seconds += sum(row[name] for name in TIMED)
        if row["hr10"] is not None:
            found.append((seconds, row["hr10"]))
    return found


def over_time(shown: Sequence[Configuration], epochs: Sequence[Row]) -> Figure | None:
    """A line for each configuration's first run, a point for each evaluation."""
    by_run: dict[str, list[Row]] = {}
    for row in epochs:
        by_run.setdefault(row["run_id"], []).append(row)
    told = [(one, course(by_run.get(one.rows[0]["run_id"], []))) for one in fastest(shown)]
    told = [(one, points) for one, points in told if len(points) > 1]
    if not told:
        return None
    with style.styled():
        figure = style.blank(4.2)
        axes = figure.subplots()
        colours, names = style.colours(one.series for one in shown), marks(shown)
        for one, points in told:
            marker = style.marker(one.ranks)
            axes.plot(*zip(*points, strict=True), f"-{marker}", ms=5, color=colours[one.series])
        low, high = axes.get_ylim()
        axes.set_ylim(low, high + 0.45 * (high - low))  # the labels stand above the lines
        axes.set_xlim(0, 1.2 * max(points[-1][0] for _, points in told))
        axes.set_xlabel("seconds since the first step, evaluation included")
        axes.set_title("HR@10 after each epoch")
        style.quiet_grid(axes)
        ends = [Label(*points[-1], names[one.key], colours[one.series]) for one, points in told]
        placing.place(axes, ends, [point for _, points in told for point in along(points)])
    return figure


def along(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The line through them as points, each stretch in `PIECES`: a label is to leave it free."""
    return [
        (x0 + (x1 - x0) * at / PIECES, y0 + (y1 - y0) * at / PIECES)
        for (x0, y0), (x1, y1) in pairwise(points)
        for at in range(PIECES)
    ] + [points[-1]]
