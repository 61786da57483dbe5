"""`python -m benchmarks programs`: is the cause named, and the line, for programs of users?

Each program of `benchmarks/corpus` runs under `hpcncf run`; its diagnosis is compared with
`expected.yaml`. Prints how many were right, the misses, and folded the confusion of causes and all.

`--keep DIR` keeps each program's results in DIR; `--records DIR` diagnoses such results again
without a run, so that a change of the rules is judged on the very same records.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import yaml

from benchmarks import results
from benchmarks.verbs import end_in_order
from hpcncf.collect.collect import collect
from hpcncf.errors import HpcncfError
from hpcncf.paths import ResultPaths
from hpcncf_analysis.diagnosis.diagnose import diagnose_results
from hpcncf_analysis.diagnosis.format import plain

FOLDER = Path(__file__).parent / "corpus"
# Characters of a source line in a table.
MOST_SHOWN = 48
LIMIT_S = 150.0
NOT_ESTABLISHED = "not established"
# Of a healthy program these are no false alarm, and no right answer.
NO_VERDICT = ("too_short_to_judge", "neighbour_load", "unknown", "failed")


@dataclass(frozen=True)
class CorpusResult:
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


def diagnosis_of(command: Sequence[str], into: Path, folder: Path = FOLDER) -> dict[str, Any]:
    """The diagnosis of a run of the command, as `hpcncf diagnose --json` prints it.

    Raises CalledProcessError where there is none.
    """
    hpcncf = [sys.executable, "-m", "hpcncf"]
    run = [*hpcncf, "run", "--quiet", "--results", str(into), "--", *command]
    ran = subprocess.run(
        run, cwd=folder, check=False, capture_output=True, text=True, timeout=LIMIT_S
    )
    words = [*hpcncf, "diagnose", str(into), "--json"]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        print(ran.stderr, done.stderr, file=sys.stderr)
        done.check_returncode()
    diagnosis: dict[str, Any] = json.loads(done.stdout)["runs"][0]
    return diagnosis


def judge(
    program: str, expected: Mapping[str, Any], diagnosis: Mapping[str, Any], s: float
) -> CorpusResult:
    """Compare a diagnosis with what was expected of it."""
    primary = diagnosis["primary"]
    found = primary["cause"] if primary else diagnosis["verdict"]
    causes = tuple(expected["cause"])
    place = (primary or {}).get("places") or []
    named = place[0] if place else {}
    wanted = expected.get("line")
    parts = [wanted] if isinstance(wanted, str) else wanted
    right_line = None
    if parts:
        right_line = any(part in (named.get("source") or "") for part in parts)
    return CorpusResult(
        program=program,
        expected=causes or ("healthy",),
        found=found,
        line=f"{named['line']}: {named['source']}" if named else "",
        right_cause=found in causes if causes else found == "healthy",
        right_line=right_line,
        seconds=s,
    )


def failed(error: Exception) -> dict[str, Any]:
    """In place of a diagnosis, so that one program stops no other."""
    print(error, file=sys.stderr)
    return {"primary": None, "verdict": "failed"}


def rejudge(names: Sequence[str], kept: Path) -> Iterator[CorpusResult]:
    """Diagnose results that `--keep` left, one folder a program; absent ones are left out."""
    expected = read_expected()
    for name in names or list(expected):
        began = time.monotonic()
        if not (kept / name / "plan.json").exists():
            continue
        try:
            diagnosis = recorded_diagnosis(kept / name)
        except (HpcncfError, LookupError) as error:
            diagnosis = failed(error)
        yield judge(name, expected[name], diagnosis, time.monotonic() - began)


def recorded_diagnosis(results: Path) -> dict[str, Any]:
    """What `hpcncf diagnose --json` says of the folder's one run, without a process for it.

    Raises LookupError where no rank left a record.
    """
    paths = ResultPaths(results.resolve())
    rows = [row for row in collect(paths).runs if not row["retired"]]
    diagnoses = list(diagnose_results(paths, rows).values())
    if not diagnoses:
        raise LookupError(f"{results}: no record of a rank")
    return plain(diagnoses[0])


def read_expected() -> dict[str, Any]:
    expected: dict[str, Any] = yaml.safe_load((FOLDER / "expected.yaml").read_text())
    return expected


def measure(names: Sequence[str], keep: Path | None = None) -> Iterator[CorpusResult]:
    """Programs that must not use or need a second core run side by side, on a core each."""
    expected = read_expected()
    names = names or list(expected)
    alone = [
        name
        for name in names
        if not expected[name]["cause"] or {"alone", "ranks"} & expected[name].keys()
    ]
    for name in alone:
        yield measure_one(name, expected[name], keep)
    cores: SimpleQueue[int] = SimpleQueue()
    for core in sorted(os.sched_getaffinity(0)):
        cores.put(core)
    # Of Linux's threads each has its own affinity, which the processes that it starts inherit.
    with ThreadPoolExecutor(
        min(2, cores.qsize()), initializer=lambda: os.sched_setaffinity(0, {cores.get()})
    ) as pool:
        beside = [name for name in names if name not in alone]
        yield from pool.map(lambda name: measure_one(name, expected[name], keep), beside)


def measure_one(name: str, expected: Mapping[str, Any], keep: Path | None = None) -> CorpusResult:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        command = command_of(FOLDER / name, expected.get("ranks", 1))
        try:
            diagnosis = diagnosis_of(command, (keep or Path(folder)) / name)
        except (subprocess.SubprocessError, LookupError) as error:
            diagnosis = failed(error)
    return judge(name, expected, diagnosis, time.monotonic() - began)


HEAD = ("program", "cause", "found", "line", "named line", "s:")


def table(rows: Sequence[CorpusResult], with_lines: bool) -> Iterator[str]:
    kept = range(6) if with_lines else [0, 1, 2, 5]
    every = [HEAD, *map(cells, rows)]
    head, *others = ([each[at] for at in kept] for each in every)
    return results.table(head, others)


def cells(row: CorpusResult) -> list[str]:
    found = row.found if row.right_cause else f"**{row.found}**"
    line = {None: "", True: "right", False: "**wrong**"}[row.right_line]
    text = row.line.replace("|", "\\|").replace("`", "'")
    named = (
        f"`{text if len(text) <= MOST_SHOWN else text[: MOST_SHOWN - 3] + '...'}`" if text else ""
    )
    return [row.program, " or ".join(row.expected), found, line, named, f"{row.seconds:.0f}"]


def page(rows: Sequence[CorpusResult]) -> Iterator[str]:
    """How many were right, the misses, and folded the confusion of causes and all programs."""
    judged = [row for row in rows if row.expected != (NOT_ESTABLISHED,)]
    lines = [row for row in judged if row.right_line is not None]
    healthy = [row for row in judged if row.expected == ("healthy",)]
    wrong = [row for row in healthy if not row.right_cause]
    silent = sum(row.found in NO_VERDICT for row in wrong)
    named = f"Lines right: {sum(bool(row.right_line) for row in lines)} of {len(lines)}. "
    yield (
        f"Causes right: {sum(row.right_cause for row in judged)} of {len(judged)}. "
        f"{named * bool(lines)}False alarms: {len(wrong) - silent} of {len(healthy)} healthy "
        f"programs, without a verdict {silent}.\n"
    )
    if missed := [row for row in judged if not row.right_cause or row.right_line is False]:
        yield from table(missed, bool(lines))
        yield ""
    causes = []
    for cause in sorted({row.expected[0] for row in judged}):
        of = [row for row in judged if row.expected[0] == cause]
        instead = Counter(row.found for row in of if not row.right_cause).most_common()
        called = ", ".join(f"{found} {number}" for found, number in instead)
        causes.append([cause, f"{len(of)}", f"{sum(row.right_cause for row in of)}", called])
    confusion = results.table(("cause", "programs:", "right:", "called instead"), causes)
    everything = table(rows, bool(lines))
    yield from results.fold("By cause, and all programs", [*confusion, "", *everything])


def show(rows: Iterable[CorpusResult]) -> None:
    """Print the page, of the rows until then also if SIGTERM ends this."""
    end_in_order()
    found: list[CorpusResult] = []
    try:
        for row in rows:
            print(*cells(row), sep=" | ", file=sys.stderr, flush=True)
            found.append(row)
    finally:
        print(*page(found), sep="\n", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.programs", description=__doc__)
    parser.add_argument("program", nargs="*", help="only these; default: all")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep each program's results")
    parser.add_argument("--records", type=Path, metavar="DIR", help="diagnose such results, no run")
    asked = parser.parse_args(arguments)
    if asked.records:
        show(rejudge(asked.program, asked.records))
    else:
        show(measure(asked.program, asked.keep and asked.keep.resolve()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
