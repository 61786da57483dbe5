"""docs/results.md: a block for each benchmark, and one line that says where all of them come from.

A block's first marker holds its origin (machine, versions, commit, date) and its seconds. Blocks of
the page's own sitting show neither; a block of another sitting shows its origin above its tables.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Final

from hpcncf.monitor.cgroup import usable_cpus
from hpcncf.records.host import describe_host

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = ROOT / "docs/results.md"
BLOCK: Final = re.compile(
    r"<!-- bench: (\w+)(?:, (\d+) s, ([^>\n]+))? -->\n(.*?)<!-- /bench -->", re.DOTALL
)
SITTING: Final = re.compile(
    r"<!-- sitting(?:: ([^>\n]+))? -->\n(?:.*?\n)?<!-- /sitting -->", re.DOTALL
)
OTHER: Final = "*Of another sitting: "


@dataclass(frozen=True)
class BenchmarkOutput:
    """What one benchmark printed."""

    name: str
    body: str
    seconds: int | None = None
    origin: str | None = None
    """None if it was never measured."""

    def render(self, sitting: str | None) -> str:
        begin = f"<!-- bench: {self.name}"
        if self.origin:
            begin += f", {self.seconds} s, {self.origin}"
        above = f"{OTHER}{self.origin}.*\n\n" if self.origin and self.origin != sitting else ""
        return f"{begin} -->\n{above}{self.body.strip()}\n<!-- /bench -->"


def blocks(page: str) -> dict[str, BenchmarkOutput]:
    """By name. Raises ValueError if a block has no end."""
    found = {}
    for name, seconds, origin, body in BLOCK.findall(page):
        if "<!-- bench:" in body:
            raise ValueError(f"the block {name} has no <!-- /bench -->")
        if body.startswith(OTHER):
            body = body.partition("\n\n")[2]
        found[name] = BenchmarkOutput(name, body, int(seconds) if seconds else None, origin or None)
    if page.count("<!-- bench:") != len(found):
        raise ValueError("a block has no <!-- /bench -->, or two have one name")
    return found


def sitting(page: str) -> str | None:
    """The origin that the page's own blocks share."""
    found = SITTING.search(page)
    return found[1] if found else None


def place(page: str, block: BenchmarkOutput, title: str) -> str:
    """The page with this block in place of the benchmark's last one, or with a section more."""
    if block.name in blocks(page):
        text = block.render(sitting(page))
        return BLOCK.sub(lambda old: text if old[1] == block.name else old[0], page)
    return f"{page.rstrip()}\n\n## {title}\n\n{block.render(sitting(page))}\n"


def begin_sitting(page: str, origin: str | None) -> str:
    """The page of this sitting: its line at the top, and every other block with its own origin."""
    found = blocks(page)
    mine = [each.seconds or 0 for each in found.values() if origin and each.origin == origin]
    named = "<!-- sitting -->\n"
    if origin:
        named = f"<!-- sitting: {origin} -->\n"
        named += f"*{origin}, `python -m benchmarks --write`, {sum(mine) / 60:.0f} min.*\n"
    named += "<!-- /sitting -->"
    page = BLOCK.sub(lambda old: found[old[1]].render(origin), page)
    return SITTING.sub(lambda _: named, page)


def write(block: BenchmarkOutput, title: str, new_sitting: bool) -> None:
    """Into the page, whose line at the top becomes this block's origin with `new_sitting`."""
    page = PAGE.read_text()
    origin = block.origin if new_sitting else sitting(page)
    PAGE.write_text(begin_sitting(place(page, block, title), origin))


def describe_origin() -> str:
    """Machine, versions, commit and date; changes of documents are no change of the code."""
    about = describe_host()
    status = subprocess.run(
        ["git", "status", "--porcelain", "--", ".", ":!docs"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    return ", ".join(
        [
            f"{about['cpu_model']}, {len(usable_cpus())} cores usable",
            *(f"{package} {about[package]}" for package in ("python", "torch", "numpy")),
            f"commit {str(about['commit'])[:7]}{' with changes' if status else ''}",
            f"{date.today():%Y-%m-%d}",
        ]
    )


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Markdown. A column whose name ends in a colon is aligned to the right."""
    yield f"| {' | '.join(each.removesuffix(':') for each in columns)} |"
    yield f"|{'|'.join('---:' if each.endswith(':') else '---' for each in columns)}|"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def fold(summary: str, lines: Iterable[str]) -> Iterator[str]:
    """Markdown that is shown on a click."""
    yield from (f'<details markdown="1"><summary>{summary}</summary>', "", *lines, "", "</details>")


def failed(block: BenchmarkOutput, why: str) -> BenchmarkOutput:
    """With what it had printed by then."""
    return replace(block, body=f"**Failed: {why}.**\n\n{block.body}".strip())
