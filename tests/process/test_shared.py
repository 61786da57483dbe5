"""Messages through shared memory, between processes as a run has them."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcncf.native.builds import cpu_flags, installed_builds, select_build
from hpcncf.ncf import sync
from hpcncf.ncf.sync import PeerLost, SharedMemoryTransport, join_shared_memory

CAPACITY = 1000
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["hpcncf.ncf.sync"])

pytestmark = pytest.mark.skipif(
    select_build(installed_builds(), cpu_flags()) is None,
    reason="engine native was not built here",
)


class Ranks:
    """Processes that run `work(transport, rank, connection)`, what they gather passed by us."""

    def __init__(
        self, ranks: int, work: Callable[..., Any], most_bytes: int = resource.RLIM_INFINITY
    ) -> None:
        self.ends, self.started = [], []
        for rank in range(ranks):
            mine, theirs = CONTEXT.Pipe()
            process = CONTEXT.Process(target=_rank, args=(rank, ranks, most_bytes, work, theirs))
            process.start()
            theirs.close()
            self.ends.append(mine)
            self.started.append(process)
        for _ in range(2):  # `joined` gathers twice
            seen = [end.recv() for end in self.ends]
            for end in self.ends:
                end.send(seen)

    def results(self) -> list[Any]:
        found = [end.recv() for end in self.ends]
        for process in self.started:
            process.join(20)
        return found

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.started:
            process.kill()
            process.join()


def _rank(
    rank: int, ranks: int, most_bytes: int, work: Callable[..., Any], end: Connection
) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))

    def gather(value: Any) -> list[Any]:
        end.send(value)
        seen: list[Any] = end.recv()
        return seen

    end.send(work(join_shared_memory(rank, ranks, CAPACITY, gather), rank, end))


def sent_and_read(transport: SharedMemoryTransport, rank: int, _: Connection) -> bool:
    """A thousand exchanges, each of other bytes and lengths, read one exchange late."""
    before = None
    for turn in range(1000):
        size = (7 * turn + rank) % CAPACITY
        transport.slot()[:size] = (turn + rank) % 251
        received = transport.exchange(size)
        if before and not _right(*before):
            return False
        before = (received, turn)
        if turn % 100 == rank:
            time.sleep(0.003)
    return True


def _right(received: Sequence[Any], turn: int) -> bool:
    return all(
        len(message) == (7 * turn + rank) % CAPACITY and np.all(message == (turn + rank) % 251)
        for rank, message in enumerate(received)
    )


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_rank_reads_what_each_sent_in_the_order_of_ranks(ranks: int) -> None:
    with Ranks(ranks, sent_and_read) as started:
        assert started.results() == [True] * ranks


def slots_begin_at_a_cache_line(transport: SharedMemoryTransport, rank: int, *_: Any) -> bool:
    """And what was received stays readable when the transport is closed."""
    fine = True
    for _turn in range(4):
        slot = transport.slot()
        received = transport.exchange(CAPACITY)
        fine &= slot.nbytes == CAPACITY and slot.ctypes.data % 64 == 0
        fine &= all(each.ctypes.data % 64 == 0 for each in received)
    transport.slot()[:3] = rank
    kept = transport.exchange(3)
    transport.close()
    return fine and [each.tolist() for each in kept] == [[0, 0, 0], [1, 1, 1]]


def test_messages_begin_at_a_cache_line() -> None:
    with Ranks(2, slots_begin_at_a_cache_line) as started:
        assert started.results() == [True, True]


def one_more(
    transport: SharedMemoryTransport, rank: int, end: Connection
) -> tuple[str, float] | None:
    """An exchange, then another as soon as it is said; rank 1 never hears of it."""
    transport.exchange(0)
    end.send("met")
    if rank == 1:
        time.sleep(60)
    began = time.monotonic()
    try:
        transport.exchange(0)
    except PeerLost as lost:
        return str(lost), time.monotonic() - began
    return None


@pytest.mark.alone  # it looks at all of /dev/shm
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_rank_that_died_is_named_soon(how: signal.Signals) -> None:
    left = set(Path("/dev/shm").iterdir())
    with Ranks(3, one_more) as started:
        assert [end.recv() for end in started.ends] == ["met"] * 3
        time.sleep(0.2)  # the others wait by now
        os.kill(started.started[1].pid or 0, how)
        found = [started.ends[rank].recv() for rank in (0, 2)]
    for seen, seconds in found:
        assert seen == "rank 1 ended while this one waited for it"
        assert seconds < 10
    assert set(Path("/dev/shm").iterdir()) <= left


def test_a_rank_that_is_stopped_for_a_while_is_waited_for() -> None:
    with Ranks(2, sent_and_read) as started:
        asleep = started.started[1].pid or 0
        os.kill(asleep, signal.SIGSTOP)
        time.sleep(1)
        os.kill(asleep, signal.SIGCONT)
        assert started.results() == [True, True]


def last(transport: SharedMemoryTransport, rank: int, end: Connection) -> list[int]:
    """Rank 1 sends its last message and ends while rank 0, which missed it, looks for its lock."""
    held = sync._is_locked

    def late(file: int, rank: int) -> bool:
        end.send("missed")
        end.recv()
        return held(file, rank)

    sync._is_locked = late
    if rank == 1:
        end.recv()
    transport.slot()[:] = rank
    sent = transport.exchange(1)
    transport.close()
    return [int(each[0]) for each in sent]


def test_a_rank_that_ended_behind_its_last_message_is_not_lost() -> None:
    with Ranks(2, last) as started:
        assert started.ends[0].recv() == "missed"
        started.ends[1].send("go on")
        assert started.ends[1].recv() == [0, 1]
        started.ends[0].send("go on")
        assert started.ends[0].recv() == [0, 1]


def nothing(transport: SharedMemoryTransport | None, *_: Any) -> bool:
    return transport is None


def test_memory_that_one_may_not_have_is_no_transport_on_any_rank() -> None:
    with Ranks(2, nothing, most_bytes=4096) as started:
        assert started.results() == [True, True]


def test_another_process_of_that_number_is_not_taken_for_the_first_rank() -> None:
    """As on another node, where the link may lead to anything."""
    file = os.memfd_create("somebody-else")
    link = Path(f"/proc/{os.getpid()}/fd/{file}")
    seen: Iterator[list[Any]] = iter(
        [[(link, Path("/memfd:hpcncf-1 (deleted)")), None], [True, False]]
    )
    assert join_shared_memory(1, 2, CAPACITY, lambda _: next(seen)) is None
    os.close(file)
