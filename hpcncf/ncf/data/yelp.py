"""Prepare Yelp's academic data set: JSON lines of reviews, businesses and users.

Every review is a positive; each user's latest one is held out. The context is what the public
contextual NCF program of AlexAbades/recsys takes from the same files, but for public holidays,
which need a calendar of each state. Numbers are scaled to about 0 to 1.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np

from hpcncf.ncf.data.manifest import DataError, WrongRequest
from hpcncf.ncf.data.prepare import Block, PreparedFolder, Recipe, spool_rows, write_prepared
from hpcncf.ncf.data.readers import ROWS_AT_ONCE, describe_source, read_lines
from hpcncf.ncf.data.split import Report, SplitCounts, leave_one_out

PARTS: Final = ("review", "business", "user")
# First month and day of each season.
SEASONS: Final = (((3, 20), "spring"), ((6, 21), "summer"), ((9, 22), "fall"), ((12, 21), "winter"))
# First hour of each part of the day.
DAYTIMES: Final = (
    (5, "sunrise"),
    (7, "morning"),
    (12, "noon"),
    (14, "afternoon"),
    (17, "evening"),
    (20, "night"),
)
NUMBERS: Final = (
    "weekend",
    "week_sin",
    "week_cos",
    "latitude",
    "longitude",
    "friends",
    "elite_years",
    "seniority",
)
_UNKNOWN_USER: Final = (0.0, 0.0, 0)


def prepare_yelp(
    folder: Path,
    source: Path,
    seed: int = 1,
    test_negatives: int = 99,
    force: bool = False,
    report: Report = lambda _: None,
) -> PreparedFolder:
    """Prepare the folder of `yelp_academic_dataset_{review,business,user}.json`, or of the same
    names without their beginning."""
    files = {part: _find(source, part) for part in PARTS}
    options = {"seed": seed, "test_negatives": test_negatives}
    report(f"reading the checksums of {source}")
    recipe = Recipe("yelp", describe_source(files.values()), options)

    def fill(into: Path) -> SplitCounts:
        with spool_rows(into, files["review"], read_reviews(files, report)) as rows:
            return leave_one_out(into, rows, seed, test_negatives, rows.times, report)

    return write_prepared(folder, recipe, "Yelp reviews", fill, force)


def _find(source: Path, part: str) -> Path:
    names = (f"yelp_academic_dataset_{part}.json", f"{part}.json")
    for name in names:
        if (source / name).is_file():
            return source / name
    raise WrongRequest(f"{source}: contains neither {' nor '.join(names)}")


def read_reviews(files: Mapping[str, Path], report: Report) -> Iterator[Block]:
    """The reviews with their context, a block at a time.

    Memory holds two numbers of each business and three of each user. Raises DataError with the
    line of the first broken row.
    """
    places = {
        _text(row, "business_id", where): (
            _number(row, "latitude", where) / 90,
            _number(row, "longitude", where) / 180,
        )
        for where, row in _rows(files["business"], report)
    }
    people = {
        _text(row, "user_id", where): _user(row, where)
        for where, row in _rows(files["user"], report)
    }
    rows = _rows(files["review"], report)
    while some := list(islice(rows, ROWS_AT_ONCE)):
        users, items, seasons, daytimes, numbers, times = [], [], [], [], [], []
        for where, row in some:
            user, item = _text(row, "user_id", where), _text(row, "business_id", where)
            if item not in places:
                raise DataError(f"{where}: business_id: {item} is not in {files['business'].name}")
            at = _date(row, "date", where)
            friends, elite, since = people.get(user, _UNKNOWN_USER)
            week = 2 * math.pi * at.isocalendar().week / 53
            users.append(user)
            items.append(item)
            seasons.append(_season(at))
            daytimes.append(_daytime(at))
            seniority = (at.year - since) / 20 if since else 0.0
            weekend = float(at.weekday() >= 5)
            person = (friends, elite, seniority)
            numbers.append((weekend, math.sin(week), math.cos(week), *places[item], *person))
            times.append(int(at.timestamp()))
        table = np.array(numbers, dtype=np.float64)
        context: dict[str, Any] = {"season": seasons, "daytime": daytimes}
        context |= {name: table[:, at] for at, name in enumerate(NUMBERS)}
        wheres = [where for where, _ in some]
        yield Block(users, items, context, np.array(times, dtype=np.int64), wheres.__getitem__)


def _rows(file: Path, report: Report) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, (where, line) in enumerate(read_lines(file)):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DataError(f"{where}: not JSON: {error}") from None
        if not isinstance(row, dict):
            raise DataError(f"{where}: expected an object, came {line[:80]!r}")
        if number % 10_000 == 0:
            report(f"reading {file}: {number:,} rows")
        yield where, row


def _user(row: Mapping[str, Any], where: str) -> tuple[float, float, int]:
    """Friends, years as elite, and the year of the first day."""
    friends = _list(row.get("friends"))
    # A set, because Yelp's file writes the year 2020 as `20,20`.
    elite = {str(year).strip() for year in _list(row.get("elite"))}
    since = _date(row, "yelping_since", where).year
    return math.log1p(len(friends)) / 10, len(elite) / 20, since


def _list(value: Any) -> list[Any]:
    """Earlier releases have lists, later ones text with commas; no friends are `None`."""
    if isinstance(value, str):
        return [each for each in value.split(",") if each.strip() not in ("", "None")]
    return value if isinstance(value, list) else []


def _text(row: Mapping[str, Any], key: str, where: str) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value:
        raise DataError(f"{where}: {key}: expected text, came {value!r:.80}")
    return value


def _number(row: Mapping[str, Any], key: str, where: str) -> float:
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise DataError(f"{where}: {key}: expected a number, came {value!r:.80}")
    return float(value)


def _date(row: Mapping[str, Any], key: str, where: str) -> datetime:
    value = row.get(key)
    try:
        return datetime.fromisoformat(str(value)).replace(tzinfo=UTC)
    except ValueError:
        raise DataError(
            f"{where}: {key}: expected a date such as 2018-07-07 22:09:11, came {value!r:.80}"
        ) from None


def _season(at: datetime) -> str:
    return next(
        (name for begin, name in reversed(SEASONS) if (at.month, at.day) >= begin), "winter"
    )


def _daytime(at: datetime) -> str:
    return next((name for hour, name in reversed(DAYTIMES) if at.hour >= hour), "night")
