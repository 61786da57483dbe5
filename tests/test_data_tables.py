"""CSV and Parquet files whose columns the user names."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import pytest

from hpcncf.ncf.data import tables
from hpcncf.ncf.data.manifest import DataError
from hpcncf.ncf.data.prepared import Prepared, load
from hpcncf.ncf.data.tables import Columns

pyarrow = pytest.importorskip("pyarrow", reason="needs the extra parquet")
from pyarrow import parquet  # noqa: E402

Kind = Literal["csv", "parquet"]
COLUMNS = Columns("who", "shop", ("hour", "weather"), "at")
ROWS: dict[str, list[Any]] = {
    "at": [30, 10, 20, 5, 6],
    "shop": ["kiosk", "bakery", "market", "bakery", "kiosk"],
    "note": ["a,b", "", "x", "y", "z"],
    "who": [7, 7, 7, 8, 8],
    "weather": ["sun", "rain", "sun", "snow", "rain"],
    "hour": [9.5, 10, 11, 12, 13],
}


def table(folder: Path, kind: Kind, rows: dict[str, list[Any]] = ROWS) -> Path:
    path = folder / f"visits.{kind}"
    if kind == "parquet":
        parquet.write_table(pyarrow.table(rows), path)
        return path
    lines = [",".join(rows)]
    for row in zip(*rows.values(), strict=True):
        lines.append(",".join(f'"{value}"' if "," in str(value) else str(value) for value in row))
    path.write_text("\n".join(lines) + "\n\n")
    return path


def prepared(folder: Path, kind: Kind, columns: Columns, rows: dict[str, Any] = ROWS) -> Prepared:
    source = table(folder, kind, rows)
    tables.prepare(folder / "out", source, kind, columns, test_negatives=1)
    return load(folder / "out")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_numbers_are_kept_text_is_one_hot_and_the_latest_row_is_held_out(
    tmp_path: Path, kind: Kind
) -> None:
    columns = Columns("who", "shop", ("hour", "weather"), "at")
    rows = ROWS | {"shop": ["kiosk", "bakery", "bakery", "bakery", "market"]}
    data = prepared(tmp_path, kind, columns, rows)
    assert data.manifest.context_columns == ["hour", "weather=rain", "weather=snow", "weather=sun"]
    assert data.test_context.tolist() == [[9.5, 0, 0, 1], [13, 1, 0, 0]]
    assert data.test_items.tolist() == [1, 2]  # bakery, kiosk, market
    assert data.test_negatives.tolist() == [[2], [1]]
    assert data.train_users.tolist() == [0, 0, 1]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_the_title_and_the_options_tell_the_columns(tmp_path: Path, kind: Kind) -> None:
    rows = ROWS | {"shop": list("ababc")}
    told = prepared(tmp_path, kind, Columns("who", "shop"), rows).manifest
    assert told.title == f"visits.{kind}: 5 rows, 2 users, 3 items, no context"
    assert (told.dataset, told.options["user"], told.options["context"]) == (kind, "who", [])


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("columns", "changed", "complaint"),
    [
        (Columns("who", "store"), {}, r"no column 'store'; its columns: at, shop, note"),
        (COLUMNS, {"shop": ["a", "b", None, "c", "d"]}, r"shop: is empty"),
        (COLUMNS, {"at": ["1", "2", "soon", "4", "5"]}, r"at: expected (a number|numbers)"),
    ],
)
def test_columns_that_are_missing_blank_or_wrong_are_told(
    tmp_path: Path, kind: Kind, columns: Columns, changed: dict[str, list[Any]], complaint: str
) -> None:
    blank = {name: [v or "" for v in values] for name, values in changed.items()}
    rows = ROWS | (blank if kind == "csv" else changed)
    with pytest.raises(DataError, match=complaint):
        prepared(tmp_path, kind, columns, rows)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("6,kiosk,n,8,rain", r"visits.csv:7: expected 6 columns, came 5"),
        ("6,kiosk,n,,rain,13", r"visits.csv:7: who: is empty"),
        ("6,kiosk,n,8,rain,late", r"visits.csv:7: hour: expected a number, .* came 'late'"),
        ("6,kiosk,n,8,rain,nan", r"visits.csv:7: hour: expected a number, .* came 'nan'"),
        ("?,kiosk,n,8,rain,13", r"visits.csv:7: at: expected a number or a date .* came '\?'"),
    ],
)
def test_a_broken_csv_row_is_told_with_its_line(tmp_path: Path, row: str, complaint: str) -> None:
    source = table(tmp_path, "csv")
    source.write_text(source.read_text().rstrip("\n") + "\n" + row + "\n")
    with pytest.raises(DataError, match=complaint):
        tables.prepare(tmp_path / "out", source, "csv", COLUMNS)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_an_identifier_is_not_made_one_hot(tmp_path: Path, kind: Kind) -> None:
    many = {"who": [1] * 300, "shop": list(range(300)), "code": [f"c{i}" for i in range(300)]}
    with pytest.raises(DataError, match=r"25[78]: context column 'code': more than 256"):
        prepared(tmp_path, kind, Columns("who", "shop", ("code",)), many)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_dates_tell_the_latest_row_too(tmp_path: Path, kind: Kind) -> None:
    dates: list[Any] = [datetime(2020, 1, day) for day in (3, 9, 5, 1)]
    if kind == "csv":
        dates = [date.isoformat() for date in dates]
    rows = {"who": [1, 1, 1, 2], "shop": ["a", "b", "a", "c"], "at": dates}
    data = prepared(tmp_path, kind, Columns("who", "shop", time="at"), rows)
    assert data.test_items.tolist() == [1]


def test_a_tsv_is_separated_by_tabs(tmp_path: Path) -> None:
    source = tmp_path / "a.tsv"
    source.write_text("\ufeffwho\tshop\n1\ta,b\n1\tc\n2\td\n", encoding="utf-8")
    made = tables.prepare(tmp_path / "out", source, "csv", Columns("who", "shop"), test_negatives=1)
    assert (made.manifest.users, made.manifest.items) == (2, 3)


def test_an_empty_table_is_told(tmp_path: Path) -> None:
    source = tmp_path / "a.csv"
    source.write_text("who,shop\n")
    with pytest.raises(DataError, match="has no rows"):
        tables.prepare(tmp_path / "out", source, "csv", Columns("who", "shop"))


def test_a_parquet_null_is_told_with_its_row(tmp_path: Path) -> None:
    rows = ROWS | {"hour": [1.0, 2.0, None, 4.0, 5.0]}
    with pytest.raises(DataError, match=r"visits\.parquet: row 3: hour: is empty"):
        prepared(tmp_path, "parquet", COLUMNS, rows)
    rows = ROWS | {"hour": [1.0, float("inf"), 3.0, 4.0, 5.0]}
    with pytest.raises(DataError, match=r"row 2: hour: expected a number, came inf"):
        prepared(tmp_path, "parquet", COLUMNS, rows)


def test_a_file_that_is_not_parquet_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("who,shop\n")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        tables.prepare(tmp_path / "out", tmp_path / "a.parquet", "parquet", COLUMNS)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"who,shop\n1,a\n2,\xff\n", r"visits.csv:3: not UTF-8 text: invalid start byte"),
        (b'who,shop\n1,a\n2,b,"c\nd"\n', r"visits.csv:3: expected 2 columns, came 3"),
        (b"who,who,shop\n1,2,a\n", r"visits.csv: 2 columns are called 'who'"),
    ],
)
def test_a_csv_that_is_broken_as_a_text_is_told_with_its_line(
    tmp_path: Path, content: bytes, complaint: str
) -> None:
    path = tmp_path / "visits.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=complaint):
        tables.prepare(tmp_path / "data", path, "csv", Columns("who", "shop"))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_number_too_large_for_the_context_is_told_with_its_row(
    tmp_path: Path, kind: Kind
) -> None:
    path = table(tmp_path, kind, ROWS | {"hour": [9.5, 10, 1e39, 12, 13]})
    place = ":4" if kind == "csv" else ": row 3"
    with pytest.raises(DataError, match=rf"visits.{kind}{place}: hour: 1e\+39 is more than single"):
        tables.prepare(tmp_path / "data", path, kind, COLUMNS, test_negatives=1)
