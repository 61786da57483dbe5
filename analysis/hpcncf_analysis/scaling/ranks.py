"""POP's factors of the configurations' ranks in a table. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from hpcncf_analysis import words
from hpcncf_analysis.scaling import pop
from hpcncf_analysis.scaling.comparable import cautions
from hpcncf_analysis.scaling.pop import Pop
from hpcncf_analysis.summary import Configuration, by_series
from hpcncf_analysis.table import Table

Row_ranks = Mapping[str, Any]

# A rank that computes longer than the others by less than this is not called slower.
SLOWER: Final = 0.02


def pop_table(shown: Sequence[Configuration], ranks: Iterable[Row_ranks]) -> Table | None:
    """POP's factors of each configuration's first run of several ranks; None where none was.

    Computation scaling is against the base of its series.
    """
    found = pops(shown, ranks)
    bases = {one.key: members[0] for members in by_series(shown).values() for one in members}
    rows = [
        [
            *_pop(one, found[one.key], found.get(bases[one.key].key)),
            "; ".join(cautions(one, bases[one.key])),
        ]
        for one in shown
        if one.ranks > 1 and one.key in found and one.key in bases
    ]
    columns = ["configuration", "load balance", "communication", "input", "parallel efficiency"]
    columns += ["computation scaling", "slowest rank", "caution"]
    return Table(columns, rows, frozenset({"slowest rank", "caution"})) if rows else None


def pops(shown: Sequence[Configuration], ranks: Iterable[Row_ranks]) -> dict[str, Pop]:
    """Configuration -> the factors of its first run, where it trained."""
    by_run: dict[str, list[Row_ranks]] = {one.rows[0]["run_id"]: [] for one in shown}
    for row in ranks:
        if row["run_id"] in by_run:
            by_run[row["run_id"]].append(row)
    told = {one.key: pop.of_rows(by_run[one.rows[0]["run_id"]]) for one in shown}
    return {key: found for key, found in told.items() if found}


def _pop(one: Configuration, this: Pop, base: Pop | None) -> list[str]:
    scaled = pop.computation_scaling(base, this) if base else None
    return [
        one.label,
        words.percent(this.load_balance),
        words.percent(this.communication),
        words.percent(this.input),
        words.percent(this.parallel),
        words.percent(scaled),
        slowest(this),
    ]


def slowest(this: Pop) -> str:
    """`rank 1 on node2, 20 % longer`; nothing where the ranks are even."""
    if this.slowest_by < SLOWER:
        return "none: within 2\u202f%"
    longer = words.percent(this.slowest_by)
    return f"rank {this.slowest_rank} on {this.slowest_node}, {longer} longer"
