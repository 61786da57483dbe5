"""Parallel efficiency of ranks in POP's factors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any, Final

from hpcncf.table import Table
from hpcncf_analysis.configurations import Configuration, group_by_series
from hpcncf_analysis.formatting import format_percent
from hpcncf_analysis.scaling import comparison_cautions

Row = Mapping[str, Any]

# A rank that computes longer than the others by less than this is not called slower.
SLOWER: Final = 0.02


@dataclass(frozen=True)
class Pop:
    """POP efficiencies of a run, 0 to 1; `parallel` is the product of the three before it.

    The multiplicative model of POP (Performance Optimisation and Productivity, pop-coe.eu) and
    TALP. The wait for input is neither computing nor communication, so it is a factor of its own.
    """

    load_balance: float
    """mean(busy) / max(busy): what the slowest rank costs the others."""
    communication: float
    """max(busy) / elapsed: what even the slowest rank waits for others."""
    input: float
    """sum(useful) / sum(busy): what waiting for batches leaves."""
    parallel: float
    """mean(useful) / elapsed."""
    slowest_rank: int
    """The one of the longest busy time."""
    slowest_node: str
    slowest_by: float
    """Its busy time over the others' median, less 1: 0.2 is a fifth more; 0 of a single rank."""
    useful_core_s_per_instance: float
    """Core-seconds of useful time for an instance: what `computation_scaling` compares."""


def pop_from_rows(rows: Iterable[Row]) -> Pop | None:
    """Compute a run's efficiencies from its rows in `ranks`; None unless every rank counted steps.

    Only the counted steps enter. A rank is busy while it does not wait for other ranks, and useful
    while it does not wait for input either.
    """
    ranks = sorted(rows, key=lambda row: row["rank"])
    if not ranks or any(row.get("counted_s") is None for row in ranks):
        return None
    elapsed_s = max(row["counted_s"] for row in ranks)
    busy_s = [max(row["counted_s"] - row["sync_s"], 0.0) for row in ranks]
    useful_s = [max(busy - row["input_s"], 0.0) for busy, row in zip(busy_s, ranks, strict=True)]
    instances = sum(row["counted_instances"] for row in ranks)
    if sum(busy_s) <= 0 or instances <= 0:
        return None
    slowest = busy_s.index(max(busy_s))
    usual_s = median(busy_s[:slowest] + busy_s[slowest + 1 :] or [busy_s[slowest]])
    core_s = sum(s * row["cores_allocated"] for s, row in zip(useful_s, ranks, strict=True))
    return Pop(
        load_balance=mean(busy_s) / busy_s[slowest],
        communication=busy_s[slowest] / elapsed_s,
        input=sum(useful_s) / sum(busy_s),
        parallel=mean(useful_s) / elapsed_s,
        slowest_rank=int(ranks[slowest]["rank"]),
        slowest_node=str(ranks[slowest]["node"]),
        slowest_by=busy_s[slowest] / usual_s - 1 if usual_s > 0 else 0.0,
        useful_core_s_per_instance=core_s / instances,
    )


def computation_scaling(base: Pop, this: Pop) -> float | None:
    """Useful core-seconds per instance of the base run divided by those of this run.

    Below 1, the same work takes longer: caches, memory bandwidth, threads that wait for each
    other.

    POP's global efficiency is `this.parallel` times it, and over `base.parallel` that is the
    parallel efficiency of the speeds. None where no time was useful.
    """
    if this.useful_core_s_per_instance <= 0:
        return None
    return base.useful_core_s_per_instance / this.useful_core_s_per_instance


def pop_table(shown: Sequence[Configuration], ranks: Iterable[Row]) -> Table | None:
    """Table of the POP factors of each multi-rank configuration's first run; None if empty.

    Computation scaling is against the base of its series.
    """
    by_run: dict[str, list[Row]] = {one.rows[0]["run_id"]: [] for one in shown}
    for row in ranks:
        if row["run_id"] in by_run:
            by_run[row["run_id"]].append(row)
    found = {one.key: pop_from_rows(by_run[one.rows[0]["run_id"]]) for one in shown}
    bases = {one.key: members[0] for members in group_by_series(shown).values() for one in members}
    rows = []
    for one in shown:
        this, base = found[one.key], bases.get(one.key)
        if one.ranks > 1 and this and base:
            base_pop = found[base.key]
            scaled = computation_scaling(base_pop, this) if base_pop else None
            factors = (this.load_balance, this.communication, this.input, this.parallel, scaled)
            cells = map(format_percent, factors)
            cautions = "; ".join(comparison_cautions(one, base))
            rows.append([one.label, *cells, describe_slowest_rank(this), cautions])
    columns = ["configuration", "load balance", "communication", "input", "parallel efficiency"]
    columns += ["computation scaling", "slowest rank", "caution"]
    return Table(columns, rows, frozenset({"slowest rank", "caution"})) if rows else None


def describe_slowest_rank(this: Pop) -> str:
    """Describe the slowest rank and its delay, such as `rank 1 on node2, 20 % longer`."""
    if this.slowest_by < SLOWER:
        return "none: within 2\u202f%"
    longer = format_percent(this.slowest_by)
    return f"rank {this.slowest_rank} on {this.slowest_node}, {longer} longer"
