"""Memory: peaks beside what was requested; traffic of network and disks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from hpcncf.collect.resource_columns import IDLE_MIB_S, TRAFFIC
from hpcncf_analysis.configurations import Table
from hpcncf_analysis.formatting import (
    NONE,
    THIN,
    format_mebibytes,
    format_number,
    format_percent,
)
from hpcncf_analysis.report.section import (
    Column,
    Paragraph,
    Part,
    ReportData,
    Section,
    TableBlock,
    figures_table,
)

Row = Mapping[str, Any]

COLUMNS: Final = ("configuration", "MiB of a node", "asked", "of what was asked")
RANK_COLUMNS: Final = ("MiB of the largest rank", "limit of the cgroup")
# The ranks' columns of a shortage, shown only if one is known and above 0.
SHORTAGE: Final = {
    "memory_major_faults": "read back from disk: pages",
    "memory_swap_peak_mib": "swapped MiB",
    "memory_pressure_s": "waited for memory: s",
}
NOTE: Final = (
    "Peaks are the largest samples of resident memory, files that are mapped included: an upper "
    "bound of what a run needs. Of several repeats the largest."
)
TRAFFIC_NOTE: Final = (
    "MiB/s of the nodes, whoever caused it: received and sent over the network, sent to "
    "themselves over loopback, read and written by the disks. Means over a run, of several "
    "repeats the median. The series of each node stand in node-N.json."
)


def build(data: ReportData) -> Section:
    traffic = traffic_parts(data)
    title = "Memory and traffic" if traffic else "Memory"
    return Section("memory", title, [*memory_parts(data), *traffic])


def memory_parts(data: ReportData) -> list[Part]:
    known = [one for one in data.shown if one.median("memory_peak_mib") is not None]
    if not known:
        return []
    ranks_of = {
        one.key: [rank for row in one.rows for rank in data.ranks_by_run[row["run_id"]]]
        for one in known
    }
    short = [name for name in SHORTAGE if any(_most(ranks, name) for ranks in ranks_of.values())]
    rows = []
    for one in known:
        ranks, asked = ranks_of[one.key], one.rows[0]["mem_gb"]
        cells = [
            format_number(_most(one.rows, "memory_peak_mib")),
            NONE if asked is None else f"{asked:g}{THIN}GB",
            format_percent(_most(one.rows, "memory_efficiency")),
            format_number(_most(ranks, "memory_rss_peak_mib")),
            format_mebibytes(_most(ranks, "memory_limit_mib")),
            *(format_number(_most(ranks, name)) for name in short),
        ]
        rows.append([one.label, *cells])
    table = Table([*COLUMNS, *RANK_COLUMNS, *(SHORTAGE[name] for name in short)], rows)
    return [TableBlock(table), Paragraph(NOTE, note=True)]


def _most(rows: Sequence[Row], name: str) -> float | None:
    return max((row[name] for row in rows if row.get(name) is not None), default=None)


def traffic_parts(data: ReportData) -> list[Part]:
    moved = [
        one for one in data.shown if max(one.median(name) or 0.0 for name in TRAFFIC) >= IDLE_MIB_S
    ]
    if not moved:
        return []
    table = figures_table(moved, [Column(heading, name) for name, heading in TRAFFIC.items()])
    return [TableBlock(table, title="Traffic, MiB/s"), Paragraph(TRAFFIC_NOTE, note=True)]
