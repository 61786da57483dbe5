"""Work that several ranks do together over gloo, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from hpcncf.worker.process_exit import exit_now

# A server that has imported torch once: its ranks are forked, and begin at once.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["hpcncf.ncf.trainer", "hpcncf.ncf.engines.native", "torch._dynamo"])


def together(
    world_size: int, work: Callable[..., Any], *args: Any, killed: int | None = None
) -> list[Any]:
    """What `work(rank, *args)` returned, by rank: tensors and plain values. One of them may kill
    itself meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        started = [
            CONTEXT.Process(target=_rank, args=(rank, world_size, Path(folder), work, args))
            for rank in range(world_size)
        ]
        for each in started:
            each.start()
        for each in started:
            each.join(timeout=600)
        try:
            expected = [-signal.SIGKILL if rank == killed else 0 for rank in range(world_size)]
            assert [each.exitcode for each in started] == expected
        finally:
            for each in started:
                each.kill()
        left = [rank for rank in range(world_size) if rank != killed]
        return [torch.load(Path(folder) / f"{rank}.pt") for rank in left]


def _rank(
    rank: int, world_size: int, folder: Path, work: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.FileStore(str(folder / "store"), world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    torch.save(work(rank, *args), folder / f"{rank}.pt")
    if dist.is_initialized():
        dist.destroy_process_group()
    exit_now(0)
