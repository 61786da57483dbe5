"""Durations and moments as Slurm writes them. Pure."""

from __future__ import annotations

import re
from datetime import datetime


def seconds(text: str) -> float | None:
    """`[DD-[HH:]]MM:SS[.mmm]`: `1-02:03:04`, `3:04`, `00:01.250`; None for UNLIMITED, say."""
    found = re.fullmatch(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+(?:\.\d+)?)", text)
    if found is None:
        return None
    days, hours, minutes, rest = (float(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest


def moment(text: str) -> datetime | None:
    """This machine's local time; None where there is none."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        return None
