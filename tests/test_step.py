"""The reference engine over ranks: sparse gradients are averaged as dense ones are."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from hpcncf.ncf import engine
from hpcncf.ncf.loaders import Batch
from hpcncf.ncf.model import NeuMF
from hpcncf.ncf.phases import StepClock
from hpcncf.spec import Model, Training

INSTANCES, MINE = 20, (slice(0, 13), slice(13, 20))


def steps(world_size: int, part: slice, settings: dict[str, Any]) -> NeuMF:
    """A model after eight steps of 20 instances, of which this rank has a part."""
    torch.manual_seed(1)
    clock = StepClock(8, 8)
    training = Training(lr=0.01, sparse=True, **settings)
    made = engine.made(NeuMF(50, 90, 3, Model()), training, world_size, torch.device("cpu"), clock)
    clock.start()
    for _ in range(8):
        users, items = torch.randint(50, (INSTANCES,)), torch.randint(90, (INSTANCES,))
        labels = torch.randint(2, (INSTANCES,)).float()
        batch = Batch(users, items, torch.rand(INSTANCES, 3), labels)
        made.step(iter([Batch(*(each[part] for each in batch))]), INSTANCES)
    return made.model


def rank(number: int, port: int, out: Path, settings: dict[str, Any]) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=number, world_size=2)
    torch.save(steps(2, MINE[number], settings).state_dict(), out / f"{number}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize("settings", [{"optimizer": "lazy_adam"}, {"optimizer": "sgd"}])
def test_two_ranks_with_uneven_shards_compute_what_one_computes(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(rank, (port, tmp_path, settings), nprocs=2)
    one = steps(1, slice(0, INSTANCES), settings).state_dict()
    for number in (0, 1):
        two = torch.load(tmp_path / f"{number}.pt", weights_only=True)
        for name, values in one.items():
            torch.testing.assert_close(two[name], values, rtol=1e-4, atol=1e-5)
