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
from hpcncf_analysis.diagnosis.evidence import Evidence, Finding
from hpcncf_analysis.diagnosis.expected_gain import applied, exchanged_rows, removed
from hpcncf_analysis.diagnosis.facts import RankTimes
from hpcncf_analysis.diagnosis.source_lines import MOST_PLACES
from hpcncf_analysis.formatting import format_cores, format_number, format_percent


@dataclass(frozen=True)
class Balance:
    """Comparison of the useful times of several ranks."""

    slowest: int
    """Its place among them."""
    ratio: float
    """The slowest rank's useful time over the mean of all."""
    waited: float
    """Share of the time, mean over all ranks, that they waited for the slowest: what equal work
    would save."""
    others_wait: float
    """The same, mean over the others: what would be saved if it were as fast as they are."""


def balance(useful_s: Sequence[float | None], whole_s: float) -> Balance | None:
    """Compare the useful seconds of several ranks; None unless all of them are known.

    Shares are of `whole_s`.
    """
    known = [each for each in useful_s if each is not None]
    ranks, total_s = len(known), sum(known)
    if ranks < 2 or ranks < len(useful_s) or total_s <= 0 or whole_s <= 0:
        return None
    slowest = max(range(ranks), key=lambda rank: known[rank])
    waited = (known[slowest] - total_s / ranks) / whole_s
    ratio = known[slowest] / (total_s / ranks)
    return Balance(slowest, ratio, waited, waited * ranks / (ranks - 1))


def has_more_work(found: Balance, work: Sequence[int | None]) -> bool:
    """Whether more work explains at least half of the slowest rank's delay."""
    known = [each for each in work if each is not None]
    if len(known) < len(work) or not sum(known):
        return False
    return known[found.slowest] / (sum(known) / len(known)) - 1 >= (found.ratio - 1) / 2


def _balance(evidence: Evidence) -> Balance | None:
    ranks = evidence.rank_times
    whole_s = max((rank.steps_s or 0.0 for rank in ranks), default=0.0)
    return balance([rank.useful_s for rank in ranks], whole_s) if evidence.several else None


def _late(evidence: Evidence) -> Balance | None:
    """Balance of the ranks if the others wait long for the slowest one; otherwise None.

    By the slowest rank against the others: of two, one may wait 40 % of its time, a mean of 20 %.
    """
    found = _balance(evidence)
    if found is None or found.ratio < thresholds.IMBALANCE:
        return None
    waits = found.others_wait * evidence.steps
    return found if evidence.worth(waits) and waits > _exchange(evidence) / 2 else None


def _exchange(evidence: Evidence) -> float:
    """Share of the judged time that even the last rank waits for the exchange."""
    ranks = evidence.rank_times
    waits = [rank.sync_s for rank in ranks if rank.sync_s is not None]
    whole_s = max((rank.steps_s or 0.0 for rank in ranks), default=0.0)
    if len(waits) < max(2, len(ranks)) or whole_s <= 0:
        return 0.0 if evidence.inside else evidence.of_time("sync")
    return min(waits) / whole_s * evidence.steps


def sync_bound(evidence: Evidence) -> Finding | None:
    """Find collectives that take the time although all ranks arrive together."""
    share = _exchange(evidence)
    if not evidence.several or not evidence.worth(share) or _late(evidence):
        return None
    lines = [f"{format_percent(share)} of the time even the last rank waits for the exchange"]
    if evidence.sync_bytes_per_step is not None:
        over = f" over {evidence.sync_over}" if evidence.sync_over else ""
        sent = format_number(evidence.sync_bytes_per_step / 2**20)
        lines.append(f"{sent} MiB of each rank in a step{over}")
    read, rows = _sparse_rows(evidence)
    if read and rows:
        lines.append(
            "a dense all-reduce of sparse gradients: it sends all of "
            f"{format_number(rows)} embedding rows, of which a step reads {format_number(read)}"
        )
    # An older record does not show how it was done, only what was asked for.
    asked = evidence.training.get("sync", "dense")
    if read and not evidence.trained:
        remedy = "Exchange only rows with a gradient (nn.Embedding(sparse=True))."
    elif read:
        remedy = (
            "Exchange only the rows that a step read: training.engine rowwise, training.sync rows."
        )
    elif _accumulates(evidence):
        remedy = (
            "Exchange once a step: all but its last backward pass under model.no_sync(); or larger "
            "batches, fewer ranks."
        )
    elif not evidence.trained:
        remedy = "Exchange less often or less: larger batches, no_sync() over several, fewer ranks."
    elif (evidence.sync_how or asked) != "dense":
        remedy = "Exchange less often: a larger batch, or fewer ranks."
    else:
        remedy = (
            "Exchange less, or less often: training.sync rows (engines rowwise, native), a larger "
            "batch, or fewer ranks."
        )
    changes: dict[str, Any] = {}
    # Weight decay moves every row in every step: engine rowwise refuses it.
    if asked == "dense" and not evidence.training.get("weight_decay"):
        changes = applied(evidence, engine="rowwise", sync="rows")
    gain = exchanged_rows(evidence) if changes else None
    if evidence.inside:
        gain = removed(share)
    places = evidence.places("sync") or evidence.places("backward")
    return Finding(
        "sync_bound", share, "time", tuple(lines), remedy, changes, gain, places[:MOST_PLACES]
    )


def _accumulates(evidence: Evidence) -> bool:
    """Whether a step has several backward passes, each of which exchanges gradients."""
    rank = evidence.inside.longest if evidence.inside else None
    return rank is not None and (rank.backwards or 0) >= 1.5 * rank.steps > 0


def _sparse_rows(evidence: Evidence) -> tuple[float | None, float | None]:
    """(rows with a gradient, rows that a dense all-reduce sends); (None, None) if not sparse."""
    if evidence.inside:
        tables = evidence.tables
        return (tables.touched, tables.rows) if tables else (None, None)
    read, rows = evidence.rows_per_step, evidence.table_rows
    dense = evidence.sync_how == "dense" and not evidence.training.get("sparse")
    few = dense and read and rows and read / rows <= thresholds.SPARSE
    return (read, rows) if few else (None, None)


def unequal_ranks(evidence: Evidence) -> Finding | None:
    """Find a rank that the others wait for: slower at the same work, or with more of it.

    Without phases, CPU seconds are compared instead.
    """
    found = _late(evidence)
    if found is None:
        return _unequal_cpu(evidence)
    ranks = evidence.rank_times
    slow, share = ranks[found.slowest], found.others_wait * evidence.steps
    unit, work = _work(ranks)
    wait = f"the others wait for it for {format_percent(found.others_wait)} of a step"
    phase = _phase_of_difference(ranks, found.slowest)
    where = [f"most of the difference is in its phase {phase}"] if phase else []
    places = evidence.places(phase, rank=slow.rank) if phase else ()
    gain = removed(share) if evidence.inside else None
    if has_more_work(found, work):
        its = format_number(work[found.slowest])
        mean = format_number(sum(each or 0 for each in work) / len(work))
        return Finding(
            "load_imbalance",
            share,
            "time",
            (f"rank {slow.rank} has {its} {unit}, the mean is {mean}", wait, *where),
            "Give every rank as much to do: shard by rows, or by the cost of each.",
            gain=gain,
            places=places,
        )
    node = f" on node {slow.node}" if slow.node else ""
    facts = [
        f"rank {slow.rank}{node} needs {found.ratio:.2f} times the mean of all ranks for the same "
        "work",
        wait,
        *where,
    ]
    others = [rank.cpu_s for rank in ranks if rank is not slow and rank.cpu_s is not None]
    if slow.cpu_s is not None and others:
        its, theirs = map(format_cores, (slow.cpu_s, sum(others) / len(others)))
        facts.append(f"it used {its} CPU seconds, the others {theirs}")
    remedy = (
        f"Look at rank {slow.rank}'s cores{f' on {slow.node}' if slow.node else ''}: a neighbour, "
        "a lower clock, a slower disk; leave that node out, or give the rank cores of its own."
    )
    if places:
        remedy = f"Look at rank {slow.rank}: its cores, its data, its own code in that phase."
    return Finding("straggler", share, "time", tuple(facts), remedy, gain=gain, places=places)


def _work(ranks: Sequence[RankTimes]) -> tuple[str, list[int | None]]:
    """(unit, work of each rank) in the finest unit known for all ranks."""
    counts: dict[str, list[int | None]] = {
        "instances": [rank.instances or None for rank in ranks],
        "samples": [rank.samples or None for rank in ranks],
        "batches": [rank.batches or None for rank in ranks],
    }
    for unit, work in counts.items():
        if all(work):
            return unit, work
    return "steps", [rank.steps for rank in ranks]


def _phase_of_difference(ranks: Sequence[RankTimes], slowest: int) -> str:
    """Phase in which the slowest rank exceeds the mean most; empty if no phases are known."""
    excess = {
        phase: seconds - sum(each.phases.get(phase, 0.0) for each in ranks) / len(ranks)
        for phase, seconds in ranks[slowest].phases.items()
        if phase != "sync"
    }
    return max(excess, key=lambda phase: excess[phase], default="")


def _unequal_cpu(evidence: Evidence) -> Finding | None:
    seconds = {rank.rank: rank.cpu_s for rank in evidence.ranks if rank.cpu_s}
    if evidence.of_steps or len(seconds) < max(2, len(evidence.ranks)):
        return None
    most = max(seconds, key=lambda rank: seconds[rank])
    mean = sum(seconds.values()) / len(seconds)
    share = 1 - mean / seconds[most]
    if share < thresholds.WORTH or evidence.of_elapsed(seconds[most]) < thresholds.ONE_THREAD:
        return None
    return Finding(
        "load_imbalance",
        share,
        "cores",
        (
            f"rank {most} used {format_cores(seconds[most])} CPU seconds, the mean is "
            f"{format_cores(mean)}",
        ),
        "Give every rank as much to do: shard by the cost of the work.",
    )
