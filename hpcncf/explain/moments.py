"""Run time from the moments of a job's start and end, where a text has no duration."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

_MONTHS: Final = "janfebmaraprmayjunjulaugsepoctnovdec"
# `Mon Oct  8 17:08:44`, `2026-08-18T11:02:17`, `11/14/2026 08:07:02`, HTCondor's `12/10 19:31:53`.
_MOMENT: Final = (
    r"(?P<text>(?:[A-Z][a-z]{2} )?[A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d:\d\d(?: \d{4})?"
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d|\d\d/\d\d(?:/\d{4})? \d\d:\d\d:\d\d)"
)
_STARTS: Final = (
    rf"^[^\w\n]*{_MOMENT}:? (?:\[\d+\] )?(?:dispatched|started|starting)\b",
    rf"^[^\w\n]*(?:start(?:ed)?|begin|began)(?: time| date| at)?\s*[:=]?\s+{_MOMENT}",
    rf"^[^\w\n]*001 \([\d.]+\) {_MOMENT}",
)
_ENDS: Final = (
    rf"^[^\w\n]*{_MOMENT}:? (?:completed <|done successfully|exited )",
    r"^[^\w\n]*(?:end(?:ed)?|terminated|finished|completed)(?: time| date| at)?"
    rf"\s*[:=]?\s+{_MOMENT}",
    rf"^[^\w\n]*005 \([\d.]+\) {_MOMENT}",
)
# LSF's last look at a job that runs.
_LOOK: Final = rf"^[^\w\n]*{_MOMENT}:? resource usage collected"
LONGEST_S: Final = 400 * 86400.0


@cache
def _pairs() -> list[tuple[re.Pattern[str], re.Pattern[str]]]:
    """Compile the patterns of starts and ends when a text first needs them: it takes 3 ms."""
    flags = re.IGNORECASE | re.MULTILINE
    return [
        (re.compile(start, flags), re.compile(end, flags))
        for start, end in zip((*_STARTS, _STARTS[0]), (*_ENDS, _LOOK), strict=True)
    ]


def elapsed_between(text: str, running: bool = False) -> float | None:
    """Return the seconds from a job's last start to its end; None where the text has not both.

    Of a running job, to LSF's last look at it. Also None where the order of day and month
    decides, as in 03/04/2026.
    """
    for start, end in _pairs()[-1:] if running else _pairs()[:-1]:
        ends = list(end.finditer(text))
        starts = [
            found for found in start.finditer(text) if ends and found.start() < ends[-1].end()
        ]
        if not starts:
            continue
        spans = _seconds(starts[-1]["text"], ends[-1]["text"])
        if len(spans) == 1 and 0 < min(spans) < LONGEST_S:
            return min(spans)
    return None


def _seconds(first: str, last: str) -> set[float]:
    """Return each number of seconds that may be between two moments."""
    starts, ends = _readings(first), _readings(last)
    return {ends[order] - starts[order] for order in starts.keys() & ends.keys()}


def _readings(text: str) -> dict[str, float]:
    """Return a moment in seconds, by the order of its day and month where that is not known."""
    numbers = [int(each) for each in re.findall(r"\d+", text)]
    clock = re.search(r"(\d\d):(\d\d):(\d\d)", text)
    assert clock  # every form has one
    seconds = int(clock[1]) * 3600 + int(clock[2]) * 60 + int(clock[3])
    if word := re.search(r"[A-Za-z]{3}(?= {1,2}\d)", text):
        name = word[0].lower()
        month, rest = divmod(_MONTHS.find(name), 3)
        if rest:
            return {}
        year = numbers[4] if len(numbers) > 4 else 2000
        dates = {"word": (year, month + 1, numbers[0])}
    elif "-" in text:
        dates = {"iso": (numbers[0], numbers[1], numbers[2])}
    else:
        year = numbers[2] if text.count("/") == 2 else 2000
        dates = {
            "month first": (year, numbers[0], numbers[1]),
            "day first": (year, numbers[1], numbers[0]),
        }
    days = {order: day for order, date in dates.items() if (day := _day(*date)) is not None}
    return {order: day * 86400.0 + seconds for order, day in days.items()}


def _day(year: int, month: int, day: int) -> int | None:
    from datetime import date

    try:
        return date(year, month, day).toordinal()
    except ValueError:
        return None
