"""Which context columns training rows keep in a byte each, and that no value changes by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as of_numpy
from numpy.typing import NDArray

from hpcncf.ncf.data import prepared
from hpcncf.ncf.data import split as splitting
from hpcncf.ncf.data.arrays import Floats, Rows, Split, pack_rows, row_dtype, slices, unpack_context
from hpcncf.ncf.data.prepare import Recipe, write_prepared
from hpcncf.ncf.data.prepared import ContextLayout, fits_a_byte, load_prepared
from hpcncf.ncf.data.split import SplitCounts, leave_one_out, write_split

ONE_HOT, FIGURES = [0.0, 1.0, 0.0, 1.0], [0.5, -3.0, 1e9, 0.0]
FLOATS = of_numpy.arrays(
    np.float32,
    st.tuples(st.integers(0, 9), st.integers(0, 5)),
    elements=st.one_of(st.integers(0, 255).map(float), st.floats(width=32)),
)


def of_columns(*each: list[float]) -> Floats:
    """[rows, columns]"""
    return np.array(each, dtype=np.float32).reshape(len(each), 4).T


def rows_of(context: Floats) -> Rows:
    """Of two users in turn, of three items."""
    number = np.arange(len(context), dtype=np.int32)
    names = [f"c{column}" for column in range(context.shape[1])]
    return Rows(number % 2, number % 3, context, names, np.arange(2), 9)


def bits(context: Floats) -> list[list[int]]:
    return np.ascontiguousarray(context).view(np.uint32).tolist()


@pytest.mark.parametrize("value", [0, 1, 254, 255])
def test_a_whole_number_up_to_255_fits_a_byte(value: float) -> None:
    assert fits_a_byte(of_columns([0, value, 1, 0])).tolist() == [True]


@pytest.mark.parametrize(
    "value", [256, 511, 1e9, -1, -0.0, 0.5, 254.5, 1e-30, np.nan, np.inf, -np.inf]
)
def test_any_other_number_makes_its_column_one_of_numbers(value: float) -> None:
    found = fits_a_byte(of_columns([0, 1, 1, 0], [0, 1, value, 0], [0, 1, 255, 0]))
    assert found.tolist() == [True, False, True]


def test_numbers_come_first_and_each_group_in_the_order_of_the_source() -> None:
    layout = ContextLayout(
        ["a", "b", "c", "d", "e"], of_columns(ONE_HOT, FIGURES, ONE_HOT, FIGURES, ONE_HOT)
    )
    assert (layout.names, layout.small) == (["b", "d", "a", "c", "e"], 3)


def test_a_column_is_small_only_where_it_is_in_every_row_of_training_and_test() -> None:
    train, test = of_columns(ONE_HOT, ONE_HOT), of_columns(ONE_HOT, FIGURES)
    assert ContextLayout(["a", "b"], train, test).names == ["b", "a"]
    assert ContextLayout(["a", "b"], test, train).small == 1


def test_a_late_value_of_many_rows_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "slices", lambda length: slices(length, 3))
    many = np.zeros((20, 2), dtype=np.float32)
    many[19, 0] = 0.5
    assert (ContextLayout(["a", "b"], many).names, ContextLayout(["a", "b"], many).small) == (
        ["a", "b"],
        1,
    )
    assert ContextLayout(["a", "b"], many[:, ::-1]).names == ["b", "a"]


@given(FLOATS)
def test_the_context_of_a_row_comes_back_bit_by_bit(reported: Floats) -> None:
    layout = ContextLayout([str(column) for column in range(reported.shape[1])], reported)
    ordered, none = layout.ordered(reported), np.zeros(len(reported), dtype=np.int32)
    rows = pack_rows(none, none, ordered, layout.small)
    assert rows.dtype.itemsize == 8 + 4 * (reported.shape[1] - layout.small) + layout.small
    back = unpack_context(rows)
    assert (back.dtype, bits(back)) == (np.float32, bits(ordered))
    assert [bits(unpack_context(row)[None]) for row in rows] == [bits(row[None]) for row in ordered]
    names = [int(name) for name in layout.names]
    assert bits(reported[:, names]) == bits(ordered)


def arrays(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.npy")}


def split(folder: Path, rows: Rows) -> SplitCounts:
    folder.mkdir()
    return leave_one_out(folder, rows, 1, 4)


MIXED: list[Any] = [
    of_columns(),
    of_columns(ONE_HOT, [255.0, 7.0, 0.0, 0.0]),
    of_columns(FIGURES, [np.nan, 1.0, 2.0, 3.0]),
    of_columns(ONE_HOT, [0.0, 256.0, 0.0, 0.0], ONE_HOT, FIGURES, [-0.0, 0.0, 0.0, 0.0]),
]


@pytest.mark.parametrize("reported", MIXED, ids=["none", "small", "numbers", "mixed"])
def test_a_prepared_folder_keeps_every_bit_of_its_context(tmp_path: Path, reported: Floats) -> None:
    rows = rows_of(reported)
    write_prepared(
        tmp_path / "data", Recipe("csv", {}, {}), "A", lambda into: leave_one_out(into, rows, 1, 4)
    )
    data = load_prepared(tmp_path / "data")
    names = data.manifest.context_columns
    order = [rows.context_columns.index(name) for name in names]
    both = np.concatenate([unpack_context(data.train_rows), data.test_context])
    assert sorted(bits(both)) == sorted(bits(reported[:, order]))
    numbers = len(names) - data.manifest.small_columns
    assert fits_a_byte(reported[:, order]).tolist() == [at >= numbers for at in range(len(names))]


def test_rows_are_the_same_bytes_whatever_the_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_of(np.tile(MIXED[-1], (9, 1)))
    whole = split(tmp_path / "whole", rows)
    for module in (prepared, splitting):
        monkeypatch.setattr(module, "slices", lambda length, _=None: slices(length, 5))
    assert split(tmp_path / "sliced", rows) == whole
    assert arrays(tmp_path / "sliced") == arrays(tmp_path / "whole")


def test_saved_rows_are_those_of_leaving_one_out(tmp_path: Path) -> None:
    """Of users with one row each, which are all for training."""
    rows = rows_of(MIXED[-1][:2])
    none = rows_of(MIXED[-1][:0])
    left = split(tmp_path / "left", rows)
    (tmp_path / "saved").mkdir()
    assert (
        write_split(tmp_path / "saved", Split(rows, none, np.empty((0, 4), dtype=np.int32))) == left
    )
    assert arrays(tmp_path / "saved") == arrays(tmp_path / "left")


def test_one_row_has_a_context_of_its_own() -> None:
    row: NDArray[Any] = np.zeros((), row_dtype(0, 2))
    assert unpack_context(row).tolist() == [0.0, 0.0]
