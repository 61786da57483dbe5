"""Training rows put where `sampling.places` says, without ever being in memory as a whole."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hpcncf.ncf.data.columns import Column, spread
from hpcncf.ncf.sampling import places

PART_ROWS: Final = 1 << 20
"""Rows put in their order at once: a few hundred MB. Each part is an open file."""


def placed(rows: NDArray[Any]) -> NDArray[Any]:
    """All rows, in memory."""
    found = np.empty_like(rows)
    found[places(0, len(rows), len(rows))] = rows
    return found


class Placing:
    """Takes rows in the order of their source and gives them on, part by part, in that of their
    places."""

    def __init__(self, folder: Path, to: Column, rows: int, files: ExitStack) -> None:
        self._to, self._rows, self._came = to, rows, 0
        moved = np.dtype([("place", np.int64), ("row", to.kind)])
        self._parts = [
            files.enter_context(Column(folder / f".rows-{number}", moved))
            for number in range(-(-rows // PART_ROWS))
        ]

    def append(self, rows: NDArray[Any]) -> None:
        moved = np.empty(len(rows), self._parts[0].kind)
        moved["place"] = places(self._came, self._came + len(rows), self._rows)
        moved["row"] = rows
        spread(moved, moved["place"] // PART_ROWS, self._parts)
        self._came += len(rows)

    def finish(self) -> None:
        for part in self._parts:
            moved = part[:]
            rows = np.empty(len(moved), self._to.kind)
            rows[moved["place"] % PART_ROWS] = moved["row"]
            self._to.append(rows)
            part.path.unlink()
