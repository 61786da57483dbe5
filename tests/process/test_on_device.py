"""What ranks exchange where it lies: the same as through the host, over gloo here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from make_runs import tiny
from ranks_together import together

from hpcncf.job.spec import Model, Training
from hpcncf.ncf import model
from hpcncf.ncf.batches import Schedule
from hpcncf.ncf.data.prepared import load_prepared
from hpcncf.ncf.engines.rowwise import Rowwise
from hpcncf.ncf.loaders import Loader
from hpcncf.ncf.step_clock import StepClock
from hpcncf.ncf.sync import DeviceTransport, GroupTransport, row_message_capacity

# 1,501 rows in steps of ten: shards of three and four rows, and the last step has one row in all.
BATCH, STEPS = 10, range(133, 151)
CPU = torch.device("cpu")
WAYS: dict[str, dict[str, Any]] = {
    "rows": {"sync": "rows"},
    "rows, lazy": {"sync": "rows", "optimizer": "lazy_adam"},
    "apart": {"sync": "local_sgd", "sync_every": 7},
}


def trained(
    folder: Path, rank: int, ranks: int, on_device: bool, settings: dict[str, Any]
) -> dict[str, Any]:
    data = load_prepared(folder)
    training = Training(global_batch_size=BATCH, engine="rowwise", **settings)
    schedule = Schedule(data.manifest.train_rows, BATCH, rank, ranks)
    start = model.initial_model(data.manifest, Model(), training.seed)
    clock = StepClock(len(STEPS), schedule.steps)
    host = GroupTransport(max(2**16, row_message_capacity(start, schedule, training.negatives)))
    engine = Rowwise(
        start, training, CPU, clock, DeviceTransport(clock.sent) if on_device else host
    )
    batches = engine.batches(Loader(data, training, schedule), 0, STEPS)
    clock.start()
    for step in STEPS:
        engine.step(batches, 5 * max(1, schedule.positives(step)))
        if training.sync == "local_sgd" and (step % 7 == 0 or step + 1 == STEPS.stop):
            engine.average()
        clock.end_step(0)
    engine.settle()
    values = {name: each.detach().clone() for name, each in engine.model.named_parameters()}
    return values | {"sent": torch.tensor([clock.counted_exchanges, clock.counted_bytes])}


def work(rank: int, ranks: int, folder: Path) -> dict[str, Any]:
    return {
        way: [trained(folder, rank, ranks, each, WAYS[way]) for each in (True, False)]
        for way in WAYS
    }


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("data") / "tiny"
    tiny(folder)
    return together(3, work, 3, folder)


@pytest.mark.parametrize("way", WAYS)
def test_ranks_end_where_those_end_whose_messages_pass_the_host(
    found: list[dict[str, Any]], way: str
) -> None:
    """Rows by rank, to the bit; a mean in the order of the collective."""
    ours, theirs = found[0][way]
    for name in ours.keys() - {"sent"}:
        if way == "apart":
            torch.testing.assert_close(ours[name], theirs[name], rtol=1e-4, atol=1e-6)
        else:
            assert torch.equal(ours[name], theirs[name]), name


@pytest.mark.parametrize("way", WAYS)
def test_all_ranks_have_the_same_bits(found: list[dict[str, Any]], way: str) -> None:
    first, *others = (each[way][0] for each in found)
    for name in first.keys() - {"sent"}:
        assert all(torch.equal(each[name], first[name]) for each in others), name


def test_a_message_is_as_long_as_it_could_be_at_most(found: list[dict[str, Any]]) -> None:
    layers, row = 3433 - 32 * 12, 8 + 4 * 40  # 9 context columns, not 21
    for each in found:
        exchanges, sent = each["rows"][0]["sent"].tolist()
        assert sent == exchanges * (4 * layers + 4 * 6 * row)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("sync", ["rows", "local_sgd"])
def test_nccl_of_one_rank_trains_what_no_exchange_trains(sync: str, tmp_path: Path) -> None:
    """More ranks than GPUs nccl refuses; with one GPU this is all that can be tried."""
    torch.cuda.set_device(0)
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("nccl", store=store, rank=0, world_size=1)
    try:
        ours, theirs = (_on_a_gpu(tmp_path / name, sync, name == "ours") for name in NAMES)
    finally:
        dist.destroy_process_group()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-4)


NAMES = ("ours", "theirs")


def _on_a_gpu(folder: Path, sync: str, exchanges: bool) -> model.NeuMF:
    data, place = tiny(folder), torch.device("cuda", 0)
    training = Training(
        global_batch_size=BATCH,
        engine="rowwise",
        loader="device",
        sync=sync if exchanges else "dense",
    )
    schedule = Schedule(data.manifest.train_rows, BATCH)
    start = model.initial_model(data.manifest, Model(), 1).to(place)
    clock = StepClock(len(STEPS), schedule.steps)
    ranks = DeviceTransport(clock.sent) if exchanges else None
    engine = Rowwise(start, training, place, clock, ranks)
    batches = engine.batches(Loader(data, training, schedule, place), 0, STEPS)
    for step in STEPS:
        engine.step(batches, 5 * schedule.positives(step))
    if exchanges and sync == "local_sgd":
        engine.average()
    engine.settle()
    return engine.model
