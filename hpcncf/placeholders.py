"""`{lr}` in a text: which placeholders it holds, and their values in their stead. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from hpcncf.errors import shown

PLACEHOLDER: Final = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


def names(text: str) -> list[str]:
    """Those in the text, each once. Raises ValueError where a brace stands alone."""
    found = [match for match in PLACEHOLDER.finditer(text) if match.group() not in ("{{", "}}")]
    if any(match.group(1) is None for match in found):
        raise ValueError(
            f"workload: a brace without its partner in {shown(text)}; a placeholder is written "
            "{name}, a brace itself {{ or }}"
        )
    return list(dict.fromkeys(match.group(1) for match in found))


def filled(text: str, values: Mapping[str, str]) -> str:
    """The text with each placeholder's value; `{{` and `}}` are braces."""

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        return match.group()[0] if name is None else values[name]

    return PLACEHOLDER.sub(value, text)


def in_quotes(line: str) -> str | None:
    """The first placeholder of a shell's line that stands inside its quotes; None: none does."""
    quote = None
    at = 0
    while at < len(line):
        found = PLACEHOLDER.match(line, at)
        if found and found.group(1) is not None and quote:
            return found.group(1)
        if line[at] == "\\" and quote != "'":
            at += 1
        elif quote is None and line[at] in "'\"":
            quote = line[at]
        elif line[at] == quote:
            quote = None
        at = found.end() if found else at + 1
    return None
