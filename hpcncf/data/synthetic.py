"""Prepare synthetic data of any shape, with structure that a model can learn.

Items fall into clusters; within a cluster and over all items, popularity follows Zipf's law
(1 / rank). Every user likes two clusters, and a row's mood selects the one that its item comes
from; one row in ten has an item from anywhere. The first context column, a number, and the first
one-hot group reveal the mood; the other columns are noise. A training pair may occur several times.
Test pairs are new to their users, except for the few with no such item in eight draws.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.random import Generator, Philox
from numpy.typing import NDArray

from hpcncf.data.arrays import Floats, Int64s, Rows, Split, items_by_user
from hpcncf.data.manifest import WrongRequest
from hpcncf.data.prepare import PreparedFolder, Recipe, check_memory, write_prepared
from hpcncf.data.split import draw_test_negatives, write_split

CLUSTERS: Final = 8
FROM_ALL_ITEMS: Final = 0.1
MAX_ACTIVITY: Final = 3.0
"""Activity of the most active user relative to the median one: every user then leaves enough items
for the test negatives."""
GROUP: Final = 4
"""Width of a one-hot group of the context."""
TRIES: Final = 8
"""Draws of a test item; the first that is new to the user is taken."""


@dataclass(frozen=True)
class Shape:
    users: int
    items: int
    train_rows: int
    context: int
    """Columns: a number, then one-hot groups of four."""


SHAPES: Final = {
    "yelp": Shape(users=215_366, items=95_895, train_rows=3_647_614, context=21),
    "frappe": Shape(users=654, items=1_127, train_rows=83_731, context=21),
    "movielens": Shape(users=6_040, items=3_706, train_rows=994_169, context=0),
}
SHAPE_NAMES: Final = {
    "yelp": "a Yelp extract's",
    "frappe": "Frappe's",
    "movielens": "MovieLens 1M's",
}


def prepare_synthetic(
    folder: Path,
    users: int,
    items: int,
    train_rows: int,
    context: int = 0,
    seed: int = 1,
    test_negatives: int = 99,
    force: bool = False,
    like: str | None = None,
    available_bytes: int | None = None,
) -> PreparedFolder:
    """Prepare synthetic data with exactly these counts, and one test row for each user.

    `like`: the name in SHAPES that the shape comes from. `available_bytes`: memory that the rows
    must fit in; None leaves that unchecked.
    """
    shape, least = Shape(users, items, train_rows, context), max(users, items)
    if min(users, items) < 1 or context < 0:
        raise WrongRequest("synthetic data: needs one user and one item or more, and context >= 0")
    if train_rows < least:
        raise WrongRequest(
            f"synthetic data: {train_rows} rows cannot contain each of {users} users and {items} "
            f"items. Give --rows {least} or more"
        )
    options = asdict(shape) | {"like": like, "seed": seed, "test_negatives": test_negatives}
    suffix = f" of {SHAPE_NAMES[like]} shape (not the real data)" if like else ""
    recipe = Recipe("synthetic", {"name": "hpcncf (generated)"}, options)

    def fill(into: Path) -> dict[str, Any]:
        check_memory("synthetic data", train_rows + users, context, available_bytes)
        return write_split(into, generate(shape, seed, test_negatives))

    return write_prepared(folder, recipe, f"Synthetic data{suffix}", fill, force)


def prepare_synthetic_like(
    folder: Path,
    like: str,
    seed: int = 1,
    test_negatives: int = 99,
    force: bool = False,
) -> PreparedFolder:
    """Prepare synthetic data in the shape of a known data set, a name in SHAPES."""
    shape = asdict(SHAPES[like])
    return prepare_synthetic(
        folder, **shape, seed=seed, test_negatives=test_negatives, force=force, like=like
    )


def generate(shape: Shape, seed: int, test_negatives: int) -> Split:
    draws = Draws(shape, seed)
    owners = draws.owners()
    moods = draws.moods(shape.train_rows)
    items = draws.cover(draws.items(owners, moods))
    train = _rows(shape, owners, items, draws.context(moods))
    test_users = np.arange(shape.users)
    test_moods = draws.moods(shape.users)
    test_items = _first_new(train, [draws.items(test_users, test_moods) for _ in range(TRIES)])
    test = _rows(shape, test_users, test_items, draws.context(test_moods))
    both = _rows(
        shape,
        np.concatenate([owners, test_users]),
        np.concatenate([items, test_items]),
        np.empty((0, 0), dtype=np.float32),
    )
    return Split(train, test, draw_test_negatives(both, test.users, seed, test_negatives))


def _rows(shape: Shape, users: Int64s, items: Int64s, context: Floats) -> Rows:
    names = np.arange(shape.users)
    columns = column_names(shape.context)
    return Rows(
        users.astype(np.int32), items.astype(np.int32), context, columns, names, shape.items
    )


def column_names(context: int) -> list[str]:
    return ["number", *(f"group{i // GROUP}={i % GROUP}" for i in range(context - 1))][:context]


def _first_new(train: Rows, tries: list[Int64s]) -> Int64s:
    """Select for each user the first tried item without a training row, else the last."""
    indptr, positives = items_by_user(train)
    users = np.arange(len(train.user_names), dtype=np.int64)
    pairs = np.repeat(users, np.diff(indptr)) * train.item_count + positives
    chosen = tries[-1]
    for items in reversed(tries[:-1]):
        seen = np.isin(users * train.item_count + items, pairs, assume_unique=True)
        chosen = np.where(seen, chosen, items)
    return chosen


class Draws:
    """All random draws of one data set, in a fixed order from one generator."""

    def __init__(self, shape: Shape, seed: int) -> None:
        self.shape = shape
        self.random = Generator(Philox(seed))
        self.clusters = max(1, min(CLUSTERS, shape.items // GROUP))
        self.by_rank = self.random.permutation(shape.items)
        self.likes = self.random.integers(self.clusters, size=(2, shape.users))
        self.popularity = np.cumsum(1.0 / np.arange(1, shape.items + 1))

    def owners(self) -> Int64s:
        """Draw the user of each training row, sorted.

        Every user has at least one row; the rest is spread unevenly.
        """
        shape = self.shape
        activity = self.random.lognormal(0.0, 1.0, shape.users).clip(max=MAX_ACTIVITY)
        drawn = self._pick(np.cumsum(activity), shape.train_rows - shape.users)
        return np.sort(np.concatenate([np.arange(shape.users), drawn]))

    def moods(self, count: int) -> Int64s:
        return self.random.integers(2, size=count)

    def items(self, users: Int64s, moods: Int64s) -> Int64s:
        """Draw an item for each row from the cluster that the user likes in that mood.

        One row in ten has an item from anywhere. The item of rank r is in cluster r % clusters.
        """
        cluster = self.likes[moods, users]
        smallest = self.shape.items // self.clusters
        within = self._pick(self.popularity[:smallest], len(users))
        ranks = within * self.clusters + cluster
        anywhere = self._pick(self.popularity, len(users))
        stray = self.random.random(len(users)) < FROM_ALL_ITEMS
        return self.by_rank[np.where(stray, anywhere, ranks)]

    def cover(self, items: Int64s) -> Int64s:
        """Give every item at least one row, taken from items with several rows."""
        present, first = np.unique(items, return_index=True)
        missing = np.setdiff1d(np.arange(self.shape.items), present)
        spare = np.ones(len(items), dtype=bool)
        spare[first] = False
        covered = items.copy()
        covered[self.random.permutation(np.flatnonzero(spare))[: len(missing)]] = missing
        return covered

    def context(self, moods: Int64s) -> Floats:
        """Draw the context columns [rows, columns], some of which reveal the mood.

        The number is higher in mood 1, and the half of group 0 tells the mood; the rest is
        noise.
        """
        rows, width = len(moods), self.shape.context
        context = np.zeros((rows, width), dtype=np.float32)
        if width:
            context[:, 0] = (moods + self.random.random(rows)) / 2
        for start in range(1, width, GROUP):
            size = min(GROUP, width - start)
            value = self.random.integers(size, size=rows)
            if start == 1 and size == GROUP:
                value = moods * (GROUP // 2) + value % (GROUP // 2)
            context[np.arange(rows), start + value] = 1
        return context

    def _pick(self, cumulative: NDArray[np.float64], count: int) -> Int64s:
        """Draw `count` indices by weights, given as their running sum."""
        drawn = self.random.random(count) * cumulative[-1]
        found: Int64s = np.searchsorted(cumulative, drawn, side="right")
        return found.clip(max=len(cumulative) - 1)
