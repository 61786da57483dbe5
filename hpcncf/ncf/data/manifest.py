"""The manifest of a prepared folder, and checks that the folder is complete."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator

from hpcncf.errors import HpcncfError, UsageError, abbreviate

FORMAT_VERSION: Final = 4
MANIFEST_NAME = "manifest.json"
# A hit is to be among so many.
TOP_K: Final = 10
# What `data prepare` cannot know of each data set; the user fills in.
REQUIRED_OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "frappe": {},
    "movielens": {"source": "FILE"},
    "ncf": {"source": "FOLDER"},
    "csv": {"source": "FILE", "user": "COLUMN", "item": "COLUMN"},
    "parquet": {"source": "FILE", "user": "COLUMN", "item": "COLUMN"},
    "synthetic": {"like": "SHAPE"},
}
# A prepared folder's options -> how `data prepare` is told them.
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


class DataError(HpcncfError):
    """Data that cannot be used, with the file and the line where there is one."""


class WrongRequest(DataError, UsageError):
    """What was asked for is not there or cannot be: a file, a folder, a column, a shape."""


class OtherFormat(DataError):
    """Prepared for another version of hpcncf; the words tell what helps."""


class Outline(BaseModel):
    """What the manifests of all formats tell: enough to report runs that are done."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    format_version: int
    key: str
    """SHA-256 over the format, the input's SHA-256 and the options: equal content, equal key."""
    dataset: str
    """frappe, movielens, ncf, csv, parquet or synthetic."""
    title: str
    """One line for a report's heading; synthetic data says that it is."""
    options: dict[str, Any]
    """What `data prepare` was told: seed, columns, ..."""
    train_rows: int
    test_rows: int


class Manifest(Outline):
    """The prepared folder's `manifest.json`."""

    model_config = ConfigDict(extra="allow")

    format_version: Literal[4] = FORMAT_VERSION
    source: dict[str, Any]
    """`name` and `sha256` of what it was made from; the shape for synthetic data."""
    users: int
    items: int
    rows: int
    """Interactions after filtering: training and test."""
    train_pairs: int
    """Distinct user-item pairs among the training rows."""
    context_columns: list[str]
    small_columns: int
    """How many of the last context columns hold whole numbers from 0 to 255 only: a byte each in
    training rows."""
    buckets: int
    """In which negatives are told from the users' training items."""
    test_negatives: int
    """Sampled negatives per test row."""

    @field_validator("small_columns")
    @classmethod
    def _are_columns(cls, small: int, info: ValidationInfo) -> int:
        columns = len(info.data.get("context_columns", []))
        if not 0 <= small <= columns:
            raise ValueError(f"expected 0 to {columns}, the number of context_columns")
        return small

    @field_validator("buckets")
    @classmethod
    def _are_for_everybody(cls, buckets: int, info: ValidationInfo) -> int:
        users = info.data.get("users", 0)
        if buckets < users:
            raise ValueError(f"expected {users:,} or more, one for each user")
        return buckets

    @property
    def parameters(self) -> int:
        """Of the model at its default widths: 40 per user and item, and the dense layers'."""
        inputs = 64 + len(self.context_columns)
        return 40 * (self.users + self.items) + 32 * inputs + 32 + 16 * 32 + 16 + 8 * 16 + 8 + 17

    @property
    def negatives_told(self) -> str:
        return f"{self.test_negatives} negative{'s' * (self.test_negatives != 1)}"

    @property
    def caution(self) -> str | None:
        """What makes the figures of ranking among the sampled negatives worth nothing."""
        if self.test_negatives >= TOP_K or not self.test_rows:
            return None
        return (
            f"HR@{TOP_K} among {self.negatives_told} is always 1: the held-out item is one of "
            f"{self.test_negatives + 1}; NDCG@{TOP_K} and MRR still tell. Prepare the data with "
            f"{TOP_K} negatives or more (99 is usual), or use evaluation: full"
        )


def read_manifest(folder: Path) -> Manifest:
    """Raises DataError where the folder is missing or unfinished, OtherFormat where it is of
    another version."""
    plain = _plain(folder)
    told = _valid(folder, Outline, plain)
    if told.format_version > FORMAT_VERSION:
        raise wrong_format_error(folder, told, "update hpcncf")
    if told.format_version < FORMAT_VERSION:
        raise wrong_format_error(folder, told, advise_preparing_again(folder, told))
    return _valid(folder, Manifest, plain)


def read_outline(folder: Path) -> Outline:
    """Of a folder of any format. Raises DataError where it is missing or unfinished."""
    return _valid(folder, Outline, _plain(folder))


def _plain(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST_NAME
    if not is_prepared(folder):
        raise WrongRequest(
            f"{folder}: no prepared data here (no {MANIFEST_NAME}); make it with "
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


Told = TypeVar("Told", bound=Outline)


def _valid(folder: Path, kind: type[Told], plain: dict[str, Any]) -> Told:
    try:
        return kind.model_validate(plain)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        message = problem["msg"].removeprefix("Value error, ")
        raise DataError(
            f"{folder / MANIFEST_NAME}: {where}: {message}; came {abbreviate(problem['input'])}: "
            "prepare it again"
        ) from None


def wrong_format_error(folder: Path, old: Outline, advice: str) -> OtherFormat:
    return OtherFormat(
        f"{folder / MANIFEST_NAME}: format {old.format_version}, this hpcncf reads {FORMAT_VERSION}: "
        f"{advice}"
    )


def advise_preparing_again(folder: Path, old: Outline) -> str:
    """Advice where what the folder holds is of no use any more."""
    return f"prepare it again: `{prepare_command(old.dataset, folder, old.options)} --force`"


def prepare_command(
    dataset: str | None, folder: Path, options: Mapping[str, Any] | None = None
) -> str:
    """What makes the folder, or one with these `options` again; capitals and `...` are for the
    user to fill in."""
    words = ["DATASET ..."]
    if dataset is not None and dataset in REQUIRED_OPTIONS:
        words = [dataset, *_format_options({**REQUIRED_OPTIONS[dataset], **(options or {})})]
    return " ".join(["hpcncf data prepare", *words, "-o", shlex.quote(str(folder))])


def _format_options(options: Mapping[str, Any]) -> list[str]:
    whole = SHAPE_OPTIONS if options.get("like") else ()
    told = {flag: options.get(name) for name, flag in FLAGS.items() if name not in whole}
    return [f"{flag} {_spelled(value)}" for flag, value in told.items() if value not in (None, [])]


def _spelled(value: Any) -> str:
    return shlex.quote(",".join(map(str, value)) if isinstance(value, list) else str(value))


def content_key(folder: Path) -> str | None:
    """The content's key; None where nothing is prepared. Raises DataError where it is broken."""
    return read_manifest(folder).key if is_prepared(folder) else None


def is_prepared(folder: Path) -> bool:
    """Whether something was prepared there. Raises DataError where we may not look."""
    try:
        return (folder / MANIFEST_NAME).exists()
    except OSError as error:  # no permission, a name too long
        raise DataError(f"{folder}: cannot be read: {error.strerror}") from None


MAGIC: Final = b"\x93NUMPY"
# Bytes of a value: users, items, context and negatives; of a bound; of a bucket.
VALUE_BYTES: Final = 4
BOUND_BYTES: Final = 8
BUCKET_BYTES: Final = 64


def check_arrays(folder: Path) -> None:
    """Raises DataError with the first array that is missing, cut or of another length."""
    told = read_manifest(folder)
    again = advise_preparing_again(folder, told)
    for name, expected in array_bytes(told).items():
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
                f"{path}: expected {header + expected:,} bytes by {MANIFEST_NAME}, came {came:,}: {again}"
            )


def array_bytes(told: Manifest) -> dict[str, int]:
    """Each array's name -> its bytes behind the header."""
    columns = len(told.context_columns)
    row = VALUE_BYTES * (2 + columns - told.small_columns) + told.small_columns
    return {
        "train_rows": row * told.train_rows,
        "test_users": VALUE_BYTES * told.test_rows,
        "test_items": VALUE_BYTES * told.test_rows,
        "test_context": VALUE_BYTES * told.test_rows * columns,
        "test_negatives": VALUE_BYTES * told.test_rows * told.test_negatives,
        "positives_indptr": BOUND_BYTES * (told.users + 1),
        "positives": VALUE_BYTES * told.train_pairs,
        "buckets_indptr": BOUND_BYTES * (told.users + 1),
        "buckets": BUCKET_BYTES * told.buckets,
    }


def _header(path: Path) -> int | None:
    """Bytes before the array; None where it is no .npy file. Its format: numpy.lib.format."""
    with path.open("rb") as file:
        begins = file.read(12)
    if len(begins) < 12 or not begins.startswith(MAGIC):
        return None
    width = 2 if begins[6] == 1 else 4
    return 8 + width + int.from_bytes(begins[8 : 8 + width], "little")
