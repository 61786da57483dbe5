"""Name the rank that was killed, failed or went silent, for the records of the others."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from hpcncf.launcher.environment import Place, hosts
from hpcncf.records.claims import is_same_process, process_start
from hpcncf.records.schema import RankRecord, read_optional

# What gloo and nccl say when a rank is gone names an address, or nothing. A process that was killed
# leaves no record either: but the ranks of its node see that it is not there any more.

LOST: Final = "another rank ended while this one waited for it"


# A process that is killed closes its connections some moments before it is gone.
GONE_WITHIN_S: Final = 2.0


@dataclass(frozen=True)
class Peer:
    """A rank's process, as another rank on its node can find it."""

    rank: int
    node: str
    numbers: str
    """The namespace of its process number; a container may have one of its own."""
    pid: int
    started: float

    def __str__(self) -> str:
        return f"rank {self.rank} (process {self.pid} on {self.node})"


def current_process_record(place: Place) -> Peer:
    """Return a description of this process by which other ranks of its node can find it."""
    pid = os.getpid()
    numbers = str(Path("/proc/self/ns/pid").readlink())
    return Peer(place.rank, os.uname().nodename, numbers, pid, process_start(pid))


def describe_lost_peers(peers: Sequence[Peer], recorded: set[int]) -> str:
    """Describe the ranks without a record whose processes are gone, or may be gone."""
    silent = [each for each in peers if each.rank not in recorded]
    until = time.monotonic() + GONE_WITHIN_S
    while not (message := describe_killed_ranks(silent, lambda: ())) and time.monotonic() < until:
        time.sleep(0.05)
    elsewhere = [str(each) for each in silent if not _here(each)]
    if message or not elsewhere:
        return message or "no rank has recorded a failure yet, see the other ranks' logs"
    return f"nothing was heard of {' or '.join(elsewhere)}"


def describe_failed_rank(path: Path) -> str:
    """Describe how the rank of this record failed or was stopped; empty without an error."""
    record = read_optional(path, RankRecord)
    if record is None or record.error is None:
        return ""
    return f"rank {record.rank} {record.outcome}: {record.error['type']}: {record.error['message']}"


def describe_killed_ranks(peers: Sequence[Peer], recorded: Callable[[], Collection[int]]) -> str:
    """Describe the ranks on this node that are gone without a record; empty if there are none."""
    gone = [p for p in peers if _here(p) and not is_same_process(p.pid, p.started)]
    left = recorded() if gone else ()  # after the look at processes: a record precedes its end
    return "; ".join(
        f"{each} is gone and left no record: it was killed"
        for each in gone
        if each.rank not in left
    )


def gone_before_meeting(place: Place, recorded: Collection[int]) -> str:
    """Describe the ranks of this node that ended without a record; empty if there are none.

    Before the ranks have met, they are found among the children of the process that started this
    one, by their rank variable.
    """
    here = set[int]()
    with contextlib.suppress(psutil.Error):
        for sibling in psutil.Process(os.getppid()).children():
            with contextlib.suppress(psutil.Error, ValueError):  # a zombie has no variables
                env = sibling.environ()
                here.add(int(env.get("RANK", env.get("SLURM_PROCID", ""))))
    first = place.rank - place.local_rank
    ranks = range(first, first + place.local_world_size)
    gone = [str(rank) for rank in ranks if rank not in here and rank not in recorded]
    if place.rank not in here or not gone:  # started in a way that hides the others
        return ""
    return (
        f"rank{'s' if len(gone) > 1 else ''} {', '.join(gone)} of {os.uname().nodename} ended "
        "before the ranks had met, without a record: killed, or failed at its start (see its log)"
    )


def silent_elsewhere(place: Place, recorded: Collection[int]) -> str:
    """Describe the ranks of other nodes that left no record; empty if all did.

    Before the ranks have met, nothing else shows from here whether they live.
    """
    nodes = hosts(os.environ.get("SLURM_STEP_NODELIST", ""))
    silent = [
        f"rank {rank} ({nodes[node] if node < len(nodes) else f'node {node}'})"
        for rank in range(place.world_size)
        if (node := rank // place.local_world_size) != place.node_index and rank not in recorded
    ]
    if not silent:
        return ""
    more = len(silent) - MOST_NAMED
    named = ", ".join(silent[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    return (
        f"{named} left no record and had not met the others: killed, or failed at its start (the "
        "job's log has Slurm's message)"
    )


def _here(peer: Peer) -> bool:
    mine = os.uname().nodename, str(Path("/proc/self/ns/pid").readlink())
    return (peer.node, peer.numbers) == mine


def is_peer_loss(error: BaseException) -> bool:
    """Return whether the error is one of gloo or NCCL about a rank that is gone or silent."""
    said = r"closed by peer|reset by peer|Broken pipe|Socket closed|recvBytes|NCCL|[Tt]imed out"
    return isinstance(error, RuntimeError) and re.search(said, str(error)) is not None


MOST_NAMED = 4
