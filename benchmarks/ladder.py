"""The ladder as a figure: a bar for each rung, on a scale of powers of ten, its HR@10 beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from hpcncf_analysis.report.figures.style import (
    BLUE,
    FAINT,
    GREEN,
    GREY,
    INK,
    VERMILION,
    WIDTH_IN,
    as_png,
    format_thousands,
    new_figure,
    report_style,
)

NAIVE, TORCH, OURS = VERMILION, BLUE, GREEN
ROW_IN: Final = 0.36
AROUND_IN: Final = 1.25


@dataclass(frozen=True)
class Step:
    """A rung, and what it came to."""

    name: str
    per_s: float
    """Instances, at full size."""
    small_per_s: float
    """The same on Frappe."""
    hr10: float
    """On Frappe."""

    @property
    def colour(self) -> str:
        if self.name.startswith("naive"):
            return NAIVE
        return OURS if self.name.startswith(("row-wise", "compiled")) else TORCH


def png(steps: Sequence[Step]) -> bytes:
    with report_style():
        return as_png(drawn(steps))


def drawn(steps: Sequence[Step]) -> Figure:
    figure = new_figure(AROUND_IN + ROW_IN * len(steps))
    figure.set_figwidth(1.3 * WIDTH_IN)
    axes = figure.subplots()
    rows = range(len(steps))
    axes.barh(rows, [each.per_s for each in steps], 0.72, color=[each.colour for each in steps])
    _scale(axes, steps)
    axes.set_yticks(rows, [each.name for each in steps], color=INK)
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    for row, each in enumerate(steps):
        axes.text(each.per_s, row, f" {_told(each, steps[0])}", va="center", size=10)
    _quality(axes, steps)
    axes.set_title("What each remedy gains at full size, batch 256", pad=22)
    return figure


def _told(step: Step, first: Step) -> str:
    times = step.per_s / first.per_s
    speed = format_thousands(float(f"{step.per_s:.2g}"))
    return f"{speed} · {times:.{0 if times >= 10 else 1}f}×"


def _scale(axes: Axes, steps: Sequence[Step]) -> None:
    speeds = [each.per_s for each in steps]
    axes.set_xscale("log")
    axes.set_xlim(min(speeds) / 2.5, max(speeds) * 6)  # room for what stands behind a bar
    axes.xaxis.set_major_formatter(FuncFormatter(format_thousands))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("training instances per second (each tick: ten times)")
    axes.grid(visible=True, axis="x", color=FAINT, lw=0.6)
    axes.set_axisbelow(True)


def _quality(axes: Axes, steps: Sequence[Step]) -> None:
    """A column at the right edge."""
    where = axes.get_yaxis_transform()
    axes.text(1.02, -1, "HR@10\n(Frappe)", transform=where, va="center", size=10, color=GREY)
    for row, each in enumerate(steps):
        axes.text(1.02, row, f"{each.hr10:.3f}", transform=where, va="center", size=10)
