"""Puts what a benchmark printed into its document, between the markers that bear its name."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path
from typing import Any, Final

from hpcncf.monitor.cgroup import usable_cpus

DOCS: Final = Path(__file__).parent.parent / "docs"
ELSEWHERE: Final = {
    "strategies": "engines.md",
    "remedies": "remedies.md",
    "rowwise": "remedies-for-your-program.md",
}
"""All others' tables stand in results.md."""
END: Final = "<!-- /bench -->"


def placed(text: str, name: str, title: str, body: str) -> str:
    """The document with `body` between the markers, or with a section more where it has none.

    Raises ValueError where a section has a beginning and no end.
    """
    begin = f"<!-- bench: {name} -->"
    section = f"{begin}\n{body.strip()}\n{END}"
    before, found, rest = text.partition(begin)
    if not found:
        return f"{text.rstrip()}\n\n## {title}\n\n{section}\n"
    old, ended, after = rest.partition(END)
    if not ended or "<!-- bench:" in old:
        raise ValueError(f"{begin} has no {END} behind it")
    return before + section + after


def origin(about: dict[str, Any], name: str, seconds: float) -> str:
    """The line above a section: where, with what and how it was measured."""
    changed = " with changes" if about["dirty"] else ""
    parts = [
        f"{about['cpu_model']}, {len(usable_cpus())} cores usable",
        *(f"{package} {about[package]}" for package in ("python", "torch", "numpy")),
        f"commit {str(about['commit'])[:7]}{changed}",
        f"{date.today():%Y-%m-%d}",
        f"`python -m benchmarks {name}`",
        f"{seconds:.0f} s",
    ]
    return f"*{', '.join(parts)}.*"


def seconds_taken(page: str, name: str) -> int | None:
    """How long the benchmark took when it wrote its section of the page; None if it did not."""
    section = page.partition(f"<!-- bench: {name} -->")[2].partition(END)[0]
    found = re.search(rf"`python -m benchmarks {name}`, (\d+) s\.\*", section)
    return int(found[1]) if found else None


def document(name: str) -> Path:
    return DOCS / ELSEWHERE.get(name, "results.md")


def write(name: str, title: str, body: str) -> None:
    path = document(name)
    path.write_text(placed(path.read_text(), name, title, body))


def first_table(markdown: str) -> str:
    """The lines of the first table of a page."""
    found = re.search(r"(?m)^(\|.*\n)+", markdown)
    return found.group() if found else ""
