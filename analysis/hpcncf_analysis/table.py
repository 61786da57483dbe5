"""A table of ready texts, told apart from how a page shows it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from hpcncf_analysis import words


@dataclass(frozen=True)
class Table:
    """A heading for each column, then rows as wide; the first column is text.

    Headings `group: name` of neighbours belong together.
    """

    columns: list[str]
    rows: list[list[str]]
    texts: frozenset[str] = frozenset()
    """The other columns of text, not of figures."""
    keys: Sequence[Sequence[float | None]] = ()
    """[row][column] what a column of figures is sorted by, where its texts do not tell."""

    @property
    def groups(self) -> list[tuple[str, int]]:
        """Each group's heading and how many columns it spans; a column of none is its own."""
        named = [(self._parts(name)[0], name) for name in self.columns]
        runs = groupby(named, key=lambda pair: pair[0] or pair[1])
        counted = [(group, [name for _, name in members]) for group, members in runs]
        return [(group if ": " in names[0] else "", len(names)) for group, names in counted]

    @property
    def names(self) -> list[str]:
        """The headings without their groups."""
        return [self._parts(name)[1] for name in self.columns]

    @property
    def wraps(self) -> bool:
        """Whether its last column is prose."""
        return self.columns[-1] in self.texts

    @property
    def told(self) -> Table:
        """The same without columns that say nothing of any row."""
        kept = [
            at
            for at in range(len(self.columns))
            if not at or any(row[at] not in ("", words.NONE) for row in self.rows)
        ]
        return replace(
            self,
            columns=[self.columns[at] for at in kept],
            rows=[[row[at] for at in kept] for row in self.rows],
            keys=[[row[at] for at in kept] for row in self.keys],
        )

    def key(self, row: int, column: int) -> float | None:
        return self.keys[row][column] if self.keys else None

    @staticmethod
    def _parts(column: str) -> tuple[str, str]:
        group, _, name = column.rpartition(": ")
        return group, name
