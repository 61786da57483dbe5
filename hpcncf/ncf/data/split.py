"""Split interactions into training and test rows, and write the arrays of a prepared folder.

Memory holds arrays of the size of the users, and one slice of rows or one part of the pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hpcncf.errors import plural
from hpcncf.ncf.data.arrays import (
    HUGE_PAGE,
    SLOTS,
    ColumnFile,
    Int32s,
    Int64s,
    Interactions,
    RowPlacer,
    Rows,
    Sliced,
    Split,
    append_by_part,
    build_buckets,
    drop_repeats,
    items_by_user,
    pack_rows,
    row_dtype,
    slices,
    user_counts,
)
from hpcncf.ncf.data.manifest import DataError
from hpcncf.ncf.data.prepared import ContextLayout
from hpcncf.ncf.sampling import HELD_OUT, TEST_NEGATIVES, nth_absent, philox, uniform_below

USERS_AT_ONCE: Final = 1 << 14
PART_ROWS: Final = 1 << 21
"""Pairs that are sorted in memory at once: two hundred MB with temporaries. Each part is an open
file."""

Report = Callable[[str], None]


@dataclass(frozen=True)
class SplitCounts:
    """Sizes of the arrays, for the manifest."""

    users: int
    items: int
    train_rows: int
    train_pairs: int
    test_rows: int
    context_columns: list[str]
    small_columns: int
    buckets: int
    test_negatives: int


def leave_one_out(
    folder: Path,
    rows: Interactions,
    seed: int,
    test_negatives: int,
    times: Sliced | None = None,
    report: Report = lambda _: None,
) -> SplitCounts:
    """Write the arrays, one row of each user with two rows or more for testing.

    While it runs, `folder` must have room for twice the pairs in addition to the arrays. Raises
    DataError if a user has too few items to draw negatives from.
    """
    report("choosing the test rows")
    counts = user_counts(rows.users, len(rows.user_names))
    held = choose_test_rows(rows.users, counts, seed, times)
    if rows.context_columns:
        report("looking for context that fits into bytes")
    context = ContextLayout(rows.context_columns, rows.context)
    with ExitStack() as files:
        arrays = PreparedArrays(folder, context, test_negatives, files)
        parts = PairFiles(folder, counts, rows.item_count, files)
        train = RowPlacer(folder, arrays.train, len(rows.users) - len(held), files)
        _write_rows(arrays, train, parts, rows, held, report)
        test_users = np.flatnonzero(counts > 1).astype(np.int32)
        _write_pairs(arrays, parts, rows, test_users, seed, report)
        written = arrays.counts(rows)
    parts.remove()
    return written


def write_split(folder: Path, split: Split) -> SplitCounts:
    """Write the arrays of rows that are split already. Raises DataError as `leave_one_out`."""
    train, test, negatives = split.train, split.test, split.test_negatives
    indptr, positives = items_by_user(train)
    _check_training_negatives(train, indptr)
    context = ContextLayout(train.context_columns, train.context, test.context)
    with ExitStack() as files:
        arrays = PreparedArrays(folder, context, negatives.shape[1], files)
        placer = RowPlacer(folder, arrays.train, len(train), files)
        for part in slices(len(train)):
            columns = context.ordered(train.context[part])
            placer.append(pack_rows(train.users[part], train.items[part], columns, context.small))
        placer.finish()
        arrays.append_test_rows(test.users, test.items, context.ordered(test.context))
        arrays.test_negatives.append(negatives)
        arrays.positives_indptr.append(indptr)
        arrays.append_positives(np.diff(indptr), positives)
        return arrays.counts(train)


def choose_test_rows(users: Sliced, counts: Int64s, seed: int, times: Sliced | None) -> Int64s:
    """The numbers of the rows held out, by user.

    A user's latest row, of equal times the last; without times a random row, a function of (seed,
    user). A user with a single row keeps it for training.
    """
    if times is None:
        return _random_rows(users, counts, seed)[counts > 1]
    return _latest_rows(users, counts, times)[counts > 1]


def _random_rows(users: Sliced, counts: Int64s, seed: int) -> Int64s:
    chosen = np.zeros_like(counts)  # which of the user's rows, in the order of the source
    for part in slices(len(counts)):
        words = philox(seed, HELD_OUT, 0, np.arange(part.start, part.stop))[:, 0]
        chosen[part] = uniform_below(words, counts[part])
    seen, held = np.zeros_like(counts), np.full(len(counts), -1, dtype=np.int64)
    for part in slices(len(users)):
        mine = users[part]
        order = np.argsort(mine, kind="stable")
        owners = mine[order]
        nth = seen[owners] + np.arange(len(owners)) - np.searchsorted(owners, owners)
        hit = nth == chosen[owners]
        held[owners[hit]] = part.start + order[hit]
        seen += np.bincount(mine, minlength=len(counts))
    return held


def _latest_rows(users: Sliced, counts: Int64s, times: Sliced) -> Int64s:
    held = np.full(len(counts), -1, dtype=np.int64)
    latest: NDArray[Any] = np.zeros(len(counts), dtype=times[:0].dtype)
    for part in slices(len(users)):
        mine, when = users[part], times[part]
        order = np.lexsort((when, mine))
        owners = mine[order]
        last = order[np.append(owners[1:] != owners[:-1], True)]
        newer = (held[mine[last]] < 0) | (when[last] >= latest[mine[last]])
        rows = last[newer]
        held[mine[rows]], latest[mine[rows]] = part.start + rows, when[rows]
    return held


def draw_test_negatives(rows: Rows, users: Int32s, seed: int, count: int) -> Int32s:
    """[users, count]: test negatives from rows in memory. Raises DataError if a user has too
    few."""
    indptr, items = items_by_user(rows)
    _check_test_negatives(rows.user_names, users, indptr, rows.item_count, count)
    none = np.empty((0, count), dtype=np.int32)
    return np.concatenate(
        [none, *draw_negative_slices(users, indptr, items, rows.item_count, seed, count)]
    )


def draw_negative_slices(
    users: Int32s, indptr: Int64s, items: Sliced, item_count: int, seed: int, count: int
) -> Iterator[Int32s]:
    """[users, count], slice by slice: distinct items without a row of the user; `users` ascend.

    User u's items are items[indptr[u] : indptr[u + 1]]. The draw is a function of (seed, user).
    """
    for part in slices(len(users), USERS_AT_ONCE):
        some = users[part]
        first, last = indptr[some], indptr[some + 1]
        nth = _distinct_below(item_count - (last - first), some, seed, count)
        own = items[int(first[0]) : int(last[-1])]
        absent = nth_absent(nth, own, (first - first[0])[:, None], (last - first)[:, None])
        yield absent.astype(np.int32)


def _distinct_below(bounds: Int64s, users: Int32s, seed: int, count: int) -> Int64s:
    """`count` distinct integers below each bound, all sets equally likely (Floyd; Bentley 1987)."""
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
    """Raises DataError if fewer than `count` items have no row of a tested user."""
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


def _check_training_negatives(rows: Interactions, indptr: Int64s) -> None:
    everything = np.flatnonzero(np.diff(indptr) == rows.item_count)
    if len(everything):
        raise DataError(
            f"user {rows.user_names[everything[0]]}: has a training row of each of the "
            f"{rows.item_count} items, so that no negative can be drawn. Leave the user out"
        )


class PairFiles:
    """User-item pairs in files, one for each range of users whose rows can be sorted in memory.

    A pair is user * items + item, stored doubled, plus 1 for a test row.
    """

    def __init__(self, folder: Path, counts: Int64s, items: int, files: ExitStack) -> None:
        before = np.cumsum(counts) - counts
        part = before // PART_ROWS
        self.starts = np.flatnonzero(np.diff(part, prepend=-1))
        """The first user of each."""
        self._ends = np.append(self.starts[1:], len(counts))
        self.items = items
        self._files = [
            files.enter_context(ColumnFile(folder / f".pairs-{number}", np.int64))
            for number in range(len(self.starts))
        ]
        self.seen = files.enter_context(ColumnFile(folder / ".seen", np.int32))

    def append(self, users: Int32s, items: Int32s, for_testing: Any) -> None:
        pairs = (users.astype(np.int64) * self.items + items) * 2 + for_testing
        append_by_part(pairs, np.searchsorted(self.starts, users, side="right") - 1, self._files)

    def users(self, number: int) -> slice:
        """The users of one part, including those without pairs: parts cover all users in order."""
        return slice(self.starts[number], self._ends[number])

    def pairs(self, number: int) -> tuple[Int64s, Int64s]:
        """The distinct pairs of all rows of one part, and those of its training rows."""
        marked = np.sort(self._files[number][:])
        return drop_repeats(marked >> 1), drop_repeats(marked[marked & 1 == 0] >> 1)

    def remove(self) -> None:
        for file in (*self._files, self.seen):
            file.path.unlink()


class PreparedArrays:
    """The files of a prepared folder while they are written."""

    def __init__(
        self, folder: Path, context: ContextLayout, negatives: int, files: ExitStack
    ) -> None:
        self.context, width = context, len(context.names)

        def column(name: str, kind: DTypeLike, *row: int) -> ColumnFile:
            return files.enter_context(ColumnFile(folder / f"{name}.npy", kind, row, HUGE_PAGE))

        self.train = column("train_rows", row_dtype(width - context.small, context.small))
        self.test_users = column("test_users", np.int32)
        self.test_items = column("test_items", np.int32)
        self.test_context = column("test_context", np.float32, width)
        self.test_negatives = column("test_negatives", np.int32, negatives)
        self.positives_indptr = column("positives_indptr", np.int64)
        self.positives = column("positives", np.int32)
        self.buckets_indptr = column("buckets_indptr", np.int64)
        self.buckets_indptr.append([0])
        self.buckets = column("buckets", np.uint16, SLOTS)

    def append_test_rows(self, users: Any, items: Any, context: Any) -> None:
        self.test_users.append(users)
        self.test_items.append(items)
        self.test_context.append(context)

    def append_positives(self, counts: Int64s, positives: Int32s) -> None:
        """Add the next users: each one's number of positives, and the positives of all."""
        self.positives.append(positives)
        indptr = np.concatenate([[0], np.cumsum(counts)])
        for users in slices(len(counts)):
            own = indptr[users.start : users.stop + 1]
            bounds, table = build_buckets(own - own[0], positives[own[0] : own[-1]])
            self.buckets_indptr.append(len(self.buckets) + bounds[1:])
            self.buckets.append(table)

    def counts(self, rows: Interactions) -> SplitCounts:
        return SplitCounts(
            users=len(rows.user_names),
            items=rows.item_count,
            train_rows=len(self.train),
            train_pairs=len(self.positives),
            test_rows=len(self.test_users),
            context_columns=self.context.names,
            small_columns=self.context.small,
            buckets=len(self.buckets),
            test_negatives=self.test_negatives.row[0],
        )


def _write_rows(
    arrays: PreparedArrays,
    train: RowPlacer,
    parts: PairFiles,
    rows: Interactions,
    held: Int64s,
    report: Report,
) -> None:
    """In one sweep; test rows are found in the order of the source, and then written by user."""
    found: list[tuple[Int32s, Int32s, Any]] = []
    length = len(rows.users)
    held_in_order = np.sort(held)
    for part in slices(length):
        report(f"writing rows: {part.start / length:.0%} of {length:,}")
        users, items = rows.users[part], rows.items[part]
        context = arrays.context.ordered(rows.context[part])
        first, last = np.searchsorted(held_in_order, (part.start, part.stop))
        at = held_in_order[first:last] - part.start
        for_testing = np.zeros(len(users), dtype=np.bool_)
        for_testing[at] = True
        train.append(pack_rows(users, items, context, arrays.context.small)[~for_testing])
        found.append((users[at], items[at], context[at]))
        parts.append(users, items, for_testing)
    report("putting training rows in their places")
    train.finish()
    by_user = np.searchsorted(held_in_order, held)
    arrays.append_test_rows(*(np.concatenate(each)[by_user] for each in zip(*found, strict=True)))


def _write_pairs(
    arrays: PreparedArrays,
    parts: PairFiles,
    rows: Interactions,
    test_users: Int32s,
    seed: int,
    report: Report,
) -> None:
    users = len(rows.user_names)
    trained, seen = np.zeros(users + 1, dtype=np.int64), np.zeros(users + 1, dtype=np.int64)
    for number in range(len(parts.starts)):
        report(f"sorting pairs: part {number + 1} of {len(parts.starts)}")
        every, training = parts.pairs(number)
        parts.seen.append(every % parts.items)
        owners, positives = np.divmod(training, parts.items)
        seen[1:] += np.bincount(every // parts.items, minlength=users)
        counts = np.bincount(owners, minlength=users)
        trained[1:] += counts
        arrays.append_positives(counts[parts.users(number)], positives.astype(np.int32))
    positives_indptr, indptr = np.cumsum(trained), np.cumsum(seen)
    count = arrays.test_negatives.row[0]
    _check_test_negatives(rows.user_names, test_users, indptr, parts.items, count)
    _check_training_negatives(rows, positives_indptr)
    arrays.positives_indptr.append(positives_indptr)
    each = plural(count, "negative")
    report(f"drawing {each} for each of {len(test_users):,} test rows")
    for some in draw_negative_slices(test_users, indptr, parts.seen, parts.items, seed, count):
        arrays.test_negatives.append(some)
