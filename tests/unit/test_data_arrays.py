"""Rows of training data, and buckets of positives: nothing is lost, and few are needed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hpcncf.data.arrays import bucket_of, build_buckets, possible_positives
from hpcncf.data.manifest import SLOTS

ITEMS = 100_000
RANDOM = np.random.default_rng(3)

# Of one user each.
LISTS = {
    "none": [],
    "one": [99_999],
    "as many as slots": range(SLOTS),
    "one more": range(SLOTS + 1),
    "one after another": range(70_000, 80_000),
    "the same low bits": range(0, ITEMS, 2**12),
    "every 32nd": range(0, ITEMS, 32),
    "anywhere": sorted(RANDOM.choice(ITEMS, 5_000, replace=False).tolist()),
    "all but one": range(1, ITEMS),
}


def listed(lists: list[list[int]]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    indptr = np.concatenate([[0], np.cumsum([len(each) for each in lists], dtype=np.int64)])
    return indptr, np.array([item for each in lists for item in each], dtype=np.int32)


def check(lists: list[list[int]]) -> None:
    """Each bucket has the low bits of the user's items that belong there, and else zeros."""
    bounds, table = build_buckets(*listed(lists))
    assert bounds[0] == 0
    assert len(bounds) == len(lists) + 1
    assert table.shape == (bounds[-1], SLOTS)
    for user, items in enumerate(lists):
        mine = table[bounds[user] : bounds[user + 1]]
        assert len(mine) >= 1
        own = np.array(items, dtype=np.int32)
        at = bucket_of(own, np.full(len(own), len(mine)))
        for number, slots in enumerate(mine):
            there = (own[at == number] & 0xFFFF).tolist()
            assert slots.tolist() == there + [0] * (SLOTS - len(there))


@pytest.mark.parametrize("items", LISTS.values(), ids=LISTS)
def test_every_positive_is_in_its_bucket(items: list[int]) -> None:
    check([list(items)])
    assert len(build_buckets(*listed([list(items)]))[1]) <= 1 + len(items) // 12


def test_items_that_lie_badly_take_no_more_than_there_is_room_for() -> None:
    """Those whose hashes follow one another."""
    everything = np.arange(ITEMS, dtype=np.int32)
    together = np.argsort(bucket_of(everything, np.full(ITEMS, 2**32)))[: SLOTS + 1]
    for items in (sorted(together.tolist()), list(range(0, ITEMS, 2_584))):
        check([items])
        assert len(build_buckets(*listed([items]))[1]) <= ITEMS // 15


@given(st.lists(st.sets(st.integers(0, 200_000), max_size=90).map(sorted), min_size=1, max_size=8))
def test_users_have_their_own(lists: list[list[int]]) -> None:
    check(lists)


def test_every_positive_is_suspected_and_hardly_anything_else() -> None:
    lists = [list(each) for each in LISTS.values()]
    bounds, table = build_buckets(*listed(lists))
    users = np.arange(len(lists)).repeat(1_000)
    drawn = RANDOM.integers(0, ITEMS, (len(users), 4))
    drawn[::100, 0] = 0
    found = np.zeros(drawn.size, dtype=np.bool_)
    found[possible_positives(bounds, table, users, drawn)] = True
    held = np.concatenate([np.isin(drawn[users == n], each) for n, each in enumerate(lists)])
    assert found[held.reshape(-1)].all()
    assert found[~held.reshape(-1) & (drawn.reshape(-1) > 0)].mean() < 0.001
