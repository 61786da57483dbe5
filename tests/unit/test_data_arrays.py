"""Arrays in files and training rows."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcncf.ncf.data.arrays import ColumnFile, row_dtype

PIECE = 512


@pytest.mark.parametrize("piece", [None, PIECE])
@given(
    st.lists(st.integers(0, 200), max_size=12),
    st.sampled_from([("f4", ()), ("i8", ()), ("f4", (3,)), ("f4", (0,)), (row_dtype(1, 2), ())]),
)
def test_appended_rows_can_be_read_while_the_file_grows_and_afterwards(
    piece: int | None, sizes: list[int], of: tuple[Any, tuple[int, ...]]
) -> None:
    kind, row = of
    each = np.dtype((kind, row))
    random = np.random.default_rng(1)
    whole = np.empty((0, *row), kind)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "some.npy"
        with ColumnFile(path, kind, row, piece) as column:
            for size in sizes:
                block = np.frombuffer(random.bytes(size * each.itemsize), kind).reshape(size, *row)
                column.append(block)
                whole = np.concatenate([whole, block])
                assert column[:].tobytes() == whole.tobytes()
        found = np.load(path)
    assert (found.dtype, found.shape) == (whole.dtype, whole.shape)
    assert found.tobytes() == whole.tobytes()


@given(st.lists(st.integers(0, 700), max_size=12))
def test_full_pieces_are_written_at_once(sizes: list[int]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "some.npy"
        with ColumnFile(path, np.uint16, piece_bytes=PIECE) as column:
            for size in sizes:
                column.append(np.zeros(size, np.uint16))
                held = 128 + 2 * len(column)
                assert path.stat().st_size == held // PIECE * PIECE
