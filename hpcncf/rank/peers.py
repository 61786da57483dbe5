"""Who a run's other ranks are, so that one that is killed can be named by those that waited.

What gloo and nccl say when a rank is gone names an address, or nothing. A process that was killed
leaves no record either: but the ranks of its node see that it is not there any more.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from hpcncf import claims, records
from hpcncf.rank.launcher import Place
from hpcncf.records import RankRecord, RecordError

LOST: Final = "another rank ended while this one waited for it"
# A process that is killed closes its connections some moments before it is gone.
GONE_WITHIN_S: Final = 2.0


@dataclass(frozen=True)
class Peer:
    """A rank's process, as another one on its node can find it."""

    rank: int
    node: str
    numbers: str
    """Of which space its process's number is: a container may have one of its own."""
    pid: int
    started: float

    def __str__(self) -> str:
        return f"rank {self.rank} (process {self.pid} on {self.node})"


def oneself(place: Place) -> Peer:
    pid = os.getpid()
    numbers = str(Path("/proc/self/ns/pid").readlink())
    return Peer(place.rank, os.uname().nodename, numbers, pid, psutil.Process(pid).create_time())


def lost(peers: Sequence[Peer], recorded: set[int]) -> str:
    """In words, which of them are gone, or may be; of those that left no record."""
    silent = [each for each in peers if each.rank not in recorded]
    until = time.monotonic() + GONE_WITHIN_S
    while not (gone := [each for each in silent if _here(each) and not _lives(each)]):
        if time.monotonic() > until:
            break
        time.sleep(0.05)
    if gone:
        return _killed(gone)
    elsewhere = [each for each in silent if not _here(each)]
    if not elsewhere:
        return "no rank left a record of failing yet, see the other ranks' logs"
    return f"of {' or '.join(map(str, elsewhere))} nothing was heard"


def end(path: Path) -> str:
    """In words, of a rank whose record tells why it ended; empty where there is no such record."""
    try:
        record = records.read_records(path, RankRecord)
    except RecordError:
        return ""
    if record.error is None:
        return ""
    return f"rank {record.rank} {record.outcome}: {record.error['type']}: {record.error['message']}"


def killed(peers: Sequence[Peer], recorded: Callable[[], Collection[int]]) -> str:
    """In words, which of them on this node are gone without a record; empty where none is."""
    # In this order: one that ends well leaves its record first.
    gone = [each for each in peers if _here(each) and not _lives(each)]
    left = recorded() if gone else ()
    return _killed([each for each in gone if each.rank not in left])


def _killed(gone: Sequence[Peer]) -> str:
    return "; ".join(f"{each} is gone and left no record: it was killed" for each in gone)


def _here(peer: Peer) -> bool:
    mine = os.uname().nodename, str(Path("/proc/self/ns/pid").readlink())
    return (peer.node, peer.numbers) == mine


def _lives(peer: Peer) -> bool:
    return claims.same_process(peer.pid, peer.started)


def lost_peer(error: BaseException) -> bool:
    """True for what gloo, nccl and our own transport raise when another rank has gone or is
    silent."""
    said = r"closed by peer|reset by peer|Broken pipe|Socket closed|recvBytes|NCCL|[Tt]imed out"
    said += r"|^rank \d+ ended while"
    return isinstance(error, RuntimeError) and re.search(said, str(error)) is not None
