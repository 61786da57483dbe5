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
from hpcncf_analysis.diagnosis.expected_gain import applied, exchanged_rows
from hpcncf_analysis.formatting import format_cores, format_number, format_percent


@dataclass(frozen=True)
class Balance:
    """How the useful times of several ranks compare."""

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
    """None unless several ranks' useful times are known; shares are of `whole_s`."""
    known = [each for each in useful_s if each is not None]
    ranks, total_s = len(known), sum(known)
    if ranks < 2 or ranks < len(useful_s) or total_s <= 0 or whole_s <= 0:
        return None
    slowest = max(range(ranks), key=lambda rank: known[rank])
    waited = (known[slowest] - total_s / ranks) / whole_s
    ratio = known[slowest] / (total_s / ranks)
    return Balance(slowest, ratio, waited, waited * ranks / (ranks - 1))


def has_more_work(found: Balance, work: Sequence[int | None]) -> bool:
    """Whether the slowest rank's work accounts for half of its lateness or more."""
    known = [each for each in work if each is not None]
    if len(known) < len(work) or not sum(known):
        return False
    return known[found.slowest] / (sum(known) / len(known)) - 1 >= (found.ratio - 1) / 2


def _balance(evidence: Evidence) -> Balance | None:
    steps_s = max((rank.steps_s or 0.0 for rank in evidence.ranks), default=0.0)
    return balance([rank.useful_s for rank in evidence.ranks], steps_s)


def sync_bound(evidence: Evidence) -> Finding | None:
    """The ranks' collectives dominate, though all ranks arrive together."""
    found = _balance(evidence)
    share = evidence.of_time("sync") - (found.waited * evidence.steps if found else 0.0)
    if evidence.world_size < 2 or not evidence.worth(share):
        return None
    waits = format_percent(evidence.phases["sync"])
    lines = [f"{waits} of a step waits for the ranks' exchange"]
    if evidence.sync_bytes_per_step is not None:
        over = f" over {evidence.sync_over}" if evidence.sync_over else ""
        sent = format_number(evidence.sync_bytes_per_step / 2**20)
        lines.append(f"{sent} MiB of each rank in a step{over}")
    read, rows = evidence.rows_per_step, evidence.table_rows
    dense = evidence.sync_how == "dense" and not evidence.training.get("sparse")
    sparse_gradients = dense and read and rows and read / rows <= thresholds.SPARSE
    # An older record does not show how it was done, only what was asked for.
    asked = evidence.training.get("sync", "dense")
    if sparse_gradients:
        lines.append(
            "a dense all-reduce of sparse gradients: it sends all of "
            f"{format_number(rows)} embedding rows, of which a step reads {format_number(read)}"
        )
        remedy = (
            "Exchange only the rows that a step read: training.engine rowwise, training.sync rows."
        )
    elif not evidence.trained:
        remedy = "Exchange less often or less: larger batches, fewer ranks, or local steps between."
    elif (evidence.sync_how or asked) != "dense":
        remedy = "Exchange less often: a larger batch, more steps between, or fewer ranks."
    else:
        remedy = (
            "Exchange less, or less often: training.sync rows or local_sgd (engines rowwise, "
            "native), a larger batch, or fewer ranks."
        )
    changes: dict[str, Any] = {}
    # Weight decay moves every row in every step: engine rowwise refuses it.
    if asked == "dense" and not evidence.training.get("weight_decay"):
        changes = applied(evidence, engine="rowwise", sync="rows")
    gain = exchanged_rows(evidence) if changes else None
    return Finding("sync_bound", share, "time", tuple(lines), remedy, changes, gain)


def unequal_ranks(evidence: Evidence) -> Finding | None:
    """The others wait for one rank, which is slower at the same work or has more of it; without
    phases, by unequal CPU seconds."""
    found = _balance(evidence)
    if found is None or found.ratio < thresholds.IMBALANCE:
        return _unequal_cpu(evidence)
    slow = evidence.ranks[found.slowest]
    instances = [rank.instances or None for rank in evidence.ranks]
    more = has_more_work(found, instances)
    share = (found.waited if more else found.others_wait) * evidence.steps
    if not evidence.worth(share):
        return None
    wait = f"the others wait for it for {format_percent(found.others_wait)} of a step"
    if more:
        has = format_number(slow.instances)
        mean = format_number(sum(each or 0 for each in instances) / len(instances))
        return Finding(
            "load_imbalance",
            share,
            "time",
            (f"rank {slow.rank} has {has} instances, the mean is {mean}", wait),
            "Give every rank as many instances: shard by rows, or by the cost of each.",
        )
    facts = [
        f"rank {slow.rank} on node {slow.node} needs {found.ratio:.2f} times the mean of all "
        "ranks for the same work",
        wait,
    ]
    others = [rank.cpu_s for rank in evidence.ranks if rank is not slow and rank.cpu_s is not None]
    if slow.cpu_s is not None and others:
        its, theirs = map(format_cores, (slow.cpu_s, sum(others) / len(others)))
        facts.append(f"it used {its} CPU seconds, the others {theirs}")
    return Finding(
        "straggler",
        share,
        "time",
        tuple(facts),
        f"Look at rank {slow.rank}'s cores on {slow.node}: a neighbour, a lower clock, a slower "
        "disk; leave that node out, or give the rank cores of its own.",
    )


def _unequal_cpu(evidence: Evidence) -> Finding | None:
    seconds = {rank.rank: rank.cpu_s for rank in evidence.ranks if rank.cpu_s}
    if evidence.phases or len(seconds) < max(2, len(evidence.ranks)):
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
