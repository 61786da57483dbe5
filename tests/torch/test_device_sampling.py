"""Rows and negatives that torch's operations make on a device are `sampling`'s, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpcncf.ncf import batches, sampling

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


def test_no_value_is_asked_for_on_the_host() -> None:
    """Tensors of device meta have none: what would make a GPU wait fails there."""
    rows = batches.epoch_order(1, 0, 1000, META)[:64]
    indptr = torch.empty(101, dtype=torch.int64, device=META)
    positives = torch.empty(500, dtype=torch.int32, device=META)
    drawn = batches.negatives(1, 0, rows, rows, indptr, positives, 200, 4, 30)
    assert drawn.shape == (64, 4)
    with pytest.raises((NotImplementedError, RuntimeError)):
        torch.unique(drawn)
