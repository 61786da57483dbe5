"""MovieLens ratings in both spellings."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcncf.ncf.data import datasets
from hpcncf.ncf.data.arrays import unpack_context
from hpcncf.ncf.data.manifest import DataError
from hpcncf.ncf.data.prepared import load_prepared

RATINGS = [(1, 10, 5, 300), (1, 20, 3, 900), (1, 30, 4, 100), (2, 30, 1, 50), (2, 40, 2, 40)]


def write(path: Path, separator: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(separator.join(map(str, row)) + "\n" for row in RATINGS))
    return path


@pytest.mark.parametrize(("name", "separator"), [("ratings.dat", "::"), ("u.data", "\t")])
@pytest.mark.parametrize("by_folder", [False, True])
def test_the_latest_rating_of_each_user_is_held_out(
    tmp_path: Path, name: str, separator: str, by_folder: bool
) -> None:
    source = write(tmp_path / "ml" / name, separator)
    datasets.prepare_movielens(
        tmp_path / "out", source.parent if by_folder else source, test_negatives=1
    )
    data = load_prepared(tmp_path / "out")
    assert data.test_items.tolist() == [1, 2]  # films 20 and 30
    assert data.train_items.tolist() == [0, 2, 3]
    assert unpack_context(data.train_rows).shape == (3, 0)
    assert data.manifest.title == f"MovieLens {name}: 5 rows, 2 users, 4 items, no context"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("1::2::3", r"ratings.dat:7: expected user::item::rating::time, came '1::2::3'"),
        ("1::x::3::4", r"ratings.dat:7: item: expected a whole number of 0 or more, came 'x'"),
        ("1::2::good::4", r"ratings.dat:7: rating: expected a number, came 'good'"),
        ("1::2::3::", r"ratings.dat:7: time: .* came ''"),
        ("99999999999999999999::2::3::4", r"ratings.dat:7: user"),
    ],
)
def test_a_broken_row_is_reported_with_its_line_blank_lines_counted(
    tmp_path: Path, line: str, complaint: str
) -> None:
    source = write(tmp_path / "in" / "ratings.dat", "::")
    source.write_text(source.read_text() + "\n" + line + "\n")
    with pytest.raises(DataError, match=complaint):
        datasets.prepare_movielens(tmp_path / "out", source)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_folder_without_ratings_and_an_empty_file_are_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"neither ratings\.dat nor u\.data"):
        datasets.prepare_movielens(tmp_path / "out", tmp_path)
    (tmp_path / "u.data").write_text("\n")
    with pytest.raises(DataError, match="has no rows"):
        datasets.prepare_movielens(tmp_path / "out", tmp_path)


def test_a_file_that_is_not_text_is_reported(tmp_path: Path) -> None:
    (tmp_path / "u.data").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="not UTF-8 text"):
        datasets.prepare_movielens(tmp_path / "out", tmp_path)
