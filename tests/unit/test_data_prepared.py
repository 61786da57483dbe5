"""The prepared folder: whole or not at all, checked when opened, never lost by accident."""

from __future__ import annotations

import json
import math
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from make_results import of_format_3

from hpcncf import cli
from hpcncf.data import prepared, synthetic
from hpcncf.data.arrays import unpack_context
from hpcncf.data.datasets import ZIP, prepare_frappe, prepare_movielens, prepare_ncf_files
from hpcncf.data.manifest import (
    MANIFEST_NAME,
    SLOTS,
    DataError,
    OtherFormat,
    array_types,
    check_arrays,
    read_manifest,
    read_outline,
)
from hpcncf.data.prepare import PreparedFolder, Recipe, write_prepared
from hpcncf.data.prepared import load_prepared, score_counts


def prepare(folder: Path, seed: int = 1, force: bool = False) -> PreparedFolder:
    shape = {"users": 8, "items": 60, "train_rows": 90, "context": 3}
    return synthetic.prepare_synthetic(folder, **shape, seed=seed, test_negatives=9, force=force)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "data"
    prepare(folder)
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return shutil.copytree(whole, tmp_path / "data")


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_loaded_arrays_match_the_manifest(whole: Path) -> None:
    data, manifest = load_prepared(whole), read_manifest(whole)
    assert data.manifest == manifest
    assert unpack_context(data.train_rows).shape == (90, 3)
    assert data.test_negatives.shape == (8, 9)
    assert data.manifest.rows == 98
    with pytest.raises(ValueError, match="read-only"):
        data.train_items[0] = 1
    check_arrays(whole)
    for name, (code, shape) in array_types(manifest).items():
        array = getattr(data, name)
        assert (array.itemsize, array.shape) == (np.dtype(code).itemsize, shape)
        assert array.offset % 64 == array.ctypes.data % 64 == 0  # so that a bucket is a cache line
    assert SLOTS * np.dtype(np.uint16).itemsize == 64


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="a kernel without huge pages"
)
def test_arrays_are_asked_for_in_huge_pages_while_they_are_read_in_order_and_not_later(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[set[str]] = []
    monkeypatch.setattr(
        prepared, "_check_values", lambda folder, _: seen.append(asked_for_in_huge_pages(folder))
    )
    data = load_prepared(whole)
    assert seen == [{path.name for path in whole.glob("*.npy")}]
    assert asked_for_in_huge_pages(whole) == set()
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


def test_unseen_says_the_test_pairs_that_training_does_not_have(whole: Path) -> None:
    data = load_prepared(whole)
    trained = set(zip(data.train_users.tolist(), data.train_items.tolist(), strict=True))
    tested = zip(data.test_users.tolist(), data.test_items.tolist(), strict=True)
    assert data.test_unseen.tolist() == [pair not in trained for pair in tested]
    assert data.test_unseen.sum() > 0


def test_the_same_input_gives_the_same_bytes_and_another_seed_another_key(
    whole: Path, tmp_path: Path
) -> None:
    two, other = prepare(tmp_path / "two"), prepare(tmp_path / "other", seed=2)
    assert two.outcome == "made"
    assert content(whole) == content(tmp_path / "two")
    assert two.manifest.key != other.manifest.key


def test_the_key_follows_from_the_input_not_from_its_file_name() -> None:
    def key(name: str, sha256: str, seed: int) -> str:
        return Recipe("csv", {"name": name, "sha256": sha256}, {"seed": seed}).key

    assert key("a.csv", "00", 1) == key("b.csv", "00", 1)
    assert len({key("a.csv", "00", 1), key("a.csv", "01", 1), key("a.csv", "00", 2)}) == 3


def test_the_same_data_is_left_alone_and_other_data_replaced_only_by_force(folder: Path) -> None:
    before, made_at = content(folder), (folder / MANIFEST_NAME).stat().st_mtime_ns
    assert prepare(folder).outcome == "already there"
    with pytest.raises(DataError, match=r"already holds other data.*--force"):
        prepare(folder, seed=2)
    assert content(folder) == before
    assert (folder / MANIFEST_NAME).stat().st_mtime_ns == made_at
    assert prepare(folder, seed=2, force=True).outcome == "replaced"
    assert load_prepared(folder).manifest.options["seed"] == 2
    assert [path.name for path in folder.parent.iterdir()] == ["data"]


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_of_something_else_is_never_replaced(tmp_path: Path, force: bool) -> None:
    (tmp_path / "empty").mkdir()
    assert prepare(tmp_path / "empty", force=force).outcome == "made"
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(DataError, match="not prepared data"):
        prepare(tmp_path, force=force)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_nothing_is_left_when_building_fails(tmp_path: Path) -> None:
    def fill(into: Path) -> dict[str, Any]:
        (into / "train_rows.npy").write_text("half of it")
        raise DataError("a.csv:7: broken")

    with pytest.raises(DataError, match=r"a\.csv:7"):
        write_prepared(tmp_path / "data", Recipe("csv", {"name": "a.csv"}, {}), "A", fill)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name",
    ["train_rows", "test_negatives", "positives", "test_context", "buckets_indptr", "buckets"],
)
def test_an_array_of_another_shape_or_cut_is_reported(folder: Path, name: str) -> None:
    path = folder / f"{name}.npy"
    array, size = np.load(path), path.stat().st_size
    np.save(path, array[:-1])
    with pytest.raises(DataError, match=rf"{name}\.npy: manifest\.json says"):
        load_prepared(folder)
    np.save(path, array)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(DataError, match=rf"{name}\.npy: not a complete"):
        load_prepared(folder)
    reported = (
        rf"^{path}: expected {size:,} bytes by manifest\.json, came {size - 4:,}\. "
        rf"Prepare it again: `hpcncf data prepare synthetic .* -o {folder} --force`$"
    )
    with pytest.raises(DataError, match=reported):
        check_arrays(folder)


@pytest.mark.parametrize("broken", [b"", b"\x93NUMPY\x01\x00", b"not an array at all", None])
def test_a_torn_or_missing_array_is_reported_and_mended_by_force(
    whole: Path, folder: Path, broken: bytes | None
) -> None:
    path = folder / "train_rows.npy"
    path.unlink()
    reported = "cannot be read: No such file"
    if broken is not None:
        path.write_bytes(broken)
        reported = f"not a complete .npy array, {len(broken)} bytes"
    with pytest.raises(DataError, match=rf"train_rows\.npy: {reported}"):
        check_arrays(folder)
    with pytest.raises(DataError, match=r"train_rows\.npy: (cannot be read|not a complete)"):
        load_prepared(folder)
    with pytest.raises(DataError, match="--force"):
        prepare(folder)
    assert prepare(folder, force=True).outcome == "replaced"
    assert content(folder) == content(whole)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_each_version_of_the_format_that_numpy_reads_is_read(
    folder: Path, version: tuple[int, int]
) -> None:
    path = folder / "positives.npy"
    array = np.load(path)
    with path.open("wb") as file:
        np.lib.format.write_array(file, array, version)
    load_prepared(folder)
    check_arrays(folder)


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
        ("positives_indptr", None, slice(1, -1), 60, r"user 0 has each of the 60 items, .*"),
    ],
)
def test_an_edited_array_is_reported_with_its_value(
    folder: Path, name: str, field: str | None, at: tuple[int, ...], value: int, reported: str
) -> None:
    path = folder / f"{name}.npy"
    array = np.load(path)
    (array[field] if field else array)[at] = value
    np.save(path, array)
    again = f"Prepare it again: `hpcncf data prepare synthetic .* -o {folder} --force`$"
    for refused in (load_prepared, prepare):
        with pytest.raises(DataError, match=rf"{name}\.npy: {reported}\. {again}"):
            refused(folder)


@contextmanager
def a_user() -> Iterator[None]:
    """Root, who may write everywhere, is somebody else meanwhile."""
    before = os.geteuid()
    os.seteuid(before or 65534)
    try:
        yield
    finally:
        os.seteuid(before)


def test_a_folder_that_cannot_be_written_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # others cannot get there by its whole name
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        prepare(tmp_path / "file" / "data")
    tmp_path.chmod(0o555)
    denied = pytest.raises(DataError, match=r"cannot be written: Permission denied")
    with a_user(), denied:
        prepare(Path("data"))


def test_a_disk_that_is_full_is_reported_and_nothing_is_left(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(DataError, match="cannot be written: File too large"):
            synthetic.prepare_synthetic(tmp_path / "data", users=8, items=600, train_rows=9000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_data_without_context_or_test_rows_is_complete_but_has_no_baseline(tmp_path: Path) -> None:
    source = tmp_path / "u.data"
    source.write_text("1\t5\t3\t100\n2\t6\t3\t100\n")
    prepare_movielens(tmp_path / "data", source)
    data = load_prepared(tmp_path / "data")
    check_arrays(tmp_path / "data")
    assert (unpack_context(data.train_rows).shape, data.test_negatives.shape) == ((2, 0), (0, 99))
    assert len(data.test_unseen) == 0
    with pytest.raises(DataError, match="nothing to rank"):
        score_counts(data)


@pytest.mark.parametrize(
    ("name", "value", "reported"),
    [
        ("users", "eight", r"users: .*came 'eight'\. Prepare it again$"),
        ("small_columns", 4, r"small_columns: expected 0 to 3, came 4\. Prepare it again$"),
        ("small_columns", -1, r"small_columns: expected 0 to 3, came -1\. Prepare it again$"),
        ("buckets", 7, r"buckets: expected 8 or more, came 7\. Prepare it again$"),
        ("format_version", 5, "format 5, but this hpcncf reads 4. Update hpcncf$"),
    ],
)
def test_a_manifest_whose_values_cannot_be_is_reported_in_one_line(
    folder: Path, name: str, value: object, reported: str
) -> None:
    path = folder / MANIFEST_NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    with pytest.raises(DataError, match=rf"manifest\.json: {reported}"):
        load_prepared(folder)


@pytest.mark.parametrize("plain", ["[]", "null", "4", "{"])
def test_json_that_is_no_manifest_is_reported(tmp_path: Path, plain: str) -> None:
    (tmp_path / MANIFEST_NAME).write_text(plain)
    with pytest.raises(DataError, match=r"manifest\.json: not a manifest of prepared data: "):
        read_manifest(tmp_path)


def test_an_earlier_format_is_outlined_and_refused_with_the_command_to_prepare_again(
    folder: Path,
) -> None:
    before = read_manifest(folder)
    of_format_3(folder)
    found = read_outline(folder)
    assert (found.format_version, found.key, found.title) == (3, before.key, before.title)
    assert (found.train_rows, found.test_rows) == (90, 8)
    shape = "--users 8 --items 60 --rows 90 --context 3 --seed 1 --test-negatives 9"
    again = f"Prepare it again: `hpcncf data prepare synthetic {shape} -o {folder} --force`"
    refusals: list[tuple[Callable[[Path], object], str]] = [
        (load_prepared, again),
        (prepare, "Replace it with --force"),
    ]
    for refused, advice in refusals:
        with pytest.raises(OtherFormat) as error:
            refused(folder)
        reported = f"{folder}/manifest.json: format 3, but this hpcncf reads 4. {advice}"
        assert str(error.value) == reported
    assert prepare(folder, force=True).manifest == before


def test_submit_refuses_cut_data_before_it_writes_anything(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    path = folder / "train_rows.npy"
    path.write_bytes(path.read_bytes()[:1000])
    Path("job.yaml").write_text("name: cut\ndata: {path: data}\ntraining: {epochs: 1}\n")
    assert cli.main(["submit", "job.yaml", "--cluster", "local"]) == 1
    assert f"hpcncf: {path}: expected " in capsys.readouterr().err
    assert not Path("results").exists()


def scored(folder: Path, train: list[tuple[int, int]], test: list[int]) -> tuple[float, float]:
    """HR@10 and NDCG@10 by counts. `test`: user, positive, negatives."""
    folder.mkdir(exist_ok=True)
    user, item, *negatives = test
    (folder / "a.train.rating").write_text("".join(f"{u}\t{i}\n" for u, i in train))
    (folder / "a.test.rating").write_text(f"{user}\t{item}\n")
    (folder / "a.test.negative").write_text(f"({user},{item})\t" + "\t".join(map(str, negatives)))
    prepare_ncf_files(folder / "out", folder)
    found = score_counts(load_prepared(folder / "out"))
    return found["hr10"], found["ndcg10"]


def test_counting_ranks_by_the_users_own_count_then_popularity_and_ties_never_help(
    tmp_path: Path,
) -> None:
    own_first = [(0, 1), (1, 2), (2, 2), (3, 2)]
    assert scored(tmp_path / "own", own_first, [0, 1, 2, 3]) == (1.0, 1.0)
    often = [(0, 1), (0, 2), (0, 2), (1, 1), (2, 1)]
    assert scored(tmp_path / "often", often, [0, 1, 2, 3])[1] == pytest.approx(1 / math.log2(3))
    popular = [(0, 9), (1, 1), (1, 2), (2, 2)]
    assert scored(tmp_path / "popular", popular, [0, 1, 2, 3])[1] == pytest.approx(1 / math.log2(3))
    ties = [(0, 50), *((1, item) for item in range(11))]
    assert scored(tmp_path / "nine", ties, [0, 0, *range(1, 10)])[0] == 1.0
    assert scored(tmp_path / "ten", ties, [0, 0, *range(1, 11)]) == (0.0, 0.0)


def test_made_data_is_not_solved_by_counting_which_takes_the_data_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = {"users": 300, "items": 600, "train_rows": 15_000, "context": 5}
    synthetic.prepare_synthetic(tmp_path / "data", **shape)
    data = load_prepared(tmp_path / "data")
    found = score_counts(data)
    assert 0.1 < found["hr10"] < 0.85
    monkeypatch.setattr(prepared, "TRAIN_ROWS_AT_ONCE", 997)
    monkeypatch.setattr(prepared, "TEST_ROWS_AT_ONCE", 7)
    assert score_counts(data) == found


def test_counting_has_the_known_score_on_real_frappe(tmp_path: Path) -> None:
    source = os.environ.get("HPCNCF_DATA")
    if not source or not (Path(source) / ZIP).is_file():
        pytest.skip(f"needs {ZIP} in the folder HPCNCF_DATA")
    prepare_frappe(tmp_path / "data", Path(source), seed=0)
    found = score_counts(load_prepared(tmp_path / "data"))
    # 654 test rows: one standard deviation is 0.012 around the known 0.89 to 0.905.
    assert 0.878 < found["hr10"] < 0.917
    assert found["ndcg10"] == pytest.approx(0.84, abs=0.02)
