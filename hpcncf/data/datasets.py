"""Prepare public data sets: Frappe, MovieLens, and the files of the NCF paper's code.

Frappe (app use in context, Baltrunas et al. 2015): `frappe.csv` is joined with `meta.csv` on
`item`. Items and then users with 5 or fewer rows are dropped until none is left, then rows whose
app has no numeric rating. Context, 21 columns: log10(cnt + 1), scaled so that the smallest kept row
is 0 and the largest 1, and the one-hot values of daytime (7), weather (8, `unknown` one of them),
isweekend (2) and homework (3) in the kept rows. Frappe has no time: the row held out for each user
is drawn at random. It may not be redistributed, so it is not part of this package.

MovieLens (`ratings.dat` of 1M and 10M, `u.data` of 100K): every rating is a positive, and each
user's latest one is held out; of equal times, the last in the file.

NCF (`*.train.rating`, `*.test.rating`, `*.test.negative`): the test rows and their negatives are
those of the files. Line n of `*.test.negative` is `(user,item)`, the pair of line n of
`*.test.rating`, and its negatives, separated by tabs.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
import zlib
from collections.abc import Sequence
from contextlib import suppress
from http.client import HTTPException
from itertools import islice
from pathlib import Path
from queue import Empty, Queue
from secrets import token_hex
from threading import Thread
from typing import Any, Final
from urllib.request import urlopen

import numpy as np
import pandas as pd

from hpcncf.data.arrays import Floats, Int64s, Interactions, Rows, Split
from hpcncf.data.manifest import (
    FORMAT_VERSION,
    DataError,
    WrongRequest,
    read_outline,
    wrong_format_error,
)
from hpcncf.data.prepare import (
    CodedColumn,
    Numbering,
    PreparedFolder,
    Recipe,
    build_rows,
    check_few_texts,
    check_memory,
    estimate_rows,
    write_interactions,
    write_prepared,
)
from hpcncf.data.prepared import load_prepared
from hpcncf.data.readers import (
    ROWS_AT_ONCE,
    Report,
    describe_source,
    is_number,
    parse_integer,
    read_csv_rows,
    read_lines,
)
from hpcncf.data.split import write_split
from hpcncf.data.synthetic import prepare_synthetic_like

ZIP: Final = "Mobile_Frappe.zip"
SHA256: Final = "4adc616de57170f282397f6e6e30215f97fa7ad1b7f40bd12ef5dceaaf3e9b4e"
URL: Final = "https://raw.githubusercontent.com/irecsys/CARSKit/HEAD/context-aware_data_sets/" + ZIP
CATEGORIES: Final = ("daytime", "weather", "isweekend", "homework")
LEAST_ROWS: Final = 6
SOCKET_S: Final = 5.0
TOTAL_S: Final = 20.0  # for 2 MB


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

    return write_interactions(folder, recipe, title, lambda: read_frappe(source), force)


def prepare_frappe_or_synthetic(
    folder: Path, seed: int, test_negatives: int, force: bool, report: Report, url: str = URL
) -> tuple[PreparedFolder, str | None]:
    """Prepare Frappe; if it is unavailable, prepare synthetic data of its shape.

    The second value is the reason why Frappe is unavailable, or None.

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
        made = prepare_synthetic_like(folder, "frappe", seed, test_negatives, force)
        return made, str(error)
    is_synthetic = present is not None and present.options.get("like") == "frappe"
    return prepare_frappe(folder, source, seed, test_negatives, force or is_synthetic), None


def cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "hpcncf"


def find_zip(report: Report, url: str = URL) -> Path:
    """Find Frappe's zip in HPCNCF_DATA or the cache, else download it into the cache.

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
            "with --source FILE, or set HPCNCF_DATA to its folder"
        ) from None
    return cache_folder() / ZIP


def download(url: str, sha256: str, to: Path) -> None:
    """Download a published file and check its SHA-256. Raises Unavailable with the reason.

    No incomplete file is left behind.
    """
    answers: Queue[bytes | Exception] = Queue()

    def read() -> None:
        try:
            with urlopen(url, timeout=SOCKET_S) as response:
                answers.put(response.read())
        except (OSError, HTTPException, ValueError) as error:
            answers.put(error)

    # In a thread, since looking up a host's name has no timeout.
    Thread(target=read, daemon=True).start()
    content: bytes | Exception
    try:
        content = answers.get(timeout=TOTAL_S)
    except Empty:
        content = TimeoutError(f"not done within {TOTAL_S:g} s")
    if isinstance(content, Exception):
        raise Unavailable(f"{url}: cannot be downloaded: {content}")
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


def read_frappe(source: Path) -> Interactions:
    """Read the filtered rows of Frappe's zip, in the order of `frappe.csv`."""
    names = ["user", "item", "cnt", *CATEGORIES]
    rows = [
        (
            parse_integer(user, where, "user"),
            parse_integer(item, where, "item"),
            parse_integer(count, where, "cnt", least=1),
            *rest,
        )
        for where, (user, item, count, *rest) in _read_member(source, "frappe.csv", names)
    ]
    if not rows:
        raise DataError(f"{source}: frappe.csv has no rows")
    rated = [
        parse_integer(item, where, "item")
        for where, (item, rating) in _read_member(source, "meta.csv", ["item", "rating"])
        if is_number(rating)
    ]
    table, before = pd.DataFrame(rows, columns=names), -1
    while len(table) != before:
        before = len(table)
        for name in ("item", "user"):
            table = table[table.groupby(name)[name].transform("size") >= LEAST_ROWS]
    table = table[table["item"].isin(rated)]
    if table.empty:
        raise DataError(
            f"{source}: no row is left: every user or item has fewer than {LEAST_ROWS} rows, "
            "or no app has a numeric rating"
        )
    logs = np.log10(table["cnt"].to_numpy() + 1.0)
    spread = np.ptp(logs)
    scaled = (logs - logs.min()) / spread if spread else np.zeros_like(logs)
    context: dict[str, CodedColumn | Floats] = {"log10(cnt + 1)": scaled.astype(np.float32)}
    for name in CATEGORIES:
        numbering = Numbering()
        check_few_texts(name, numbering.append(table[name].tolist()), lambda _: str(source))
        context[name] = numbering.column()
    users, items = CodedColumn.from_numbers(table["user"]), CodedColumn.from_numbers(table["item"])
    return Interactions(build_rows(source, users, items, context), None)


def _read_member(source: Path, member: str, columns: list[str]) -> list[tuple[str, Sequence[str]]]:
    try:
        with zipfile.ZipFile(source) as archive:
            found = [name for name in archive.namelist() if Path(name).name == member]
            if not found:
                raise DataError(f"{source}: no {member} inside. Give Frappe's {ZIP}")
            with archive.open(found[0]) as raw:
                name = f"{source}/{member}"
                rows = read_csv_rows(raw, name, columns, "\t")
                return [(f"{name}:{line}", row) for line, row in rows]
    # RuntimeError: encrypted; NotImplementedError: a compression that Python cannot read.
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise DataError(f"{source}: not a readable zip file: {error}") from None
    except OSError as error:
        raise DataError(f"{source}: cannot be read: {error.strerror}") from None


SEPARATORS: Final = {"ratings.dat": "::", "u.data": "\t"}


def prepare_movielens(
    folder: Path,
    source: Path,
    seed: int = 1,
    test_negatives: int = 99,
    force: bool = False,
    report: Report = lambda _: None,
    available_bytes: int | None = None,
) -> PreparedFolder:
    """Prepare a MovieLens ratings file, given itself or by its folder.

    `available_bytes`: memory that the rows must fit in; None leaves that unchecked.
    """
    if source.is_dir():
        found = [source / name for name in SEPARATORS if (source / name).is_file()]
        if not found:
            raise WrongRequest(f"{source}: contains neither {' nor '.join(SEPARATORS)}")
        source = found[0]
    options = {"seed": seed, "test_negatives": test_negatives}
    recipe = Recipe("movielens", describe_source([source]), options)

    def read() -> Interactions:
        check_memory(source, estimate_rows(source), 0, available_bytes, "about ")
        return read_ratings(source, report)

    return write_interactions(folder, recipe, f"MovieLens {source.name}", read, force)


def read_ratings(source: Path, report: Report) -> Interactions:
    """Read MovieLens ratings, with times in seconds since 1970.

    Raises DataError with the line of the first broken one.
    """
    separator = SEPARATORS.get(source.name, "::" if source.suffix == ".dat" else "\t")
    ratings = (_parse_rating(where, line, separator) for where, line in read_lines(source))
    blocks, count = list[Int64s](), 0
    while some := list(islice(ratings, ROWS_AT_ONCE)):
        blocks.append(np.array(some, dtype=np.int64))
        count += len(some)
        report(f"reading {source}: {count:,} ratings")
    if not blocks:
        raise DataError(f"{source}: has no rows")
    users, items, times = np.concatenate(blocks).T
    rows = build_rows(source, CodedColumn.from_numbers(users), CodedColumn.from_numbers(items), {})
    return Interactions(rows, times)


def _parse_rating(where: str, line: str, separator: str) -> tuple[int, int, int]:
    """Parse a line of a ratings file into user, item and time."""
    fields = line.split(separator)
    if len(fields) != 4:
        spelled = separator.replace("\t", "TAB")
        raise DataError(
            f"{where}: expected user{spelled}item{spelled}rating{spelled}time, came {line[:80]!r}"
        )
    if not is_number(fields[2]):
        raise DataError(f"{where}: rating: expected a number, came {fields[2]!r}")
    return (
        parse_integer(fields[0], where, "user"),
        parse_integer(fields[1], where, "item"),
        parse_integer(fields[3], where, "time"),
    )


ENDINGS: Final = (".train.rating", ".test.rating", ".test.negative")


def prepare_ncf_files(
    folder: Path, source: Path, force: bool = False, available_bytes: int | None = None
) -> PreparedFolder:
    """Prepare the NCF paper's three files, given by folder or by the start of their names.

    `available_bytes`: memory that the rows must fit in; None leaves that unchecked.
    """
    files = _find_files(source)
    name = files[0].name.removesuffix(ENDINGS[0])
    recipe = Recipe("ncf", describe_source(files), {})

    def fill(into: Path) -> dict[str, Any]:
        check_memory(files[0], estimate_rows(files[0]), 0, available_bytes, "about ")
        return write_split(into, read_ncf_files(files))

    return write_prepared(folder, recipe, f"NCF files {name}", fill, force)


def _find_files(source: Path) -> list[Path]:
    if source.is_dir():
        found = sorted(source.glob(f"*{ENDINGS[0]}"))
        if len(found) != 1:
            names = ", ".join(path.name for path in found) or "none"
            raise WrongRequest(
                f"{source}: expected one *{ENDINGS[0]}, came {names}. "
                "Give the path up to the data set's name, as in --source Data/ml-1m"
            )
        source = found[0]
    stem = next((source.name[: -len(end)] for end in ENDINGS if source.name.endswith(end)), None)
    return [source.with_name((stem or source.name) + ending) for ending in ENDINGS]


def read_ncf_files(files: list[Path]) -> Split:
    train, test = _read_pairs(files[0]), _read_pairs(files[1])
    negatives = _read_negatives(files[2], files[1], test)
    user_names = np.unique(np.concatenate([train[:, 0], test[:, 0]]))
    item_names = np.unique(np.concatenate([train[:, 1], test[:, 1], negatives.ravel()]))

    def rows(pairs: Int64s) -> Rows:
        return Rows(
            np.searchsorted(user_names, pairs[:, 0]).astype(np.int32),
            np.searchsorted(item_names, pairs[:, 1]).astype(np.int32),
            np.empty((len(pairs), 0), dtype=np.float32),
            [],
            user_names,
            len(item_names),
        )

    numbers = np.searchsorted(item_names, negatives).astype(np.int32)
    return Split(rows(train), rows(test), numbers)


def _read_pairs(path: Path) -> Int64s:
    """Read the pairs [rows, 2] of user and item; rating and time are not used."""
    pairs = []
    for where, line in read_lines(path):
        fields = line.split("\t")
        if len(fields) < 2:
            raise DataError(
                f"{where}: expected user, item, rating, time separated by tabs, came {line[:80]!r}"
            )
        user = parse_integer(fields[0], where, "user")
        pairs.append((user, parse_integer(fields[1], where, "item")))
    if not pairs:
        raise DataError(f"{path}: has no rows")
    return np.array(pairs, dtype=np.int64)


def _read_negatives(path: Path, test_file: Path, test: Int64s) -> Int64s:
    rows: list[list[int]] = []
    for where, line in read_lines(path):
        pair, *fields = line.rstrip("\t").split("\t")
        if len(rows) == len(test):
            raise DataError(f"{where}: more rows than the {len(test)} of {test_file.name}")
        expected = "({},{})".format(*test[len(rows)])
        if pair.replace(" ", "") != expected:
            raise DataError(
                f"{where}: expected {expected}, the pair of {test_file.name}, came {pair!r}"
            )
        if not fields or (rows and len(fields) != len(rows[0])):
            wanted = len(rows[0]) if rows else "one or more"
            raise DataError(f"{where}: expected {wanted} negatives, came {len(fields)}")
        rows.append([parse_integer(field, where, "negative") for field in fields])
    if len(rows) != len(test):
        raise DataError(f"{path}: {len(rows)} rows, but {test_file.name} has {len(test)}")
    return np.array(rows, dtype=np.int64)
