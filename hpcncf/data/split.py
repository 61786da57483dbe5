"""Split interactions into training and test rows, and write the arrays of a prepared folder.

Memory holds arrays of the size of the users, one block of rows and one part of the pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final, Self

import numpy as np
from numpy.lib import format as npy
from numpy.typing import DTypeLike, NDArray

from hpcncf.data.arrays import (
    Floats,
    Int32s,
    Int64s,
    Rows,
    Split,
    build_buckets,
    items_by_user,
    pack_rows,
    row_dtype,
)
from hpcncf.data.manifest import SLOTS, DataError
from hpcncf.data.sampling import (
    HELD_OUT,
    TEST_NEGATIVES,
    nth_absent,
    philox,
    storage_order,
    uniform_below,
)

USERS_AT_ONCE: Final = 1 << 14
PART_PAIRS: Final = 1 << 21
"""Pairs that are sorted in memory at once: a hundred MB with temporaries."""
PART_BYTES: Final = 1 << 26
"""Training rows that are ordered in memory at once."""


Draw = Callable[[Int32s, Int64s, Int32s], Int32s]
"""Draws negatives of users, from all users' items by their bounds."""


@dataclass(frozen=True)
class RowBlock:
    """Some rows, in the order of their source; ids of users and items from 0."""

    users: Int32s
    items: Int32s
    context: Floats
    """[rows, columns]"""
    times: NDArray[Any] | None = None


@dataclass(frozen=True)
class Interactions:
    """All rows of a source, block by block: they may be larger than memory."""

    blocks: Callable[[], Iterable[RowBlock]]
    counts: Int64s
    """[users]: each user's number of rows."""
    user_names: Any
    """The source's name of each user, for messages."""
    item_count: int
    context_columns: list[str]
    small: list[bool]
    """For each column whether `fits_a_byte` holds for all rows."""


def leave_one_out(
    folder: Path, source: Interactions, seed: int, test_negatives: int
) -> dict[str, Any]:
    """Split a source's rows and write the arrays; returns the manifest's counts by name.

    One row of each user with two rows or more is held out for testing.

    While it runs, `folder` must have room for twice the arrays. Raises DataError if a user has too
    few items to draw negatives from.
    """
    held = choose_test_rows(source, seed)

    def marked() -> Iterator[tuple[RowBlock, NDArray[np.bool_]]]:
        start = 0
        for block in source.blocks():
            numbers = np.arange(start, start + len(block.users))
            yield block, held[block.users] == numbers
            start += len(block.users)

    def draw(tested: Int32s, indptr: Int64s, items: Int32s) -> Int32s:
        _check_test_negatives(source.user_names, tested, indptr, source.item_count, test_negatives)
        return _draw_negatives(tested, indptr, items, source.item_count, seed, test_negatives)

    return _write_arrays(folder, source, marked(), test_negatives, draw)


def write_split(folder: Path, split: Split) -> dict[str, Any]:
    """Write the arrays of rows that are already split; returns the manifest's counts by name.

    Raises DataError if a user has all items.
    """
    train, test = split.train, split.test
    columns = zip(train.context.T, test.context.T, strict=True)
    source = Interactions(
        blocks=list,
        counts=np.bincount(train.users, minlength=len(train.user_names)),
        user_names=train.user_names,
        item_count=train.item_count,
        context_columns=train.context_columns,
        small=[fits_a_byte(of_train) and fits_a_byte(of_test) for of_train, of_test in columns],
    )
    marked = [
        (RowBlock(rows.users, rows.items, rows.context), np.full(len(rows), for_testing))
        for rows, for_testing in ((train, False), (test, True))
    ]
    sizes = _write_arrays(folder, source, marked, split.test_negatives.shape[1], None)
    with ArrayFile(folder, "test_negatives", np.int32, split.test_negatives.shape[1]) as file:
        file.append(split.test_negatives)
    return sizes


def choose_test_rows(source: Interactions, seed: int) -> Int64s:
    """Choose the row of each user that is held out: row numbers [users], -1 for none.

    A user's latest row, of equal times the last; without times a random row, a function of (seed,
    user). A user with a single row keeps it for training.
    """
    counts, start = source.counts, 0
    held, seen = np.full(len(counts), -1, dtype=np.int64), np.zeros_like(counts)
    latest = np.zeros(len(counts), dtype=np.float64)
    chosen = uniform_below(philox(seed, HELD_OUT, 0, np.arange(len(counts)))[:, 0], counts)
    for block in source.blocks():
        if block.times is None:
            order = np.argsort(block.users, kind="stable")
            owners = block.users[order]
            nth = seen[owners] + np.arange(len(owners)) - np.searchsorted(owners, owners)
            rows = order[nth == chosen[owners]]
            seen += np.bincount(block.users, minlength=len(counts))
        else:
            latest = latest.astype(block.times.dtype)
            order = np.lexsort((block.times, block.users))
            owners = block.users[order]
            rows = order[np.append(owners[1:] != owners[:-1], True)]
            owners, times = block.users[rows], block.times[rows]
            newer = (held[owners] < 0) | (times >= latest[owners])
            rows = rows[newer]
            latest[block.users[rows]] = block.times[rows]
        held[block.users[rows]] = start + rows
        start += len(block.users)
    held[counts < 2] = -1
    return held


def draw_test_negatives(rows: Rows, users: Int32s, seed: int, count: int) -> Int32s:
    """Draw distinct items [users, count] that have no row of the user.

    `users` must ascend.

    The draw is a function of (seed, user). Raises DataError if a user has too few such items.
    """
    indptr, items = items_by_user(rows)
    _check_test_negatives(rows.user_names, users, indptr, rows.item_count, count)
    return _draw_negatives(users, indptr, items, rows.item_count, seed, count)


def _draw_negatives(
    users: Int32s, indptr: Int64s, items: Int32s, item_count: int, seed: int, count: int
) -> Int32s:
    """Draw `count` distinct negatives of each user.

    User u's items are items[indptr[u] : indptr[u + 1]].
    """
    first, held = indptr[users], np.diff(indptr)[users]
    drawn = np.empty((len(users), count), dtype=np.int32)
    for start in range(0, len(users), USERS_AT_ONCE):
        some = slice(start, start + USERS_AT_ONCE)
        nth = _distinct_below(item_count - held[some], users[some], seed, count)
        drawn[some] = nth_absent(nth, items, first[some, None], held[some, None])
    return drawn


def _distinct_below(bounds: Int64s, users: Int32s, seed: int, count: int) -> Int64s:
    """Draw `count` distinct integers below each bound, all sets equally likely.

    The method is Floyd's (Bentley 1987).
    """
    words = philox(seed, TEST_NEGATIVES, 0, users.astype(np.int64), -(-count // 4))
    chosen = np.empty((len(users), count), dtype=np.int64)
    for step in range(count):
        top = bounds - count + step
        pick = uniform_below(words[:, step], top + 1)
        taken = (chosen[:, :step] == pick[:, None]).any(axis=1)
        chosen[:, step] = np.where(taken, top, pick)
    return chosen


def _check_test_negatives(
    user_names: Any, users: Int32s, indptr: Int64s, item_count: int, count: int
) -> None:
    """Check that each tested user has enough items without a row. Raises DataError if not."""
    candidates = item_count - np.diff(indptr)[users]
    if not len(users) or candidates.min() >= count:
        return
    worst = int(candidates.argmin())
    user, fewest = f"user {user_names[users[worst]]}", candidates[worst]
    if not fewest:
        raise DataError(
            f"{user}: has a row of each of the {item_count} items, so that no test negative can be "
            "drawn. Leave the user out"
        )
    raise DataError(
        f"{user}: needs {count} test negatives, but only {fewest} of the {item_count} items have "
        f"no row of this user. Give --test-negatives {fewest} or fewer"
    )


def _write_arrays(
    folder: Path,
    source: Interactions,
    marked: Iterable[tuple[RowBlock, NDArray[np.bool_]]],
    negatives: int,
    draw: Draw | None,
) -> dict[str, Any]:
    """Write the blocks' arrays; returns the manifest's counts by name.

    Each block comes with a mask of its test rows. With `draw` test rows are sorted by user and
    their negatives are drawn.
    """
    with ExitStack() as files:
        writer = SplitWriter(folder, source, negatives, draw, files)
        test_users = writer.write_rows(marked)
        writer.write_pairs(test_users)
        return writer.sizes()


class SplitWriter:
    """Writes the arrays: rows go to files of parts first, which are then ordered in memory."""

    def __init__(
        self,
        folder: Path,
        source: Interactions,
        negatives: int,
        draw: Draw | None,
        files: ExitStack,
    ) -> None:
        self._source, self._draw, self._negatives = source, draw, negatives
        # Columns of whole numbers from 0 to 255, such as those of one-hot columns, come last.
        self._order, self._small = np.argsort(source.small, kind="stable"), sum(source.small)
        columns = len(source.small)
        kind = row_dtype(columns - self._small, self._small)
        self._train_rows = int(source.counts.sum())
        if draw:
            self._train_rows -= int((source.counts > 1).sum())
        self._placed = np.dtype([("place", np.int64), ("row", kind)])
        self._rows_of_part = max(1, PART_BYTES // self._placed.itemsize)
        parts = -(-self._train_rows // self._rows_of_part)
        self._placed_rows = PartFiles(folder, self._placed, parts, files)
        # Each part has the pairs of some users that follow one another, from these on.
        part_of = (np.cumsum(source.counts) - source.counts) // PART_PAIRS
        self._first_users = np.flatnonzero(np.diff(part_of, prepend=-1))
        # A pair is user * items + item, doubled, plus 1 for a test row.
        self._pairs = PartFiles(folder, np.int64, len(self._first_users), files)

        def array(name: str, kind: DTypeLike, *row: int) -> ArrayFile:
            return files.enter_context(ArrayFile(folder, name, kind, *row))

        self._train = array("train_rows", kind)
        self._test_users, self._test_items = (
            array(name, np.int32) for name in ("test_users", "test_items")
        )
        self._test_context = array("test_context", np.float32, columns)
        self._drawn = array("test_negatives", np.int32, negatives) if draw else None
        self._positives = array("positives", np.int32)
        self._buckets = array("buckets", np.uint16, SLOTS)
        self._positives_indptr, self._buckets_indptr = (
            array(name, np.int64) for name in ("positives_indptr", "buckets_indptr")
        )

    def write_rows(self, marked: Iterable[tuple[RowBlock, NDArray[np.bool_]]]) -> Int32s:
        """Write training and test rows; returns the users of the test rows.

        All pairs are kept for `write_pairs`.
        """
        came, tests = 0, list[tuple[Int32s, Int32s, Floats]]()
        for block, for_testing in marked:
            context = block.context[:, self._order]
            rows = pack_rows(block.users, block.items, context, self._small)[~for_testing]
            placed = np.empty(len(rows), self._placed)
            placed["place"] = storage_order(came, came + len(rows), self._train_rows)
            placed["row"] = rows
            self._placed_rows.append(placed, placed["place"] // self._rows_of_part)
            came += len(rows)
            pairs = block.users.astype(np.int64) * self._source.item_count + block.items
            parts = np.searchsorted(self._first_users, block.users, side="right") - 1
            self._pairs.append(pairs * 2 + for_testing, parts)
            tests.append((block.users[for_testing], block.items[for_testing], context[for_testing]))
        for placed in self._placed_rows.read():
            rows = np.empty_like(placed["row"])
            rows[placed["place"] % self._rows_of_part] = placed["row"]
            self._train.append(rows)
        users, items, context = map(np.concatenate, zip(*tests, strict=True))
        order = np.argsort(users, kind="stable") if self._draw else slice(None)
        self._test_users.append(users[order])
        self._test_items.append(items[order])
        self._test_context.append(context[order])
        test_users: Int32s = users[order]
        return test_users

    def write_pairs(self, test_users: Int32s) -> None:
        """Write all users' positives and buckets, and draw the test negatives."""
        users, items = len(self._source.user_names), self._source.item_count
        indptr, buckets_indptr = np.zeros((2, users + 1), dtype=np.int64)
        ends = np.append(self._first_users[1:], users)
        for first, end, marks in zip(self._first_users, ends, self._pairs.read(), strict=True):
            marks.sort()
            own_users = np.arange(first, end + 1) * items
            if self._drawn is not None and self._draw is not None:
                every = _distinct(marks >> 1)
                bounds = np.zeros(users + 1, dtype=np.int64)
                bounds[first : end + 1] = np.searchsorted(every, own_users)
                bounds[end + 1 :] = len(every)
                some = test_users[slice(*np.searchsorted(test_users, (first, end)))]
                self._drawn.append(self._draw(some, bounds, (every % items).astype(np.int32)))
            training = _distinct(marks[marks & 1 == 0] >> 1)
            own = np.searchsorted(training, own_users)
            _check_training_negatives(self._source, int(first), np.diff(own))
            positives = (training % items).astype(np.int32)
            bucket_bounds, buckets = build_buckets(own, positives)
            indptr[first : end + 1] = own + len(self._positives)
            buckets_indptr[first : end + 1] = bucket_bounds + len(self._buckets)
            self._positives.append(positives)
            self._buckets.append(buckets)
        self._positives_indptr.append(indptr)
        self._buckets_indptr.append(buckets_indptr)

    def sizes(self) -> dict[str, Any]:
        """Counts of the written arrays, by their names in the manifest."""
        names = self._source.context_columns
        return {
            "users": len(self._source.user_names),
            "items": self._source.item_count,
            "train_rows": self._train_rows,
            "train_pairs": len(self._positives),
            "test_rows": len(self._test_users),
            "context_columns": [names[column] for column in self._order],
            "small_columns": self._small,
            "buckets": len(self._buckets),
            "test_negatives": self._negatives,
        }


def _distinct(values: Int64s) -> Int64s:
    """Drop repeated values from sorted ones.

    np.unique would build a hash table several times as large.
    """
    return values[np.diff(values, prepend=-1) > 0]


def _check_training_negatives(source: Interactions, first: int, held: Int64s) -> None:
    everything = np.flatnonzero(held == source.item_count)
    if len(everything):
        raise DataError(
            f"user {source.user_names[first + everything[0]]}: has a training row of each of the "
            f"{source.item_count} items, so that no negative can be drawn. Leave the user out"
        )


def fits_a_byte(values: Floats) -> bool:
    """Whether all values survive the conversion to a byte and back bit by bit; -0 does not."""
    with np.errstate(invalid="ignore"):  # values outside of 0 to 255 become any byte
        back = values.astype(np.uint8).astype(np.float32)
    return np.array_equal(values.view(np.uint32), back.view(np.uint32))


class ArrayFile:
    """An array of a prepared folder, written row by row."""

    def __init__(self, folder: Path, name: str, kind: DTypeLike, *row: int) -> None:
        """Open the file NAME.npy; `row` is the shape of one row."""
        self._kind, self._row, self._length = np.dtype(kind), row, 0
        self._file = (folder / f"{name}.npy").open("wb")
        self._write_header()

    def append(self, rows: NDArray[Any]) -> None:
        self._file.write(np.ascontiguousarray(rows, dtype=self._kind).data)
        self._length += len(rows)

    def __len__(self) -> int:
        return self._length

    def _write_header(self) -> None:
        """Write the .npy header for the rows so far.

        numpy leaves room for a first axis of any length, so that the header can be written
        again.
        """
        shape = (self._length, *self._row)
        header = {"descr": npy.dtype_to_descr(self._kind), "fortran_order": False, "shape": shape}
        npy.write_array_header_1_0(self._file, header)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._file:
            self._file.seek(0)
            self._write_header()


class PartFiles:
    """Values in temporary files, one for each part of them that fits into memory."""

    def __init__(self, folder: Path, kind: DTypeLike, parts: int, files: ExitStack) -> None:
        self._kind = np.dtype(kind)
        opened = (TemporaryFile(dir=folder) for _ in range(parts))  # noqa: SIM115  by the stack
        self._files = [files.enter_context(each) for each in opened]

    def append(self, values: NDArray[Any], parts: Int64s) -> None:
        order = np.argsort(parts, kind="stable")
        ends = np.cumsum(np.bincount(parts, minlength=len(self._files)))[:-1]
        for file, some in zip(self._files, np.split(values[order], ends), strict=True):
            file.write(some.data)

    def read(self) -> Iterator[NDArray[Any]]:
        """Yield the values of each part, in the order in which they were appended."""
        for file in self._files:
            file.seek(0)
            yield np.fromfile(file, self._kind)
            file.truncate(0)
