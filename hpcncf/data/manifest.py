"""The manifest of a prepared folder, and the check that its arrays have the right length.

Imports neither numpy nor torch and reads no array, for login nodes.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from hpcncf.errors import HpcncfError, UsageError, abbreviate
from hpcncf.text import pluralize

FORMAT_VERSION: Final = 4
MANIFEST_NAME: Final = "manifest.json"
# A hit is among the first TOP_K.
TOP_K: Final = 10
# Options of `data prepare` that the user must fill in.
REQUIRED_OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "frappe": {},
    "movielens": {"source": "FILE"},
    "ncf": {"source": "FOLDER"},
    "csv": {"source": "FILE", "user": "COLUMN", "item": "COLUMN"},
    "parquet": {"source": "FILE", "user": "COLUMN", "item": "COLUMN"},
    "synthetic": {"like": "SHAPE"},
}
# A prepared folder's options -> flags of `data prepare`.
FLAGS: Final = {
    "source": "--source",
    "user": "--user",
    "item": "--item",
    "time": "--time",
    "like": "--like",
    "users": "--users",
    "items": "--items",
    "train_rows": "--rows",
    "context": "--context",
    "seed": "--seed",
    "test_negatives": "--test-negatives",
}
SHAPE_OPTIONS: Final = ("users", "items", "train_rows", "context")

MAGIC: Final = b"\x93NUMPY"
SLOTS: Final = 32
"""Of a bucket of positives, see data/arrays.py."""


class DataError(HpcncfError):
    """Data that cannot be used, with the file, and the line if there is one."""


class WrongRequest(DataError, UsageError):
    """The requested file, folder, column or shape does not exist or is impossible."""


class OtherFormat(DataError):
    """A folder that was prepared for another version of hpcncf; the message gives the remedy."""


class Outline(BaseModel):
    """The fields that the manifests of all formats have: enough to report completed runs."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    format_version: int
    key: str
    """SHA-256 over the format, the input's SHA-256 and the options: equal content, equal key."""
    dataset: str
    """frappe, movielens, ncf, csv, parquet or synthetic (earlier yelp, too)."""
    title: str
    """One line for a report's heading; synthetic data is called synthetic."""
    options: dict[str, Any]
    """Options of `data prepare`: seed, columns, ..."""
    train_rows: int
    test_rows: int


class Manifest(Outline):
    """The prepared folder's `manifest.json`."""

    model_config = ConfigDict(extra="allow")

    format_version: Literal[4] = FORMAT_VERSION
    source: dict[str, Any]
    """`name` and `sha256` of the input; the shape for synthetic data."""
    users: int
    items: int
    rows: int
    """Interactions after filtering: training and test."""
    train_pairs: int
    """Distinct user-item pairs among the training rows."""
    context_columns: list[str]
    small_columns: int
    """How many of the last context columns hold only whole numbers from 0 to 255: a byte each in
    training rows."""
    buckets: int
    """Buckets of the users' training items, see data/arrays.py."""
    test_negatives: int
    """Sampled negatives per test row."""

    @model_validator(mode="after")
    def _counts_agree(self) -> Self:
        columns = len(self.context_columns)
        if not 0 <= self.small_columns <= columns:
            raise ValueError(f"small_columns: expected 0 to {columns}, came {self.small_columns}")
        if self.buckets < self.users:
            raise ValueError(f"buckets: expected {self.users:,} or more, came {self.buckets:,}")
        return self

    @property
    def parameters(self) -> int:
        """Number of parameters of a model of default widths for this data."""
        inputs = 64 + len(self.context_columns)
        return 40 * (self.users + self.items) + 32 * inputs + 32 + 16 * 32 + 16 + 8 * 16 + 8 + 17

    @property
    def negatives_label(self) -> str:
        return pluralize(self.test_negatives, "negative")

    @property
    def ranking_warning(self) -> str | None:
        """Warning that HR@10 among the sampled negatives is meaningless; None if it is not."""
        if self.test_negatives >= TOP_K or not self.test_rows:
            return None
        return (
            f"HR@{TOP_K} among {self.negatives_label} is always 1, since the held-out item is one "
            f"of {self.test_negatives + 1}; NDCG@{TOP_K} and MRR remain meaningful. Prepare the "
            f"data with {TOP_K} negatives or more (99 is usual), or use evaluation: full"
        )


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a prepared folder.

    Raises DataError if the folder is missing or incomplete, OtherFormat if it was prepared for
    another version.
    """
    plain = _read_plain(folder)
    found = _validate(folder, Outline, plain)
    if found.format_version > FORMAT_VERSION:
        raise wrong_format_error(folder, found, "Update hpcncf")
    if found.format_version < FORMAT_VERSION:
        raise wrong_format_error(folder, found, advise_preparing_again(folder, found))
    return _validate(folder, Manifest, plain)


def read_outline(folder: Path) -> Outline:
    """Read the outline of a folder of any format. Raises DataError if it is incomplete."""
    return _validate(folder, Outline, _read_plain(folder))


def content_key(folder: Path) -> str | None:
    """Key of the folder's content; None if nothing is prepared there.

    Raises DataError if the folder is broken.
    """
    return read_manifest(folder).key if is_prepared(folder) else None


def is_prepared(folder: Path) -> bool:
    """Whether the folder has a manifest. Raises DataError if it cannot be read."""
    try:
        return (folder / MANIFEST_NAME).exists()
    except OSError as error:  # no permission, a name too long
        raise DataError(f"{folder}: cannot be read: {error.strerror}") from None


def _read_plain(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST_NAME
    if not is_prepared(folder):
        raise WrongRequest(
            f"{folder}: no prepared data here (no {MANIFEST_NAME}). Prepare it with "
            f"`{prepare_command(None, folder)}`"
        )
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not a manifest of prepared data: {error}") from None
    if not isinstance(plain, dict):
        raise DataError(f"{path}: not a manifest of prepared data: came {abbreviate(plain)}")
    return plain


M = TypeVar("M", bound=Outline)


def _validate(folder: Path, kind: type[M], plain: dict[str, Any]) -> M:
    try:
        return kind.model_validate(plain)
    except ValidationError as error:
        problem = error.errors()[0]
        message = problem["msg"].removeprefix("Value error, ")
        if problem["loc"]:
            where = ".".join(str(part) for part in problem["loc"])
            message = f"{where}: {message}; came {abbreviate(problem['input'])}"
        raise DataError(f"{folder / MANIFEST_NAME}: {message}. Prepare it again") from None


def wrong_format_error(folder: Path, found: Outline, advice: str) -> OtherFormat:
    return OtherFormat(
        f"{folder / MANIFEST_NAME}: format {found.format_version}, but this hpcncf reads "
        f"{FORMAT_VERSION}. {advice}"
    )


def advise_preparing_again(folder: Path, found: Outline) -> str:
    return f"Prepare it again: `{prepare_command(found.dataset, folder, found.options)} --force`"


def prepare_command(
    dataset: str | None, folder: Path, options: Mapping[str, Any] | None = None
) -> str:
    """Build the command that prepares a folder, or prepares it again with `options`.

    The user fills in capitals and `...`.
    """
    words = ["DATASET ..."]
    if dataset is not None and dataset in REQUIRED_OPTIONS:
        given = {**REQUIRED_OPTIONS[dataset], **(options or {})}
        implied = SHAPE_OPTIONS if given.get("like") else ()
        words = [dataset]
        for name, flag in FLAGS.items():
            value = given.get(name)
            if name not in implied and value not in (None, []):
                text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
                words.append(f"{flag} {shlex.quote(text)}")
    return " ".join(["hpcncf data prepare", *words, "-o", shlex.quote(str(folder))])


def check_arrays(folder: Path) -> None:
    """Check that every array has the size that the manifest says.

    Raises DataError with the first array that is missing, truncated or of another length.
    """
    manifest = read_manifest(folder)
    advice = advise_preparing_again(folder, manifest)
    for name, (kind, shape) in array_types(manifest).items():
        path, expected = folder / f"{name}.npy", int(kind[1:]) * math.prod(shape)
        try:
            came = path.stat().st_size
            header = _header_bytes(path)
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}. {advice}") from None
        if header is None:
            raise DataError(f"{path}: not a complete .npy array, {came:,} bytes. {advice}")
        if came != header + expected:
            raise DataError(
                f"{path}: expected {header + expected:,} bytes by {MANIFEST_NAME}, came "
                f"{came:,}. {advice}"
            )


def array_types(manifest: Manifest) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Map each array's name to its type (numpy's kind and bytes) and its shape.

    A training row has fields (data/arrays.py); here it is bytes.
    """
    columns, small = len(manifest.context_columns), manifest.small_columns
    tests, bounds = manifest.test_rows, manifest.users + 1
    return {
        "train_rows": (f"V{4 * (2 + columns - small) + small}", (manifest.train_rows,)),
        "test_users": ("i4", (tests,)),
        "test_items": ("i4", (tests,)),
        "test_context": ("f4", (tests, columns)),
        "test_negatives": ("i4", (tests, manifest.test_negatives)),
        "positives_indptr": ("i8", (bounds,)),
        "positives": ("i4", (manifest.train_pairs,)),
        "buckets_indptr": ("i8", (bounds,)),
        "buckets": ("u2", (manifest.buckets, SLOTS)),
    }


def _header_bytes(path: Path) -> int | None:
    """Size in bytes of a .npy file's header; None if it is no .npy file.

    See numpy.lib.format.
    """
    with path.open("rb") as file:
        begins = file.read(12)
    if len(begins) < 12 or not begins.startswith(MAGIC):
        return None
    width = 2 if begins[6] == 1 else 4
    return 8 + width + int.from_bytes(begins[8 : 8 + width], "little")
