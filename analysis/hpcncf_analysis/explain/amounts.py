"""Shares, memory and time as schedulers write them; None where it is not one. Pure."""

from __future__ import annotations

import re
from math import isfinite
from typing import Final

from hpcncf.slurm import times

_MIB: Final = {"": 2**-20, "K": 2**-10, "M": 1.0, "G": 2.0**10, "T": 2.0**20, "P": 2.0**30}
_MEMORY: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGTP]?)(?:i?B|bytes?|b)?", re.IGNORECASE)
# As a locale with a decimal comma writes a share: Perl's and LSF's printf follow LC_NUMERIC.
COMMA: Final = re.compile(r"\b\d+,\d{1,2}\s?%")


def number(text: str) -> float | None:
    """No sign, no exponent: none of the schedulers writes one."""
    if not re.fullmatch(r"\d+(?:\.\d+)?", text):
        return None
    value = float(text)
    return value if isfinite(value) else None


def whole(text: str) -> int | None:
    """A count of cores or nodes, at least 1; `-5` or `4G` is none."""
    return int(text) if re.fullmatch(r"0*[1-9]\d{0,8}", text) else None


def share(text: str) -> float | None:
    """`20.00%` or `20.00 %`: 0.2. May exceed 1, as efficiencies do."""
    found = re.match(r"\s*(\d+(?:\.\d+)?)\s?%", text)
    value = number(found[1]) if found else None
    return None if value is None else value / 100


def mebibytes(text: str) -> float | None:
    """`153364K`, `4.00 GB`, `982 Mbytes`, `16777216kb`; a bare number is bytes, as in Slurm, PBS.

    All of them count in powers of 1024.
    """
    found = _MEMORY.fullmatch(text.strip())
    value = number(found[1]) if found else None
    return None if found is None or value is None else value * _MIB[found[2].upper()]


def seconds(text: str) -> float | None:
    """Slurm's and PBS's `[DD-][[HH:]MM:]SS[.mmm]`; None for UNLIMITED, say."""
    value = times.seconds(text) if ":" in text else number(text)
    return value if value is not None and isfinite(value) else None
