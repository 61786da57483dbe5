"""What the cores bought: speed-up, scaling laws, and cost, beside the plot of efficiency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
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
from hpcncf_analysis.report.figure_style import GREY, NumberedPoint, number_points
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
from hpcncf_analysis.report.sections.efficiency import EFFICIENCY_CAPTION, efficiency_against_speed
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
