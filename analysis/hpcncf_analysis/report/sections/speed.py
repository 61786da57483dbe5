"""What the cores bought: efficiency against speed, speed-up, scaling laws, cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import log10
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

from hpcncf.table import Table
from hpcncf_analysis.configurations import (
    MAX_LABELLED,
    Configuration,
    figure_key,
    group_by_series,
    karp_flatt,
    number_rows,
)
from hpcncf_analysis.formatting import (
    NONE,
    format_number,
    format_percent,
    format_ratio,
    select_time_unit,
)
from hpcncf_analysis.report import figure_style as style
from hpcncf_analysis.report.figure_style import FAINT, GREY, INK, NumberedPoint, number_points
from hpcncf_analysis.report.section import (
    Column,
    Drawing,
    Paragraph,
    ReportData,
    Section,
    SectionPart,
    figures_table,
    titled_table,
)
from hpcncf_analysis.scaling import (
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
from hpcncf_analysis.significance import Ratio, compare_repeats
from hpcncf_analysis.usl import Law

WORK: Final = {"epoch": "an epoch's, with the data", "step": "a step's, with the batch"}
# A figure that reached as far as the law may be used would press the measured part together.
BEYOND: Final = 1.5
# Less than this many cores unused is not worth a word in a figure.
MIN_UNUSED_NAMED: Final = 0.15

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


def scaling_parts(data: ReportData) -> list[SectionPart]:
    shown = data.shown
    parts = [
        *titled_table(strong_table(shown), "Strong: the same work on more cores"),
        *titled_table(weak_table(shown), "Weak: work that grows with the cores"),
        *titled_table(law_table(shown), "Laws of the speed, fitted"),
    ]
    note = " ".join([*describe_peaks(shown), law_note(shown) or ""]).strip()
    if parts and note:
        parts.append(Paragraph(note, note=True))
    return [
        *parts,
        *titled_table(cost_table(shown), "What an epoch costs"),
    ]


def strong_table(shown: Sequence[Configuration]) -> Table | None:
    """Table of each series' scaling from its fewest cores; None if no series has two sizes."""
    series = [members for members in group_by_series(shown).values() if len(members) > 1]
    rows = [_strong(one, members[0]) for members in series for one in members[1:]]
    columns = ["configuration", "against", "speed-up", "parallel efficiency"]
    columns += ["serial share (Karp-Flatt)", "caution"]
    return Table(columns, rows, frozenset({"against", "caution"})) if rows else None


def _strong(one: Configuration, base: Configuration) -> list[str]:
    gain = compare_repeats(base.speeds, one.speeds)
    return [
        one.label,
        base.label,
        _ratio(gain, format_ratio),
        _ratio(_core_speed_ratio(one, base), format_percent),
        _serial(gain, one.cores / base.cores),
        "; ".join(comparison_cautions(one, base)),
    ]


def _core_speed_ratio(one: Configuration, base: Configuration) -> Ratio:
    """Ratio of the speeds per core, configuration over base."""
    return compare_repeats(base.speeds, one.speeds).scaled(base.cores / one.cores)


def _ratio(ratio: Ratio, show: Show) -> str:
    return format_with_interval(ratio.value, known_interval(ratio.low, ratio.high), show)


def _serial(gain: Ratio, times_the_cores: float) -> str:
    """Format the serial share, or why it is undefined (slower on more cores, superlinear).

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
    """Table of configurations whose work grows with the cores; None without any."""
    rows = [_weak(each) for each in weak_scaling(shown)]
    columns = ["configuration", "against", "work that grows", "work", "time for it"]
    columns += ["scaled speed-up", "weak efficiency", "caution"]
    texts = frozenset({"against", "work that grows", "caution"})
    return Table(columns, rows, texts) if rows else None


def _weak(each: WeakComparison) -> list[str]:
    of_each = _core_speed_ratio(each.one, each.base)
    interval = known_interval(of_each.low, of_each.high)
    return [
        each.one.label,
        each.base.label,
        WORK[each.work],
        format_ratio(each.work_ratio),
        format_ratio(each.time_ratio),
        format_ratio(each.speedup),
        format_with_interval(each.efficiency, interval, format_percent),
        "; ".join(comparison_cautions(each.one, each.base)),
    ]


def cost_table(shown: Sequence[Configuration]) -> Table | None:
    """Table of the time, core time and GPU time of an epoch; None without training."""
    trained = [one for one in shown if one.median("seconds_per_epoch") is not None]
    hours = {"an epoch: core": "core_h_per_epoch", "the run: core": "core_hours"}
    if any(one.median("gpu_hours") for one in trained):
        hours |= {"an epoch: GPU": "gpu_h_per_epoch", "the run: GPU": "gpu_hours"}
    columns = [
        Column("instances/s", "instances_per_s", has_range=True),
        Column("an epoch: s", "seconds_per_epoch", has_range=True),
    ]
    for heading, name in hours.items():
        letter, of_an_hour = select_time_unit(one.median(name) for one in trained)
        show = partial(_format_in_unit, of_an_hour)
        columns.append(Column(f"{heading}-{letter}", name, show, has_range=True))
    return figures_table(trained, columns) if trained else None


def _format_in_unit(of_an_hour: float, hours: float | None) -> str:
    return format_number(None if hours is None else of_an_hour * hours)


def efficiency_against_speed(
    configurations: Sequence[Configuration], front: Sequence[Configuration] = ()
) -> Figure | None:
    """Figure of CPU efficiency over speed and, below it, of the cores allocated and used.

    None if there is nothing to compare.

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
    figure = style.new_figure(7.4)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[1.25, 1])
    colours = style.series_colours(one.series for one in configurations)
    _speed_axis(lower, shown)
    _draw_efficiencies(upper, shown, colours)
    _draw_costs(lower, shown, colours)
    if len(shown) > 1 and front:
        places = sorted((one.speed or 0.0, one.cores) for one in front)
        lower.plot(*zip(*places, strict=True), "--o", ms=16, mfc="none", color=INK, lw=1)
        style.annotate(lower, "Pareto front", places[-1], (-12, 14), ha="right")
    numbers, names = number_rows(configurations), figure_key(configurations)
    medians = [
        NumberedPoint(
            one.speed or 0.0,
            one.median("cpu_efficiency") or 0.0,
            numbers[one.key],
            colours[one.series],
            style.rank_marker(one.ranks),
        )
        for one in shown
        if one.key in numbers
    ]
    for one in shown:
        if names and (unused := one.cores - _cores_used(one)) >= MIN_UNUSED_NAMED:
            names[numbers[one.key]] += f", {unused:.1f} unused"
    number_points(upper, medians, names)
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
    """Group points by colour and marker, so that one call draws each group."""
    grouped: dict[tuple[str, str], list[Configuration]] = {}
    for one in shown:
        grouped.setdefault((colours[one.series], style.rank_marker(one.ranks)), []).append(one)
    return grouped


def _draw_efficiencies(
    axes: Axes, shown: Sequence[Configuration], colours: Mapping[str, str]
) -> None:
    """Draw CPU efficiency over speed: small points are runs, large ones medians."""
    highest = max(row["cpu_efficiency"] for one in shown for row in one.rows)
    for (colour, marker), ones in _group_by_look(shown, colours).items():
        runs = [(_run_speed(one, row), row["cpu_efficiency"]) for one in ones for row in one.rows]
        axes.plot(*zip(*runs, strict=True), ".", ms=5, color=colour, alpha=0.4)
        medians = [(one.speed or 0.0, one.median("cpu_efficiency") or 0.0) for one in ones]
        axes.plot(*zip(*medians, strict=True), marker, ms=10, mec="w", color=colour)
    axes.set_ylim(0, max(1.15, 1.12 * highest))
    axes.axhline(1, color=GREY, lw=1, ls=":")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.yaxis.set_major_locator(MultipleLocator(0.2))
    axes.set_title("CPU efficiency: busy share of the cores allocated")
    style.quiet_grid(axes)


def _cores_used(one: Configuration) -> float:
    return one.median("cores_used") or one.cores


def _draw_costs(axes: Axes, shown: Sequence[Configuration], colours: Mapping[str, str]) -> None:
    counts = sorted({one.cores for one in shown})
    bounds = [*counts, *map(_cores_used, shown)]
    axes.set_yscale("log", base=2)
    axes.set_ylim(min(bounds) / 1.5, max(bounds) * 1.5)
    work = work_per_epoch(shown)
    if work is not None:
        _draw_iso_lines(axes, work)
    for (colour, marker), ones in _group_by_look(shown, colours).items():
        speeds, allocated = [one.speed or 0.0 for one in ones], [one.cores for one in ones]
        used = [_cores_used(one) for one in ones]
        axes.vlines(speeds, used, allocated, color=colour, lw=7, alpha=0.3)
        axes.plot(speeds, used, marker, ms=6, color=colour)
        axes.plot(speeds, allocated, marker, ms=11, mfc="none", mew=1.8, color=colour)
    axes.yaxis.set_major_locator(FixedLocator(counts))
    axes.yaxis.set_minor_locator(FixedLocator(nice_values(*axes.get_ylim())))
    for formatted in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        formatted(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.tick_params(axis="y", which="minor", labelsize=8, labelcolor=GREY)
    grey = f"; grey: core-seconds per {'run' if shown[0].by_time else 'epoch'}"
    axes.set_title(f"Cores allocated (○) and used (•){grey if work is not None else ''}")


def _draw_iso_lines(axes: Axes, work: float) -> None:
    """Draw and label lines of equal core-seconds per epoch, or per run of a command."""
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    for cost in nice_values(low * work / right, high * work / left):
        speeds = [left, right]
        axes.plot(speeds, [cost * speed / work for speed in speeds], color=FAINT, lw=1, zorder=0)
        speed = min(right, high * work / cost) / 1.02
        if speed < left * 1.2:
            continue  # the corner has no room for its label
        at_top = speed < right / 1.05
        offset, va = ((-3, -3), "top") if at_top else ((-2, 2), "bottom")
        place = (speed, cost * speed / work)
        style.annotate(axes, f"{cost:g}", place, offset, ha="right", va=va, color=GREY)
    axes.set_xlim(left, right)
    axes.set_ylim(low, high)


def work_per_epoch(shown: Sequence[Configuration]) -> float | None:
    """Instances per epoch if equal for all configurations, else None; 3600 for runs per hour."""
    if shown[0].by_time:
        return 3600.0
    sizes = {one.median("instances_per_epoch") for one in shown}
    return sizes.pop() if len(sizes) == 1 else None


def nice_values(low: float, high: float) -> list[float]:
    """Round values 1, 2, 5, 10, ... between two bounds; only powers of ten if too many."""
    powers = range(int(log10(low)) - 2, int(log10(high)) + 2)
    nice = [step * 10.0**power for power in powers for step in (1, 2, 5)]
    inside = [value for value in nice if low < value < high]
    return inside if len(inside) <= 9 else [v for v in inside if f"{v:e}".startswith("1.0")]


def speedup_figure(configurations: Sequence[Configuration]) -> Figure | None:
    """Figure of speed-up over cores for each series, with the ideal line and fitted laws.

    A full line joins sizes of as many ranks as the base (more cores each), a dashed one those of
    the base's cores per rank (more ranks); other shapes stand alone. Of very many series those
    with the fastest configurations are shown.
    """
    series = {
        name: found
        for name, found in group_by_series(configurations).items()
        if len({one.cores for one in found}) > 1
    }
    if not series:
        return None
    order = sorted(series, key=lambda name: max(one.speed or 0.0 for one in series[name]))
    series = {name: found for name, found in series.items() if name in order[-MAX_LABELLED:]}
    shown = [one for found in series.values() for one in found]
    figure = style.new_figure(4.6)
    axes = figure.subplots()
    colours = style.series_colours(one.series for one in configurations)
    numbers = number_rows(configurations)
    _draw_ideal(axes, shown, draw_laws(axes, shown, colours))
    ends = [
        NumberedPoint(
            one.cores,
            _gain(one),
            numbers[one.key],
            colours[name],
            style.rank_marker(one.ranks),
        )
        for name, found in series.items()
        for one in _draw_series(axes, found, colours[name])
        if one.key in numbers
    ]
    number_points(axes, ends, figure_key(configurations))
    return figure


def draw_laws(
    axes: Axes, shown: Sequence[Configuration], colours: Mapping[str, str]
) -> list[tuple[float, float]]:
    """Draw each fitted law with its band and return the curves' ends as (cores, speed-up)."""
    bases = {series: found[0].speed or 1.0 for series, found in group_by_series(shown).items()}
    ends = []
    for line in lines_to_fit(scaling_lines(shown)):
        fitted = line.fit()
        if not isinstance(fitted, Law):
            continue
        base, colour = bases[line.series], colours[line.series]
        sizes = np.geomspace(line.sizes[0], BEYOND * line.sizes[-1])
        cores = sizes * line.base.cores / line.sizes[0]
        gains = [fitted.rate(size) / base for size in sizes]
        axes.plot(cores, gains, color=colour, lw=1, ls=(0, (1, 1)), zorder=1)
        bands = [band for size in sizes if (band := fitted.interval(size))]
        if len(bands) == len(sizes):
            low, high = np.array(bands).T / base
            axes.fill_between(cores, low, high, color=colour, alpha=0.15, lw=0)
        ends.append((float(cores[-1]), gains[-1]))
    return ends


def _gain(one: Configuration) -> float:
    return one.median("speedup") or 0.0


def _draw_series(axes: Axes, found: Sequence[Configuration], colour: str) -> list[Configuration]:
    """Draw one series and return the configurations at the ends of its lines, for labels.

    Configurations on neither line are returned as well.
    """
    base = found[0]
    more_cores = [one for one in found if one.ranks == base.ranks]
    more_ranks = [one for one in found if one.cores / one.ranks == base.cores / base.ranks]
    for line, dashes in ((more_cores, "-"), (more_ranks, "--")):
        gains = [_gain(one) for one in line]
        axes.plot([one.cores for one in line], gains, dashes, color=colour, lw=1.8)
    for one in found:
        marker = style.rank_marker(one.ranks)
        axes.plot(one.cores, _gain(one), marker, ms=8, mec="w", color=colour)
    ends = [line[-1] for line in (more_cores, more_ranks) if len(line) > 1]
    return ends + [one for one in found if one not in more_cores and one not in more_ranks]


def _draw_ideal(
    axes: Axes, shown: Sequence[Configuration], reach: Sequence[tuple[float, float]]
) -> None:
    """Draw the ideal line up to `reach`, where the fitted curves end."""
    counts = sorted({one.cores for one in shown})
    fewest, most = counts[0], counts[-1]
    axes.plot([fewest, most], [1, most / fewest], color=GREY, lw=1, ls=":")
    at = (most, most / fewest)
    style.annotate(axes, "ideal", at, (9, 9), color=GREY, size=11)
    axes.set_ylim(0, 1.12 * max(at[1], *map(_gain, shown), *(gain for _, gain in reach)))
    span = most - fewest
    axes.set_xlim(fewest - 0.12 * span, max(most + 0.12 * span, *(cores for cores, _ in reach), 0))
    axes.xaxis.set_major_locator(FixedLocator(counts))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axes.set_xlabel("cores allocated")
    axes.set_title("Speed-up against the fewest cores of the same series")
    style.quiet_grid(axes)
