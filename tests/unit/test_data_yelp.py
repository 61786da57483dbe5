"""Yelp's JSON lines: reviews with the context that businesses, users and dates give."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcncf.cli import main
from hpcncf.ncf.data import datasets
from hpcncf.ncf.data.manifest import DataError
from hpcncf.ncf.data.prepared import load_prepared

BUSINESSES = [
    {"business_id": f"b{n}", "name": "Café", "latitude": 45.0, "longitude": -90.0, "state": "AZ"}
    for n in range(4)
]
USERS: list[dict[str, Any]] = [
    {
        "user_id": "u0",
        "yelping_since": "2010-01-02 03:04:05",
        "friends": "a, b, c",
        "elite": "2011",
    },
    {"user_id": "u1", "yelping_since": "2015-01-02", "friends": "None", "elite": ""},
]
REVIEWS = [
    ("u0", "b0", "2018-07-07 06:09:11"),  # a Saturday in summer, at sunrise
    ("u0", "b1", "2018-01-01 23:00:00"),
    ("u0", "b2", "2017-01-01 13:00:00"),
    ("u1", "b2", "2018-10-10 18:00:00"),
    ("u1", "b3", "2018-04-10 10:00:00"),
]


def write(folder: Path, prefix: str = "yelp_academic_dataset_", *more: str) -> Path:
    folder.mkdir()
    reviews = [
        {"user_id": user, "business_id": item, "stars": 4.0, "date": date, "text": "a\nb"}
        for user, item, date in REVIEWS
    ]
    for part, rows in (("review", reviews), ("business", BUSINESSES), ("user", USERS)):
        lines = [json.dumps(row) for row in rows] + ([*more] if part == "review" else [])
        (folder / f"{prefix}{part}.json").write_text("".join(f"{line}\n" for line in lines))
    return folder


@pytest.mark.parametrize("prefix", ["yelp_academic_dataset_", ""])
def test_the_command_prepares_reviews_with_their_context(tmp_path: Path, prefix: str) -> None:
    source = write(tmp_path / "in", prefix)
    words = ["data", "prepare", "yelp", "--source", str(source), "-o", str(tmp_path / "out")]
    assert main([*words, "--test-negatives", "1"]) == 0
    data = load_prepared(tmp_path / "out")
    assert data.test_items.tolist() == [0, 2]  # the latest of each user
    assert set(datasets.NUMBERS) <= set(data.manifest.context_columns)
    assert {"season=summer", "daytime=sunrise"} <= set(data.manifest.context_columns)


def test_context_is_that_of_the_review(tmp_path: Path) -> None:
    source = write(tmp_path / "in")
    files = {part: datasets._find(source, part) for part in datasets.PARTS}
    (block,) = datasets.read_reviews(files, lambda _: None)
    assert block.context["season"] == ["summer", "winter", "winter", "fall", "spring"]
    assert block.context["daytime"] == ["sunrise", "night", "noon", "evening", "morning"]
    first = {name: float(np.asarray(block.context[name])[0]) for name in datasets.NUMBERS}
    week = 2 * math.pi * 27 / 53
    assert first == pytest.approx(
        {
            "weekend": 1.0,
            "week_sin": math.sin(week),
            "week_cos": math.cos(week),
            "latitude": 0.5,
            "longitude": -0.5,
            "friends": math.log(4) / 10,
            "elite_years": 0.05,
            "seniority": 0.4,
        }
    )
    assert np.asarray(block.context["friends"])[3] == 0


@pytest.mark.parametrize(
    ("elite", "years"),
    [
        ("", 0),
        ("None", 0),
        ("2019,20,20,2021", 3),  # 2020, as Yelp's files of 2021 and later write it
        ("20,20", 1),
        ("2019, 2020, 2021", 3),
        ([2011, 2012], 2),  # as in the first releases
        (None, 0),
    ],
)
def test_years_as_elite_are_counted_in_each_releases_form(elite: object, years: int) -> None:
    row = {"yelping_since": "2010-01-02", "friends": [], "elite": elite}
    assert datasets._user(row, "user.json:1") == (0, years / 20, 2010)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"user_id": "u0"', r"review.json:6: not JSON"),
        ("[1]", r"review.json:6: expected an object"),
        (
            '{"user_id": "u0", "business_id": "b9", "date": "2018-01-01"}',
            r"b9 is not in .*business",
        ),
        ('{"user_id": "u0", "business_id": "b1", "date": "soon"}', r":6: date: expected a date"),
        (
            '{"user_id": 7, "business_id": "b1", "date": "2018-01-01"}',
            r":6: user_id: expected text",
        ),
    ],
)
def test_a_broken_row_is_reported_with_its_line(tmp_path: Path, line: str, complaint: str) -> None:
    source = write(tmp_path / "in", "", line)
    with pytest.raises(DataError, match=complaint):
        datasets.prepare_yelp(tmp_path / "out", source)
    assert not (tmp_path / "out").exists()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    source = write(tmp_path / "in")
    (source / "yelp_academic_dataset_user.json").unlink()
    with pytest.raises(DataError, match=r"neither yelp_academic_dataset_user\.json nor user\.json"):
        datasets.prepare_yelp(tmp_path / "out", source)
