"""What an exchange of a step's gradients costs two ranks of one node: shared memory, and gloo.

A message is as long as that of a rank can be whose share is half of a step of 1,280 instances, at
the model's default widths. A rank writes it, exchanges it, and reads all messages to the last
byte; both ways take turns. Each rank has a core of its own where there are two.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
from functools import partial
from typing import Final

import numpy as np
import torch.distributed as dist

from hpcncf.job.spec import Model, Training
from hpcncf.monitor.cgroup import usable_cpus
from hpcncf.ncf.distributed import gather_objects
from hpcncf.ncf.engines.native.kernel import message_capacity
from hpcncf.ncf.sync.shared_memory import join_shared_memory
from hpcncf.ncf.sync.transport import Bytes, GroupTransport, Transport
from hpcncf.worker.environment import Place

RANKS: Final = 2
POSITIVES: Final = 256
CONTEXT: Final = 21
ROUNDS: Final = 5
EXCHANGES: Final = {"shared memory": 2000, "gloo": 100}
"""Of a round."""


def message_size() -> int:
    return message_capacity(Model(), Training(), CONTEXT, POSITIVES // RANKS)


def window(transport: Transport, message: Bytes, count: int) -> list[tuple[float, float]]:
    """Seconds of each exchange, and of it with writing and reading."""
    room, times = np.empty_like(message), []
    for _ in range(count):
        began = time.perf_counter()
        transport.slot()[: len(message)] = message
        wrote = time.perf_counter()
        received = transport.exchange(len(message))
        came = time.perf_counter()
        for each in received:
            room[: len(each)] = each
        times.append((came - wrote, time.perf_counter() - began))
    return times


def ways(rank: int, size: int) -> dict[str, Transport]:
    place = Place(rank, rank, RANKS, RANKS)
    found = join_shared_memory(rank, RANKS, size, partial(gather_objects, place=place))
    assert found, "no shared memory here"
    return {"shared memory": found, "gloo": GroupTransport(size)}


def work(rank: int, folder: str) -> dict[str, list[tuple[float, float]]]:
    cpus = sorted(usable_cpus())
    os.sched_setaffinity(0, {cpus[rank % len(cpus)]})
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    where = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=RANKS)
    message = np.ones(message_size(), dtype=np.uint8)
    transports = ways(rank, len(message))
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in transports}
    for transport in transports.values():
        window(transport, message, 20)
    for _ in range(ROUNDS):
        for name, transport in transports.items():
            times[name] += window(transport, message, EXCHANGES[name])
    dist.destroy_process_group()
    return times


def row(name: str, times: list[tuple[float, float]]) -> str:
    """In microseconds: the median of each, and what nine of ten stay below."""
    bare, whole = 1e6 * np.array(times).T
    return (
        f"| {name} | {np.median(bare):.0f} | {np.median(whole):.0f} "
        f"| {np.quantile(whole, 0.9):.0f} |"
    )


def main() -> int:
    """Print the table."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, context.Pool(RANKS) as pool:
        times, *_ = pool.starmap(work, [(rank, folder) for rank in range(RANKS)], chunksize=1)
    print(
        f"{RANKS} ranks, a message of {message_size():,} bytes each; medians of {ROUNDS} rounds "
        f"of {' and '.join(map(str, EXCHANGES.values()))} exchanges, in µs.\n\n"
        "| | exchange | with writing and reading | 9 of 10 below |\n|---|---:|---:|---:|\n"
        + "\n".join(row(name, times[name]) for name in EXCHANGES)
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
