"""Prepare the files of the NCF paper's code: `*.train.rating`, `*.test.rating`, `*.test.negative`.

The test rows and their negatives are those of the files. Line n of `*.test.negative` is
`(user,item)`, the pair of line n of `*.test.rating`, and its negatives, separated by tabs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from hpcncf.ncf.data.arrays import Int64s, Rows, Split
from hpcncf.ncf.data.manifest import DataError, WrongRequest
from hpcncf.ncf.data.prepare import PreparedFolder, Recipe, write_prepared
from hpcncf.ncf.data.readers import describe_source, parse_integer, read_lines
from hpcncf.ncf.data.split import write_split

ENDINGS: Final = (".train.rating", ".test.rating", ".test.negative")


def prepare_ncf_files(folder: Path, source: Path, force: bool = False) -> PreparedFolder:
    """Prepare the three files of a folder, or those that begin with `source`."""
    files = _find_files(source)
    name = files[0].name.removesuffix(ENDINGS[0])
    recipe = Recipe("ncf", describe_source(files), {})
    return write_prepared(
        folder,
        recipe,
        f"NCF files {name}",
        lambda into: write_split(into, read_ncf_files(files)),
        force,
    )


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
    """[rows, 2]: user and item; rating and time are not used."""
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
