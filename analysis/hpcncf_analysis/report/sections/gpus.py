"""What the GPUs did: busy share, memory, clocks, energy."""

from __future__ import annotations

from typing import Final

from hpcncf_analysis.configurations import Configuration, Table
from hpcncf_analysis.formatting import (
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

COLUMNS: Final = [
    "configuration",
    "GPUs",
    "busy",
    "busy with this run",
    "most MiB used",
    "clock, MHz",
    "clocks held down",
    "W of each",
    "an epoch: GPU-s",
    "an epoch: J",
    "the run: GPU-h",
]


TEXTS: Final = frozenset({"GPUs"})


NOTE: Final = (
    "Busy: some kernel was on the GPU, however little of it it filled. Clocks held down: share of "
    "the samples, for the commonest reason. Of runs that share a GPU each counts its even part of "
    "hours and joules; busy, memory, clock and power are the whole GPU's."
)


NO_NVML_NOTE: Final = (
    "Of these GPUs NVML reported nothing (pip install 'hpcncf[gpu]' where the runs are)."
)


def gpu_parts(data: ReportData) -> list[Part]:
    """Nothing where no run had a GPU."""
    had = [one for one in data.shown if one.median("gpu_hours")]
    if not had:
        return []
    reported = any(row.get("gpu_model") for one in had for row in one.rows)
    note = NOTE if reported else NO_NVML_NOTE
    return [
        TableBlock(Table(COLUMNS, [_row(one) for one in had], TEXTS).without_empty_columns),
        Paragraph(note, note=True),
    ]


def _row(one: Configuration) -> list[str]:
    hours = one.median("gpu_h_per_epoch")
    return [
        one.label,
        f"{one.rows[0]['gpus']:g} {one.rows[0].get('gpu_model') or ''}".strip(),
        format_percent(one.median("gpu_busy")),
        format_percent(one.median("gpu_ours")),
        format_number(one.median("gpu_memory_peak_mib")),
        format_number(one.median("gpu_sm_mhz")),
        _describe_throttling(one),
        format_number(one.median("gpu_power_w")),
        format_number(None if hours is None else 3600 * hours),
        format_number(one.median("gpu_j_per_epoch")),
        format_number(one.median("gpu_hours")),
    ]


def _describe_throttling(one: Configuration) -> str:
    reasons = dict.fromkeys(row.get("gpu_throttled_by") for row in one.rows)
    named = ", ".join(reason for reason in reasons if reason)
    return format_percent(one.median("gpu_throttled")) + (f" ({named})" if named else "")


def build(data: ReportData) -> Section:
    return Section("gpus", "What the GPUs did", gpu_parts(data))
