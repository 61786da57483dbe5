"""Ranks side by side: who computes, who waits, and what that costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from matplotlib.figure import Figure

from hpcncf.table import Table
from hpcncf_analysis.formatting import format_hundredths, format_number, format_percent
from hpcncf_analysis.pop import SLOWER, pop_from_rows, pop_table
from hpcncf_analysis.report.figure_style import PHASES_STYLE, legend_above, name_rows, new_figure
from hpcncf_analysis.report.section import (
    Column,
    Drawing,
    Paragraph,
    ReportData,
    Section,
    figures_table,
    titled_table,
)

Row = Mapping[str, Any]

# A figure and a table have room for so many ranks; others are in ranks.csv.
RANKS: Final = 32
# What a rank does of its own, apart from its waiting.
PARTS: Final = {"input": "input", "computing": "forward", "waiting for ranks": "sync"}
RANK_COLUMNS: Final = (
    *("rank", "node", "steps: instances", "steps: seconds", "steps: input", "steps: computing"),
    *("steps: waiting for ranks", "cores used", "CPU efficiency", "peak MiB"),
)
SYNC_COLUMNS: Final = (
    Column("ms/step", "sync_ms_per_step"),
    Column("of the step", "sync_share", format_percent),
    Column(
        "KiB/step of each rank",
        "sync_bytes_per_step",
        lambda sent: format_number((sent or 0.0) / 1024),
    ),
)
CAPTION: Final = (
    "Even bars of computing are balance. A rank that computes longer makes the others wait."
)
POP_NOTE: Final = (
    "Of each configuration's first run: load balance × communication × input = parallel "
    "efficiency, of the time that the ranks' steps took. Computation scaling is against the base: "
    "above 100\u202f%, an instance takes fewer core-seconds than there."
)
SYNC_NOTE: Final = (
    "What synchronising takes of a rank's mean step. On one node, one rank with as many threads as "
    "cores exchanges nothing: compare the two."
)


def build(data: ReportData) -> Section:
    """Section on the ranks of the recommended configuration, or else of the fastest."""
    several = [one for one in data.shown if one.ranks > 1 and one.speed]
    chosen = max(several, key=lambda one: (one is data.chosen, one.speed or 0.0), default=None)
    ranks = data.trained_ranks(chosen)[:RANKS] if chosen else []
    label = chosen.label if chosen else ""
    parts = data.draw(
        Drawing("ranks", "Ranks of one run", CAPTION, lambda: ranks_figure(ranks, label))
    )
    if ranks and chosen:
        title = f"{label}, run {chosen.rows[0]['run_id']}"
        parts.append(replace(ranks_table(ranks), title=title))
    if pop := pop_table(data.shown, data.found.ranks):
        parts += titled_table(pop, "Where the ranks' efficiency goes")
        parts.append(Paragraph(POP_NOTE, note=True))
    if synced := [one for one in data.shown if one.median("sync_ms_per_step") is not None]:
        table = figures_table(synced, SYNC_COLUMNS)
        for one, row in zip(synced, table.rows, strict=True):
            row[-1] += f" ({one.rows[0]['sync_over']})"
        parts += titled_table(table, "What the ranks cost")
        parts.append(Paragraph(SYNC_NOTE, note=True))
    return Section("ranks", "Ranks side by side", parts)


def ranks_figure(ranks: Sequence[Row], title: str) -> Figure | None:
    """Figure with a bar for each rank of a run: input, computing, waiting for the others."""
    if len(ranks) < 2:
        return None
    figure = new_figure(1.5 + 0.3 * len(ranks))
    axes = figure.subplots()
    for place, row in enumerate(ranks):
        begun = 0.0
        for phase, seconds in zip(PARTS.values(), _part_seconds(row), strict=True):
            axes.barh(place, seconds, 0.7, begun, color=PHASES_STYLE[phase])
            begun += seconds
    several = len({row["node"] for row in ranks}) > 1
    names = [f"rank {row['rank']}{' ' + row['node'] if several else ''}" for row in ranks]
    name_rows(axes, names)
    axes.set_xlabel("seconds of the counted steps")
    axes.set_title(title)
    legend_above(figure, {part: PHASES_STYLE[phase] for part, phase in PARTS.items()})
    return figure


def _part_seconds(row: Row) -> tuple[float, float, float]:
    """Seconds of a rank's counted steps spent on (input, computing, waiting for others)."""
    computing = max(row["counted_s"] - row["input_s"] - row["sync_s"], 0.0)
    return row["input_s"], computing, row["sync_s"]


def slowest_rank_row(ranks: Sequence[Row]) -> Row | None:
    """Row of the rank that clearly delays the others; None if the ranks are balanced."""
    found = pop_from_rows(ranks)
    if found is None or found.slowest_by < SLOWER:
        return None
    return next(row for row in ranks if row["rank"] == found.slowest_rank)


def ranks_table(ranks: Sequence[Row]) -> Table:
    slowest = slowest_rank_row(ranks)
    rows = [
        [
            f"{row['rank']}{' (slowest)' if row is slowest else ''}",
            str(row["node"]),
            format_number(row["counted_instances"]),
            format_number(row["counted_s"]),
            *map(format_number, _part_seconds(row)),
            format_hundredths(row["cores_used"]),
            format_percent(row["cpu_efficiency"]),
            format_number(row["memory_rss_peak_mib"]),
        ]
        for row in ranks
    ]
    return Table(list(RANK_COLUMNS), rows, frozenset({"node"}))
