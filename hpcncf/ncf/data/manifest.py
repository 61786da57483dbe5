"""What a prepared folder says of itself. Imports neither numpy nor torch: login nodes read it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from hpcncf.errors import HpcncfError, UsageError, shown

FORMAT_VERSION: Final = 4
NAME = "manifest.json"
# A hit is to be among so many.
TOP: Final = 10
# What `data prepare` cannot know of each data set; the user fills in.
MUST_SAY: Final = {
    "frappe": "",
    "movielens": " --source FILE",
    "ncf": " --source FOLDER",
    "csv": " --source FILE --user COLUMN --item COLUMN",
    "parquet": " --source FILE --user COLUMN --item COLUMN",
    "synthetic": " --like yelp|frappe|movielens",
}


class DataError(HpcncfError):
    """Data that cannot be used, with the file and the line where there is one."""


class WrongRequest(DataError, UsageError):
    """What was asked for is not there or cannot be: a file, a folder, a column, a shape."""


class Manifest(BaseModel):
    """The prepared folder's `manifest.json`."""

    model_config = ConfigDict(frozen=True, extra="allow", use_attribute_docstrings=True)

    format_version: Literal[4] = FORMAT_VERSION
    key: str
    """SHA-256 over the format, the input's SHA-256 and the options: equal content, equal key."""
    dataset: str
    """frappe, movielens, ncf, csv, parquet or synthetic."""
    title: str
    """One line for a report's heading; synthetic data says that it is."""
    source: dict[str, Any]
    """`name` and `sha256` of what it was made from; the shape for synthetic data."""
    options: dict[str, Any]
    """What `data prepare` was told: seed, columns, ..."""
    users: int
    items: int
    rows: int
    """Interactions after filtering: training and test."""
    train_rows: int
    train_pairs: int
    """Distinct user-item pairs among the training rows."""
    test_rows: int
    context_columns: list[str]
    small_columns: int
    """How many of the last context columns hold whole numbers from 0 to 255 only: a byte each in
    training rows."""
    buckets: int
    """In which engine native looks for the users' training items."""
    test_negatives: int
    """Sampled negatives per test row."""

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
        if self.test_negatives >= TOP or not self.test_rows:
            return None
        return (
            f"HR@{TOP} among {self.negatives_told} is always 1: the held-out item is one of "
            f"{self.test_negatives + 1}; NDCG@{TOP} and MRR still tell. Prepare the data with "
            f"{TOP} negatives or more (99 is usual), or use evaluation: full"
        )


def read(folder: Path) -> Manifest:
    """Raises DataError where the folder is missing, unfinished or of another version."""
    path = folder / NAME
    if not is_there(folder):
        raise WrongRequest(
            f"{folder}: no prepared data here (no {NAME}); make it with "
            f"`{prepare_command(None, folder)}`"
        )
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        version = plain.get("format_version")
        if version != FORMAT_VERSION:
            dataset = plain.get("dataset")
            again = prepare_command(dataset if dataset in MUST_SAY else None, folder)
            raise DataError(
                f"{path}: format {version}, this hpcncf reads {FORMAT_VERSION}: prepare it again: "
                f"`{again} --force`"
            )
        return Manifest.model_validate(plain)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise DataError(
            f"{path}: {where}: {problem['msg']}; came {shown(problem['input'])}: prepare it again"
        ) from None
    except (ValueError, AttributeError, RecursionError) as error:
        raise DataError(f"{path}: not a manifest of prepared data: {error}") from None


def prepare_command(dataset: str | None, folder: Path) -> str:
    """What makes the folder; capitals and `...` are for the user to fill in."""
    told = f"{dataset}{MUST_SAY[dataset]}" if dataset else "DATASET ..."
    return f"hpcncf data prepare {told} -o {shlex.quote(str(folder))}"


def key(folder: Path) -> str | None:
    """The content's key; None where nothing is prepared. Raises DataError where it is broken."""
    return read(folder).key if is_there(folder) else None


def is_there(folder: Path) -> bool:
    """Whether something was prepared there. Raises DataError where we may not look."""
    try:
        return (folder / NAME).exists()
    except OSError as error:  # no permission, a name too long
        raise DataError(f"{folder}: cannot be read: {error.strerror}") from None
