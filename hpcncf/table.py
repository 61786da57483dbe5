"""Tables of text, laid out for a terminal, Markdown or a page."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, zip_longest
from typing import ClassVar, Final

from hpcncf.errors import printable

NONE: Final = "–"
"""Stands where a value is not known."""
MIN_LAST_WIDTH: Final = 36
MIN_WIDEST_WIDTH: Final = 20


@dataclass(frozen=True)
class Table:
    """A table with a heading for each column and rows of the same width; the first column is text.

    Headings `group: name` of neighbours belong together.
    """

    kind: ClassVar[str] = "table"
    columns: list[str]
    rows: list[list[str]]
    texts: frozenset[str] = frozenset()
    """The other columns of text, not of figures."""
    keys: Sequence[Sequence[float | None]] = ()
    """[row][column] what a column of figures is sorted by, if its texts do not sort."""
    title: str = ""
    sortable: bool = False
    """Whether a click on a heading sorts it in a browser."""
    max_markdown_rows: int = 20
    """GitHub takes 65,536 characters."""

    @property
    def groups(self) -> list[tuple[str, int]]:
        """Heading and number of columns of each group; an ungrouped column is one by itself."""
        parts = [column.rpartition(": ") for column in self.columns]
        runs = groupby(parts, key=lambda part: part[0] or part[2])
        members = [list(run) for _, run in runs]
        return [(run[0][0], len(run)) for run in members]

    @property
    def names(self) -> list[str]:
        """Headings of the columns, without those of their groups."""
        return [column.rpartition(": ")[2] for column in self.columns]

    @property
    def wraps(self) -> bool:
        """Whether the last column is prose, whose lines may wrap."""
        return self.columns[-1] in self.texts

    @property
    def without_empty_columns(self) -> Table:
        """Copy of the table without columns that are empty in every row."""
        kept = [
            at
            for at in range(len(self.columns))
            if not at or any(row[at] not in ("", NONE) for row in self.rows)
        ]
        return replace(
            self,
            columns=[self.columns[at] for at in kept],
            rows=[[row[at] for at in kept] for row in self.rows],
            keys=[[row[at] for at in kept] for row in self.keys],
        )

    def layout(self, width: int) -> str:
        """Format the table for a terminal; in a narrow one, the last and widest columns wrap."""
        rows = [[printable(cell) for cell in row] for row in self.rows]
        natural = [max(map(len, column)) for column in zip(self.columns, *rows, strict=True)]
        widths = _fitted(natural, width - 2 * (len(self.columns) - 1))
        return "\n".join(line for row in [self.columns, *rows] for line in _wrapped(widths, row))

    def markdown(self) -> str:
        """Format the table as GitHub's Markdown, with a note if rows are left out."""
        marks = [
            "---" if at == 0 or name in self.texts else "---:"
            for at, name in enumerate(self.columns)
        ]
        shown = [self.columns, *self.rows[: self.max_markdown_rows]]
        lines = [f"| {' | '.join(map(escape_markdown, row))} |" for row in shown]
        text = "\n".join([lines[0], f"|{'|'.join(marks)}|", *lines[1:]])
        hidden = len(self.rows) - self.max_markdown_rows
        return f"{text}\n\n*{hidden} more rows stand in report.html.*" if hidden > 0 else text

    def key(self, row: int, column: int) -> float | None:
        return self.keys[row][column] if self.keys else None


def _fitted(natural: Sequence[int], room: int) -> list[int]:
    """Fit column widths into `room`, by narrowing the last column and the widest other one."""
    *others, last = natural
    if not others:
        return [min(last, room)]
    widest = max(range(len(others)), key=others.__getitem__)
    spare = room - min(last, MIN_LAST_WIDTH) - (sum(others) - others[widest])
    others[widest] = min(others[widest], max(spare, MIN_WIDEST_WIDTH))
    return [*others, max(room - sum(others), MIN_LAST_WIDTH // 2)]


def _wrapped(widths: Sequence[int], row: Sequence[str]) -> list[str]:
    cells = [
        textwrap.wrap(cell, wide or 1, break_on_hyphens=False)
        for cell, wide in zip(row, widths, strict=True)
    ]
    lines = zip_longest(*cells, fillvalue="") if any(cells) else [("",) * len(widths)]
    return [
        "  ".join(part.ljust(wide) for part, wide in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]


def escape_markdown(text: str) -> str:
    """Escape characters that have a meaning in Markdown, and join lines."""
    return re.sub(r"([\\|<>*_`\[\]])", r"\\\1", text).replace("\n", " ")
