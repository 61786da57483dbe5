"""Tables, wrapped text, JSON, warnings, and labels of runs, for a terminal."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hpcncf.errors import UsageError, printable
from hpcncf.table import Table
from hpcncf.text import pluralize

if TYPE_CHECKING:
    from hpcncf.job.plan import Run
    from hpcncf.state.status import RunState

# A run's first letters, as git's: enough to name it in any command.
ID: Final = 8
# Of a setting's value; a command of a thousand words would fill the screen.
LONGEST_VALUE: Final = 120
# Of more settings that vary, only those are shown that differ from most runs.
MAX_VARYING: Final = 5
# By verb; 1 if it is not here. It rises if a key goes or changes its meaning, not if one is added.
VERSIONS: Final[Mapping[str, int]] = {}


def varies(run: Run, usual: Mapping[str, Any] | None = None) -> str:
    """Label a run by its varied settings: `cpus_per_task=2 loader=vectorized repeat=1`.

    Settings equal to the `usual_values` are left out; `baseline` if none is left.
    """
    values = [
        f"{key.partition('.')[2] or key}={_short(key, value)}"
        for key, value in run.varied.items()
        if not usual or key not in usual or value != usual[key]
    ]
    values = ["baseline"] if usual and not values else values
    return " ".join([*values, *([f"repeat={run.repeat}"] if run.repeat else [])])


def usual_values(runs: Sequence[Run]) -> dict[str, Any]:
    """Values of varied settings that labels of runs leave out.

    These are the baseline's; without one, and if many settings vary, the most common value of
    each. Empty if few settings vary.
    """
    base = next((run for run in runs if run.baseline), None)
    if base:
        return dict(base.varied)
    if not runs or len(runs[0].varied) <= MAX_VARYING:
        return {}
    usual = {}
    for key in runs[0].varied:
        values = {repr(run.varied.get(key)): run.varied.get(key) for run in runs}
        commonest = Counter(repr(run.varied.get(key)) for run in runs).most_common(1)[0][0]
        usual[key] = values[commonest]
    return usual


def _short(key: str, value: object) -> str:
    if key == "data.path":
        return Path(str(value)).name
    text = "-".join(map(str, value)) if isinstance(value, list) else str(value)
    half = LONGEST_VALUE // 2
    return text if len(text) <= LONGEST_VALUE else f"{text[:half]} ... {text[-half:]}"


class Retired(argparse.Action):
    """Removed option that refuses its use; `const` says what to use instead."""

    def __init__(self, option_strings: Sequence[str], dest: str, const: str) -> None:
        super().__init__(option_strings, dest, nargs="?", const=const, help=argparse.SUPPRESS)

    def __call__(self, *_: object) -> None:
        raise UsageError(f"{self.option_strings[0]}: no longer an option. {self.const}")


def warn(*lines: str) -> None:
    """Print warnings to standard error, one line each."""
    for line in lines:
        print(f"hpcncf: {printable(line)}", file=sys.stderr)


def print_json(verb: str, value: Mapping[str, Any]) -> None:
    print(format_json(verb, value))


def format_json(verb: str, value: Mapping[str, Any]) -> str:
    """Format what a verb prints for programs, with the name and version of its schema.

    `verb` is `error` for an error. Each has a JSON Schema in hpcncf/schemas/output.
    """
    named = {"schema": f"hpcncf.{verb}/{VERSIONS.get(verb, 1)}", **value}
    try:
        return json.dumps(named, indent=1, allow_nan=False)
    except ValueError:  # JSON has no word for what a program that diverged reports as its loss
        return json.dumps(_finite(named), indent=1)


def _finite(value: Any) -> Any:
    """Replace numbers that JSON cannot hold by None, at any depth."""
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def width() -> int:
    return max(shutil.get_terminal_size((100, 24)).columns, 60)


def filled(sentence: str, indent: str = "") -> str:
    """Wrap the sentence to the terminal's width."""
    return textwrap.fill(
        printable(sentence),
        width(),
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )


def table_layout(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out a table for the terminal's width."""
    return Table(list(heads), [list(row) for row in rows]).layout(width())


def counts(states: Sequence[RunState]) -> str:
    """Count runs by state, retired runs separately: `18 runs: 3 completed, 1 running`."""
    active = [state.state for state in states if not state.run.retired]
    tally = {state: active.count(state) for state in dict.fromkeys(active)}
    parts = [f"{number} {state.replace('_', ' ')}" for state, number in tally.items()]
    retired = len(states) - len(active)
    parts += [f"({retired} retired)"] if retired else []
    return f"{pluralize(len(active), 'run')}: {', '.join(parts)}"


def format_path(path: Path) -> str:
    """Format a path, relative if it lies below the current folder."""
    with contextlib.suppress(OSError, ValueError):  # elsewhere, or the folder here was removed
        return str(path.relative_to(Path.cwd()))
    return str(path)
