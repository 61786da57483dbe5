"""Prepare Frappe, app use in context (Baltrunas et al. 2015): find it, filter it, split it.

`frappe.csv` is joined with `meta.csv` on `item`. Items and then users with 5 or fewer rows are
dropped until none is left, then rows whose app has no numeric rating. Context, 21 columns:
log10(cnt + 1), scaled so that the smallest kept row is 0 and the largest 1, and the one-hot values
of daytime (7), weather (8, `unknown` one of them), isweekend (2) and homework (3) in the kept rows.
Frappe has no time: the row held out for each user is drawn at random. It may not be redistributed,
so it is not part of this package.
"""

from __future__ import annotations

import hashlib
import os
import time
import zipfile
import zlib
from contextlib import suppress
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from queue import Empty, Queue
from secrets import token_hex
from threading import Thread
from typing import Any, Final
from urllib.request import urlopen

import numpy as np
from numpy.typing import NDArray

from hpcncf.ncf.data.arrays import Rows, number_rows
from hpcncf.ncf.data.manifest import FORMAT_VERSION, DataError, read_outline, wrong_format_error
from hpcncf.ncf.data.prepare import PreparedFolder, Recipe, write_prepared
from hpcncf.ncf.data.prepared import load_prepared
from hpcncf.ncf.data.readers import (
    describe_source,
    is_number,
    parse_integer,
    read_csv_rows,
)
from hpcncf.ncf.data.split import Report, SplitCounts, leave_one_out
from hpcncf.ncf.data.synthetic import prepare_synthetic_like

ZIP: Final = "Mobile_Frappe.zip"
SHA256: Final = "4adc616de57170f282397f6e6e30215f97fa7ad1b7f40bd12ef5dceaaf3e9b4e"
URL: Final = "https://raw.githubusercontent.com/irecsys/CARSKit/HEAD/context-aware_data_sets/" + ZIP
CATEGORIES: Final = ("daytime", "weather", "isweekend", "homework")
LEAST_ROWS: Final = 6
SOCKET_S: Final = 5.0
CONNECT_S: Final = 8.0
TOTAL_S: Final = 60.0


class Unavailable(DataError):
    """A published file that is not here and cannot be downloaded now."""


def prepare_frappe(
    folder: Path, source: Path, seed: int = 1, test_negatives: int = 99, force: bool = False
) -> PreparedFolder:
    """Prepare Frappe from its zip, or from a folder that contains the zip."""
    source = source / ZIP if source.is_dir() else source
    recipe = Recipe(
        "frappe", describe_source([source]), {"seed": seed, "test_negatives": test_negatives}
    )
    real = recipe.source["sha256"] == SHA256
    title = "Frappe (real)" if real else f"{source.name} in Frappe's format, not the published file"

    def fill(into: Path) -> SplitCounts:
        return leave_one_out(into, read_frappe(source), seed, test_negatives)

    return write_prepared(folder, recipe, title, fill, force)


def prepare_frappe_or_synthetic(
    folder: Path, seed: int, test_negatives: int, force: bool, report: Report, url: str = URL
) -> tuple[PreparedFolder, str | None]:
    """Prepare Frappe; if it is unavailable, synthetic data of its shape, with the reason.

    Real data in the folder is kept if Frappe is unavailable, and replaces synthetic data if not.
    Raises DataError if the folder has another format, unless forced.
    """
    present = None
    with suppress(DataError):  # writing there reports the error
        present = read_outline(folder)
    try:
        source = find_zip(report, url)
    except Unavailable as error:
        if present and present.dataset == "frappe" and not force:
            if present.format_version != FORMAT_VERSION:
                advice = f"Replace it with --force; {error}"
                raise wrong_format_error(folder, present, advice) from None
            return PreparedFolder(load_prepared(folder).manifest, "already there"), str(error)
        made = prepare_synthetic_like(folder, "frappe", seed, test_negatives, force, report)
        return made, str(error)
    is_synthetic = present is not None and present.options.get("like") == "frappe"
    return prepare_frappe(folder, source, seed, test_negatives, force or is_synthetic), None


def cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "hpcncf"


def find_zip(report: Report, url: str = URL) -> Path:
    """The zip in HPCNCF_DATA or the cache, else downloaded into the cache.

    Raises Unavailable naming the folders that were searched, and what to do.
    """
    given = os.environ.get("HPCNCF_DATA")
    folders = [*([Path(given)] if given else []), cache_folder()]
    for folder in folders:
        if (folder / ZIP).is_file():
            return folder / ZIP
    report(f"downloading {url}")
    try:
        download(url, SHA256, cache_folder() / ZIP)
    except Unavailable as error:
        searched = " nor in ".join(str(folder) for folder in folders)
        raise Unavailable(
            f"{ZIP}: not in {searched}, and {error}. Download it by other means and give it "
            "with --source FILE, or set HPCNCF_DATA to its folder; --or-synthetic generates data "
            "of its shape instead"
        ) from None
    return cache_folder() / ZIP


def download(url: str, sha256: str, to: Path) -> None:
    """Download a published file, complete or not at all. Raises Unavailable with the reason."""
    try:
        content = _read(_connect(url), time.monotonic() + TOTAL_S)
    except (OSError, HTTPException, ValueError) as error:
        raise Unavailable(f"{url}: cannot be downloaded: {error}") from None
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise Unavailable(f"{url}: not the published file: SHA-256 {found}, expected {sha256}")
    partial = to.with_name(f".{to.name}.{token_hex(4)}")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        try:
            partial.write_bytes(content)
            partial.replace(to)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise Unavailable(f"{to}: cannot be written: {error.strerror}") from None


def _connect(url: str) -> HTTPResponse:
    """The opened URL. In a thread, since looking up a host's name has no timeout."""
    answers: Queue[Any] = Queue()

    def connect() -> None:
        try:
            answers.put(urlopen(url, timeout=SOCKET_S))
        except (OSError, HTTPException, ValueError) as error:
            answers.put(error)

    Thread(target=connect, daemon=True).start()
    try:
        answer = answers.get(timeout=CONNECT_S)
    except Empty:
        raise TimeoutError(f"no connection within {CONNECT_S:g} s") from None
    if isinstance(answer, Exception):
        raise answer
    response: HTTPResponse = answer
    return response


def _read(response: HTTPResponse, deadline: float) -> bytes:
    parts = []
    with response:
        while part := response.read(1 << 16):
            parts.append(part)
            if time.monotonic() > deadline:
                raise TimeoutError(f"not done within {TOTAL_S:g} s")
    return b"".join(parts)


def read_frappe(source: Path) -> Rows:
    """The kept rows of the zip, in the order of `frappe.csv`."""
    names = ["user", "item", "cnt", *CATEGORIES]
    users, items, counts = [], [], []
    categories: list[list[str]] = []
    for where, (user, item, count, *rest) in _read_member(source, "frappe.csv", names):
        users.append(parse_integer(user, where, "user"))
        items.append(parse_integer(item, where, "item"))
        counts.append(parse_integer(count, where, "cnt", least=1))
        categories.append(rest)
    if not users:
        raise DataError(f"{source}: frappe.csv has no rows")
    rated = [
        parse_integer(item, where, "item")
        for where, (item, rating) in _read_member(source, "meta.csv", ["item", "rating"])
        if is_number(rating)
    ]
    kept = _kept_rows(np.array(users), np.array(items), np.array(rated, dtype=np.int64))
    if not len(kept):
        raise DataError(
            f"{source}: no row is left: every user or item has fewer than {LEAST_ROWS} rows, "
            "or no app has a numeric rating"
        )
    context, columns = _context(np.array(counts)[kept], np.array(categories)[kept])
    return number_rows(np.array(users)[kept], np.array(items)[kept], context, columns)


def _read_member(source: Path, member: str, columns: list[str]) -> list[tuple[str, list[str]]]:
    try:
        with zipfile.ZipFile(source) as archive:
            found = [name for name in archive.namelist() if Path(name).name == member]
            if not found:
                raise DataError(f"{source}: no {member} inside. Give Frappe's {ZIP}")
            with archive.open(found[0]) as raw:
                return list(read_csv_rows(raw, f"{source}/{member}", columns, "\t"))
    # RuntimeError: encrypted; NotImplementedError: a compression that Python cannot read.
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise DataError(f"{source}: not a readable zip file: {error}") from None
    except OSError as error:
        raise DataError(f"{source}: cannot be read: {error.strerror}") from None


def _kept_rows(
    users: NDArray[np.int64], items: NDArray[np.int64], rated: NDArray[np.int64]
) -> NDArray[np.int64]:
    kept = np.arange(len(users))
    before = -1
    while len(kept) != before:
        before = len(kept)
        for column in (items, users):
            _, which, counts = np.unique(column[kept], return_inverse=True, return_counts=True)
            kept = kept[counts[which] >= LEAST_ROWS]
    return kept[np.isin(items[kept], rated)]


def _context(
    counts: NDArray[np.int64], categories: NDArray[Any]
) -> tuple[NDArray[np.float32], list[str]]:
    logs = np.log10(counts + 1.0)
    spread = np.ptp(logs)
    scaled = (logs - logs.min()) / spread if spread else np.zeros_like(logs)
    blocks, columns = [scaled.astype(np.float32)[:, None]], ["log10(cnt + 1)"]
    for at, name in enumerate(CATEGORIES):
        distinct, which = np.unique(categories[:, at], return_inverse=True)
        one_hot = np.zeros((len(counts), len(distinct)), dtype=np.float32)
        one_hot[np.arange(len(counts)), which] = 1
        blocks.append(one_hot)
        columns += [f"{name}={value}" for value in distinct]
    return np.concatenate(blocks, axis=1), columns
