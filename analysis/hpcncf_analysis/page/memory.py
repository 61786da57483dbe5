"""What the runs took of the memory that was asked for, and whether they lacked some. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from hpcncf_analysis import words
from hpcncf_analysis.page.material import Material
from hpcncf_analysis.page.section import Grid, Part, Words
from hpcncf_analysis.summary import Configuration
from hpcncf_analysis.table import Table

Row_memory = Mapping[str, Any]

# The ranks' columns that speak of a shortage; told only where one is known and above 0.
SHORTAGE: Final = {
    "memory_major_faults": "read back from disk: pages",
    "memory_swap_peak_mib": "swapped MiB",
    "memory_pressure_s": "waited for memory: s",
}
NOTE_MEMORY: Final = (
    "Peaks are the largest samples of resident memory, files that are mapped included: an upper "
    "bound of what a run needs. Of several repeats the largest."
)


def parts_memory(material: Material) -> list[Part]:
    known = [one for one in material.shown if one.median("memory_peak_mib") is not None]
    if not known:
        return []
    by_run: dict[str, list[Row_memory]] = {}
    for row in material.found.ranks:
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
    rows = [_row_memory(one, of[one.key], short) for one in known]
    return [Grid(Table(columns, rows)), Words(NOTE_MEMORY, note=True)]


def _row_memory(one: Configuration, ranks: Sequence[Row_memory], short: Sequence[str]) -> list[str]:
    peak = _most(one.rows, "memory_peak_mib")
    asked = one.rows[0]["mem_gb"]
    return [
        one.label,
        words.number(peak),
        words.NONE if asked is None else f"{asked:g}{words.THIN}GB",
        words.percent(_most(one.rows, "memory_efficiency")),
        words.number(_most(ranks, "memory_rss_peak_mib")),
        words.mebibytes(_most(ranks, "memory_limit_mib")),
        *(words.number(_most(ranks, name)) for name in short),
    ]


def _most(rows: Sequence[Row_memory], name: str) -> float | None:
    return max((row[name] for row in rows if row.get(name) is not None), default=None)
