"""A damaged prepared folder is reported without reading its arrays."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from hpcncf import cli
from hpcncf.ncf.data import datasets
from hpcncf.ncf.data.manifest import DataError, array_bytes, check_arrays, read_manifest
from hpcncf.ncf.data.prepared import load_prepared


@pytest.fixture
def damaged(tiny_data: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return shutil.copytree(tiny_data, tmp_path / "data")


def test_the_manifest_gives_the_bytes_of_each_array(tiny_data: Path) -> None:
    held = {path.stem: np.load(path).nbytes for path in tiny_data.glob("*.npy")}
    assert array_bytes(read_manifest(tiny_data)) == held
    check_arrays(tiny_data)


def test_data_without_context_or_test_rows_is_complete(tmp_path: Path) -> None:
    source = tmp_path / "u.data"
    source.write_text("1\t5\t3\t100\n2\t6\t3\t100\n")
    datasets.prepare_movielens(tmp_path / "data", source)
    check_arrays(tmp_path / "data")


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_each_version_of_the_format_that_numpy_reads_is_read(
    damaged: Path, version: tuple[int, int]
) -> None:
    path = damaged / "positives.npy"
    array = np.load(path)
    with path.open("wb") as file:
        np.lib.format.write_array(file, array, version)
    load_prepared(damaged)
    check_arrays(damaged)


@pytest.mark.parametrize(
    "name", ["train_rows", "test_negatives", "positives_indptr", "positives", "buckets"]
)
def test_a_truncated_array_is_reported_with_its_bytes_and_a_remedy(
    damaged: Path, name: str
) -> None:
    path = damaged / f"{name}.npy"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-4])
    reported = (
        rf"^{path}: expected {size:,} bytes by manifest\.json, came {size - 4:,}\. "
        rf"Prepare it again: `hpcncf data prepare synthetic .* -o {damaged} --force`$"
    )
    with pytest.raises(DataError, match=reported):
        check_arrays(damaged)


@pytest.mark.parametrize("broken", [b"", b"\x93NUMPY\x01\x00", b"no array at all, but text"])
def test_a_file_that_is_no_array_is_reported(damaged: Path, broken: bytes) -> None:
    (damaged / "test_users.npy").write_bytes(broken)
    with pytest.raises(DataError, match=rf"users\.npy: not a complete .*, {len(broken)} bytes"):
        check_arrays(damaged)


def test_a_missing_array_is_reported(damaged: Path) -> None:
    (damaged / "positives.npy").unlink()
    with pytest.raises(DataError, match=r"positives\.npy: cannot be read: No such file"):
        check_arrays(damaged)


def test_submit_refuses_cut_data_before_it_writes_anything(
    damaged: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    path = damaged / "train_rows.npy"
    path.write_bytes(path.read_bytes()[:1000])
    Path("job.yaml").write_text("name: cut\ndata: {path: data}\ntraining: {epochs: 1}\n")
    assert cli.main(["submit", "job.yaml", "--cluster", "local"]) == 1
    assert f"hpcncf: {path}: expected " in capsys.readouterr().err
    assert not Path("results").exists()
