"""What a user's own program reports of itself: lines `hpcncf: key=value`, and a small JSON file."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from hpcncf.records import Reported

MARK: Final = b"hpcncf: "
FILE: Final = "metrics.json"
# More is a log, not a report: what comes on top of it is left out, and the record says so.
MOST_KEYS: Final = 100
MOST_CHARACTERS: Final = 200
LONGEST_LINE: Final = 4096
LARGEST_FILE: Final = 64 * 1024

KEY: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,39}")
WHOLE_NUMBER: Final = re.compile(r"[-+]?[0-9]{1,15}")


class Report:
    """The last value of each key that was reported so far."""

    def __init__(self) -> None:
        self.values: Reported = {}
        self.problems: list[str] = []
        self._rest = b""
        self._in_long_line = False

    def read(self, output: bytes) -> None:
        """The next of the program's output, cut anywhere."""
        *lines, rest = (self._rest + output).replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            if self._in_long_line:
                self._in_long_line = False
            elif line.startswith(MARK):
                self._line(line[:LONGEST_LINE].decode("utf-8", "replace"))
        self._in_long_line |= len(rest) > LONGEST_LINE
        self._rest = b"" if self._in_long_line else rest

    def end(self) -> None:
        """There is no more: the last line needs no end."""
        self.read(b"\n")

    def read_file(self, path: Path) -> None:
        """A flat JSON mapping; its values are the last word."""
        try:
            if path.stat().st_size > LARGEST_FILE:
                self._problem(f"{path}: larger than {LARGEST_FILE} bytes: not read")
                return
            plain = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return
        except (OSError, ValueError, RecursionError) as error:
            self._problem(f"{path}: not readable as JSON: {error}")
            return
        if isinstance(plain, dict):
            self._mapping(plain, path)
        else:
            self._problem(f"{path}: expected a mapping, came {type(plain).__name__}")

    def _mapping(self, plain: Mapping[str, Any], path: Path) -> None:
        for key, value in plain.items():
            if isinstance(value, bool | int | float | str):
                self._put(key, value)
            elif value is not None:
                self._problem(f"{path}: {key}: expected a number or text, came {value!r:.50}")

    def _line(self, line: str) -> None:
        for word in line.removeprefix("hpcncf:").split():
            key, equals, value = word.partition("=")
            if equals:
                self._put(key, _read(value))
            else:
                self._problem(f"hpcncf: {word}: expected key=value, without blanks")

    def _put(self, key: str, value: bool | int | float | str) -> None:
        if not KEY.fullmatch(key):
            self._problem(f"hpcncf: {key[:50]}: a key is of letters, digits and underscores")
        elif key not in self.values and len(self.values) == MOST_KEYS:
            self._problem(f"hpcncf: {key}: more than {MOST_KEYS} keys were reported: left out")
        else:
            self.values[key] = _kept(value)

    def _problem(self, text: str) -> None:
        if text not in self.problems and len(self.problems) < 5:
            self.problems.append(text)


def _read(text: str) -> int | float | str:
    if WHOLE_NUMBER.fullmatch(text):
        return int(text)
    try:
        return float(text)
    except ValueError:
        return text


def _kept(value: bool | int | float | str) -> bool | int | float | str:
    """As a record can keep it: JSON knows no infinity, and a number is no longer than a double."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and abs(value) >= 2**53:
        return str(value)[:MOST_CHARACTERS]
    return value[:MOST_CHARACTERS] if isinstance(value, str) else value
