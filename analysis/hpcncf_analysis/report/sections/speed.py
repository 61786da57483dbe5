"""What the cores bought: efficiency against speed, speed-up, scaling laws, cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log2, log10, sqrt
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogLocator,
    MultipleLocator,
    NullLocator,
    PercentFormatter,
)

from hpcncf_analysis.advice.judge import Ratio, core_speed_ratio, speed_ratio
from hpcncf_analysis.configurations import (
    MAX_LABELLED,
    Configuration,
    Table,
    figure_labels,
    group_by_series,
    karp_flatt,
)
from hpcncf_analysis.formatting import (
    NONE,
    format_number,
    format_percent,
    format_ratio,
    select_time_unit,
)
from hpcncf_analysis.prices import Prices, price_table, priced_rows
from hpcncf_analysis.report.figures import style
from hpcncf_analysis.report.figures.style import FAINT, GREY, INK, Label, place_labels
from hpcncf_analysis.report.section import (
    Drawing,
    Paragraph,
    Part,
    ReportData,
    Section,
    titled_table,
)
from hpcncf_analysis.scaling import (
    Line,
    Show,
    WeakComparison,
    comparison_cautions,
    describe_peaks,
    format_with_interval,
    known_interval,
    law_note,
    law_table,
    lines_to_fit,
    scaling_lines,
    weak_scaling,
)
from hpcncf_analysis.usl import Law, fit_simplest_law

WORK: Final = {"epoch": "an epoch's, with the data", "step": "a step's, with the batch"}


def strong_table(shown: Sequence[Configuration]) -> Table | None:
    """Each configuration against the fewest cores of its series; None where no series has two."""
    series = [members for members in group_by_series(shown).values() if len(members) > 1]
    rows = [_strong(one, members[0]) for members in series for one in members[1:]]
    columns = ["configuration", "against", "speed-up", "parallel efficiency"]
    columns += ["serial share (Karp-Flatt)", "caution"]
    return Table(columns, rows, frozenset({"against", "caution"})) if rows else None


def _strong(one: Configuration, base: Configuration) -> list[str]:
    gain = speed_ratio(one, base)
    return [
        one.label,
        base.label,
        _ratio(gain, format_ratio),
        _ratio(core_speed_ratio(one, base), format_percent),
        _serial(gain, one.cores / base.cores),
        "; ".join(comparison_cautions(one, base)),
    ]


def _ratio(ratio: Ratio, show: Show) -> str:
    return format_with_interval(ratio.value, known_interval(ratio.low, ratio.high), show)


def _serial(gain: Ratio, times_the_cores: float) -> str:
    """A share, or what stands for it: slower than on fewer cores, faster than all cores explain.

    The faster, the less is serial: the interval's ends change places.
    """
    share = karp_flatt(gain.value, times_the_cores)
    if share is None or gain.value < 1:
        return NONE if share is None else "slower on more cores"
    if share < 0:
        return "superlinear"
    ends = [
        None if end is None else karp_flatt(end, times_the_cores) for end in (gain.high, gain.low)
    ]
    low, high = (None if end is None else min(max(end, 0.0), 1.0) for end in ends)
    return format_with_interval(share, known_interval(low, high), format_percent)


def weak_table(shown: Sequence[Configuration]) -> Table | None:
    """Where the work grows with the cores; None where it nowhere does."""
    rows = [_weak(each) for each in weak_scaling(shown)]
    columns = ["configuration", "against", "work that grows", "work", "time for it"]
    columns += ["scaled speed-up", "weak efficiency", "caution"]
    texts = frozenset({"against", "work that grows", "caution"})
    return Table(columns, rows, texts) if rows else None


def _weak(each: WeakComparison) -> list[str]:
    of_each = core_speed_ratio(each.one, each.base)
    return [
        each.one.label,
        each.base.label,
        WORK[each.work],
        format_ratio(each.work_ratio),
        format_ratio(each.time_ratio),
        format_ratio(each.speedup),
        format_with_interval(
            each.efficiency, known_interval(of_each.low, of_each.high), format_percent
        ),
        "; ".join(comparison_cautions(each.one, each.base)),
    ]


def cost_table(shown: Sequence[Configuration]) -> Table | None:
    """What an epoch costs in time, cores and GPUs; None where nothing was trained."""
    trained = [one for one in shown if one.median("seconds_per_epoch") is not None]
    gpus = any(one.median("gpu_hours") for one in trained)
    hours = {"an epoch: core": "core_h_per_epoch", "the run: core": "core_hours"}
    hours |= {"an epoch: GPU": "gpu_h_per_epoch", "the run: GPU": "gpu_hours"} if gpus else {}
    units = {name: select_time_unit(one.median(name) for one in trained) for name in hours.values()}
    columns = ["configuration", "instances/s", "an epoch: s"]
    columns += [f"{what}-{units[name][0]}" for what, name in hours.items()]
    plain = ("instances_per_s", "seconds_per_epoch")
    rows = [
        [
            one.label,
            *(_median(one, name) for name in plain),
            *(_median(one, name, of_an_hour) for name, (_, of_an_hour) in units.items()),
        ]
        for one in trained
    ]
    return Table(columns, rows) if rows else None


def _median(one: Configuration, name: str, factor: float = 1.0) -> str:
    known = (one.figures.get(f"{name}{end}") for end in ("", "_low", "_high"))
    value, low, high = (None if each is None else factor * each for each in known)
    return format_with_interval(value, known_interval(low, high), format_number)


# A figure that reached as far as the law may be used would press the measured part together.
BEYOND: Final = 1.5


POINTS: Final = 60


def draw_laws(
    axes: Axes, shown: Sequence[Configuration], colours: Mapping[str, str]
) -> list[tuple[float, float]]:
    """A curve and its band for each line of enough sizes; returns their ends (cores, speed-up)."""
    bases = {series: found[0].speed or 1.0 for series, found in group_by_series(shown).items()}
    ends = []
    for line in lines_to_fit(scaling_lines(shown)):
        fitted = fit_simplest_law(line.sizes, line.speeds())
        if isinstance(fitted, Law):
            ends.append(_draw_law(axes, line, fitted, bases[line.series], colours[line.series]))
    return ends


def _draw_law(axes: Axes, line: Line, fitted: Law, base: float, colour: str) -> tuple[float, float]:
    cores_of_one = line.base.cores / line.sizes[0]
    sizes = np.geomspace(line.sizes[0], BEYOND * line.sizes[-1], POINTS)
    cores = sizes * cores_of_one
    gains = [fitted.rate(size) / base for size in sizes]
    axes.plot(cores, gains, color=colour, lw=1, ls=(0, (1, 1)), zorder=1)
    bands = [fitted.interval(size) for size in sizes]
    if all(bands):
        low, high = zip(*(band for band in bands if band), strict=True)
        axes.fill_between(
            cores, np.array(low) / base, np.array(high) / base, color=colour, alpha=0.15, lw=0
        )
    return float(cores[-1]), gains[-1]


# Less than this many cores unused is not worth a word in a figure.
MIN_UNUSED_LABELLED: Final = 0.15


# Over so many times the smallest number of cores, an axis has room for fine steps.
FINE: Final = 16


def efficiency_against_speed(
    configurations: Sequence[Configuration], front: Sequence[Configuration] = ()
) -> Figure | None:
    """CPU efficiency over speed, and under it what that speed costs in cores.

    Core-seconds per epoch depend on speed and cores, not on efficiency: their iso-lines are
    straight in the lower panel (cores over speed, both logarithmic) and could only be drawn in the
    upper one for each number of cores anew. Both panels share the speed, so a point is found in
    the other straight above or below it. In the lower panel a ring is what the configuration is
    allocated, a dot what it used, and the line between them is the waste; a dashed line joins the
    configurations of `front`, which no other beats in both time and cost.
    """
    shown = [one for one in configurations if one.speed and one.median("cpu_efficiency")]
    if not shown or len({one.is_command for one in shown}) > 1:
        return None
    if shown[0].is_command and (len(shown) == 1 or len({one.command for one in shown}) > 1):
        return None  # one point says no more than its row; other commands do other work
    with style.report_style():
        figure = style.new_figure(7.4)
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[1.25, 1])
        colours = style.series_colours(one.series for one in configurations)
        _speed_axis(lower, shown)
        _efficiencies(upper, shown, colours)
        _costs(lower, shown, colours)
        if len(shown) > 1 and front:
            places = sorted((one.speed or 0.0, one.cores) for one in front)
            lower.plot(*zip(*places, strict=True), "--o", ms=16, mfc="none", color=INK, lw=1)
        _label_points(upper, shown, colours, figure_labels(configurations))
        _label_waste(lower, shown, colours, front)
    return figure


def _speed_axis(axes: Axes, shown: Sequence[Configuration]) -> None:
    speeds = [_run_speed(one, row) for one in shown for row in one.rows]
    low, high = min(speeds), max(speeds)
    room = max((high / low) ** 0.12, 1.25)
    axes.set_xscale("log")
    axes.set_xlim(low / room, high * room)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(style.format_thousands))
    unit = "runs per hour" if shown[0].by_time else "instances per second, all ranks"
    axes.set_xlabel(f"speed ({unit}; logarithmic)")


def _run_speed(one: Configuration, row: Mapping[str, float]) -> float:
    return 3600 / row["elapsed_s"] if one.by_time else row["instances_per_s"]


def _group_by_look(
    shown: Sequence[Configuration], colours: Mapping[str, str]
) -> dict[tuple[str, str], list[Configuration]]:
    """(colour, marker) -> those drawn so: one call draws all of them, however many there are."""
    grouped: dict[tuple[str, str], list[Configuration]] = {}
    for one in shown:
        grouped.setdefault((colours[one.series], style.rank_marker(one.ranks)), []).append(one)
    return grouped


def _efficiencies(axes: Axes, shown: Sequence[Configuration], colours: Mapping[str, str]) -> None:
    for (colour, marker), ones in _group_by_look(shown, colours).items():
        runs = [(_run_speed(one, row), row["cpu_efficiency"]) for one in ones for row in one.rows]
        axes.plot(*zip(*runs, strict=True), ".", ms=5, color=colour, alpha=0.4)
        medians = [(one.speed or 0.0, one.median("cpu_efficiency") or 0.0) for one in ones]
        axes.plot(*zip(*medians, strict=True), marker, ms=10, mec="w", color=colour)
    highest = max(row["cpu_efficiency"] for one in shown for row in one.rows)
    axes.set_ylim(0, max(1.15, highest * 1.12))
    axes.axhline(1, color=GREY, lw=1, ls=":")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.yaxis.set_major_locator(MultipleLocator(0.2))
    axes.set_title("CPU efficiency: busy share of the cores allocated")
    style.quiet_grid(axes)


def _costs(axes: Axes, shown: Sequence[Configuration], colours: Mapping[str, str]) -> None:
    counts = sorted({one.cores for one in shown})
    used = [one.median("cores_used") or one.cores for one in shown]
    axes.set_yscale("log", base=2)
    axes.set_ylim(min(*counts, *used) / 1.5, max(*counts, *used) * 1.5)
    _iso_lines(axes, shown)
    for (colour, marker), ones in _group_by_look(shown, colours).items():
        speeds, allocated = [one.speed or 0.0 for one in ones], [one.cores for one in ones]
        busy = [one.median("cores_used") or one.cores for one in ones]
        axes.vlines(speeds, busy, allocated, color=colour, lw=7, alpha=0.3)
        axes.plot(speeds, busy, marker, ms=6, color=colour)
        axes.plot(speeds, allocated, marker, ms=11, mfc="none", mew=1.8, color=colour)
    axes.yaxis.set_major_locator(FixedLocator(counts))
    axes.yaxis.set_minor_locator(FixedLocator(minor_ticks(axes.get_ylim(), counts)))
    for formatted in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        formatted(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.tick_params(axis="y", which="minor", labelsize=8, labelcolor=GREY)
    grey = f"; grey: core-seconds per {'run' if shown[0].by_time else 'epoch'}"
    known = work_per_epoch(shown) is not None
    axes.set_title(f"Cores allocated (○) and used (•){grey if known else ''}")


def minor_ticks(bounds: tuple[float, float], counts: Sequence[float]) -> list[float]:
    """1, 2, 5, 10, ... inside the bounds, finer where these are close; none at a count's tick."""
    low, high = bounds
    steps = (1, 2, 5) if high / low > FINE else (1, 1.5, 2, 3, 5, 7)
    nice = [step * 10.0**power for power in range(-3, 5) for step in steps]
    inside = [value for value in nice if low < value < high]
    return [value for value in inside if all(abs(log2(value / count)) > 0.3 for count in counts)]


def _iso_lines(axes: Axes, shown: Sequence[Configuration]) -> None:
    """Where cores x seconds per epoch are equal; none where epochs differ in size."""
    work = work_per_epoch(shown)
    if work is None:
        return
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    for cost in iso_line_costs(low * work / right, high * work / left):
        speeds = [left, right]
        axes.plot(speeds, [cost * speed / work for speed in speeds], color=FAINT, lw=1, zorder=0)
        speed = min(right, high * work / cost) / 1.02
        if speed < left * 1.2:
            continue  # the corner has no room for its label
        at_top = speed < right / 1.05
        axes.annotate(
            f"{cost:g}",
            (speed, cost * speed / work),
            xytext=(-3, -3) if at_top else (-2, 2),
            textcoords="offset points",
            ha="right",
            va="top" if at_top else "bottom",
            size=9,
            color=GREY,
        )
    axes.set_xlim(left, right)
    axes.set_ylim(low, high)


def work_per_epoch(shown: Sequence[Configuration]) -> float | None:
    """Instances of an epoch, when all agree; of a command the unit of speed, runs per hour."""
    if shown[0].by_time:
        return 3600.0
    sizes = {one.median("instances_per_epoch") for one in shown}
    return sizes.pop() if len(sizes) == 1 else None


def iso_line_costs(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, ... between two bounds; only 1, 10, 100 where those would crowd."""
    powers = range(int(log10(low)) - 2, int(log10(high)) + 2)
    nice = [step * 10.0**power for power in powers for step in (1, 2, 5)]
    inside = [value for value in nice if low < value < high]
    return inside if len(inside) <= 9 else [v for v in inside if f"{v:e}".startswith("1.0")]


def _label_points(
    axes: Axes,
    shown: Sequence[Configuration],
    colours: Mapping[str, str],
    names: Mapping[str, str],
) -> None:
    labels = [
        Label(
            one.speed or 0.0,
            one.median("cpu_efficiency") or 0.0,
            names[one.key],
            colours[one.series],
        )
        for one in shown
        if one.key in names
    ]
    points = [(_run_speed(one, row), row["cpu_efficiency"]) for one in shown for row in one.rows]
    medians = [(one.speed or 0.0, one.median("cpu_efficiency") or 0.0) for one in shown]
    place_labels(axes, labels, points, medians)


def _label_waste(
    axes: Axes,
    shown: Sequence[Configuration],
    colours: Mapping[str, str],
    front: Sequence[Configuration],
) -> None:
    """How many cores each left unused; of very many the figure has no room for it."""
    spans = [(one, one.median("cores_used") or one.cores) for one in shown]
    labels = [
        Label(one.speed or 0.0, busy, f"{one.cores - busy:.1f} unused", colours[one.series])
        for one, busy in spans
        if one.cores - busy >= MIN_UNUSED_LABELLED and len(shown) <= MAX_LABELLED
    ]
    labels += [
        Label(one.speed or 0.0, one.cores, "Pareto front", INK)
        for one in front[-1:]
        if len(shown) > 1
    ]
    bands = [(one.speed or 0.0, sqrt(busy * one.cores)) for one, busy in spans]
    ends = [(one.speed or 0.0, at) for one, busy in spans for at in (busy, one.cores)]
    place_labels(axes, labels, bands, ends)


def speedup_figure(configurations: Sequence[Configuration]) -> Figure | None:
    """Speed-up over cores for each series, with the ideal line and the laws that were fitted.

    A full line joins sizes of as many ranks as the base (more cores each), a dashed one those of
    the base's cores per rank (more ranks); other shapes stand alone.
    """
    series = _sizes_by_series(configurations)
    if not series:
        return None
    with style.report_style():
        figure = style.new_figure(4.6)
        axes = figure.subplots()
        colours = style.series_colours(one.series for one in configurations)
        names = figure_labels(configurations)
        shown = [one for found in series.values() for one in found]
        _ideal(axes, shown, draw_laws(axes, shown, colours))
        ends = [
            Label(one.cores, _gain(one), names[one.key], colours[name])
            for name, found in series.items()
            for one in _series_lines(axes, found, colours[name])
            if one.key in names
        ]
        place_labels(axes, ends, _along_lines(shown))
    return figure


def _sizes_by_series(configurations: Sequence[Configuration]) -> dict[str, list[Configuration]]:
    """The series of several sizes; of very many those with the fastest configurations."""
    several = {
        name: found
        for name, found in group_by_series(configurations).items()
        if len({one.cores for one in found}) > 1
    }
    order = sorted(several, key=lambda name: max(one.speed or 0.0 for one in several[name]))
    return {name: found for name, found in several.items() if name in order[-MAX_LABELLED:]}


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
    for marker in sorted({style.rank_marker(one.ranks) for one in found}):
        points = [
            (one.cores, _gain(one)) for one in found if style.rank_marker(one.ranks) == marker
        ]
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


def scaling_parts(data: ReportData) -> list[Part]:
    shown = data.shown
    grids = [
        *titled_table(strong_table(shown), "Strong: the same work on more cores"),
        *titled_table(weak_table(shown), "Weak: work that grows with the cores"),
        *titled_table(law_table(shown), "Laws of the speed, fitted"),
    ]
    note = " ".join([*describe_peaks(shown), law_note(shown) or ""]).strip()
    if grids and note:
        grids.append(Paragraph(note, note=True))
    prices = data.table.prices if data.table else Prices()
    priced = [row for one in shown for row in priced_rows(one, prices)]
    return [
        *grids,
        *titled_table(cost_table(shown), "What an epoch costs"),
        *titled_table(price_table(priced, prices), "At the site's prices"),
    ]


EFFICIENCY_CAPTION: Final = (
    "Best is the upper right. Large points are medians (a circle: one rank, a square: several), "
    "small ones single runs. Below, at the same speeds, the price: the band from the cores used up "
    "to the cores allocated is waste. Along a grey line an epoch costs the same, less than along "
    "the one to its left. Dashed, with wide rings: the Pareto front of the whole job's time and "
    "cost."
)
SPEEDUP_CAPTION: Final = (
    "Full lines: more cores for each rank. Dashed: more ranks. Dotted: ideal, each core does as "
    "much as the first. Bands, where four sizes or more were measured: the law fitted to them, "
    "with its 95 % interval over the repeats."
)


def build(data: ReportData) -> Section:
    figures = data.draw(
        Drawing(
            "efficiency_speed",
            "Efficiency against speed",
            EFFICIENCY_CAPTION,
            lambda: efficiency_against_speed(data.shown, data.front),
        ),
        Drawing(
            "speedup", "Speed-up over cores", SPEEDUP_CAPTION, lambda: speedup_figure(data.shown)
        ),
    )
    return Section("speed", "What the cores bought", [*figures, *scaling_parts(data)])
