"""Memory beside what was requested, traffic of network and disks, and what the GPUs did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from hpcncf.collect.node_means import IDLE_MIB_S, TRAFFIC
from hpcncf.table import Table
from hpcncf_analysis.configurations import Configuration
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
    ReportData,
    Section,
    SectionPart,
    figures_table,
)

Row = Mapping[str, Any]

MEMORY_COLUMNS: Final = ("configuration", "MiB of a node", "asked", "of what was asked")
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
GPU_COLUMNS: Final = (
    Column("GPUs", "gpus"),
    Column("busy", "gpu_busy", format_percent),
    Column("busy with this run", "gpu_ours", format_percent),
    Column("most MiB used", "gpu_memory_peak_mib"),
    Column("clock, MHz", "gpu_sm_mhz"),
    Column("clocks held down", "gpu_throttled", format_percent),
    Column("W of each", "gpu_power_w"),
    Column(
        "an epoch: GPU-s",
        "gpu_h_per_epoch",
        lambda hours: format_number(None if hours is None else 3600 * hours),
    ),
    Column("an epoch: J", "gpu_j_per_epoch"),
    Column("the run: GPU-h", "gpu_hours"),
)
GPU_NOTE: Final = (
    "Busy: some kernel was on the GPU, however little of it it filled. Clocks held down: share of "
    "the samples, for the commonest reason. Of runs that share a GPU each counts its even part of "
    "hours and joules; busy, memory, clock and power are the whole GPU's."
)
NO_NVML_NOTE: Final = (
    "Of these GPUs NVML reported nothing (pip install 'hpcncf[gpu]' where the runs are)."
)


def build_memory(data: ReportData) -> Section:
    traffic = traffic_parts(data)
    title = "Memory and traffic" if traffic else "Memory"
    return Section("memory", title, [*memory_parts(data), *traffic])


def memory_parts(data: ReportData) -> list[SectionPart]:
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
    table = Table([*MEMORY_COLUMNS, *RANK_COLUMNS, *(SHORTAGE[name] for name in short)], rows)
    return [table, Paragraph(NOTE, note=True)]


def _most(rows: Sequence[Row], name: str) -> float | None:
    return max((row[name] for row in rows if row.get(name) is not None), default=None)


def traffic_parts(data: ReportData) -> list[SectionPart]:
    moved = [
        one for one in data.shown if max(one.median(name) or 0.0 for name in TRAFFIC) >= IDLE_MIB_S
    ]
    if not moved:
        return []
    table = figures_table(moved, [Column(heading, name) for name, heading in TRAFFIC.items()])
    return [replace(table, title="Traffic, MiB/s"), Paragraph(TRAFFIC_NOTE, note=True)]


def build_gpus(data: ReportData) -> Section:
    """Section on GPUs; empty if no run had one."""
    had = [one for one in data.shown if one.median("gpu_hours")]
    if not had:
        return Section("gpus", "", [])
    table = figures_table(had, GPU_COLUMNS)
    for one, row in zip(had, table.rows, strict=True):
        for heading, column in (("GPUs", "gpu_model"), ("clocks held down", "gpu_throttled_by")):
            row[table.columns.index(heading)] += _describe(one, column)
    reported = any(row.get("gpu_model") for one in had for row in one.rows)
    note = Paragraph(GPU_NOTE if reported else NO_NVML_NOTE, note=True)
    return Section("gpus", "What the GPUs did", [table, note])


def _describe(one: Configuration, column: str) -> str:
    """Distinct texts of a column in parentheses, such as ` (H200)`; empty without any."""
    words = [word for word in dict.fromkeys(row.get(column) for row in one.rows) if word]
    return f" ({', '.join(words)})" if words else ""
