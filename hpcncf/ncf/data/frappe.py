"""Frappe, app use in context (Baltrunas et al. 2015): found, filtered and split.

`frappe.csv` joined with `meta.csv` on `item`; until stable, items and then users with 5 or fewer
rows are dropped; then rows whose app has no numeric rating. Context, 21 columns: log10(cnt + 1)
scaled so that the smallest kept row is 0 and the largest 1, and the one-hot values of daytime (7),
weather (8, `unknown` one of them), isweekend (2) and homework (3) that the kept rows have. Frappe
has no time: the row held out for each user is drawn at random.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcncf.ncf.data import text
from hpcncf.ncf.data.manifest import DataError
from hpcncf.ncf.data.rows import Rows, numbered
from hpcncf.ncf.data.splitting import Counts, leave_one_out
from hpcncf.ncf.data.writing import Recipe, Written, write

ZIP = "Mobile_Frappe.zip"
SHA256 = "4adc616de57170f282397f6e6e30215f97fa7ad1b7f40bd12ef5dceaaf3e9b4e"
CATEGORIES = ("daytime", "weather", "isweekend", "homework")
LEAST_ROWS = 6


def prepare(
    folder: Path, source: Path, seed: int = 1, test_negatives: int = 99, force: bool = False
) -> Written:
    """Prepare Frappe from its zip, or from a folder that holds the zip."""
    source = source / ZIP if source.is_dir() else source
    recipe = Recipe(
        "frappe", text.source_of([source]), {"seed": seed, "test_negatives": test_negatives}
    )
    real = recipe.source["sha256"] == SHA256
    title = "Frappe (real)" if real else f"{source.name} in Frappe's format, not the published file"

    def fill(into: Path) -> Counts:
        return leave_one_out(into, read(source), seed, test_negatives)

    return write(folder, recipe, title, fill, force)


def read(source: Path) -> Rows:
    """The kept rows of the zip, in the order of `frappe.csv`."""
    names = ["user", "item", "cnt", *CATEGORIES]
    users, items, counts = [], [], []
    categories: list[list[str]] = []
    for where, (user, item, count, *rest) in _table(source, "frappe.csv", names):
        users.append(text.integer(user, where, "user"))
        items.append(text.integer(item, where, "item"))
        counts.append(text.integer(count, where, "cnt", least=1))
        categories.append(rest)
    if not users:
        raise DataError(f"{source}: frappe.csv has no rows")
    rated = _rated_items(source)
    kept = _kept(np.array(users), np.array(items), rated)
    if not len(kept):
        raise DataError(
            f"{source}: no row is left: every user or item has fewer than {LEAST_ROWS} rows, "
            "or no app has a numeric rating"
        )
    context, columns = _context(np.array(counts)[kept], np.array(categories)[kept])
    return numbered(np.array(users)[kept], np.array(items)[kept], context, columns)


def _table(source: Path, member: str, columns: list[str]) -> list[tuple[str, list[str]]]:
    try:
        with zipfile.ZipFile(source) as archive:
            found = [name for name in archive.namelist() if Path(name).name == member]
            if not found:
                raise DataError(f"{source}: no {member} inside; expected Frappe's {ZIP}")
            with archive.open(found[0]) as raw:
                return list(text.records(raw, f"{source}/{member}", columns, "\t"))
    # RuntimeError: encrypted; NotImplementedError: compressed in a way that Python cannot read.
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise DataError(f"{source}: not a zip file that can be read: {error}") from None
    except OSError as error:
        raise DataError(f"{source}: cannot be read: {error.strerror}") from None


def _rated_items(source: Path) -> NDArray[np.int64]:
    rated = [
        text.integer(item, where, "item")
        for where, (item, rating) in _table(source, "meta.csv", ["item", "rating"])
        if text.is_number(rating)
    ]
    return np.array(rated, dtype=np.int64)


def _kept(
    users: NDArray[np.int64], items: NDArray[np.int64], rated: NDArray[np.int64]
) -> NDArray[np.int64]:
    kept = np.arange(len(users))
    before = -1
    while len(kept) != before:
        before = len(kept)
        for column in (items, users):
            kept = kept[_occurrences(column[kept]) >= LEAST_ROWS]
    return kept[np.isin(items[kept], rated)]


def _occurrences(values: NDArray[np.int64]) -> NDArray[np.int64]:
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    return counts[which]


def _context(
    counts: NDArray[np.int64], categories: NDArray[Any]
) -> tuple[NDArray[np.float32], list[str]]:
    logs = np.log10(counts + 1.0)
    spread = np.ptp(logs)
    scaled = (logs - logs.min()) / spread if spread else np.zeros_like(logs)
    blocks, columns = [scaled.astype(np.float32)[:, None]], ["log10(cnt + 1)"]
    for at, name in enumerate(CATEGORIES):
        block, names = text.one_hot(name, categories[:, at])
        blocks.append(block)
        columns += names
    return np.concatenate(blocks, axis=1), columns
