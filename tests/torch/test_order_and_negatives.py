"""The order of an epoch and the negatives: exact, reproducible, the same one by one and at once."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hpcncf.data import epoch_order, negatives, random_words

FULL = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((FULL,) * 4, (FULL, FULL), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_known_answers_of_its_authors(
    counter: tuple[int, ...], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    seed, row = key[1] << 32 | key[0], counter[1] << 32 | counter[0]
    purpose, block = counter[3] >> 24, counter[3] & 0xFFFFFF
    assert random_words.philox_block(seed, purpose, counter[2], row, block) == expected


@given(
    seed=st.integers(0, 2**63 - 1),
    epoch=st.integers(0, 2**32 - 1),
    row=st.integers(0, 2**62),
    blocks=st.integers(1, 5),
)
def test_philox_is_the_same_at_once_and_one_by_one(
    seed: int, epoch: int, row: int, blocks: int
) -> None:
    counter = (seed, random_words.ORDER, epoch)
    words = random_words.philox(*counter, np.array([row]), blocks)[0].tolist()
    single = [random_words.philox_block(*counter, row, block) for block in range(blocks)]
    assert words == [word for one in single for word in one]


@given(rows=st.integers(0, 3000), seed=st.integers(0, 2**63 - 1), epoch=st.integers(0, 10_000))
def test_an_epochs_order_is_a_permutation(rows: int, seed: int, epoch: int) -> None:
    order = epoch_order.epoch_rows(seed, epoch, 0, rows, rows)
    assert sorted(order.tolist()) == list(range(rows))


def test_the_order_is_another_in_every_epoch_and_for_every_seed() -> None:
    orders = {
        tuple(epoch_order.epoch_rows(seed, epoch, 0, 50, 50))
        for seed in range(5)
        for epoch in range(5)
    }
    assert len(orders) == 25


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred rows are many."""
    monkeypatch.setattr(epoch_order, "MANY_ROWS", 100)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("rows", [100, 111, 112, 1_000, 3_001])
def test_many_rows_come_in_blocks_each_once_and_the_last_few_last(rows: int) -> None:
    order = epoch_order.epoch_rows(7, 2, 0, rows, rows)
    assert sorted(order.tolist()) == list(range(rows))
    whole = rows // 16 * 16
    blocks = order[:whole].reshape(-1, 16)
    assert (blocks == blocks[:, :1] + np.arange(16)).all()
    assert (np.diff(blocks[:, 0]) != 16).any()
    assert order[whole:].tolist() == list(range(whole, rows))
    assert order.tolist() != epoch_order.epoch_rows(7, 3, 0, rows, rows).tolist()


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("length", [1, 7, 16, 40, 777])
def test_blocks_in_pieces_are_the_order_at_once(length: int) -> None:
    rows = 777
    starts = range(0, rows, length)
    pieces = [epoch_order.epoch_rows(3, 1, at, min(at + length, rows), rows) for at in starts]
    assert np.concatenate(pieces).tolist() == epoch_order.epoch_rows(3, 1, 0, rows, rows).tolist()
    assert not len(epoch_order.epoch_rows(3, 1, 776, 776, rows))


@pytest.mark.usefixtures("blocks")
def test_many_rows_lie_in_random_order_and_few_in_their_own() -> None:
    assert epoch_order.storage_order(20, 99, 99).tolist() == list(range(20, 99))
    at = epoch_order.storage_order(0, 5_000, 5_000)
    assert sorted(at.tolist()) == list(range(5_000))
    assert [
        *epoch_order.storage_order(0, 33, 5_000),
        *epoch_order.storage_order(33, 5_000, 5_000),
    ] == at.tolist()
    counts, _, _ = np.histogram2d(np.arange(5_000), at, bins=10)  # from where to where
    assert chi_square(counts) < 81 + 4 * np.sqrt(2 * 81)
    assert abs(np.corrcoef(at[:-1], at[1:])[0, 1]) < 4 / np.sqrt(5_000)


def chi_square(counts: NDArray[np.int64]) -> float:
    return float(((counts - counts.mean()) ** 2 / counts.mean()).sum())


@pytest.mark.parametrize("rows", [2, 5, 65])
def test_every_row_comes_at_every_position_equally_often(rows: int) -> None:
    orders = np.array([epoch_order.epoch_rows(7, epoch, 0, rows, rows) for epoch in range(500)])
    counts = np.stack([np.bincount(orders[:, at], minlength=rows) for at in range(rows)])
    freedom = (rows - 1) ** 2
    assert chi_square(counts) < freedom + 4 * np.sqrt(2 * freedom)


def test_every_row_follows_every_other_equally_often() -> None:
    orders = np.array([epoch_order.epoch_rows(7, epoch, 0, 20, 20) for epoch in range(1000)])
    follows = np.bincount((orders[:, :-1] * 20 + orders[:, 1:]).ravel(), minlength=400)
    counts = follows.reshape(20, 20)[~np.eye(20, dtype=bool)]
    assert chi_square(counts) < 379 + 4 * np.sqrt(2 * 379)


@given(st.lists(st.integers(0, 777), min_size=0, max_size=6))
def test_the_order_in_pieces_is_the_order_at_once(cuts: list[int]) -> None:
    bounds = sorted({0, 777, *cuts})
    pieces = [epoch_order.epoch_rows(3, 1, start, stop, 777) for start, stop in pairwise(bounds)]
    assert np.concatenate(pieces).tolist() == epoch_order.epoch_rows(3, 1, 0, 777, 777).tolist()


@st.composite
def users_of_items(draw: st.DrawFn) -> tuple[int, list[list[int]]]:
    """A number of items, and each user's, sorted; nobody has all of them, some have none."""
    items = draw(st.integers(1, 60))
    anywhere = st.sets(st.integers(0, items - 1), max_size=items - 1)
    first = st.integers(0, items - 1).map(range)
    last = st.integers(1, items).map(lambda start: range(start, items))
    but_one = st.integers(0, items - 1).map(lambda one: {*range(items)} - {one})
    one = st.one_of(anywhere, first, last, but_one).map(sorted)
    return items, draw(st.lists(one, min_size=1, max_size=6))


@given(
    data=users_of_items(),
    seed=st.integers(0, 2**63 - 1),
    epoch=st.integers(0, 1000),
    count=st.integers(1, 11),
)
def test_negatives_are_the_same_at_once_and_one_by_one_and_never_positive(
    data: tuple[int, list[list[int]]], seed: int, epoch: int, count: int
) -> None:
    items, held = data
    indptr = np.cumsum([0, *map(len, held)])
    positives = np.array([item for mine in held for item in mine], dtype=np.int32)
    users = np.arange(len(held))
    rows = users * 1000 + 7
    drawn = negatives.sample_negatives(seed, epoch, rows, users, indptr, positives, items, count)
    for user, mine in enumerate(held):
        single = negatives.sample_row_negatives(seed, epoch, int(rows[user]), mine, items, count)
        assert drawn[user].tolist() == single
        assert not set(single) & set(mine)
        assert all(0 <= item < items for item in single)


@given(users_of_items())
def test_every_number_draws_an_item_of_its_own(data: tuple[int, list[list[int]]]) -> None:
    """Of a user with `others` items left: itself, or for a positive one from the end of these."""
    items, held = data
    for mine in held:
        absent = [item for item in range(items) if item not in mine]
        numbers = range(len(absent))
        words = [-(-(number << 32) // len(absent)) for number in numbers]
        drawn = drawn_by(words, items, mine)
        assert sorted(drawn) == absent
        stands_for = dict(zip(mine, reversed(absent), strict=False))
        assert drawn == [stands_for.get(number, number) for number in numbers]


def drawn_by(words: list[int], items: int, mine: list[int]) -> list[int]:
    """By these random words, at once and one by one."""
    indptr, positives = np.array([0, len(mine)]), np.array(mine, dtype=np.int32)
    row, each = np.array([0]), {"items": items, "count": len(words)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(negatives, "philox", lambda *_: np.array([words], dtype=np.uint32))
        patch.setattr(negatives, "philox_block", lambda *at: words[4 * at[-1] :][:4])
        drawn = negatives.sample_negatives(1, 0, row, row, indptr, positives, **each)[0].tolist()
        assert negatives.sample_row_negatives(1, 0, 0, mine, **each) == drawn
    return drawn


@pytest.mark.parametrize(
    ("positives", "absent"),
    [
        ([0], [1, 2, 3, 4]),
        ([4], [0, 1, 2, 3]),
        ([0, 1, 2, 3], [4]),
        ([1, 2, 3, 4], [0]),
        ([0, 1, 3, 4], [2]),
        ([0, 2, 4], [1, 3]),
    ],
)
def test_every_absent_item_is_drawn_equally_often(positives: list[int], absent: list[int]) -> None:
    rows = np.arange(5000)
    users = np.zeros_like(rows)
    indptr = np.array([0, len(positives)])
    drawn = negatives.sample_negatives(
        1, 0, rows, users, indptr, np.array(positives, np.int32), 5, 4
    )
    found, times = np.unique(drawn, return_counts=True)
    assert found.tolist() == absent
    expected = drawn.size / len(absent)
    # Four standard deviations of a binomial count.
    assert abs(times - expected).max() <= 4 * np.sqrt(expected)


def test_a_rows_negatives_do_not_depend_on_what_is_drawn_beside_it() -> None:
    indptr, positives = np.array([0, 2, 5]), np.array([1, 3, 0, 2, 9], dtype=np.int32)
    rows, users = np.array([4, 8, 15]), np.array([0, 1, 0])
    together = negatives.sample_negatives(5, 2, rows, users, indptr, positives, 20, 6)
    alone = negatives.sample_negatives(5, 2, rows[1:2], users[1:2], indptr, positives, 20, 4)
    assert together[1, :4].tolist() == alone[0].tolist()


@given(start=st.integers(0, 100), length=st.integers(0, 100), world=st.integers(1, 17))
def test_shards_are_disjoint_complete_and_differ_by_one_at_most(
    start: int, length: int, world: int
) -> None:
    shards = [epoch_order.rank_shard(start, start + length, rank, world) for rank in range(world)]
    assert [position for first, last in shards for position in range(first, last)] == list(
        range(start, start + length)
    )
    sizes = [last - first for first, last in shards]
    assert max(sizes) - min(sizes) <= 1


def test_looking_at_all_and_searching_by_halves_find_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    random = np.random.default_rng(2)
    lists = [np.sort(random.choice(300, held, replace=False)) for held in (0, 1, 7, 150, 299)]
    positives = np.concatenate(lists).astype(np.int32)
    held = np.array([len(each) for each in lists])
    where = (np.cumsum(held) - held)[:, None], held[:, None]
    sought = np.broadcast_to(np.arange(300), (5, 300))
    seen = []
    for few in (0, 2**30):
        monkeypatch.setattr(negatives, "MAX_COMPARISONS", few)
        before, there = negatives.find_positives(sought, positives, *where)
        absent = negatives.nth_absent(sought, positives, *where)
        seen.append([each.tolist() for each in (before, there, absent)])
    assert seen[0] == seen[1]
    assert seen[0][0][3] == np.searchsorted(lists[3], np.arange(300)).tolist()
