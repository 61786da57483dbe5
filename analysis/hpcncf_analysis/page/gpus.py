"""What the GPUs did, and what an epoch takes of them: hours and joules. Pure."""

from __future__ import annotations

from typing import Final

from hpcncf_analysis import words
from hpcncf_analysis.page.material import Material
from hpcncf_analysis.page.section import Grid, Part, Words
from hpcncf_analysis.summary import Configuration
from hpcncf_analysis.table import Table

COLUMNS_GPUS: Final = [
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
TEXTS_GPUS: Final = frozenset({"GPUs"})
NOTE: Final = (
    "Busy: some kernel was on the GPU, however little of it it filled. Clocks held down: share of "
    "the samples, for the commonest reason. Of runs that share a GPU each counts its even part of "
    "hours and joules; busy, memory, clock and power are the whole GPU's."
)
UNTOLD: Final = "Of these GPUs NVML told nothing (pip install 'hpcncf[gpu]' where the runs are)."


def parts_gpus(material: Material) -> list[Part]:
    """Nothing where no run had a GPU."""
    had = [one for one in material.shown if one.median("gpu_hours")]
    if not had:
        return []
    told = any(row.get("gpu_model") for one in had for row in one.rows)
    note = NOTE if told else UNTOLD
    return [Grid(Table(COLUMNS_GPUS, [_row(one) for one in had], TEXTS_GPUS).told), Words(note, note=True)]


def _row(one: Configuration) -> list[str]:
    hours = one.median("gpu_h_per_epoch")
    return [
        one.label,
        f"{one.rows[0]['gpus']:g} {one.rows[0].get('gpu_model') or ''}".strip(),
        words.percent(one.median("gpu_busy")),
        words.percent(one.median("gpu_ours")),
        words.number(one.median("gpu_memory_peak_mib")),
        words.number(one.median("gpu_sm_mhz")),
        _held_down(one),
        words.number(one.median("gpu_power_w")),
        words.number(None if hours is None else 3600 * hours),
        words.number(one.median("gpu_j_per_epoch")),
        words.number(one.median("gpu_hours")),
    ]


def _held_down(one: Configuration) -> str:
    reasons = dict.fromkeys(row.get("gpu_throttled_by") for row in one.rows)
    named = ", ".join(reason for reason in reasons if reason)
    return words.percent(one.median("gpu_throttled")) + (f" ({named})" if named else "")
