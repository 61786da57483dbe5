"""The prepared folder: whole or not at all, checked when opened, never lost by accident."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from make_results import of_format_3

from hpcncf.ncf.data import datasets, prepared, synthetic
from hpcncf.ncf.data.arrays import SLOTS, slices, unpack_context
from hpcncf.ncf.data.manifest import (
    MANIFEST_NAME,
    DataError,
    OtherFormat,
    read_manifest,
    read_outline,
)
from hpcncf.ncf.data.prepare import PreparedFolder, Recipe, write_prepared
from hpcncf.ncf.data.prepared import load_prepared
from hpcncf.ncf.data.split import SplitCounts


def prepare(folder: Path, seed: int = 1, force: bool = False) -> PreparedFolder:
    return synthetic.prepare_synthetic(
        folder,
        users=8,
        items=60,
        train_rows=90,
        context=3,
        seed=seed,
        test_negatives=9,
        force=force,
    )


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_loaded_arrays_match_the_manifest(tmp_path: Path) -> None:
    written = prepare(tmp_path / "data")
    data = load_prepared(tmp_path / "data")
    assert data.manifest == written.manifest
    assert written.outcome == "made"
    assert unpack_context(data.train_rows).shape == (90, 3)
    assert data.test_negatives.shape == (8, 9)
    assert data.manifest.rows == 98


def test_the_arrays_cannot_be_changed(tmp_path: Path) -> None:
    prepare(tmp_path / "data")
    with pytest.raises(ValueError, match="read-only"):
        load_prepared(tmp_path / "data").train_items[0] = 1


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="a kernel without huge pages"
)
def test_arrays_are_asked_for_in_huge_pages_while_they_are_read_in_order_and_not_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(tmp_path / "data")
    seen: list[set[str]] = []

    def check(folder: Path, _: object) -> None:
        seen.append(asked_for_in_huge_pages(folder))

    monkeypatch.setattr(prepared, "_check_values", check)
    data = load_prepared(tmp_path / "data")
    assert seen == [{path.name for path in (tmp_path / "data").glob("*.npy")}]
    assert asked_for_in_huge_pages(tmp_path / "data") == set()
    assert len(data.train_rows) == 90  # mapped until here


def asked_for_in_huge_pages(folder: Path) -> set[str]:
    """Files of the folder that this process has mapped so."""
    found, name = set(), ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if f"{folder}/" in line:
            name = line.rpartition("/")[2]
        elif line.startswith("VmFlags:"):
            if name and "hg" in line.split():
                found.add(name)
            name = ""
    return found


@pytest.mark.parametrize("name", ["buckets", "positives_indptr", "train_rows"])
def test_an_array_begins_at_a_cache_line_so_that_a_bucket_is_one(tmp_path: Path, name: str) -> None:
    prepare(tmp_path / "data")
    array = getattr(load_prepared(tmp_path / "data"), name)
    assert array.offset % 64 == 0
    assert array.ctypes.data % 64 == 0
    assert SLOTS * np.dtype(np.uint16).itemsize == 64


def test_unseen_says_the_test_pairs_that_training_does_not_have(tmp_path: Path) -> None:
    prepare(tmp_path / "data")
    data = load_prepared(tmp_path / "data")
    trained = set(zip(data.train_users.tolist(), data.train_items.tolist(), strict=True))
    tested = zip(data.test_users.tolist(), data.test_items.tolist(), strict=True)
    assert data.test_unseen.tolist() == [pair not in trained for pair in tested]


def test_the_same_input_gives_the_same_bytes_and_another_seed_another_key(tmp_path: Path) -> None:
    one, two = prepare(tmp_path / "one"), prepare(tmp_path / "two")
    other = prepare(tmp_path / "other", seed=2)
    assert content(tmp_path / "one") == content(tmp_path / "two")
    assert one.manifest.key == two.manifest.key != other.manifest.key


def test_the_key_follows_from_the_input_not_from_its_file_name() -> None:
    def key(name: str, sha256: str, seed: int) -> str:
        return Recipe("csv", {"name": name, "sha256": sha256}, {"seed": seed}).key

    assert key("a.csv", "00", 1) == key("b.csv", "00", 1)
    assert len({key("a.csv", "00", 1), key("a.csv", "01", 1), key("a.csv", "00", 2)}) == 3


def test_the_same_data_is_left_alone(tmp_path: Path) -> None:
    prepare(tmp_path / "data")
    before = (tmp_path / "data" / MANIFEST_NAME).stat().st_mtime_ns
    assert prepare(tmp_path / "data").outcome == "already there"
    assert (tmp_path / "data" / MANIFEST_NAME).stat().st_mtime_ns == before


def test_other_data_is_refused_and_replaced_only_by_force(tmp_path: Path) -> None:
    prepare(tmp_path / "data")
    before = content(tmp_path / "data")
    with pytest.raises(DataError, match=r"already holds other data.*--force"):
        prepare(tmp_path / "data", seed=2)
    assert content(tmp_path / "data") == before
    assert prepare(tmp_path / "data", seed=2, force=True).outcome == "replaced"
    assert load_prepared(tmp_path / "data").manifest.options["seed"] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_of_something_else_is_never_replaced(tmp_path: Path, force: bool) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(DataError, match="not prepared data"):
        prepare(tmp_path, force=force)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_an_empty_folder_may_be_filled(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    assert prepare(tmp_path / "data").outcome == "made"


def test_nothing_is_left_when_building_fails(tmp_path: Path) -> None:
    def fill(into: Path) -> SplitCounts:
        (into / "train_rows.npy").write_text("half of it")
        raise DataError("a.csv:7: broken")

    with pytest.raises(DataError, match=r"a\.csv:7"):
        write_prepared(tmp_path / "data", Recipe("csv", {"name": "a.csv"}, {}), "A", fill)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name",
    ["train_rows", "test_negatives", "positives", "test_context", "buckets_indptr", "buckets"],
)
def test_an_array_of_another_shape_is_reported(tmp_path: Path, name: str) -> None:
    prepare(tmp_path / "data")
    path = tmp_path / "data" / f"{name}.npy"
    np.save(path, np.load(path)[:-1])
    with pytest.raises(DataError, match=rf"{name}\.npy: manifest\.json says"):
        load_prepared(tmp_path / "data")


@pytest.mark.parametrize("broken", [b"", b"\x93NUMPY\x01\x00", b"not an array at all"])
def test_a_torn_array_is_reported_and_mended_by_force(tmp_path: Path, broken: bytes) -> None:
    prepare(tmp_path / "data")
    whole = content(tmp_path / "data")
    (tmp_path / "data" / "train_rows.npy").write_bytes(broken)
    with pytest.raises(DataError, match=r"train_rows\.npy"):
        load_prepared(tmp_path / "data")
    with pytest.raises(DataError, match="--force"):
        prepare(tmp_path / "data")
    assert prepare(tmp_path / "data", force=True).outcome == "replaced"
    assert content(tmp_path / "data") == whole


def test_a_cut_array_is_reported(tmp_path: Path) -> None:
    prepare(tmp_path / "data")
    path = tmp_path / "data" / "train_rows.npy"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(DataError, match=r"train_rows\.npy: not a complete"):
        load_prepared(tmp_path / "data")


@pytest.mark.parametrize(
    ("name", "field", "at", "value", "reported"),
    [
        ("train_rows", "user", (3,), 8, r"user: expected ids from 0 to 7, came 8 in row 3"),
        ("train_rows", "item", (89,), -1, r"item: expected ids from 0 to 59, came -1 in row 89"),
        ("test_negatives", None, (1, 4), 60, r"expected ids from 0 to 59, came 60 in row 1"),
        ("positives_indptr", None, (2,), 900, r"expected bounds from 0 to \d+ that never fall"),
        ("buckets_indptr", None, (0,), 1, r"expected bounds from 0 to \d+ that always rise"),
        ("buckets_indptr", None, (3,), 2, r"expected bounds from 0 to \d+ that always rise"),
        ("buckets_indptr", None, (8,), 99, r"expected bounds from 0 to \d+ that always rise"),
    ],
)
def test_an_edited_array_is_reported_with_its_value(
    tmp_path: Path, name: str, field: str | None, at: tuple[int, ...], value: int, reported: str
) -> None:
    prepare(tmp_path / "data")
    path = tmp_path / f"data/{name}.npy"
    array = np.load(path)
    (array[field] if field else array)[at] = value
    np.save(path, array)
    again = f"Prepare it again: `hpcncf data prepare synthetic .* -o {tmp_path}/data --force`$"
    for refused in (load_prepared, prepare):
        with pytest.raises(DataError, match=rf"{name}\.npy: {reported}\. {again}"):
            refused(tmp_path / "data")


def test_the_row_of_a_wrong_id_is_that_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcncf.ncf.data.prepared.slices", lambda length: slices(length, 7))
    test_an_edited_array_is_reported_with_its_value(
        tmp_path, "train_rows", "item", (89,), 60, r"item: expected .* came 60 in row 89"
    )


def test_a_user_with_no_negative_left_is_named(tmp_path: Path) -> None:
    prepare(tmp_path / "data")
    path = tmp_path / "data/positives_indptr.npy"
    ends = np.load(path)
    ends[1:-1] = 60  # the first user's; there are 60 items
    np.save(path, ends)
    with pytest.raises(
        DataError, match=r"indptr\.npy: user 0 has each of the 60 items, .* Prepare it"
    ):
        load_prepared(tmp_path / "data")


def test_a_missing_array_is_reported(tmp_path: Path) -> None:
    prepare(tmp_path / "data")
    (tmp_path / "data" / "positives.npy").unlink()
    with pytest.raises(DataError, match=r"positives\.npy: cannot be read"):
        load_prepared(tmp_path / "data")


@contextmanager
def a_user() -> Iterator[None]:
    """Root, who may write everywhere, is somebody else meanwhile."""
    before = os.geteuid()
    os.seteuid(before or 65534)
    try:
        yield
    finally:
        os.seteuid(before)


def test_a_folder_that_may_not_be_written_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # others cannot get there by its whole name
    tmp_path.chmod(0o555)
    denied = pytest.raises(DataError, match=r"cannot be written: Permission denied")
    with a_user(), denied:
        prepare(Path("data"))


def test_a_disk_that_is_full_is_reported_and_nothing_is_left(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(DataError, match="data: cannot be written: File too large"):
            synthetic.prepare_synthetic(tmp_path / "data", users=8, items=600, train_rows=9000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_a_parent_that_is_a_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        prepare(tmp_path / "file" / "data")


def test_data_without_context_or_test_rows_loads(tmp_path: Path) -> None:
    source = tmp_path / "u.data"
    source.write_text("1\t5\t3\t100\n2\t6\t3\t100\n")
    datasets.prepare_movielens(tmp_path / "data", source)
    data = load_prepared(tmp_path / "data")
    assert (unpack_context(data.train_rows).shape, data.test_negatives.shape) == ((2, 0), (0, 99))
    assert len(data.test_unseen) == 0


def test_a_manifest_with_a_wrong_value_is_reported_in_one_line(tmp_path: Path) -> None:
    prepare(tmp_path / "data")
    path = tmp_path / "data" / MANIFEST_NAME
    path.write_text(path.read_text().replace('"users": 8', '"users": "eight"'))
    with pytest.raises(DataError, match=r"manifest.json: users: .*came 'eight'\. Prepare"):
        load_prepared(tmp_path / "data")


@pytest.mark.parametrize(
    ("name", "value", "reported"),
    [
        ("small_columns", 4, "expected 0 to 3, the number of context_columns; came 4"),
        ("small_columns", -1, "expected 0 to 3, the number of context_columns; came -1"),
        ("buckets", 7, "expected 8 or more, one for each user; came 7"),
    ],
)
def test_a_manifest_whose_counts_cannot_be_is_reported_in_one_line(
    tmp_path: Path, name: str, value: int, reported: str
) -> None:
    prepare(tmp_path / "data")
    path = tmp_path / "data" / MANIFEST_NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    with pytest.raises(DataError, match=rf"manifest\.json: {name}: {reported}\. Prepare it again$"):
        load_prepared(tmp_path / "data")


@pytest.mark.parametrize("plain", ["[]", "null", "4"])
def test_json_that_is_no_manifest_is_reported(tmp_path: Path, plain: str) -> None:
    (tmp_path / MANIFEST_NAME).write_text(plain)
    with pytest.raises(DataError, match=r"manifest\.json: not a manifest of prepared data: came"):
        read_manifest(tmp_path)


def test_an_earlier_format_is_refused_with_the_command_to_prepare_again(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "data"
    before = prepare(folder).manifest
    of_format_3(folder)
    shape = "--users 8 --items 60 --rows 90 --context 3 --seed 1 --test-negatives 9"
    again = f"Prepare it again: `hpcncf data prepare synthetic {shape} -o {folder} --force`"
    for refused, advice in ((load_prepared, again), (prepare, "Replace it with --force")):
        with pytest.raises(OtherFormat) as error:
            refused(folder)
        reported = f"{folder}/manifest.json: format 3, but this hpcncf reads 4. {advice}"
        assert str(error.value) == reported
    assert prepare(folder, force=True).manifest == before


def test_a_folder_of_a_later_format_asks_for_a_later_hpcncf(tmp_path: Path) -> None:
    prepare(tmp_path / "data")
    path = tmp_path / "data" / MANIFEST_NAME
    path.write_text(path.read_text().replace('"format_version": 4', '"format_version": 5'))
    with pytest.raises(OtherFormat, match=r"format 5, but this hpcncf reads 4. Update hpcncf$"):
        read_manifest(path.parent)


def test_the_outline_of_an_earlier_format_is_read(tmp_path: Path) -> None:
    before = prepare(tmp_path / "data").manifest
    of_format_3(tmp_path / "data")
    found = read_outline(tmp_path / "data")
    assert (found.format_version, found.key, found.title) == (3, before.key, before.title)
    assert (found.train_rows, found.test_rows) == (90, 8)
