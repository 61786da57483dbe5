"""CSV and Parquet files are prepared by the columns that the user names."""

from __future__ import annotations

import hashlib
import resource
import subprocess
import sys
from datetime import datetime
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any, Literal

import numpy as np
import pytest

from hpcncf.ncf.data.arrays import unpack_context
from hpcncf.ncf.data.manifest import DataError
from hpcncf.ncf.data.prepared import Prepared, load_prepared
from hpcncf.ncf.data.readers import (
    Columns,
    prepare_table,
)

pyarrow = pytest.importorskip("pyarrow", reason="needs the extra parquet")
from pyarrow import parquet  # noqa: E402

from hpcncf.ncf.data.readers import read_parquet  # noqa: E402

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
    prepare_table(folder / "out", source, kind, columns, test_negatives=1)
    return load_prepared(folder / "out")


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
def test_the_title_and_the_options_say_the_columns(tmp_path: Path, kind: Kind) -> None:
    rows = ROWS | {"shop": list("ababc")}
    reported = prepared(tmp_path, kind, Columns("who", "shop"), rows).manifest
    assert reported.title == f"visits.{kind}: 5 rows, 2 users, 3 items, no context"
    assert (reported.dataset, reported.options["context"]) == (kind, [])


@pytest.mark.parametrize("kind", ["csv", "parquet"])
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
def test_a_broken_csv_row_is_reported_with_its_line(
    tmp_path: Path, row: str, complaint: str
) -> None:
    source = table(tmp_path, "csv")
    source.write_text(source.read_text().rstrip("\n") + "\n" + row + "\n")
    with pytest.raises(DataError, match=complaint):
        prepare_table(tmp_path / "out", source, "csv", COLUMNS)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_an_identifier_is_not_made_one_hot(tmp_path: Path, kind: Kind) -> None:
    many = {"who": [1] * 300, "shop": list(range(300)), "code": [f"c{i}" for i in range(300)]}
    with pytest.raises(DataError, match=r"25[78]: context column 'code': more than 256"):
        prepared(tmp_path, kind, Columns("who", "shop", ("code",)), many)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
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


def test_an_empty_table_is_reported(tmp_path: Path) -> None:
    source = tmp_path / "a.csv"
    source.write_text("who,shop\n")
    with pytest.raises(DataError, match="has no rows"):
        prepare_table(tmp_path / "out", source, "csv", Columns("who", "shop"))


def test_a_parquet_null_is_reported_with_its_row(tmp_path: Path) -> None:
    rows = ROWS | {"hour": [1.0, 2.0, None, 4.0, 5.0]}
    with pytest.raises(DataError, match=r"visits\.parquet: row 3: hour: is empty"):
        prepared(tmp_path, "parquet", COLUMNS, rows)
    rows = ROWS | {"hour": [1.0, float("inf"), 3.0, 4.0, 5.0]}
    with pytest.raises(DataError, match=r"row 2: hour: expected a number, came inf"):
        prepared(tmp_path, "parquet", COLUMNS, rows)


def test_a_file_that_is_not_parquet_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("who,shop\n")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        prepare_table(tmp_path / "out", tmp_path / "a.parquet", "parquet", COLUMNS)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"who,shop\n1,a\n2,\xff\n", r"visits.csv:3: not UTF-8 text: invalid start byte"),
        (b'who,shop\n1,a\n2,b,"c\nd"\n', r"visits.csv:3: expected 2 columns, came 3"),
        (b"who,who,shop\n1,2,a\n", r"visits.csv: 2 columns are called 'who'"),
    ],
)
def test_a_csv_that_is_broken_as_a_text_is_reported_with_its_line(
    tmp_path: Path, content: bytes, complaint: str
) -> None:
    path = tmp_path / "visits.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=complaint):
        prepare_table(tmp_path / "data", path, "csv", Columns("who", "shop"))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_number_too_large_for_the_context_is_reported_with_its_row(
    tmp_path: Path, kind: Kind
) -> None:
    path = table(tmp_path, kind, ROWS | {"hour": [9.5, 10, 1e39, 12, 13]})
    place = ":4" if kind == "csv" else ": row 3"
    with pytest.raises(DataError, match=rf"visits.{kind}{place}: hour: 1e\+39 does not fit"):
        prepare_table(tmp_path / "data", path, kind, COLUMNS, test_negatives=1)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_row_far_into_the_file_is_reported_with_its_place(tmp_path: Path, kind: Kind) -> None:
    count = 70_000  # more than are read at once
    hours = [*[1.5] * (count - 2), float("nan"), 1.5]
    rows: dict[str, list[Any]] = {"who": [1] * count, "shop": ["a"] * count, "hour": hours}
    path = table(tmp_path, kind, rows)
    place = f":{count}" if kind == "csv" else f": row {count - 1}"
    with pytest.raises(DataError, match=rf"visits.{kind}{place}: hour: expected a number"):
        prepare_table(tmp_path / "out", path, kind, Columns("who", "shop", ("hour",)))


def test_a_line_is_counted_behind_blank_ones_and_ends_of_lines_in_quotes(tmp_path: Path) -> None:
    source = tmp_path / "a.csv"
    source.write_text('who,note,shop\n1,"two\r\nlines",a\n\n1,"three\n\nlines",b\n2,x,\n')
    with pytest.raises(DataError, match=r"a.csv:8: shop: is empty"):
        prepare_table(tmp_path / "out", source, "csv", Columns("who", "shop"))


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


@pytest.mark.parametrize("kind", ["csv", "parquet"])
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


def broken(path: Path, rows: int, broken_from: float, **options: Any) -> Path:
    """A Parquet file whose user column holds no readable page behind that share of its bytes."""
    values = {"who": np.arange(rows) * 7919, "shop": np.ones(rows, dtype=np.int64)}
    whole: dict[str, Any] = {"use_dictionary": False, "compression": "none"}
    parquet.write_table(pyarrow.table(values), path, **whole, **options)
    data = parquet.ParquetFile(path).metadata
    groups = [data.row_group(number).column(0) for number in range(data.num_row_groups)]
    length = sum(group.total_compressed_size for group in groups)
    content, left = bytearray(path.read_bytes()), int(length * broken_from)
    for group in groups:
        begin = group.data_page_offset
        end = begin + group.total_compressed_size
        content[begin + min(left, end - begin) : end] = b"\xff" * max(0, end - begin - left)
        left = max(0, left - (end - begin))
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("options", [{"row_group_size": 70_000}, {"data_page_size": 1 << 12}])
def test_no_more_of_a_parquet_file_is_read_than_a_block_needs(
    tmp_path: Path, options: dict[str, int], threads: int
) -> None:
    """Neither the next row group, nor the rest of one that is larger than a block."""
    source = broken(tmp_path / "a.parquet", 140_000, 0.7, **options)
    blocks = read_parquet(source, Columns("who", "shop"), lambda _: None, threads)
    assert len(next(blocks).users) == 65_536
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        list(blocks)


def test_threads_do_not_change_the_prepared_data(tmp_path: Path) -> None:
    source = table(tmp_path, "parquet", ROWS | {"shop": list("ababc")})
    made = []
    for threads in (1, 3):
        folder = tmp_path / str(threads)
        manifest = prepare_table(
            folder, source, "parquet", COLUMNS, test_negatives=1, threads=threads
        ).manifest
        arrays = sorted(folder.glob("*.npy"))
        made.append((manifest.key, [path.read_bytes() for path in arrays]))
    assert made[0] == made[1]


def test_a_disk_that_is_full_while_reading_is_reported_and_nothing_is_left(tmp_path: Path) -> None:
    rows = {"who": list(range(9_000)), "shop": [row % 7 for row in range(9_000)]}
    source = table(tmp_path, "csv", rows)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(DataError, match="cannot be written: File too large"):
            prepare_table(tmp_path / "out", source, "csv", Columns("who", "shop"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == [source]


PEAK = """
import sys
from pathlib import Path
from hpcncf.ncf.data.readers import Columns, prepare_table
kind, source = sys.argv[1:]
prepare_table(Path(source + ".out"), Path(source), kind, Columns("who", "shop", ("hour",)))
status = Path("/proc/self/status").read_text()
print(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
"""


def many_rows(path: Path, kind: Kind, rows: int) -> Path:
    at_once = 50_000
    note = "x" * 150
    block = {
        "who": [f"user-{row % 977}" for row in range(at_once)],
        "shop": [f"shop-{row * row % 1009}" for row in range(at_once)],
        "hour": [row % 24 + 0.5 for row in range(at_once)],
        "note": [f"{row}{note}" for row in range(at_once)],
    }
    if kind == "parquet":
        one = pyarrow.table(block)
        with parquet.ParquetWriter(path, one.schema, compression="none") as file:
            for _ in range(rows // at_once):
                file.write_table(one)
        return path
    lines = "".join(f"{','.join(map(str, row))}\n" for row in zip(*block.values(), strict=True))
    with path.open("w") as text:
        text.write(",".join(block) + "\n")
        for _ in range(rows // at_once):
            text.write(lines)
    return path


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_the_memory_that_it_takes_does_not_grow_with_the_file(tmp_path: Path, kind: Kind) -> None:
    """But for the pairs of a part, sorted at once: up to 50 bytes a row until that is full."""
    sizes, peaks = [], []
    for rows in (300_000, 600_000):
        source = many_rows(tmp_path / f"{rows}.{kind}", kind, rows)
        reported = subprocess.run(
            [sys.executable, "-c", PEAK, kind, source], capture_output=True, text=True, check=True
        )
        sizes.append(source.stat().st_size)
        peaks.append(int(reported.stdout) * 1024)
    assert sizes[1] - sizes[0] > 45e6
    assert peaks[1] - peaks[0] < 50 * 300_000
