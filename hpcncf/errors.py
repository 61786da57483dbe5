"""Errors that a user can fix, and the words of messages; anything else is our bug."""

from __future__ import annotations

import re
import signal
from typing import Final

# Control characters except tab and new line, marks that reverse the direction of writing, and
# halves of surrogate pairs.
UNPRINTABLE: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


class HpcncfError(Exception):
    """An error that the user can fix; its message says where, what was expected and what was given.

    Exit code 1.
    """


class UsageError(HpcncfError):
    """An error in the request itself: in an argument or a job file. Exit code 2."""


def printable(text: str) -> str:
    """Replace control characters, which could move the cursor or colour the terminal."""
    return UNPRINTABLE.sub("?", text)


def did_you_mean(word: str, known: list[str]) -> str:
    """Suggest the closest known word, as ` Did you mean 'x'?`; empty if none is close."""
    import difflib

    close = difflib.get_close_matches(word, known, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def abbreviate(value: object) -> str:
    """Return the `repr` of a value, cut to 200 characters."""
    import reprlib

    short = reprlib.Repr()
    short.maxlevel, short.maxlist, short.maxdict = 3, 4, 4
    short.maxstring = short.maxother = short.maxlong = 100
    text = short.repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."


def signal_name(number: int) -> str:
    """Name a signal, as in `9 (SIGKILL)`; real-time signals are only numbered."""
    known = {each.value: each.name for each in signal.Signals}
    return f"{number} ({known[number]})" if number in known else str(number)


def name_exit(code: int) -> tuple[str, str]:
    """Tell how a process ended: (`exit code`, `3`), or (`signal`, `9 (SIGKILL)`) for -9."""
    return ("exit code", str(code)) if code >= 0 else ("signal", signal_name(-code))


def describe_exit(rank: int, code: int) -> str:
    """Describe how a rank ended, as in `rank 1 was killed by signal 9 (SIGKILL)`."""
    if code >= 0:
        return f"rank {rank} exited with code {code}"
    return f"rank {rank} was killed by signal {signal_name(-code)}"
