"""Rows split into the arrays of a prepared folder, without ever being in memory as a whole.

What is kept in memory is of the size of the users, and one slice of rows or one part of the pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from hpcncf.ncf.data import negatives
from hpcncf.ncf.data.buckets import SLOTS, buckets
from hpcncf.ncf.data.columns import HUGE_PAGE, Column, Sliced, slices
from hpcncf.ncf.data.context import Layout
from hpcncf.ncf.data.holding import held_out, user_counts
from hpcncf.ncf.data.manifest import DataError
from hpcncf.ncf.data.pairs import Parts
from hpcncf.ncf.data.placing import Placing
from hpcncf.ncf.data.rows import (
    Int32s,
    Int64s,
    Interactions,
    Split,
    distinct_pairs,
    record,
    recorded,
)


@dataclass(frozen=True)
class Counts:
    """What a manifest tells of the arrays beside it."""

    users: int
    items: int
    train_rows: int
    train_pairs: int
    test_rows: int
    context_columns: list[str]
    small_columns: int
    buckets: int
    test_negatives: int


class Arrays:
    """The files of a prepared folder while they are written."""

    def __init__(self, folder: Path, context: Layout, negatives: int, files: ExitStack) -> None:
        self.context, width = context, len(context.names)

        def column(name: str, kind: DTypeLike, *row: int) -> Column:
            return files.enter_context(Column(folder / f"{name}.npy", kind, row, HUGE_PAGE))

        self.train = column("train_rows", record(width - context.small, context.small))
        self.test = [column("test_users", np.int32), column("test_items", np.int32)]
        self.test.append(column("test_context", np.float32, width))
        self.test_negatives = column("test_negatives", np.int32, negatives)
        self.positives_indptr = column("positives_indptr", np.int64)
        self.positives = column("positives", np.int32)
        self.buckets_indptr = column("buckets_indptr", np.int64)
        self.buckets_indptr.append([0])
        self.buckets = column("buckets", np.uint16, SLOTS)

    def append_positives(self, counts: Int64s, positives: Int32s) -> None:
        """Of the next users: how many each has, and all of them."""
        self.positives.append(positives)
        indptr = np.concatenate([[0], np.cumsum(counts)])
        for users in slices(len(counts)):
            own = indptr[users.start : users.stop + 1]
            bounds, table = buckets(own - own[0], positives[own[0] : own[-1]])
            self.buckets_indptr.append(len(self.buckets) + bounds[1:])
            self.buckets.append(table)


def leave_one_out(
    folder: Path,
    rows: Interactions,
    seed: int,
    test_negatives: int,
    times: Sliced | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Counts:
    """Write the arrays: of each user with two rows or more one is for testing, see `held_out`.

    Needs room in `folder` for twice the pairs beside what stays. Raises DataError where a user has
    too few items to draw negatives from.
    """
    say("choosing the test rows")
    counts = user_counts(rows.users, len(rows.user_names))
    held = held_out(rows.users, counts, seed, times)
    if rows.context_columns:
        say("looking for context that fits into bytes")
    context = Layout(rows.context_columns, rows.context)
    with ExitStack() as files:
        arrays = Arrays(folder, context, test_negatives, files)
        parts = Parts(folder, counts, rows.item_count, files)
        train = Placing(folder, arrays.train, len(rows.users) - len(held), files)
        _write_rows(arrays, train, parts, rows, held, say)
        test_users = np.flatnonzero(counts > 1).astype(np.int32)
        _write_pairs(arrays, parts, rows, test_users, seed, say)
        made = _counts(arrays, rows)
    parts.remove()
    return made


def save(folder: Path, split: Split) -> Counts:
    """Write the arrays of what is split already. Raises DataError as `leave_one_out`."""
    train, test = split.train, split.test
    drawn = split.test_negatives
    indptr, positives = distinct_pairs(
        train.users, train.items, len(train.user_names), train.item_count
    )
    _refuse_insatiable(train, indptr)
    context = Layout(train.context_columns, train.context, test.context)
    with ExitStack() as files:
        arrays = Arrays(folder, context, drawn.shape[1], files)
        placing = Placing(folder, arrays.train, len(train), files)
        for part in slices(len(train)):
            told = context.ordered(train.context[part])
            placing.append(recorded(train.users[part], train.items[part], told, context.small))
        placing.finish()
        _append(arrays.test, test.users, test.items, context.ordered(test.context))
        arrays.test_negatives.append(drawn)
        arrays.positives_indptr.append(indptr)
        arrays.append_positives(np.diff(indptr), positives)
        return _counts(arrays, train)


def _write_rows(
    arrays: Arrays,
    train: Placing,
    parts: Parts,
    rows: Interactions,
    held: Int64s,
    say: Callable[[str], None],
) -> None:
    """One sweep; test rows, found in the order of the source, are then written by user."""
    found: list[tuple[Int32s, Int32s, Any]] = []
    length = len(rows.users)
    held_in_order = np.sort(held)
    for part in slices(length):
        say(f"writing rows: {part.start / length:.0%} of {length:,}")
        users, items = rows.users[part], rows.items[part]
        context = arrays.context.ordered(rows.context[part])
        first, last = np.searchsorted(held_in_order, (part.start, part.stop))
        at = held_in_order[first:last] - part.start
        for_testing = np.zeros(len(users), dtype=np.bool_)
        for_testing[at] = True
        train.append(recorded(users, items, context, arrays.context.small)[~for_testing])
        found.append((users[at], items[at], context[at]))
        parts.append(users, items, for_testing)
    say("putting training rows in their places")
    train.finish()
    by_user = np.searchsorted(held_in_order, held)
    _append(arrays.test, *(np.concatenate(each)[by_user] for each in zip(*found, strict=True)))


def _append(columns: list[Column], *blocks: Any) -> None:
    for column, block in zip(columns, blocks, strict=True):
        column.append(block)


def _write_pairs(
    arrays: Arrays,
    parts: Parts,
    rows: Interactions,
    test_users: Int32s,
    seed: int,
    say: Callable[[str], None],
) -> None:
    users = len(rows.user_names)
    trained, seen = np.zeros(users + 1, dtype=np.int64), np.zeros(users + 1, dtype=np.int64)
    for number in range(len(parts.starts)):
        say(f"sorting pairs: part {number + 1} of {len(parts.starts)}")
        every, training = parts.pairs(number)
        parts.seen.append(every % parts.items)
        owners, positives = np.divmod(training, parts.items)
        seen[1:] += np.bincount(every // parts.items, minlength=users)
        counts = np.bincount(owners, minlength=users)
        trained[1:] += counts
        arrays.append_positives(counts[parts.users(number)], positives.astype(np.int32))
    positives_indptr, indptr = np.cumsum(trained), np.cumsum(seen)
    count = arrays.test_negatives.row[0]
    negatives.refuse_too_few(rows.user_names, test_users, indptr, parts.items, count)
    _refuse_insatiable(rows, positives_indptr)
    arrays.positives_indptr.append(positives_indptr)
    each = f"{count} negative{'s' * (count != 1)}"
    say(f"drawing {each} for each of {len(test_users):,} test rows")
    for some in negatives.drawn(test_users, indptr, parts.seen, parts.items, seed, count):
        arrays.test_negatives.append(some)


def _refuse_insatiable(rows: Interactions, indptr: Int64s) -> None:
    everything = np.flatnonzero(np.diff(indptr) == rows.item_count)
    if len(everything):
        raise DataError(
            f"user {rows.user_names[everything[0]]}: has a training row of each of the "
            f"{rows.item_count} items, so that no negative can be drawn: leave the user out"
        )


def _counts(arrays: Arrays, rows: Interactions) -> Counts:
    return Counts(
        users=len(rows.user_names),
        items=rows.item_count,
        train_rows=len(arrays.train),
        train_pairs=len(arrays.positives),
        test_rows=len(arrays.test[0]),
        context_columns=arrays.context.names,
        small_columns=arrays.context.small,
        buckets=len(arrays.buckets),
        test_negatives=arrays.test_negatives.row[0],
    )
