"""The ranks of a run beside each other: who computes, who waits, and for whom. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from hpcncf_analysis import words
from hpcncf_analysis.page.material import Material
from hpcncf_analysis.page.section import Grid, Part
from hpcncf_analysis.scaling import pop
from hpcncf_analysis.scaling.ranks import SLOWER
from hpcncf_analysis.summary import Configuration
from hpcncf_analysis.table import Table

Row_ranks = Mapping[str, Any]

# So many configurations show their ranks, and so many ranks each: others are in ranks.csv.
MOST: Final = 4
RANKS: Final = 32


def chosen(material: Material) -> list[Configuration]:
    """The fastest of several ranks."""
    several = [one for one in material.shown if one.ranks > 1 and one.speed]
    return sorted(several, key=lambda one: one.speed or 0.0, reverse=True)[:MOST]


def of_run(ranks: Sequence[Row_ranks], one: Configuration) -> list[Row_ranks]:
    """The ranks' rows of a configuration's first run, those that trained."""
    run = one.rows[0]["run_id"]
    found = [row for row in ranks if row["run_id"] == run and row.get("counted_s") is not None]
    return found[:RANKS]


def parts_ranks(material: Material) -> list[Part]:
    grids: list[Part] = []
    for one in chosen(material):
        ranks = of_run(material.found.ranks, one)
        if ranks:
            grids.append(Grid(_table(ranks), title=f"{one.label}, run {one.rows[0]['run_id']}"))
    return grids


def busy_s(row: Row_ranks) -> float:
    """A rank's counted steps without its waiting for other ranks."""
    return float(row["counted_s"] - row["sync_s"])


def slower(ranks: Sequence[Row_ranks]) -> Row_ranks | None:
    """The rank that the others wait for; None where they are even."""
    found = pop.of_rows(ranks)
    if found is None or found.slowest_by < SLOWER:
        return None
    return next(row for row in ranks if row["rank"] == found.slowest_rank)


def _table(ranks: Sequence[Row_ranks]) -> Table:
    slowest = slower(ranks)
    columns = ["rank", "node", "steps: instances", "steps: seconds", "steps: input"]
    columns += ["steps: computing", "steps: waiting for ranks", "cores used", "CPU efficiency"]
    rows = [_row_ranks(row, row is slowest) for row in ranks]
    return Table([*columns, "peak MiB"], rows, frozenset({"node"}))


def _row_ranks(row: Row_ranks, slowest: bool) -> list[str]:
    return [
        f"{row['rank']}{' (slowest)' if slowest else ''}",
        str(row["node"]),
        words.number(row["counted_instances"]),
        words.number(row["counted_s"]),
        words.number(row["input_s"]),
        words.number(busy_s(row) - row["input_s"]),
        words.number(row["sync_s"]),
        words.hundredths(row["cores_used"]),
        words.percent(row["cpu_efficiency"]),
        words.number(row["memory_rss_peak_mib"]),
    ]
