"""Numbers in the units that schedulers and their tools print: times, memory, shares, counts.

Each `match_` function reads one value at a position of a text and returns it with the position
after it, or None where no such value begins.
"""

from __future__ import annotations

import re
from math import isfinite
from typing import Final

Matched = tuple[float, int] | None

# No longer runs of digits are figures: they are identifiers, or an attack.
_NUMBER: Final = r"\d{1,15}(?:\.\d{1,9})?"
_CLOCK: Final = re.compile(
    r"(?:(\d{1,5})\s?(?:-|\+|d(?:ays?)?,?\s|\s(?=\d\d:\d\d:\d\d))\s?)?"
    r"(\d{1,7}):(?:(\d{1,2}):(\d{1,2}(?:[.,]\d{1,6})?)|(\d\d)(\.\d{1,6})?)(?![\d:])",
    re.IGNORECASE,
)
_DAYS_HOURS: Final = re.compile(r"(\d{1,5})-(\d\d)(?![\d:-])")
# Longest first: `min` before `m`.
_TIME_UNITS: Final = {
    "days": 86400,
    "day": 86400,
    "d": 86400,
    "hours": 3600,
    "hour": 3600,
    "hrs": 3600,
    "hr": 3600,
    "h": 3600,
    "minutes": 60,
    "minute": 60,
    "mins": 60,
    "min": 60,
    "m": 60,
    "seconds": 1,
    "second": 1,
    "secs": 1,
    "sec": 1,
    "s": 1,
    "ms": 0.001,
}
_UNIT_WORDS: Final = "|".join(sorted(_TIME_UNITS, key=len, reverse=True))
_AMOUNT: Final = re.compile(
    rf"({_NUMBER})\s?({_UNIT_WORDS})(?:\(s\))?(?![A-Za-z])\.?", re.IGNORECASE
)
_AND: Final = re.compile(r"[\s,]*(?:and\s+)?")
_BARE: Final = re.compile(rf"({_NUMBER})(?![\d:%]|\.\d|\s?[KMGTP]i?B?\b|\s?/\s?\d)", re.IGNORECASE)
_MIB: Final = {
    "": 2**-20,
    "K": 2**-10,
    "M": 1.0,
    "G": 2.0**10,
    "T": 2.0**20,
    "P": 2.0**30,
    "E": 2.0**40,
}
_MEMORY: Final = re.compile(
    rf"({_NUMBER})\s?(?:([KMGTP])(?:i?B|bytes?|w|o)?|(E)i?B|(B|bytes?))(?:[nc]|/(?:node|core|cpu))?(?![A-Za-z])",
    re.IGNORECASE,
)
_SHARE: Final = re.compile(rf"({_NUMBER})\s{{0,3}}(?:%|percent\b|per cent\b|pct\b)", re.IGNORECASE)
_COUNT: Final = re.compile(r"<?0*(\d{1,7})(?:\.0+)?(?![\d%]|:\d|:\w+=|[.,]\d|\s?[KMGT]i?B\b)")


def match_duration(text: str, at: int = 0, unit: float = 0.0) -> Matched:
    """Match a duration at a position; return seconds and end position, None without a match.

    Known forms: `1-02:03:04`, `02:57.38`, `0+00:03:05`, `2 days, 3:04:05`, `1h 30m`, `8340.00
    sec.`.

    unit: seconds in one of a bare number; 0 where a bare number is none. With hours (3600) a
    clock of two parts is `H:MM`, as in LSF's -W; else it is Slurm's `MM:SS`.
    """
    if found := _CLOCK.match(text, at):
        days, first, minutes, seconds, last, fraction = found.groups()
        if last is None:
            value = int(first) * 3600.0 + int(minutes) * 60 + float(seconds.replace(",", "."))
        elif unit == 3600 or (days and not fraction):  # `1-12:30` is D-HH:MM
            value = int(first) * 3600.0 + int(last) * 60
        else:
            value = int(first) * 60.0 + int(last) + float(fraction or 0)
        return value + 86400.0 * int(days or 0), found.end()
    if found := _DAYS_HOURS.match(text, at):
        return int(found[1]) * 86400.0 + int(found[2]) * 3600, found.end()
    total, end = 0.0, at
    while found := _AMOUNT.match(text, _AND.match(text, end).end() if end > at else end):  # type: ignore[union-attr]
        total += float(found[1]) * _TIME_UNITS[found[2].lower()]
        end = found.end()
        if clock := _CLOCK.match(text, _AND.match(text, end).end()):  # type: ignore[union-attr]
            rest = match_duration(text, clock.start())
            return (total + rest[0], rest[1]) if rest else (total, end)
    if end > at:
        return total, end
    if unit and (found := _BARE.match(text, at)):
        return float(found[1]) * unit, found.end()
    return None


def match_memory(text: str, at: int = 0, unit: str | None = None) -> Matched:
    """Match an amount of memory at a position; return MiB and end position, or None.

    Known forms: `153364K`, `4.00 GB`, `982 Mbytes`, `16777216kb`, `4Gn`; all units are powers
    of 1024.

    unit: of a bare number: `B`, `K`, `M`, `G`; None where a bare number is none.
    """
    if found := _MEMORY.match(text, at):
        return float(found[1]) * _MIB[(found[2] or found[3] or "").upper()], found.end()
    if unit is not None and (found := _BARE.match(text, at)):
        return float(found[1]) * _MIB[unit.replace("B", "")], found.end()
    return None


def match_share(text: str, at: int = 0, bare: bool = False) -> Matched:
    """Match a percentage at a position; return it as a fraction, and the end position.

    `20.00%` and `20 percent` are 0.2; the fraction may exceed 1. `bare`: whether the sign may
    be missing. None without a match.
    """
    found = _SHARE.match(text, at) or (_BARE.match(text, at) if bare else None)
    return (float(found[1]) / 100, found.end()) if found else None


def match_count(text: str, at: int = 0) -> Matched:
    """Match a whole number of at least 0; return it and the end position, or None.

    `4` matches, `4G` and `4.5` do not.
    """
    found = _COUNT.match(text, at)
    return (float(found[1]), found.end()) if found else None


def number(text: str) -> float | None:
    """Parse a number without sign and exponent; None if the text is anything else."""
    value = float(text) if re.fullmatch(_NUMBER, text.strip()) else None
    return value if value is None or isfinite(value) else None


def duration(text: str, unit: float = 0.0) -> float | None:
    """Parse a text as a duration in seconds; None if it is none, such as UNLIMITED."""
    found = match_duration(text.strip(), 0, unit)
    return found[0] if found else None


def mebibytes(text: str, unit: str | None = "B") -> float | None:
    found = match_memory(text.strip(), 0, unit)
    return found[0] if found else None


def share(text: str, bare: bool = False) -> float | None:
    found = match_share(text.strip(), 0, bare)
    return found[0] if found else None


def count(text: str) -> int | None:
    """Parse a whole number of at least 1; None for `-5`, `4G` or `0`."""
    found = match_count(text.strip(), 0)
    return int(found[0]) if found and found[0] else None


# A number before a unit whose fraction is after a comma, as a locale of France or Germany has it.
_COMMA: Final = re.compile(
    r"(?<![\d,.:])(\d{1,3}(?:[.\u202f\u00a0' ]\d{3})+|\d{1,9}),(\d{1,2}|\d{4,})"
    r"(?=\s?(?:%|[KMGT]i?[Bo]\b|[KMGT]\b|s(?:ec)?\b|h\b|min\b))"
)
_POINT_THOUSANDS: Final = re.compile(r"(?<![\d,.])\d{1,3}(?:,\d{3})+(?=\.\d|(?![\d,]))")
_SPACE_THOUSANDS: Final = re.compile(r"(?<=\d)[\u202f\u00a0'](?=\d{3}(?!\d))")


# Cells apart by commas, of which one begins with a letter.
_CSV: Final = re.compile(r"[^\s,],[A-Za-z]")


def plain_numbers(line: str) -> str:
    """Rewrite the numbers of a line in C notation: `20,00 %` as `20.00 %`, `8,566` as `8566`."""
    line = _SPACE_THOUSANDS.sub("", line)
    if "," not in line or (line.count(",") > 2 and _CSV.search(line)):
        return line
    line = _COMMA.sub(lambda found: f"{re.sub(r'[^0-9]', '', found[1])}.{found[2]}", line)
    return _POINT_THOUSANDS.sub(lambda found: found[0].replace(",", ""), line)
