"""Speed-up over cores, and where a step's time goes; None where there is nothing to show."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
)

from hpcncf.tables.trained import PHASES_TRAINED
from hpcncf_analysis import words
from hpcncf_analysis.figures import placing, style
from hpcncf_analysis.figures.fitted import draw_laws
from hpcncf_analysis.figures.placing import Label
from hpcncf_analysis.figures.style import GREY, INK
from hpcncf_analysis.summary import CROWD, Configuration, by_series, fastest, marks


def speedup(configurations: Sequence[Configuration]) -> Figure | None:
    """Speed-up over cores for each series, with the ideal line and the laws that were fitted.

    A full line joins sizes of as many ranks as the base (more cores each), a dashed one those of
    the base's cores per rank (more ranks); other shapes stand alone.
    """
    series = _compared(configurations)
    if not series:
        return None
    with style.styled():
        figure = style.blank(4.6)
        axes = figure.subplots()
        colours = style.colours(one.series for one in configurations)
        names = marks(configurations)
        shown = [one for found in series.values() for one in found]
        _ideal(axes, shown, draw_laws(axes, shown, colours))
        ends = [
            Label(one.cores, _gain(one), names[one.key], colours[name])
            for name, found in series.items()
            for one in _series_lines(axes, found, colours[name])
            if one.key in names
        ]
        placing.place(axes, ends, _along_lines(shown))
    return figure


def _compared(configurations: Sequence[Configuration]) -> dict[str, list[Configuration]]:
    """The series of several sizes; of very many those with the fastest configurations."""
    several = {
        name: found
        for name, found in by_series(configurations).items()
        if len({one.cores for one in found}) > 1
    }
    order = sorted(several, key=lambda name: max(one.speed or 0.0 for one in several[name]))
    return {name: found for name, found in several.items() if name in order[-CROWD:]}


def _gain(one: Configuration) -> float:
    return one.median("speedup") or 0.0


def _series_lines(axes: Axes, found: Sequence[Configuration], colour: str) -> list[Configuration]:
    """Draw one series; what to label: the end of each line, and shapes on neither."""
    base = found[0]
    more_cores = [one for one in found if one.ranks == base.ranks]
    more_ranks = [one for one in found if one.cores / one.ranks == base.cores / base.ranks]
    for line, dashes in ((more_cores, "-"), (more_ranks, "--")):
        gains = [_gain(one) for one in line]
        axes.plot([one.cores for one in line], gains, dashes, color=colour, lw=1.8)
    for marker in sorted({style.marker(one.ranks) for one in found}):
        points = [(one.cores, _gain(one)) for one in found if style.marker(one.ranks) == marker]
        axes.plot(*zip(*points, strict=True), marker, ms=8, mec="w", color=colour)
    ends = [line[-1] for line in (more_cores, more_ranks) if len(line) > 1]
    return ends + [one for one in found if one not in more_cores and one not in more_ranks]


def _along_lines(shown: Sequence[Configuration]) -> list[tuple[float, float]]:
    """Points that labels should leave free: the measured ones, and some between them and 1."""
    fewest = min(one.cores for one in shown)
    return [
        (fewest + part * (one.cores - fewest), 1 + part * (_gain(one) - 1))
        for one in shown
        for part in (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    ]


def _ideal(
    axes: Axes, shown: Sequence[Configuration], reach: Sequence[tuple[float, float]]
) -> None:
    """`reach`: where the fitted laws' curves end."""
    counts = sorted({one.cores for one in shown})
    most, fewest = counts[-1], counts[0]
    axes.plot([fewest, most], [1, most / fewest], color=GREY, lw=1, ls=":")
    axes.annotate(
        "ideal",
        (most, most / fewest),
        xytext=(9, 4),
        textcoords="offset points",
        color=GREY,
    )
    top = max(most / fewest, *(_gain(one) for one in shown), *(gain for _, gain in reach))
    axes.set_ylim(0, top * 1.12)
    span, last = (
        most - fewest,
        max(most + 0.85 * (most - fewest), *(cores for cores, _ in reach), 0),
    )
    axes.set_xlim(fewest - 0.12 * span, last)  # the lines' labels stand to the right
    axes.xaxis.set_major_locator(FixedLocator(counts))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axes.set_xlabel("cores allocated")
    axes.set_title("Speed-up against the fewest cores of the same series")
    style.quiet_grid(axes)


def step_time(configurations: Sequence[Configuration]) -> Figure | None:
    """Where the time goes: milliseconds of wall time per 1000 instances, by phase.

    A bar is as long as 1 / speed; its parts are the phases' shares over all ranks.
    """
    told = [one for one in configurations if one.speed and one.median("input_share") is not None]
    shown = fastest(told)
    if not shown:
        return None
    with style.styled():
        figure = style.blank(1.3 + 0.62 * len(shown))
        axes = figure.subplots()
        for row, one in enumerate(shown):
            _bar(axes, row, one)
        longest = max(1e6 / (one.speed or 1.0) for one in shown)
        axes.set_xlim(0, longest * 1.16)
        axes.set_ylim(len(shown) - 0.4, -0.75)
        axes.yaxis.set_visible(False)
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("milliseconds per 1000 instances")
        _phase_key(figure, shown)
    return figure


def _bar(axes: Axes, row: int, one: Configuration) -> None:
    total_ms, left = 1e6 / (one.speed or 1.0), 0.0
    for phase in PHASES_TRAINED:
        width = total_ms * (one.median(f"{phase}_share") or 0.0)
        axes.barh(row, width, 0.46, left, color=style.PHASES_STYLE[phase], edgecolor="w", lw=0.4)
        left += width
    axes.text(0, row - 0.27, one.label, va="bottom", size=10)
    axes.annotate(
        f"{words.number(total_ms)} ms",
        (left, row),
        xytext=(4, 0),
        textcoords="offset points",
        va="center",
        size=10,
        color=INK,
    )


def _phase_key(figure: Figure, shown: Sequence[Configuration]) -> None:
    present = [p for p in PHASES_TRAINED if any(one.median(f"{p}_share") for one in shown)]
    handles = [Patch(color=style.PHASES_STYLE[phase], label=phase) for phase in present]
    figure.legend(
        handles=handles,
        loc="outside upper left",
        ncols=3,
        frameon=False,
        columnspacing=1.2,
        handlelength=1.0,
    )
