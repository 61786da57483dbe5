"""The Frappe data set: find, download, filter."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hpcncf.ncf.data import synthetic
from hpcncf.ncf.data.arrays import Rows, number_rows
from hpcncf.ncf.data.manifest import FORMAT_VERSION, DataError, Outline, wrong_format_error, read_outline
from hpcncf.ncf.data.prepare import Recipe, PreparedFolder, write_prepared
from hpcncf.ncf.data.prepared import load_prepared
from hpcncf.ncf.data.readers import (
    Unavailable,
    download,
    parse_integer,
    is_number,
    one_hot,
    read_csv_rows,
    describe_source,
)
from hpcncf.ncf.data.split import SplitCounts, leave_one_out

# `frappe.csv` joined with `meta.csv` on `item`; until stable, items and then users with 5 or
# fewer
# rows are dropped; then rows whose app has no numeric rating. Context, 21 columns: log10(cnt +
# 1)
# scaled so that the smallest kept row is 0 and the largest 1, and the one-hot values of daytime
# (7),
# weather (8, `unknown` one of them), isweekend (2) and homework (3) that the kept rows have.
# Frappe
# has no time: the row held out for each user is drawn at random.

ZIP = "Mobile_Frappe.zip"
SHA256 = "4adc616de57170f282397f6e6e30215f97fa7ad1b7f40bd12ef5dceaaf3e9b4e"
CATEGORIES = ("daytime", "weather", "isweekend", "homework")
LEAST_ROWS = 6


def prepare_frappe(
    folder: Path, source: Path, seed: int = 1, test_negatives: int = 99, force: bool = False
) -> PreparedFolder:
    """Prepare Frappe from its zip, or from a folder that holds the zip."""
    source = source / ZIP if source.is_dir() else source
    recipe = Recipe("frappe", describe_source([source]), {"seed": seed, "test_negatives": test_negatives})
    real = recipe.source["sha256"] == SHA256
    title = "Frappe (real)" if real else f"{source.name} in Frappe's format, not the published file"

    def fill(into: Path) -> SplitCounts:
        return leave_one_out(into, read_frappe(source), seed, test_negatives)

    return write_prepared(folder, recipe, title, fill, force)


def read_frappe(source: Path) -> Rows:
    """The kept rows of the zip, in the order of `frappe.csv`."""
    names = ["user", "item", "cnt", *CATEGORIES]
    users, items, counts = [], [], []
    categories: list[list[str]] = []
    for where, (user, item, count, *rest) in _table(source, "frappe.csv", names):
        users.append(parse_integer(user, where, "user"))
        items.append(parse_integer(item, where, "item"))
        counts.append(parse_integer(count, where, "cnt", least=1))
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
    return number_rows(np.array(users)[kept], np.array(items)[kept], context, columns)


def _table(source: Path, member: str, columns: list[str]) -> list[tuple[str, list[str]]]:
    try:
        with zipfile.ZipFile(source) as archive:
            found = [name for name in archive.namelist() if Path(name).name == member]
            if not found:
                raise DataError(f"{source}: no {member} inside; expected Frappe's {ZIP}")
            with archive.open(found[0]) as raw:
                return list(read_csv_rows(raw, f"{source}/{member}", columns, "\t"))
    # RuntimeError: encrypted; NotImplementedError: compressed in a way that Python cannot read.
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise DataError(f"{source}: not a zip file that can be read: {error}") from None
    except OSError as error:
        raise DataError(f"{source}: cannot be read: {error.strerror}") from None


def _rated_items(source: Path) -> NDArray[np.int64]:
    rated = [
        parse_integer(item, where, "item")
        for where, (item, rating) in _table(source, "meta.csv", ["item", "rating"])
        if is_number(rating)
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
        block, names = one_hot(name, categories[:, at])
        blocks.append(block)
        columns += names
    return np.concatenate(blocks, axis=1), columns


# It may not be redistributed, so it is not part of this package.

URL: Final = "https://raw.githubusercontent.com/irecsys/CARSKit/HEAD/context-aware_data_sets/" + ZIP


def cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "hpcncf"


def find_zip(say: Callable[[str], None], url: str = URL) -> Path:
    """The zip's path. Raises Unavailable naming where it was looked for and what to do."""
    given = os.environ.get("HPCNCF_DATA")
    folders = [*([Path(given)] if given else []), cache_folder()]
    for folder in folders:
        if (folder / ZIP).is_file():
            return folder / ZIP
    say(f"downloading {url}")
    try:
        download(url, SHA256, cache_folder() / ZIP)
    except Unavailable as error:
        looked = " nor in ".join(str(folder) for folder in folders)
        raise Unavailable(
            f"{ZIP}: not in {looked}, and {error}. Download it by other means and give it "
            "with --source FILE, or set HPCNCF_DATA to its folder; --or-synthetic makes data of "
            "its shape instead"
        ) from None
    return cache_folder() / ZIP


def prepare_frappe_or_synthetic(
    folder: Path,
    seed: int,
    test_negatives: int,
    force: bool,
    say: Callable[[str], None],
    url: str = URL,
) -> tuple[PreparedFolder, str | None]:
    """Frappe, or where it cannot be had made data of its shape, with the reason.

    Real data that is there stays where it cannot be had again; a stand-in makes way for it.
    Raises DataError where what is there is of another format, unless forced.
    """
    standing = _standing(folder)
    try:
        source = find_zip(say, url)
    except Unavailable as error:
        if standing and standing.dataset == "frappe" and not force:
            if standing.format_version != FORMAT_VERSION:
                advice = f"replace it with --force; {error}"
                raise wrong_format_error(folder, standing, advice) from None
            return PreparedFolder(load_prepared(folder).manifest, "already there"), str(error)
        made = synthetic.prepare_synthetic_like(folder, "frappe", seed, test_negatives, force, say)
        return made, str(error)
    makes_way = standing is not None and standing.options.get("like") == "frappe"
    return prepare_frappe(folder, source, seed, test_negatives, force or makes_way), None


def _standing(folder: Path) -> Outline | None:
    """What the folder holds, of whatever format. None, too, where that cannot be read: to write
    there complains of it."""
    with suppress(DataError):
        return read_outline(folder)
    return None
