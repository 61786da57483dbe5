"""Ranks that exchange rows compute what one rank computes alone (dense: test_reference.py)."""

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
from hpcncf.ncf.loaders import RankLoader
from hpcncf.ncf.step_clock import StepClock

# 1,501 rows in steps of ten: shards of two and three rows, and the last step has one row in all.
BATCH, STEPS = 10, range(51, 151)
CPU = torch.device("cpu")
WAYS: dict[str, dict[str, Any]] = {
    "rows": {"engine": "rowwise", "sync": "rows"},
    "rows, lazy": {"engine": "rowwise", "sync": "rows", "optimizer": "lazy_adam"},
    "rows, descent": {"engine": "rowwise", "sync": "rows", "optimizer": "sgd", "lr": 0.1},
}
if select_build(installed_builds(), cpu_flags()):
    WAYS |= {
        way.replace("rows", "rows, native"): settings | {"engine": "native"}
        for way, settings in WAYS.items()
    }


def _is_float(each: Any) -> bool:  # engine native's batches are positions
    return isinstance(each, torch.Tensor) and each.is_floating_point()


def in_doubles(batch: Any) -> Any:
    parts = [each.double() if _is_float(each) else each for each in batch]
    return type(batch)(*parts) if hasattr(batch, "_fields") else tuple(parts)


def trained(folder: Path, place: Place, way: str, steps: range = STEPS) -> dict[str, Any]:
    """A model after these steps of an epoch, in float64, and what this rank sent meanwhile."""
    settings = WAYS[way]
    data, training = load_prepared(folder), Training(global_batch_size=BATCH, **settings)
    schedule = Schedule(data.manifest.train_rows, BATCH, place.rank, place.world_size)
    start = model.initial_model(data.manifest, Model(), training.seed).double()
    clock = StepClock(len(steps), schedule.steps)
    ground = base.EngineInputs(data, Model(), schedule, 1)
    ground = base.with_transport(ground, start, training, place, clock)
    made = base.build_engine(start, training, place.world_size, CPU, clock, ground)
    batches = map(in_doubles, made.batches(RankLoader(data, training, schedule), 0, steps))
    clock.start()
    seen = 0
    for step in steps:
        seen += sum(made.step(batches, schedule.positives(step) * (1 + training.negatives))[1])
        clock.end_step(0)
    made.settle()
    values = {name: each.detach().clone() for name, each in made.model.named_parameters()}
    sent = clock.counted_exchanges, clock.counted_bytes
    return {"model": values, "loss": float(made.loss), "instances": seen, "sent": sent}


def messages(place: Place) -> list[list[list[int]]]:
    """What all reported in three exchanges, each looked at after the next; rank 0 says nothing."""
    transport = sync.Transport(100, lambda _: None)
    got = []
    for turn in range(3):
        transport.slot()[: place.rank * 10] = place.rank + turn
        got.append(transport.exchange(place.rank * 10))
        if turn:
            got[turn - 1] = [np.unique(each) for each in got[turn - 1]]
    return [[each.tolist() for each in turn] for turn in got]


def tried(ways: Iterable[str], ranks: int) -> list[str]:
    """Adam's by any number of ranks, the other rules by three: that costs enough."""
    others = ("lazy", "descent")
    return [way for way in ways if ranks == 3 or not way.endswith(others)]


def work(rank: int, world_size: int, folder: Path) -> dict[str, Any]:
    place = Place(rank, rank, world_size, world_size)
    found: dict[str, Any] = {way: trained(folder, place, way) for way in tried(WAYS, world_size)}
    return found | {"messages": messages(place)}


@pytest.fixture(scope="module")
def data(folder: Path) -> Path:
    return folder


@pytest.fixture(scope="module", params=[2, 3, 4])
def ranks(data: Path, request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return together(request.param, work, request.param, data)


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


def test_all_ranks_have_the_same_bits(ranks: list[dict[str, Any]]) -> None:
    first, *others = ranks
    for way in tried(WAYS, len(ranks)):
        for name, values in first[way]["model"].items():
            assert all(torch.equal(each[way]["model"][name], values) for each in others), (
                way,
                name,
            )


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
