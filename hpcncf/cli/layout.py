"""How verbs print: short names for what a run varies, and tables that fit the terminal."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcncf.plan import Run
    from hpcncf.status import RunState

# A run's first letters, as git's: enough to tell it in any command.
ID = 8


def varies(run: Run) -> str:
    """`cpus_per_task=2 loader=vectorized repeat=1`: what tells the run from its neighbours."""
    values = [f"{key.split('.')[1]}={_short(value)}" for key, value in run.varied.items()]
    return " ".join([*values, *([f"repeat={run.repeat}"] if run.repeat else [])])


def _short(value: object) -> str:
    if isinstance(value, str) and "/" in value:
        return Path(value).name
    return "-".join(map(str, value)) if isinstance(value, list) else str(value)


def width() -> int:
    return max(shutil.get_terminal_size((100, 24)).columns, 60)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they need; the last one wraps into what is left of the line."""
    columns = list(zip(heads, *rows, strict=True))
    widths = [max(len(cell) for cell in column) for column in columns[:-1]]
    lines = [_line(widths, heads)]
    for row in rows:
        lines += _wrapped(widths, row)
    return "\n".join(lines)


def _line(widths: Sequence[int], cells: Sequence[str]) -> str:
    padded = [cell.ljust(wide) for cell, wide in zip(cells, widths, strict=False)]
    return "  ".join([*padded, cells[-1]]).rstrip()


def _wrapped(widths: Sequence[int], row: Sequence[str]) -> list[str]:
    used = sum(widths) + 2 * len(widths)
    room = max(width() - used, 24)
    first, *more = textwrap.wrap(row[-1], room, break_on_hyphens=False) or [""]
    return [_line(widths, [*row[:-1], first]), *(" " * used + line for line in more)]


def counts(states: Sequence[RunState]) -> str:
    """`18 runs: 3 completed, 1 running, 14 pending`, retired ones apart."""
    active = [state.state for state in states if not state.run.retired]
    tally = {state: active.count(state) for state in dict.fromkeys(active)}
    parts = [f"{number} {state.replace('_', ' ')}" for state, number in tally.items()]
    retired = len(states) - len(active)
    parts += [f"({retired} retired)"] if retired else []
    return f"{len(active)} run{'s' * (len(active) != 1)}: {', '.join(parts)}"


def shown(path: Path) -> str:
    """The path as the user would type it here."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
