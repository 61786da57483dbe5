"""CSV and Parquet files are prepared by the columns that the user names."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from datetime import datetime
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any, Literal

import numpy as np
import pytest

from hpcncf.data import prepare
from hpcncf.data.arrays import unpack_context
from hpcncf.data.manifest import DataError
from hpcncf.data.prepared import PreparedData, load_prepared
from hpcncf.data.readers import Columns, prepare_table

pyarrow = pytest.importorskip("pyarrow", reason="needs the extra parquet")
from pyarrow import parquet  # noqa: E402

Kind = Literal["csv", "parquet"]
BOTH = pytest.mark.parametrize("kind", ["csv", "parquet"])
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


def prepared(
    folder: Path, kind: Kind, columns: Columns, rows: dict[str, Any] = ROWS
) -> PreparedData:
    source = table(folder, kind, rows)
    prepare_table(folder / "out", source, kind, columns, test_negatives=1)
    return load_prepared(folder / "out")


@BOTH
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
    about = "5 rows, 2 users, 3 items, 4 context columns"
    assert data.manifest.title == f"visits.{kind}: {about}"
    assert (data.manifest.dataset, data.manifest.options["context"]) == (kind, ["hour", "weather"])


@BOTH
@pytest.mark.parametrize(
    ("columns", "changed", "complaint"),
    [
        (Columns("who", "store"), {}, r"no column 'store'; its columns: at, shop, note"),
        (COLUMNS, {"shop": ["a", "b", None, "c", "d"]}, r"shop: is empty"),
        (COLUMNS, {"at": ["1", "2", "soon", "4", "5"]}, r"at: expected (a number|numbers)"),
    ],
)
def test_columns_that_are_missing_blank_or_wrong_are_reported(
    tmp_path: Path, kind: Kind, columns: Columns, changed: dict[str, list[Any]], complaint: str
) -> None:
    blank = {name: [v or "" for v in values] for name, values in changed.items()}
    rows = ROWS | (blank if kind == "csv" else changed)
    with pytest.raises(DataError, match=complaint):
        prepared(tmp_path, kind, columns, rows)
    assert not (tmp_path / "out").exists()


@BOTH
def test_an_identifier_is_not_made_one_hot(tmp_path: Path, kind: Kind) -> None:
    many = {"who": [1] * 300, "shop": list(range(300)), "code": [f"c{i}" for i in range(300)]}
    with pytest.raises(DataError, match=r"25[78]: context column 'code': more than 256"):
        prepared(tmp_path, kind, Columns("who", "shop", ("code",)), many)


@BOTH
def test_dates_say_the_latest_row_too(tmp_path: Path, kind: Kind) -> None:
    dates: list[Any] = [datetime(2020, 1, day) for day in (3, 9, 5, 1)]
    if kind == "csv":
        dates = [date.isoformat() for date in dates]
    rows = {"who": [1, 1, 1, 2], "shop": ["a", "b", "a", "c"], "at": dates}
    data = prepared(tmp_path, kind, Columns("who", "shop", time="at"), rows)
    assert data.test_items.tolist() == [1]


def test_a_tsv_is_separated_by_tabs(tmp_path: Path) -> None:
    source = tmp_path / "a.tsv"
    source.write_text("\ufeffwho\tshop\n1\ta,b\n1\tc\n2\td\n", encoding="utf-8")
    made = prepare_table(tmp_path / "out", source, "csv", Columns("who", "shop"), test_negatives=1)
    assert (made.manifest.users, made.manifest.items) == (2, 3)


def test_a_broken_parquet_file_is_reported_with_its_row(tmp_path: Path) -> None:
    rows = ROWS | {"hour": [1.0, 2.0, None, 4.0, 5.0]}
    with pytest.raises(DataError, match=r"visits\.parquet: row 3: hour: is empty"):
        prepared(tmp_path, "parquet", COLUMNS, rows)
    rows = ROWS | {"hour": [1.0, float("inf"), 3.0, 4.0, 5.0]}
    with pytest.raises(DataError, match=r"row 2: hour: expected a number, came inf"):
        prepared(tmp_path, "parquet", COLUMNS, rows)
    (tmp_path / "a.parquet").write_text("who,shop\n")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        prepare_table(tmp_path / "out", tmp_path / "a.parquet", "parquet", COLUMNS)


GOOD = "who,note,shop,hour,at\n1,x,a,9,2020-01-01\n"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (GOOD + "1,x,a,9\n", r":3: expected 5 columns, came 4"),
        (GOOD + ",x,a,9,1\n", r":3: who: is empty"),
        (GOOD + "1,x,a,late,1\n", r":3: hour: expected a number, .* came 'late'"),
        (GOOD + "1,x,a,nan,1\n", r":3: hour: expected a number, .* came 'nan'"),
        (GOOD + "1,x,a,9,?\n", r":3: at: expected a number or a date .* came '\?'"),
        (GOOD + "2,\xff,b,1,1\n", r":3: not UTF-8 text: invalid start byte"),
        (GOOD + '2,x,b,1,1,"c\nd"\n', r":3: expected 5 columns, came 6"),
        ("who,who,shop,hour,at\n1,2,a,1,1\n", r": 2 columns are called 'who'"),
        # Behind a blank line and ends of lines in quotes.
        (GOOD + '1,"two\r\nlines",a,1,1\n\n1,"and\n\n3",b,1,1\n2,x,,1,1\n', r":9: shop: is empty"),
        ("who,shop,hour,at\n", ": has no rows"),
    ],
)
def test_a_broken_csv_is_reported_with_its_line(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "visits.csv"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=rf"visits\.csv{complaint}"):
        prepare_table(tmp_path / "data", path, "csv", Columns("who", "shop", ("hour",), "at"))


@BOTH
def test_a_number_too_large_for_the_context_is_reported_with_its_row(
    tmp_path: Path, kind: Kind
) -> None:
    path = table(tmp_path, kind, ROWS | {"hour": [9.5, 10, 1e39, 12, 13]})
    place = ":4" if kind == "csv" else ": row 3"
    with pytest.raises(DataError, match=rf"visits.{kind}{place}: hour: 1e\+39 does not fit"):
        prepare_table(tmp_path / "data", path, kind, COLUMNS, test_negatives=1)


@BOTH
def test_a_row_far_into_the_file_is_reported_with_its_place(tmp_path: Path, kind: Kind) -> None:
    count = 70_000  # more than are read at once
    hours = [*[1.5] * (count - 2), float("nan"), 1.5]
    rows: dict[str, list[Any]] = {"who": [1] * count, "shop": ["a"] * count, "hour": hours}
    path = table(tmp_path, kind, rows)
    place = f":{count}" if kind == "csv" else f": row {count - 1}"
    with pytest.raises(DataError, match=rf"visits.{kind}{place}: hour: expected a number"):
        prepare_table(tmp_path / "out", path, kind, Columns("who", "shop", ("hour",)))


def arrays_of(folder: Path) -> bytes:
    """The arrays as files of format 1, which had those of the training rows one by one, and no
    buckets."""
    rows, later = load_prepared(folder).train_rows, {"train_rows", "buckets_indptr", "buckets"}
    arrays = {path.stem: np.load(path) for path in folder.glob("*.npy") if path.stem not in later}
    arrays |= {"train_users": rows["user"], "train_items": rows["item"]}
    arrays["train_context"] = unpack_context(rows)
    content = BytesIO()
    for _, array in sorted(arrays.items()):
        np.save(content, array)
    return content.getvalue()


def test_the_same_source_gives_the_bits_of_earlier_versions(tmp_path: Path) -> None:
    """Runs on data made anew would else be compared with runs on other data of the same key."""
    random, source = Random(3), tmp_path / "visits.csv"
    lines = ["at,shop,who,weather,hour"]
    for _ in range(500):
        row = [random.randrange(50), f"s{random.randrange(40)}", f"u{random.randrange(60)}"]
        lines.append(",".join(map(str, [*row, random.choice("abc"), round(random.random(), 4)])))
    source.write_text("\n".join(lines) + "\n")
    found = []
    for number, time in enumerate(("at", None)):
        columns = Columns("who", "shop", ("hour", "weather"), time)
        folder = tmp_path / str(number)
        prepare_table(folder, source, "csv", columns, seed=5, test_negatives=7)
        found.append(hashlib.sha256(arrays_of(folder)).hexdigest()[:16])
    assert found == ["cda293a9a684158a", "dea0beb0fdc19294"]


@BOTH
def test_a_second_time_only_the_checksum_is_read(tmp_path: Path, kind: Kind) -> None:
    source = table(tmp_path, kind, ROWS | {"shop": list("ababc")})
    outcomes: list[tuple[str, bool]] = []
    for _ in range(2):
        columns, said = Columns("who", "shop"), list[str]()
        made = prepare_table(tmp_path / "out", source, kind, columns, 1, 1, False, said.append)
        outcomes.append((made.outcome, len(said) > 1))
    assert outcomes == [("made", True), ("already there", False)]
    assert "checksum" in said[0]


def test_a_column_of_a_parquet_file_that_is_not_named_is_not_read(tmp_path: Path) -> None:
    source = tmp_path / "a.parquet"
    notes = [Random(row).randbytes(9) for row in range(3_000)]
    rows = {"who": list(range(3_000)), "note": notes, "shop": [i % 7 for i in range(3_000)]}
    parquet.write_table(pyarrow.table(rows), source, use_dictionary=False)
    chunk = parquet.ParquetFile(source).metadata.row_group(0).column(1)
    assert chunk.path_in_schema == "note"
    content = bytearray(source.read_bytes())
    start = chunk.data_page_offset
    content[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    source.write_bytes(content)
    prepare_table(tmp_path / "out", source, "parquet", Columns("who", "shop"))
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        prepare_table(tmp_path / "no", source, "parquet", Columns("who", "shop", ("note",)))


def test_threads_do_not_change_the_prepared_data(tmp_path: Path) -> None:
    source = table(tmp_path, "parquet", ROWS | {"shop": list("ababc")})
    made = []
    for threads in (1, 3):
        folder, own = tmp_path / str(threads), {"test_negatives": 1, "threads": threads}
        prepare_table(folder, source, "parquet", COLUMNS, **own)
        made.append([path.read_bytes() for path in sorted(folder.iterdir())])
    assert made[0] == made[1]


@BOTH
def test_a_table_that_does_not_fit_in_memory_is_refused_with_its_size_and_what_to_do(
    tmp_path: Path, kind: Kind
) -> None:
    rows = {name: values * 2_000 for name, values in ROWS.items()} | {"shop": [*"abcde"] * 2_000}
    source = table(tmp_path, kind, rows)
    given: dict[str, Any] = {"test_negatives": 1, "available_bytes": 1_100_000}
    count = "about 10,0.." if kind == "csv" else "10,000"
    with pytest.raises(
        DataError,
        match=rf"visits.{kind}: {count} rows with 2 context columns need 1.0 MiB of memory to "
        r"prepare, and 0.5 MiB are available. Prepare a sample of the rows, .* larger machine",
    ):
        prepare_table(tmp_path / "out", source, kind, COLUMNS, available_bytes=500_000)
    # Three texts become three columns, which only reading shows.
    with pytest.raises(DataError, match=rf"visits.{kind}: 10,000 rows with 4 context columns need"):
        prepare_table(tmp_path / "out", source, kind, COLUMNS, **given)
    assert not (tmp_path / "out").exists()
    prepare_table(tmp_path / "out", source, kind, Columns("who", "shop"), **given)


PEAK = """
import sys, tracemalloc
from pathlib import Path
from hpcncf.data.readers import Columns, prepare_table
source = Path(sys.argv[1])
columns = Columns("who", "shop", ("a", "b", "w"), "at")
tracemalloc.start()
prepare_table(source.parent / "out", source, "csv", columns, test_negatives=4)
print(tracemalloc.get_traced_memory()[1])
"""


def test_preparing_takes_no_more_memory_per_row_than_is_checked_before(tmp_path: Path) -> None:
    """Five columns: two numbers, and a text of three values."""
    peaks = []
    for rows in (20_000, 60_000):
        source = tmp_path / str(rows) / "a.csv"
        source.parent.mkdir()
        lines = (f"u{n % 97},s{n * 7 % 997},{n % 24}.5,{n}.25,w{n % 3},{n}" for n in range(rows))
        source.write_text("\n".join(["who,shop,a,b,w,at", *lines, ""]))
        command = [sys.executable, "-c", PEAK, str(source)]
        peaks.append(int(subprocess.run(command, capture_output=True, check=True).stdout))
    per_row = (peaks[1] - peaks[0]) / 40_000
    assert per_row <= prepare.BYTES_OF_ROW + 5 * prepare.BYTES_OF_VALUE, peaks
