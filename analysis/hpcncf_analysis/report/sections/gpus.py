"""What the GPUs did: busy share, memory, clocks, energy."""

from __future__ import annotations

from typing import Final

from hpcncf_analysis.configurations import Configuration
from hpcncf_analysis.formatting import format_number, format_percent
from hpcncf_analysis.report.section import (
    Column,
    Paragraph,
    ReportData,
    Section,
    TableBlock,
    figures_table,
)

COLUMNS: Final = (
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
NOTE: Final = (
    "Busy: some kernel was on the GPU, however little of it it filled. Clocks held down: share of "
    "the samples, for the commonest reason. Of runs that share a GPU each counts its even part of "
    "hours and joules; busy, memory, clock and power are the whole GPU's."
)
NO_NVML_NOTE: Final = (
    "Of these GPUs NVML reported nothing (pip install 'hpcncf[gpu]' where the runs are)."
)


def build(data: ReportData) -> Section:
    """Nothing where no run had a GPU."""
    had = [one for one in data.shown if one.median("gpu_hours")]
    if not had:
        return Section("gpus", "", [])
    table = figures_table(had, COLUMNS)
    for one, row in zip(had, table.rows, strict=True):
        for heading, column in (("GPUs", "gpu_model"), ("clocks held down", "gpu_throttled_by")):
            row[table.columns.index(heading)] += _describe(one, column)
    reported = any(row.get("gpu_model") for one in had for row in one.rows)
    note = Paragraph(NOTE if reported else NO_NVML_NOTE, note=True)
    return Section("gpus", "What the GPUs did", [TableBlock(table), note])


def _describe(one: Configuration, column: str) -> str:
    """` (H200)`: the words of its runs in a column of text."""
    words = [word for word in dict.fromkeys(row.get(column) for row in one.rows) if word]
    return f" ({', '.join(words)})" if words else ""
