"""Memory: peaks beside what was requested; traffic of network and disks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final

from hpcncf.collect.resource_columns import IDLE_MIB_S, TRAFFIC
from hpcncf_analysis.configurations import Configuration, Table
from hpcncf_analysis.formatting import (
    NONE,
    THIN,
    format_mebibytes,
    format_number,
    format_percent,
)
from hpcncf_analysis.report.section import (
    Paragraph,
    Part,
    ReportData,
    Section,
    TableBlock,
)

Row = Mapping[str, Any]

TRAFFIC_NOTE: Final = (
    "MiB/s of the nodes, whoever caused it: received and sent over the network, sent to "
    "themselves over loopback, read and written by the disks. Means over a run, of several "
    "repeats the median. The series of each node stand in node-N.json."
)

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


def memory_parts(data: ReportData) -> list[Part]:
    known = [one for one in data.shown if one.median("memory_peak_mib") is not None]
    if not known:
        return []
    by_run: dict[str, list[Row]] = {}
    for row in data.found.ranks:
        by_run.setdefault(row["run_id"], []).append(row)
    of = {
        one.key: [rank for row in one.rows for rank in by_run.get(row["run_id"], [])]
        for one in known
    }
    short = [name for name in SHORTAGE if any(_most(ranks, name) for ranks in of.values())]
    columns = ["configuration", "MiB of a node", "asked", "of what was asked"]
    columns += [
        "MiB of the largest rank",
        "limit of the cgroup",
        *(SHORTAGE[name] for name in short),
    ]
    rows = [_row(one, of[one.key], short) for one in known]
    return [TableBlock(Table(columns, rows)), Paragraph(NOTE, note=True)]


def _row(one: Configuration, ranks: Sequence[Row], short: Sequence[str]) -> list[str]:
    peak = _most(one.rows, "memory_peak_mib")
    asked = one.rows[0]["mem_gb"]
    return [
        one.label,
        format_number(peak),
        NONE if asked is None else f"{asked:g}{THIN}GB",
        format_percent(_most(one.rows, "memory_efficiency")),
        format_number(_most(ranks, "memory_rss_peak_mib")),
        format_mebibytes(_most(ranks, "memory_limit_mib")),
        *(format_number(_most(ranks, name)) for name in short),
    ]


def _most(rows: Sequence[Row], name: str) -> float | None:
    return max((row[name] for row in rows if row.get(name) is not None), default=None)


def traffic_parts(data: ReportData) -> list[Part]:
    rows = []
    for one in data.shown:
        known = [row for row in one.rows if row.get("network_mib_s") is not None]
        rates = [median(row[name] for row in known) for name in TRAFFIC] if known else []
        if max(rates, default=0.0) >= IDLE_MIB_S:
            rows.append([one.label, *map(format_number, rates)])
    if not rows:
        return []
    table = Table(["configuration", *TRAFFIC.values()], rows)
    return [TableBlock(table, title="Traffic, MiB/s"), Paragraph(TRAFFIC_NOTE, note=True)]


def build(data: ReportData) -> Section:
    traffic = traffic_parts(data)
    title = "Memory and traffic" if traffic else "Memory"
    return Section("memory", title, [*memory_parts(data), *traffic])
