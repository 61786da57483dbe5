"""User-item pairs sorted by parts: ranges of users whose rows together can be sorted in memory."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import numpy as np

from hpcncf.ncf.data.columns import Column, spread
from hpcncf.ncf.data.rows import Int32s, Int64s, distinct

PART_ROWS: Final = 1 << 21
"""Rows sorted at once: two hundred MB with what is made of them. Each part is an open file."""


class Parts:
    """Pairs in files, one for each range of users, each pair with whether its row is for testing.

    A pair is user * items + item, twice that with 1 for testing.
    """

    def __init__(self, folder: Path, counts: Int64s, items: int, files: ExitStack) -> None:
        before = np.cumsum(counts) - counts
        part = before // PART_ROWS
        self.starts = np.flatnonzero(np.diff(part, prepend=-1))
        """The first user of each."""
        self._ends = np.append(self.starts[1:], len(counts))
        self.items = items
        self._files = [
            files.enter_context(Column(folder / f".pairs-{number}", np.int64))
            for number in range(len(self.starts))
        ]
        self.seen = files.enter_context(Column(folder / ".seen", np.int32))

    def append(self, users: Int32s, items: Int32s, for_testing: Any) -> None:
        pairs = (users.astype(np.int64) * self.items + items) * 2 + for_testing
        spread(pairs, np.searchsorted(self.starts, users, side="right") - 1, self._files)

    def users(self, number: int) -> slice:
        """Of one part, those without pairs, too: parts have every user once, in order."""
        return slice(self.starts[number], self._ends[number])

    def pairs(self, number: int) -> tuple[Int64s, Int64s]:
        """Of one part, the distinct pairs of all rows, and those of training rows."""
        marked = np.sort(self._files[number][:])
        return distinct(marked >> 1), distinct(marked[marked & 1 == 0] >> 1)

    def remove(self) -> None:
        for file in (*self._files, self.seen):
            file.path.unlink()
