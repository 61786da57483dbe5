"""Tables that sacct and reportseff print: a header that names the columns, then rows. Pure.

Source: the sacct manual (`--parsable` ends a line with its delimiter, `--parsable2` does not; else
columns stand under dashes and a cell that was cut ends in `+`), reportseff's README.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest

Row = dict[str, str]
Cut = Callable[[str], list[str]]

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_DASHES = re.compile(r"\s*-{2,}(?:\s+-+)*\s*")


def rows(text: str, is_header: Callable[[Sequence[str]], bool]) -> Iterator[Row]:
    """Each line under such a header, by column, to the next empty line.

    Lines of another number of cells are passed over: a name with a `|` in it, a node's own line.
    """
    lines = [_COLOUR.sub("", line) for line in text.splitlines()]
    cut: Cut = str.split
    names: list[str] = []
    for line, following in zip_longest(lines, lines[1:], fillvalue=""):
        here = _cut(line, following)
        if is_header(here(line)):
            cut, names = here, here(line)
        elif not line.strip():
            names = []
        elif names and len(cells := cut(line)) == len(names) and not _DASHES.fullmatch(line):
            yield dict(zip(names, cells, strict=True))


def _cut(line: str, dashes: str) -> Cut:
    if "|" in line:
        # `--parsable2` ends a line with `|` where its last cell is empty.
        return _piped_to_the_end if line.rstrip().endswith("|") else _piped
    if _DASHES.fullmatch(dashes):
        spans = [found.span() for found in re.finditer("-+", dashes)]
        return lambda text: _under(spans, text)
    return str.split


def _piped(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")]


def _piped_to_the_end(line: str) -> list[str]:
    return _piped(line.rstrip().removesuffix("|"))


def _under(spans: Sequence[tuple[int, int]], line: str) -> list[str]:
    """The last cell to the line's end."""
    ends = [end for _, end in spans[:-1]] + [max(len(line), 1)]
    return [line[start:end].strip() for (start, _), end in zip(spans, ends, strict=True)]
