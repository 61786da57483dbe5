"""Parallel efficiency of ranks in POP's factors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any, Final

from hpcncf_analysis.configurations import Configuration, Table, group_by_series
from hpcncf_analysis.formatting import format_percent
from hpcncf_analysis.scaling import comparison_cautions

# The multiplicative model of POP (Performance Optimisation and Productivity, pop-coe.eu) and TALP:
# parallel efficiency = load balance x communication efficiency. The wait for input is neither
# computing nor communication, so it is a factor of its own. Only the counted steps enter; their
# sync is the exposed wait for other ranks.

Row = Mapping[str, Any]


@dataclass(frozen=True)
class RankTime:
    """Where one rank's counted steps went, in seconds."""

    rank: int
    node: str
    cores: float
    counted_s: float
    input_s: float
    sync_s: float
    instances: int

    @property
    def busy_s(self) -> float:
        """Not waiting for other ranks."""
        return max(self.counted_s - self.sync_s, 0.0)

    @property
    def useful_s(self) -> float:
        """Waiting for nobody, and not for input."""
        return max(self.busy_s - self.input_s, 0.0)


@dataclass(frozen=True)
class Pop:
    """A run's efficiencies, 0 to 1; `parallel` is the product of the three before it."""

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
    """Of a run's rows in the table `ranks`; None where a rank did not train, or counted no step."""
    ranks = list(rows)
    if any(row.get("counted_s") is None for row in ranks):
        return None
    return pop_from_times([rank_time(row) for row in ranks])


def rank_time(row: Row) -> RankTime:
    """Of a row of the table `ranks`, of a rank that trained."""
    return RankTime(
        rank=int(row["rank"]),
        node=str(row["node"]),
        cores=float(row["cores_allocated"]),
        counted_s=float(row["counted_s"]),
        input_s=float(row["input_s"]),
        sync_s=float(row["sync_s"]),
        instances=int(row["counted_instances"]),
    )


def pop_from_times(ranks: Sequence[RankTime]) -> Pop | None:
    """None where nothing was counted."""
    elapsed_s = max((one.counted_s for one in ranks), default=0.0)
    busy_s, instances = sum(one.busy_s for one in ranks), sum(one.instances for one in ranks)
    if elapsed_s <= 0 or busy_s <= 0 or instances <= 0:
        return None
    slowest = max(ranks, key=lambda one: (one.busy_s, -one.rank))
    others = [one.busy_s for one in ranks if one is not slowest]
    useful_s = sum(one.useful_s for one in ranks)
    return Pop(
        load_balance=mean(one.busy_s for one in ranks) / slowest.busy_s,
        communication=slowest.busy_s / elapsed_s,
        input=useful_s / busy_s,
        parallel=useful_s / len(ranks) / elapsed_s,
        slowest_rank=slowest.rank,
        slowest_node=slowest.node,
        slowest_by=_excess_over_median(slowest.busy_s, others),
        useful_core_s_per_instance=sum(one.useful_s * one.cores for one in ranks) / instances,
    )


def _excess_over_median(slowest_s: float, others: Sequence[float]) -> float:
    usual = median(others) if others else slowest_s
    return slowest_s / usual - 1 if usual > 0 else 0.0


def computation_scaling(base: Pop, this: Pop) -> float | None:
    """Useful core-seconds for an instance, the base's over this run's: below 1 the same work takes
    more (caches, memory bandwidth, threads that wait for one another).

    POP's global efficiency is `this.parallel` times it, and over `base.parallel` that is the
    parallel efficiency of the speeds. None where no time was useful.
    """
    if this.useful_core_s_per_instance <= 0:
        return None
    return base.useful_core_s_per_instance / this.useful_core_s_per_instance


Row_ranks = Mapping[str, Any]

# A rank that computes longer than the others by less than this is not called slower.
SLOWER: Final = 0.02


def pop_table(shown: Sequence[Configuration], ranks: Iterable[Row_ranks]) -> Table | None:
    """POP's factors of each configuration's first run of several ranks; None where none was.

    Computation scaling is against the base of its series.
    """
    found = pop_by_configuration(shown, ranks)
    bases = {one.key: members[0] for members in group_by_series(shown).values() for one in members}
    rows = [
        [
            *_pop(one, found[one.key], found.get(bases[one.key].key)),
            "; ".join(comparison_cautions(one, bases[one.key])),
        ]
        for one in shown
        if one.ranks > 1 and one.key in found and one.key in bases
    ]
    columns = ["configuration", "load balance", "communication", "input", "parallel efficiency"]
    columns += ["computation scaling", "slowest rank", "caution"]
    return Table(columns, rows, frozenset({"slowest rank", "caution"})) if rows else None


def pop_by_configuration(
    shown: Sequence[Configuration], ranks: Iterable[Row_ranks]
) -> dict[str, Pop]:
    """Configuration -> the factors of its first run, where it trained."""
    by_run: dict[str, list[Row_ranks]] = {one.rows[0]["run_id"]: [] for one in shown}
    for row in ranks:
        if row["run_id"] in by_run:
            by_run[row["run_id"]].append(row)
    factors = {one.key: pop_from_rows(by_run[one.rows[0]["run_id"]]) for one in shown}
    return {key: found for key, found in factors.items() if found}


def _pop(one: Configuration, this: Pop, base: Pop | None) -> list[str]:
    scaled = computation_scaling(base, this) if base else None
    return [
        one.label,
        format_percent(this.load_balance),
        format_percent(this.communication),
        format_percent(this.input),
        format_percent(this.parallel),
        format_percent(scaled),
        describe_slowest_rank(this),
    ]


def describe_slowest_rank(this: Pop) -> str:
    """`rank 1 on node2, 20 % longer`; nothing where the ranks are even."""
    if this.slowest_by < SLOWER:
        return "none: within 2\u202f%"
    longer = format_percent(this.slowest_by)
    return f"rank {this.slowest_rank} on {this.slowest_node}, {longer} longer"
