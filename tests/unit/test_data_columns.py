"""Arrays in files, written as they come or in pieces that a page cache can keep as one."""

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
def test_what_is_appended_is_read_while_it_grows_and_as_an_array(
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
def test_what_fills_pieces_is_written_in_whole_ones(sizes: list[int]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "some.npy"
        with ColumnFile(path, np.uint16, piece_bytes=PIECE) as column:
            for size in sizes:
                column.append(np.zeros(size, np.uint16))
                held = 128 + 2 * len(column)
                assert path.stat().st_size == held // PIECE * PIECE
