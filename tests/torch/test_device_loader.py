"""Loader `device`: the rows and negatives of `sampling` to the bit, and no host that waits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from make_results import manifest
from make_runs import planned, tiny

from hpcncf.data import sampling
from hpcncf.data.prepared import Prepared
from hpcncf.errors import HpcncfError
from hpcncf.job.spec import Model, Training
from hpcncf.ncf import batches
from hpcncf.ncf.batches import (
    Resident,
    Schedule,
    build_batch,
    check_device_loader,
    check_model_memory,
    device_loader_bytes,
)

CPU, META = torch.device("cpu"), torch.device("meta")
SEEDS = st.integers(0, 2**63 - 1)
EPOCHS = st.integers(0, 2**32 - 1)


@given(
    seed=SEEDS,
    epoch=EPOCHS,
    rows=st.lists(st.integers(0, 2**62), min_size=0, max_size=9),
    blocks=st.integers(1, 4),
)
def test_random_words_are_the_same(seed: int, epoch: int, rows: list[int], blocks: int) -> None:
    at = np.array(rows, dtype=np.int64)
    expected = sampling.philox(seed, sampling.SYNTHETIC, epoch, at, blocks)
    ours = batches.philox(seed, sampling.SYNTHETIC, epoch, torch.from_numpy(at), blocks)
    assert ours.tolist() == expected.tolist()


@given(seed=SEEDS, epoch=EPOCHS, rows=st.integers(0, 3000))
def test_an_epochs_order_is_the_same(seed: int, epoch: int, rows: int) -> None:
    expected = sampling.epoch_rows(seed, epoch, 0, rows, rows)
    assert batches.epoch_order(seed, epoch, rows, CPU).tolist() == expected.tolist()


@pytest.mark.parametrize("rows", [100, 111, 112, 2_500])
def test_an_order_of_blocks_is_the_same(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "MANY_ROWS", 100)
    for epoch in range(3):
        expected = sampling.epoch_rows(9, epoch, 0, rows, rows)
        ours = batches.epoch_order(9, epoch, rows, CPU)
        assert np.array_equal(ours.numpy(), expected)


@pytest.mark.parametrize("rows", [2, 2**13 + 1, 2**13])
def test_an_order_is_the_same_where_walks_are_long_and_where_there_are_none(rows: int) -> None:
    """Of 2 rows on 16 values most walks are long; just above a power of two, every second walks."""
    for epoch in range(3):
        expected = sampling.epoch_rows(9, epoch, 0, rows, rows)
        ours = batches.epoch_order(9, epoch, rows, CPU)
        assert np.array_equal(ours.numpy(), expected)


@st.composite
def users_of_items(draw: st.DrawFn) -> tuple[int, list[list[int]]]:
    """A number of items, and each user's, sorted; nobody has all of them, some have none, one has
    one and one, of few items, all but one."""
    items = draw(st.integers(2, 60) | st.just(2**31 - 1))
    one = st.sets(st.integers(0, items - 1), max_size=min(items - 1, 70)).map(sorted)
    held = draw(st.lists(one, min_size=1, max_size=6))
    return items, [*held, [0], [*range(min(items - 1, 70))]]


@given(data=users_of_items(), seed=SEEDS, epoch=EPOCHS, count=st.integers(1, 9))
def test_negatives_are_the_same(
    data: tuple[int, list[list[int]]], seed: int, epoch: int, count: int
) -> None:
    items, held = data
    indptr = np.cumsum([0, *map(len, held)])
    positives = np.array([item for mine in held for item in mine], dtype=np.int32)
    users = np.arange(len(held)).repeat(3)
    rows = np.arange(len(users)) * 2**33 + 7
    expected = sampling.sample_negatives(seed, epoch, rows, users, indptr, positives, items, count)
    at, whose, bounds, known = map(torch.from_numpy, (rows, users, indptr, positives))
    most = max(map(len, held))
    ours = batches.negatives(seed, epoch, at, whose, bounds, known, items, count, most)
    assert ours.tolist() == expected.tolist()


@pytest.mark.parametrize("held", [0, 1, 5, 63, 64, 99])
def test_every_number_draws_what_it_does_elsewhere(
    held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for mine in ([*range(held)], [*range(100 - held, 100)], [*range(0, held, 2)]):
        others = 100 - len(mine)
        words = [[-(-(number << 32) // others) for number in range(others)]]
        indptr, positives = np.array([0, len(mine), len(mine) + 1]), np.array([*mine, 0], np.int32)
        monkeypatch.setattr(sampling, "philox", lambda *_, made=words: np.array(made, np.uint32))
        monkeypatch.setattr(batches, "philox", lambda *_, made=words: torch.tensor(made))
        row = np.array([0])
        expected = sampling.sample_negatives(1, 0, row, row, indptr, positives, 100, others)
        at, bounds, known = map(torch.from_numpy, (row, indptr, positives))
        ours = batches.negatives(1, 0, at, at, bounds, known, 100, others, held)
        assert ours.tolist() == expected.tolist()
        assert sorted(ours[0].tolist()) == sorted({*range(100)} - {*mine})


TRAINING = Training(loader="device", negatives=4)


def test_what_a_rank_holds_is_counted(data: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    # A row's user, item and 9 context columns, 8 of them small; the bounds of 40 users; all pairs.
    arrays = 1501 * (4 + 4 + 4 + 8) + 41 * 8 + data.manifest.train_pairs * 4
    # The order, and every row drawn: user, 5 items, context. More than 3 tables of 2,048 numbers.
    drawn = 8 * 1501 + 1501 * (8 + 5 * 8 + 36)
    assert drawn > 3 * 8 * 2048
    assert device_loader_bytes(data, TRAINING, Schedule(1501, 50), CPU) == arrays + drawn
    # Of little data the order is most; of one of blocks the rows and the blocks are held.
    narrow, ranks = TRAINING.model_copy(update={"negatives": 1}), Schedule(1501, 50, 0, 50)
    assert device_loader_bytes(data, narrow, ranks, CPU) == arrays + 3 * 8 * 2048
    monkeypatch.setattr(sampling, "MANY_ROWS", 1_000)
    assert device_loader_bytes(data, narrow, ranks, CPU) == arrays + 8 * (1501 + 93 + 1501)


def test_data_that_does_not_fit_is_refused_with_both_sizes(
    data: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks on one of two GPUs."""
    schedule, place = Schedule(1501, 50), torch.device("cuda", 1)
    needed = 2 * device_loader_bytes(data, TRAINING, schedule, place)
    free = [needed, needed - 1]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free.pop(0), 0))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    check_device_loader(data, TRAINING, schedule, place, ranks=4)
    with pytest.raises(HpcncfError, match=r"2 ranks take at least 0 MiB, .* free in GPU 1"):
        check_device_loader(data, TRAINING, schedule, place, ranks=3)
    check_device_loader(data, TRAINING, schedule, CPU, ranks=3)
    check_device_loader(data, Training(), schedule, place, ranks=3)


def test_no_value_of_a_batch_is_asked_for_on_the_host(data: Prepared) -> None:
    """Tensors of device meta have none: what would make a GPU wait fails there."""
    there = Resident(data, TRAINING, Schedule(1501, 50), META)
    batches = [build_batch(rows) for rows in there.rows(0, range(31))]
    assert [len(each.labels) for each in batches] == [250] * 30 + [5]
    assert {part.device for part in batches[-1]} == {META}


def test_the_prepared_files_are_copied_not_changed(tmp_path: Path) -> None:
    data = tiny(tmp_path / "tiny")
    users, _, _ = next(Resident(data, TRAINING, Schedule(1501, 50), CPU).rows(0, range(1)))
    before = data.train_users.copy()
    users.zero_()
    assert (data.train_users == before).all()


def test_a_model_larger_than_the_node_is_refused_by_its_rank(tiny_data: Path) -> None:
    run = planned(tiny_data)
    assert run.model is not None
    wide = run.model_copy(update={"model": Model(gmf_width=10**9)})
    data = manifest()
    check_model_memory(run, data, ranks=1)
    with pytest.raises(HpcncfError, match=r"654 users and 1,127 items.* GiB on each of 2 ranks"):
        check_model_memory(wide, data, ranks=2)
