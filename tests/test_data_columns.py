"""Arrays in files, written as they come and in pieces that a page cache can keep as one."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hpcncf.ncf.data.columns import Column
from hpcncf.ncf.data.rows import record

PIECE = 512


@given(st.lists(st.integers(0, 200), max_size=12), st.sampled_from(["f4", "i8", record(2)]))
def test_what_is_appended_is_read_while_it_grows_and_as_an_array(
    sizes: list[int], kind: np.dtype[np.void] | str
) -> None:
    random = np.random.default_rng(1)
    blocks = [np.frombuffer(random.bytes(size * np.dtype(kind).itemsize), kind) for size in sizes]
    whole = np.concatenate([np.empty(0, kind), *blocks])
    with TemporaryDirectory() as folder:
        path = Path(folder) / "some.npy"
        with Column(path, kind, piece_bytes=PIECE) as column:
            for block in blocks:
                column.append(block)
            assert column[:].tobytes() == whole.tobytes()
        found = np.load(path)
    assert (found.dtype, found.tobytes()) == (whole.dtype, whole.tobytes())


@given(st.lists(st.integers(0, 700), max_size=12))
def test_all_that_fills_pieces_is_written_in_whole_ones(sizes: list[int]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "some.npy"
        with Column(path, np.uint16, piece_bytes=PIECE) as column:
            for size in sizes:
                column.append(np.zeros(size, np.uint16))
                held = 128 + 2 * len(column)
                written = path.stat().st_size
                assert written % PIECE == 0
                assert 0 <= held - written <= PIECE
