"""Ranks side by side: who computes, who waits, and what that costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from hpcncf_analysis.configurations import (
    Configuration,
    Table,
)
from hpcncf_analysis.formatting import (
    format_hundredths,
    format_number,
    format_percent,
)
from hpcncf_analysis.pop import SLOWER, pop_from_rows, pop_table
from hpcncf_analysis.report.figures.style import (
    PHASES_STYLE,
    new_figure,
    report_style,
)
from hpcncf_analysis.report.section import (
    Drawing,
    Paragraph,
    Part,
    ReportData,
    Section,
    TableBlock,
    titled_table,
)
from hpcncf_analysis.report.sections.step import trained_rank_rows

Row = Mapping[str, Any]

# A figure has room for so many ranks.
RANKS: Final = 32


# What a rank does of its own, apart from its waiting.
PARTS: Final = {"input": "input", "computing": "forward", "waiting for ranks": "sync"}


def ranks_figure(ranks: Sequence[Row], title: str) -> Figure | None:
    """A bar for each rank of one run: input, computing, and waiting for the others."""
    shown = ranks[:RANKS]
    if len(shown) < 2:
        return None
    with report_style():
        figure = new_figure(1.5 + 0.3 * len(shown))
        axes = figure.subplots()
        for place, row in enumerate(shown):
            begun = 0.0
            for part, seconds in _phase_seconds(row).items():
                axes.barh(place, seconds, 0.7, begun, color=PHASES_STYLE[PARTS[part]])
                begun += seconds
        axes.set_yticks(range(len(shown)), [_rank(row, shown) for row in shown])
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("seconds of the counted steps")
        axes.set_title(title)
        handles = [Patch(color=PHASES_STYLE[phase], label=part) for part, phase in PARTS.items()]
        figure.legend(
            handles=handles, loc="outside upper left", ncols=3, frameon=False, handlelength=1.0
        )
    return figure


def _rank(row: Row, shown: Sequence[Row]) -> str:
    several = len({each["node"] for each in shown}) > 1
    return f"rank {row['rank']}{' ' + row['node'] if several else ''}"


def _phase_seconds(row: Row) -> dict[str, float]:
    """Seconds; what is neither input nor waiting is computing."""
    computing = max(row["counted_s"] - row["input_s"] - row["sync_s"], 0.0)
    return {"input": row["input_s"], "computing": computing, "waiting for ranks": row["sync_s"]}


# So many configurations show their ranks, and so many ranks each: others are in ranks.csv.
MAX_RANK_TABLES: Final = 4


def configurations_with_ranks(data: ReportData) -> list[Configuration]:
    """The fastest of several ranks."""
    several = [one for one in data.shown if one.ranks > 1 and one.speed]
    return sorted(several, key=lambda one: one.speed or 0.0, reverse=True)[:MAX_RANK_TABLES]


def rows_of_first_run(ranks: Sequence[Row], one: Configuration) -> list[Row]:
    """The ranks' rows of a configuration's first run, those that trained."""
    run = one.rows[0]["run_id"]
    found = [row for row in ranks if row["run_id"] == run and row.get("counted_s") is not None]
    return found[:RANKS]


def rank_parts(data: ReportData) -> list[Part]:
    grids: list[Part] = []
    for one in configurations_with_ranks(data):
        ranks = rows_of_first_run(data.found.ranks, one)
        if ranks:
            grids.append(
                TableBlock(_table(ranks), title=f"{one.label}, run {one.rows[0]['run_id']}")
            )
    return grids


def busy_s(row: Row) -> float:
    """A rank's counted steps without its waiting for other ranks."""
    return float(row["counted_s"] - row["sync_s"])


def slowest_rank_row(ranks: Sequence[Row]) -> Row | None:
    """The rank that the others wait for; None where they are even."""
    found = pop_from_rows(ranks)
    if found is None or found.slowest_by < SLOWER:
        return None
    return next(row for row in ranks if row["rank"] == found.slowest_rank)


def _table(ranks: Sequence[Row]) -> Table:
    slowest = slowest_rank_row(ranks)
    columns = ["rank", "node", "steps: instances", "steps: seconds", "steps: input"]
    columns += ["steps: computing", "steps: waiting for ranks", "cores used", "CPU efficiency"]
    rows = [_row(row, row is slowest) for row in ranks]
    return Table([*columns, "peak MiB"], rows, frozenset({"node"}))


def _row(row: Row, slowest: bool) -> list[str]:
    return [
        f"{row['rank']}{' (slowest)' if slowest else ''}",
        str(row["node"]),
        format_number(row["counted_instances"]),
        format_number(row["counted_s"]),
        format_number(row["input_s"]),
        format_number(busy_s(row) - row["input_s"]),
        format_number(row["sync_s"]),
        format_hundredths(row["cores_used"]),
        format_percent(row["cpu_efficiency"]),
        format_number(row["memory_rss_peak_mib"]),
    ]


POP_NOTE: Final = (
    "Of each configuration's first run: load balance × communication × input = parallel "
    "efficiency, of the time that the ranks' steps took. Computation scaling is against the base: "
    "above 100\u202f%, an instance takes fewer core-seconds than there."
)


def pop_parts(data: ReportData) -> list[Part]:
    """POP's factors of the ranks."""
    table = pop_table(data.shown, data.found.ranks)
    grid = titled_table(table, "Where the ranks' efficiency goes")
    return [*grid, Paragraph(POP_NOTE, note=True)] if grid else []


SYNC_NOTE: Final = (
    "What synchronising takes of a rank's mean step. On one node, one rank with as many threads as "
    "cores exchanges nothing: compare the two."
)


def ranks_table(shown: Sequence[Configuration]) -> Table | None:
    """What the ranks' steps gave to synchronising; None where no run had several."""
    several = [one for one in shown if one.median("sync_ms_per_step") is not None]
    rows = [
        [
            one.label,
            str(one.rows[0]["sync_over"]),
            format_number(one.median("sync_ms_per_step")),
            format_percent(one.median("sync_share")),
            format_number((one.median("sync_bytes_per_step") or 0.0) / 1024),
        ]
        for one in several
    ]
    columns = ["configuration", "over", "ms/step", "of the step", "KiB/step of each rank"]
    return Table(columns, rows) if rows else None


CAPTION: Final = (
    "Even bars of computing are balance. A rank that computes longer makes the others wait."
)


def _figure(data: ReportData) -> Figure | None:
    """Of the recommended configuration if it has several ranks, else of the fastest that has."""
    several = [one for one in data.shown if one.ranks > 1 and one.speed]
    if not several:
        return None
    one = max(several, key=lambda one: (one is data.chosen, one.speed or 0.0))
    return ranks_figure(trained_rank_rows(data.found.ranks, one), one.label)


def build(data: ReportData) -> Section:
    drawing = Drawing("ranks", "Ranks of one run", CAPTION, lambda: _figure(data))
    parts = [*data.draw(drawing), *pop_parts(data), *rank_parts(data)]
    if cost := ranks_table(data.shown):
        parts += [TableBlock(cost, title="What the ranks cost"), Paragraph(SYNC_NOTE, True)]
    return Section("ranks", "Ranks side by side", parts)
