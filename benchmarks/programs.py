"""`python -m benchmarks programs`: is the cause named, and the line, for programs of users?

Each program of `tests/programs` runs under `hpcncf run`; its diagnosis is compared with
`expected.yaml`. Prints one row a program, and the confusion of causes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[1] / "tests/programs"
# Characters of a source line in a table.
MOST_SHOWN = 48


@dataclass(frozen=True)
class Row:
    """One program's outcome."""

    program: str
    expected: tuple[str, ...]
    found: str
    line: str
    right_cause: bool
    right_line: bool | None
    """None if the program has no line to name."""
    seconds: float


def command_of(file: Path, ranks: int) -> list[str]:
    if ranks == 1:
        return [sys.executable, str(file)]
    runner = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return [sys.executable, *runner, str(file)]


def diagnosis_of(command: Sequence[str], results: Path, folder: Path = FOLDER) -> dict[str, Any]:
    """The diagnosis of a run of the command, as `hpcncf diagnose --json` prints it.

    Raises CalledProcessError where there is none.
    """
    hpcncf = [sys.executable, "-m", "hpcncf"]
    run = [*hpcncf, "run", "--quiet", "--results", str(results), "--", *command]
    ran = subprocess.run(run, cwd=folder, check=False, capture_output=True, text=True, timeout=600)
    words = [*hpcncf, "diagnose", str(results), "--json"]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        print(ran.stderr, done.stderr, file=sys.stderr)
        done.check_returncode()
    diagnosis: dict[str, Any] = json.loads(done.stdout)["runs"][0]
    return diagnosis


def judge(program: str, expected: Mapping[str, Any], told: Mapping[str, Any], s: float) -> Row:
    """Compare a diagnosis with what was expected of it."""
    primary = told["primary"]
    found = primary["cause"] if primary else told["verdict"]
    causes = tuple(expected["cause"])
    place = (primary or {}).get("places") or []
    named = place[0] if place else {}
    wanted = expected.get("line")
    parts = [wanted] if isinstance(wanted, str) else wanted
    right_line = None
    if parts:
        right_line = any(part in (named.get("source") or "") for part in parts)
    return Row(
        program=program,
        expected=causes or ("healthy",),
        found=found,
        line=f"{named['line']}: {named['source']}" if named else "",
        right_cause=found in causes if causes else found == "healthy",
        right_line=right_line,
        seconds=s,
    )


def measure(names: Sequence[str]) -> list[Row]:
    expected = yaml.safe_load((FOLDER / "expected.yaml").read_text())
    rows = []
    for name in names or list(expected):
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            command = command_of(FOLDER / name, expected[name].get("ranks", 1))
            told = diagnosis_of(command, Path(folder) / "r")
        row = judge(name, expected[name], told, time.monotonic() - began)
        print(format_row(row), flush=True)
        rows.append(row)
    return rows


HEAD = """\
| program | cause | found | line | named line | s |
|---|---|---|---|---|---|"""


def format_row(row: Row) -> str:
    found = row.found if row.right_cause else f"**{row.found}**"
    line = {None: "", True: "right", False: "**wrong**"}[row.right_line]
    text = row.line.replace("|", "\\|").replace("`", "'")
    named = (
        f"`{text if len(text) <= MOST_SHOWN else text[: MOST_SHOWN - 3] + '...'}`" if text else ""
    )
    cause = " or ".join(row.expected)
    return f"| {row.program} | {cause} | {found} | {line} | {named} | {row.seconds:.0f} |"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks programs", description=__doc__)
    parser.add_argument("program", nargs="*", help="only these; default: all")
    names = parser.parse_args(arguments).program
    print(HEAD, flush=True)
    print_totals(measure(names))
    return 0


def print_totals(rows: Sequence[Row]) -> None:
    """How many were right, and the confusion of causes."""
    lines = [row for row in rows if row.right_line is not None]
    healthy = [row for row in rows if row.expected == ("healthy",)]
    print(
        f"\nCauses right: {sum(row.right_cause for row in rows)} of {len(rows)}. Lines right: "
        f"{sum(bool(row.right_line) for row in lines)} of {len(lines)}. False alarms: "
        f"{sum(not row.right_cause for row in healthy)} of {len(healthy)} healthy programs.\n"
    )
    print("| cause | programs | right | called instead |")
    print("|---|---|---|---|")
    for cause in sorted({row.expected[0] for row in rows}):
        of = [row for row in rows if row.expected[0] == cause]
        missed = Counter(row.found for row in of if not row.right_cause)
        instead = ", ".join(f"{found} {number}" for found, number in missed.most_common())
        print(f"| {cause} | {len(of)} | {sum(row.right_cause for row in of)} | {instead} |")


if __name__ == "__main__":
    sys.exit(main())
