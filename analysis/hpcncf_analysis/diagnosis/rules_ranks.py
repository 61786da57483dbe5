"""Rules on ranks: exchange, stragglers, unequal work.

A rank's useful time is that of its steps without `sync`. The time that even the last rank to arrive
spends in `sync` is the exchange's; what the others spend beyond that they wait for the last one.
POP's load balance is the useful time's mean over its maximum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpcncf_analysis.diagnosis import thresholds
from hpcncf_analysis.diagnosis.evidence import Evidence, Finding, Gain, RankTimes
from hpcncf_analysis.diagnosis.expected_gain import applied, exchanged_rows
from hpcncf_analysis.formatting import format_cores, format_number, format_percent


@dataclass(frozen=True)
class Balance:
    """How the useful times of the ranks compare."""

    slowest: RankTimes
    ratio: float
    """The slowest rank's useful time over the mean of all."""
    waited: float
    """Share of the steps' time, mean over all ranks, that they waited for the slowest: what equal
    work would save."""
    others_wait: float
    """The same, mean over the others: what would be saved if it were as fast as they are."""


def balance(ranks: Sequence[RankTimes]) -> Balance | None:
    """None unless each of several ranks tells its steps and its sync."""
    told = [(useful, rank) for rank in ranks if (useful := rank.useful_s) is not None]
    if len(told) < 2 or len(told) < len(ranks):
        return None
    longest, slowest = max(told, key=lambda each: each[0])
    mean = sum(useful for useful, _ in told) / len(told)
    whole = max(rank.steps_s or 0.0 for rank in ranks)
    if mean <= 0 or whole <= 0:
        return None
    waited = (longest - mean) / whole
    return Balance(slowest, longest / mean, waited, waited * len(told) / (len(told) - 1))


def exchange(evidence: Evidence) -> float:
    """Share of the elapsed time that the exchange itself takes: nobody's lateness in it."""
    found = balance(evidence.ranks)
    return evidence.of_time("sync") - (found.waited * evidence.steps if found else 0.0)


def sync_bound(evidence: Evidence) -> Finding | None:
    """The ranks' collectives dominate, though all ranks arrive together."""
    share = exchange(evidence)
    if evidence.world_size < 2 or not evidence.worth(share):
        return None
    sparse = _dense_of_sparse(evidence)
    return Finding(
        "sync_bound",
        share,
        "time",
        (
            f"{format_percent(evidence.phases['sync'])} of a step waits for the ranks' exchange",
            *_bytes(evidence),
            *sparse,
        ),
        _remedy(evidence, bool(sparse)),
        _rows(evidence),
        _gain(evidence),
    )


def _dense_of_sparse(evidence: Evidence) -> list[str]:
    """Where every gradient is all-reduced though few rows have one."""
    read, there = evidence.rows_per_step, evidence.table_rows
    if evidence.sync_how != "dense" or evidence.training.get("sparse") or not read or not there:
        return []
    if read / there > thresholds.SPARSE:
        return []
    return [
        "a dense all-reduce of sparse gradients: it sends all of "
        f"{format_number(there)} embedding rows, of which a step reads {format_number(read)}"
    ]


def _bytes(evidence: Evidence) -> list[str]:
    if evidence.sync_bytes_per_step is None:
        return []
    over = f" over {evidence.sync_over}" if evidence.sync_over else ""
    return [
        f"{format_number(evidence.sync_bytes_per_step / 2**20)} MiB of each rank in a step{over}"
    ]


def _remedy(evidence: Evidence, sparse: bool) -> str:
    if sparse:
        return (
            "Exchange only the rows that a step read: training.engine rowwise, training.sync rows."
        )
    if not evidence.trained:
        return "Exchange less often or less: larger batches, fewer ranks, or local steps between."
    # An older record does not show how it was done, only what was asked for.
    if (evidence.sync_how or evidence.training.get("sync", "dense")) != "dense":
        return "Exchange less often: a larger batch, more steps between, or fewer ranks."
    return (
        "Exchange less, or less often: training.sync rows or local_sgd (engines rowwise, native), "
        "a larger batch, or fewer ranks."
    )


def _rows(evidence: Evidence) -> dict[str, Any]:
    # Weight decay moves every row in every step: engine rowwise refuses it.
    if evidence.training.get("sync", "dense") != "dense" or evidence.training.get("weight_decay"):
        return {}
    return applied(evidence, engine="rowwise", sync="rows")


def _gain(evidence: Evidence) -> Gain | None:
    return exchanged_rows(evidence) if _rows(evidence) else None


def straggler(evidence: Evidence) -> Finding | None:
    """One rank is slower at the same work, and the others wait for it."""
    found = _late(evidence)
    if found is None or _more_work(found, evidence.ranks):
        return None
    slow, share = found.slowest, found.others_wait * evidence.steps
    if not evidence.worth(share):
        return None
    return Finding(
        "straggler",
        share,
        "time",
        (
            f"rank {slow.rank} on node {slow.node} needs {found.ratio:.2f} times the mean of all "
            "ranks for the same work",
            f"the others wait for it for {format_percent(found.others_wait)} of a step",
            *_processor(slow, evidence.ranks),
        ),
        f"Look at rank {slow.rank}'s cores on {slow.node}: a neighbour, a lower clock, a slower "
        "disk; leave that node out, or give the rank cores of its own.",
    )


def _late(evidence: Evidence) -> Balance | None:
    found = balance(evidence.ranks)
    return found if found and found.ratio >= thresholds.IMBALANCE else None


def _processor(slow: RankTimes, ranks: Sequence[RankTimes]) -> list[str]:
    others = [rank.cpu_s for rank in ranks if rank is not slow and rank.cpu_s is not None]
    if slow.cpu_s is None or not others:
        return []
    return [
        f"it used {format_cores(slow.cpu_s)} CPU seconds, the others "
        f"{format_cores(sum(others) / len(others))}"
    ]


def _more_work(found: Balance, ranks: Sequence[RankTimes]) -> bool:
    """Whether the slowest rank's instances account for half of its lateness or more."""
    told = [rank.instances for rank in ranks if rank.instances]
    if len(told) < len(ranks) or not found.slowest.instances:
        return False
    mean = sum(told) / len(told)
    return found.slowest.instances / mean - 1 >= (found.ratio - 1) / 2


def load_imbalance(evidence: Evidence) -> Finding | None:
    """Ranks were given unequal work; without phases, unequal CPU seconds tell it."""
    found = _late(evidence)
    if found is None:
        return _unequal_cpu(evidence)
    share = found.waited * evidence.steps
    if not _more_work(found, evidence.ranks) or not evidence.worth(share):
        return None
    slow = found.slowest
    told = [rank.instances or 0 for rank in evidence.ranks]
    return Finding(
        "load_imbalance",
        share,
        "time",
        (
            f"rank {slow.rank} has {format_number(slow.instances)} instances, the mean is "
            f"{format_number(sum(told) / len(told))}",
            f"the others wait for it for {format_percent(found.others_wait)} of a step",
        ),
        "Give every rank as many instances: shard by rows, or by the cost of each.",
    )


def _unequal_cpu(evidence: Evidence) -> Finding | None:
    told = [rank for rank in evidence.ranks if rank.cpu_s]
    if evidence.phases or len(told) < max(2, len(evidence.ranks)):
        return None
    most = max(told, key=lambda rank: rank.cpu_s or 0.0)
    assert most.cpu_s
    mean = sum(rank.cpu_s or 0.0 for rank in told) / len(told)
    share = 1 - mean / most.cpu_s
    if share < thresholds.WORTH or evidence.of_elapsed(most.cpu_s) < thresholds.ONE_THREAD:
        return None
    return Finding(
        "load_imbalance",
        share,
        "cores",
        (
            f"rank {most.rank} used {format_cores(most.cpu_s)} CPU seconds, the mean is "
            f"{format_cores(mean)}",
        ),
        "Give every rank as much to do: shard by the cost of the work.",
    )
