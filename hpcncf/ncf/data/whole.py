"""Whether a prepared folder's arrays are as long as its manifest tells. Imports neither numpy nor
torch, and reads no array: login nodes look before they submit."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from hpcncf.ncf.data import manifest as manifests
from hpcncf.ncf.data.manifest import NAME, DataError, Manifest

MAGIC: Final = b"\x93NUMPY"
# Bytes of a value: users, items, context and negatives; of a bound; of a bucket.
VALUE: Final = 4
BOUND: Final = 8
BUCKET: Final = 64


def check(folder: Path) -> None:
    """Raises DataError with the first array that is missing, cut or of another length."""
    told = manifests.read(folder)
    again = manifests.again_manifest(folder, told)
    for name, expected in content(told).items():
        path = folder / f"{name}.npy"
        try:
            came = path.stat().st_size
            header = _header(path)
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}: {again}") from None
        if header is None:
            raise DataError(f"{path}: not a whole .npy array, {came:,} bytes: {again}")
        if came != header + expected:
            raise DataError(
                f"{path}: expected {header + expected:,} bytes by {NAME}, came {came:,}: {again}"
            )


def content(told: Manifest) -> dict[str, int]:
    """Each array's name -> its bytes behind the header."""
    columns = len(told.context_columns)
    row = VALUE * (2 + columns - told.small_columns) + told.small_columns
    return {
        "train_rows": row * told.train_rows,
        "test_users": VALUE * told.test_rows,
        "test_items": VALUE * told.test_rows,
        "test_context": VALUE * told.test_rows * columns,
        "test_negatives": VALUE * told.test_rows * told.test_negatives,
        "positives_indptr": BOUND * (told.users + 1),
        "positives": VALUE * told.train_pairs,
        "buckets_indptr": BOUND * (told.users + 1),
        "buckets": BUCKET * told.buckets,
    }


def _header(path: Path) -> int | None:
    """Bytes before the array; None where it is no .npy file. Its format: numpy.lib.format."""
    with path.open("rb") as file:
        begins = file.read(12)
    if len(begins) < 12 or not begins.startswith(MAGIC):
        return None
    width = 2 if begins[6] == 1 else 4
    return 8 + width + int.from_bytes(begins[8 : 8 + width], "little")
