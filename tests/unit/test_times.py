"""Durations and moments in the forms that squeue, sacct and scontrol print."""

from __future__ import annotations

import pytest

from hpcncf.slurm import query


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0:03", 3),
        ("1:02:03", 3723),
        ("2-00:00:01", 172801),
        ("00:19.144", 19.144),
        ("UNLIMITED", None),
        ("INVALID", None),
        ("", None),
    ],
)
def test_durations_are_read(text: str, number: float | None) -> None:
    assert query.seconds(text) == number


def test_a_moment_is_of_this_machines_zone_and_nothing_is_none() -> None:
    moment = query.moment("2026-01-31T14:05:00")
    assert (moment.hour, moment.tzinfo is None) == (14, False)
    assert query.moment("Unknown") is None
