"""Training rows put where `sampling.places` says, without ever being in memory as a whole."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hpcncf.ncf.data.columns import Column, spread
from hpcncf.ncf.sampling import places

PART_BYTES: Final = 1 << 26
"""Put in their order at once. Each part is an open file."""


class Placing:
    """Takes rows in the order of their source and gives them on, part by part, in that of their
    places."""

    def __init__(self, folder: Path, to: Column, rows: int, files: ExitStack) -> None:
        """Of so many rows in all. Needs room in `folder` for them until `finish`."""
        self._to, self._rows, self._came = to, rows, 0
        self._kind = np.dtype([("place", np.int64), ("row", to.kind)])
        self._each = max(1, PART_BYTES // self._kind.itemsize)
        self._parts = [
            files.enter_context(Column(folder / f".rows-{number}", self._kind))
            for number in range(-(-rows // self._each))
        ]

    def append(self, rows: NDArray[Any]) -> None:
        moved = np.empty(len(rows), self._kind)
        moved["place"] = places(self._came, self._came + len(rows), self._rows)
        moved["row"] = rows
        spread(moved, moved["place"] // self._each, self._parts)
        self._came += len(rows)

    def finish(self) -> None:
        for part in self._parts:
            moved = part[:]
            part.close()
            part.path.unlink()
            rows = np.empty(len(moved), self._to.kind)
            rows[moved["place"] % self._each] = moved["row"]
            self._to.append(rows)
