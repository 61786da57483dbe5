"""Ranks that train one model together compute what one rank computes alone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranks_together import together

from hpcncf.data.prepared import load_prepared
from hpcncf.job.spec import Model, Training
from hpcncf.launcher.environment import Place
from hpcncf.native.builds import cpu_flags, installed_builds, select_build
from hpcncf.ncf import model, sync
from hpcncf.ncf.batches import Schedule
from hpcncf.ncf.engines import base
from hpcncf.ncf.engines.precision import optimizer_moments
from hpcncf.ncf.engines.reference import Reference
from hpcncf.ncf.loaders import Loader
from hpcncf.ncf.step_clock import StepClock
from hpcncf.ncf.sync import average_vector, gather_union, syncs_after

# 1,501 rows in steps of ten: shards of two and three rows, and the last step has one row in all.
BATCH, STEPS = 10, range(51, 151)
CPU = torch.device("cpu")
WAYS: dict[str, dict[str, Any]] = {
    "dense": {},
    "rows": {"engine": "rowwise", "sync": "rows"},
    "rows, lazy": {"engine": "rowwise", "sync": "rows", "optimizer": "lazy_adam"},
    "rows, descent": {"engine": "rowwise", "sync": "rows", "optimizer": "sgd", "lr": 0.1},
}
if select_build(installed_builds(), cpu_flags()):
    WAYS["rows, native"] = {"engine": "native", "sync": "rows"}

# Eighteen steps apart in sevens: the tenth is where Adam's rows settle, the last has one row.
OFTEN, TO_THE_END = {"sync": "local_sgd", "sync_every": 7}, range(133, 151)
LOCAL: dict[str, dict[str, Any]] = {
    "local": {},
    "local, sparse": {"optimizer": "lazy_adam", "sparse": True},
    "local by rows": {"engine": "rowwise"},
    "local by rows, lazy": {"engine": "rowwise", "optimizer": "lazy_adam"},
    "local by rows, descent": {"engine": "rowwise", "optimizer": "sgd", "lr": 0.1},
}
if "rows, native" in WAYS:
    LOCAL["local, native"] = {"engine": "native"}


def _is_float(each: Any) -> bool:  # engine native's batches are positions
    return isinstance(each, torch.Tensor) and each.is_floating_point()


def in_doubles(batch: Any) -> Any:
    parts = [each.double() if _is_float(each) else each for each in batch]
    return type(batch)(*parts) if hasattr(batch, "_fields") else tuple(parts)


def trained(folder: Path, place: Place, way: str, steps: range = STEPS) -> dict[str, Any]:
    """A model after these steps of an epoch, in float64, and what this rank sent meanwhile."""
    settings = WAYS[way] if way in WAYS else LOCAL[way] | OFTEN
    data, training = load_prepared(folder), Training(global_batch_size=BATCH, **settings)
    schedule = Schedule(data.manifest.train_rows, BATCH, place.rank, place.world_size)
    start = model.initial_model(data.manifest, Model(), training.seed).double()
    clock = StepClock(len(steps), schedule.steps)
    ground = base.EngineInputs(data, Model(), schedule, 1)
    ground = base.with_transport(ground, start, training, place, clock)
    made = base.build_engine(start, training, place.world_size, CPU, clock, ground)
    batches = map(in_doubles, made.batches(Loader(data, training, schedule), 0, steps))
    apart = training.sync == "local_sgd" and place.world_size > 1
    clock.start()
    seen = 0
    for step in steps:
        positives = share(schedule, step) if apart else schedule.positives(step)
        seen += sum(made.step(batches, positives * (1 + training.negatives))[1])
        if apart and syncs_after(training, place.world_size, step, steps.stop):
            made.average()
        clock.end_step(0)
    made.settle()
    values = {name: each.detach().clone() for name, each in made.model.named_parameters()}
    sent = clock.counted_exchanges, clock.counted_bytes
    return {"model": values, "loss": float(made.loss), "instances": seen, "sent": sent}


def share(schedule: Schedule, step: int) -> int:
    start, stop = schedule.positions(step)
    return max(1, stop - start)


def apart(folder: Path, ranks: int, settings: dict[str, Any], steps: range) -> dict[str, Any]:
    """What `local_sgd` is to compute, by torch's optimisers on all of the ranks in one process."""
    data, training = load_prepared(folder), Training(global_batch_size=BATCH, **settings)
    schedules = [Schedule(data.manifest.train_rows, BATCH, rank, ranks) for rank in range(ranks)]
    engines, batches = [], []
    for schedule in schedules:
        start = model.initial_model(data.manifest, Model(), training.seed).double()
        engines.append(Reference(start, training, 1, CPU, StepClock(len(steps), schedule.steps)))
        loader = Loader(data, training, schedule)
        batches.append(map(in_doubles, engines[-1].batches(loader, 0, steps)))
    for step in steps:
        for each, schedule, mine in zip(engines, schedules, batches, strict=True):
            each.step(mine, share(schedule, step) * (1 + training.negatives))
        if (step + 1) % training.sync_every == 0 or step + 1 == steps.stop:
            every = [
                [*each.model.parameters(), *optimizer_moments(each.optimizer)] for each in engines
            ]
            for values in zip(*every, strict=True):
                mean = torch.stack([each.detach() for each in values]).mean(dim=0)
                for each in values:
                    each.data.copy_(mean)
    return {name: each.detach() for name, each in engines[0].model.named_parameters()}


def messages(place: Place) -> list[list[list[int]]]:
    """What all reported in three exchanges, each looked at after the next; rank 0 says nothing."""
    transport = sync.open_transport(place, 100)
    got = []
    for turn in range(3):
        transport.slot()[: place.rank * 10] = place.rank + turn
        got.append(transport.exchange(place.rank * 10))
        if turn:
            got[turn - 1] = [np.unique(each) for each in got[turn - 1]]
    transport.close()
    return [[each.tolist() for each in turn] for turn in got]


def tried(ways: Iterable[str], ranks: int) -> list[str]:
    """Adam's by any number of ranks, the other rules by three: that costs enough."""
    others = ("lazy", "descent", "sparse")
    return [way for way in ways if ranks == 3 or not way.endswith(others)]


def in_pieces(place: Place) -> dict[str, torch.Tensor]:
    """Ids and values of more than one message: of each rank another number, of the last none."""
    transport = sync.open_transport(place, 64)
    count = 15 * (place.world_size - 1 - place.rank)
    ids = torch.arange(count) * (place.rank + 1)
    values = torch.arange(21, dtype=torch.float32) * 10**place.rank
    average_vector(values, transport)
    return {"union": gather_union(ids, transport), "mean": values}


def work(rank: int, world_size: int, nodes: int, folder: Path) -> dict[str, Any]:
    place = Place(rank, rank, world_size, world_size // nodes)
    found: dict[str, Any] = {way: trained(folder, place, way) for way in tried(WAYS, world_size)}
    for way in tried(LOCAL, world_size):
        found[way] = trained(folder, place, way, TO_THE_END)
    over = sync.open_transport(place, 64).name
    return found | {"messages": messages(place), "pieces": in_pieces(place), "over": over}


@pytest.fixture(scope="module")
def data(folder: Path) -> Path:
    return folder


@pytest.fixture(scope="module", params=[(2, 1), (3, 1), (4, 2)], ids=str)
def ranks(data: Path, request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """So many, on so many nodes as they are reported: two share no memory."""
    ranks, nodes = request.param
    return together(ranks, work, ranks, nodes, data)


@pytest.fixture(scope="module")
def alone(data: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    return {way: trained(data, Place(), way) for way in WAYS}


def test_uneven_and_empty_shards_end_where_one_rank_ends(
    ranks: list[dict[str, Any]], alone: dict[str, Any]
) -> None:
    for way in tried(WAYS, len(ranks)):
        for name, values in alone[way]["model"].items():
            found = ranks[0][way]["model"][name]
            assert torch.allclose(found, values, rtol=1e-7, atol=1e-8), (way, name)
        losses = sum(each[way]["loss"] for each in ranks)
        assert losses == pytest.approx(alone[way]["loss"], rel=1e-9), way
        assert sum(each[way]["instances"] for each in ranks) == alone[way]["instances"], way


def test_ranks_apart_go_on_from_the_mean_of_parameters_and_moments(
    data: Path, ranks: list[dict[str, Any]]
) -> None:
    for way in tried(LOCAL, len(ranks)):
        rule = {key: LOCAL[way][key] for key in ("optimizer", "lr") if key in LOCAL[way]}
        rule["sparse"] = rule.get("optimizer") == "lazy_adam"
        expected = apart(data, len(ranks), OFTEN | rule, TO_THE_END)
        for name, values in expected.items():
            found = ranks[0][way]["model"][name]
            assert torch.allclose(found, values, rtol=1e-4, atol=1e-5), (way, name)


def test_all_ranks_have_the_same_bits(ranks: list[dict[str, Any]]) -> None:
    first, *others = ranks
    for way in tried([*WAYS, *LOCAL], len(ranks)):
        for name, values in first[way]["model"].items():
            assert all(torch.equal(each[way]["model"][name], values) for each in others), (
                way,
                name,
            )


def test_ranks_of_one_node_exchange_through_memory(ranks: list[dict[str, Any]]) -> None:
    one_node = len(ranks) < 4 and "rows, native" in WAYS
    assert {each["over"] for each in ranks} == {"shared memory" if one_node else "gloo"}


def test_a_message_is_there_until_the_exchange_after_the_next(ranks: list[dict[str, Any]]) -> None:
    for each in ranks:
        *earlier, last = each["messages"]
        assert last == [[rank + 2] * 10 * rank for rank in range(len(ranks))]
        for turn, got in enumerate(earlier):
            assert got == [[], *([rank + turn] for rank in range(1, len(ranks)))]


def test_a_step_of_rows_is_one_message_as_long_as_its_rows(ranks: list[dict[str, Any]]) -> None:
    for each in ranks:
        exchanges, sent = each["rows"]["sent"]
        counted = len(STEPS) - len(STEPS) // 10  # without the warm-up
        assert exchanges == counted
        layers, row = 3433 - 32 * 12, 8 + 8 * 40  # 9 context columns, not 21
        most = -(-BATCH // len(ranks)) * (2 + 4)
        assert 8 * layers < sent / counted <= 8 * layers + most * row


def test_what_is_longer_than_a_message_goes_in_several(ranks: list[dict[str, Any]]) -> None:
    last = len(ranks) - 1
    ids = {at * (rank + 1) for rank in range(last) for at in range(15 * (last - rank))}
    mean = torch.arange(21) * (sum(10**rank for rank in range(len(ranks))) / len(ranks))
    for each in ranks:
        assert each["pieces"]["union"].tolist() == sorted(ids)
        torch.testing.assert_close(each["pieces"]["mean"], mean)
