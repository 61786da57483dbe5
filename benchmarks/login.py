"""How long commands take that run on a login node, and how large the report's page is.

`hpcncf --help` takes turns with an empty Python, `hpcncf run -- true` with `true`: in a folder that
holds a thousand earlier commands, as a loop over short commands fills it. The records of many runs
are generated: no run was made, and only the seconds and the bytes mean anything.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks import results
from benchmarks.verbs import HPCNCF, measure_command
from hpcncf.paths import ResultPaths
from hpcncf.records.command_plan import append_command
from hpcncf.worker.record_command import plan_command

SCRIPT: Final = (str(Path(sys.executable).with_name("hpcncf")),)
TESTS: Final = Path(__file__).parent.parent / "tests"
ROUNDS: Final = 5
RUNS: Final = 21
EARLIER: Final = 1_000
HELPS: Final = 11
STATUS_RUNS: Final = (1_000, 5_000)
RANKS: Final = 4
WINDOWS: Final = 600
"""A node record's most: what a run of ten minutes or longer leaves."""


def generated(folder: Path, runs: int, ranks: int, windows: int) -> ResultPaths:
    """Completed runs, four repeats of each point."""
    sys.path.append(str(TESTS))
    import make_results

    points: list[dict[str, Any]] = [
        {
            "resources.tasks_per_node": ranks,
            "resources.cpus_per_task": cores,
            "training.loader": loader,
            "training.global_batch_size": 256 * batch,
            "training.negatives": negatives,
        }
        for batch in range(1, runs // 200 + 1)
        for loader in ("per_sample", "vectorized")
        for cores in (1, 2, 3, 4, 6)
        for negatives in (1, 2, 4, 6, 8)
    ]
    paths = make_results.demo(folder, points=points, repeats=4)
    make_results.complete(paths, windows=windows)
    return paths


def seconds(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def started_after(command: list[str]) -> float:
    """Seconds until the command `date`, which is the last words of this one, begins its work."""
    began = time.time()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout) - began


def short_commands(folder: Path) -> list[list[str]]:
    """Rows of `true`, of `hpcncf run -- true`, and of the time until its command begins."""
    paths = ResultPaths(folder)
    for number in range(EARLIER):
        append_command(paths, plan_command(["true", str(number)], 1.0, None))
    run = [*SCRIPT, "run", "--quiet", "--results", str(folder), "--"]
    date = ["date", "+%s.%N"]
    pairs = [(seconds(["true"]), seconds([*run, "true"])) for _ in range(RUNS)]
    begins = [started_after([*run, *date]) - started_after(date) for _ in range(RUNS)]
    alone, observed = ([each[at] for each in pairs] for at in (0, 1))
    names = ("`true`", "`hpcncf run -- true`", "its command begins after")
    allowed = ("", f"{median(alone) + 0.15:.2f}", "0.06")
    return [
        [name, f"{median(times):.3f}", f"{max(times):.3f}", "", limit]
        for name, times, limit in zip(names, (alone, observed, begins), allowed, strict=True)
    ]


def main() -> int:
    """Print the table."""
    rows = []
    empty, shown = [sys.executable, "-c", ""], [*HPCNCF, "--help"]
    pairs = [(seconds(empty), seconds(shown)) for _ in range(HELPS)]
    names = ("`python -c ''`", "`hpcncf --help`")
    for name, times in zip(names, zip(*pairs, strict=True), strict=True):
        rows.append([name, f"{median(times):.3f}", f"{max(times):.3f}", "", ""])
    with tempfile.TemporaryDirectory() as temporary:
        rows += short_commands(Path(temporary) / "short")
        for runs in STATUS_RUNS:
            paths = generated(Path(temporary) / f"{runs}", runs, 1, 10)
            costs = [measure_command([*HPCNCF, "status", str(paths.folder)]) for _ in range(ROUNDS)]
            times, peak = [cost.seconds for cost in costs], max(cost.peak_bytes for cost in costs)
            cells = [f"{median(times):.2f}", f"{max(times):.2f}", f"{peak / 2**20:.0f}"]
            rows.append([f"`hpcncf status`, {runs:,} runs", *cells, "1" if runs == 5_000 else ""])
        paths = generated(Path(temporary) / "report", 1_000, RANKS, WINDOWS)
        size_mb = sum(each.stat().st_size for each in paths.folder.rglob("*.json")) / 1e6
        for verb, allowed in {"collect": 10, "report": 20}.items():
            cost = measure_command([*HPCNCF, verb, str(paths.folder)])
            name = f"`hpcncf {verb}`, 1,000 runs of {RANKS} ranks, {size_mb:.0f} MB"
            cells = [f"{cost.seconds:.1f}", "", f"{cost.peak_bytes / 2**20:.0f}", f"{allowed}"]
            rows.append([name, *cells])
        page_mb = (paths.report / "report.html").stat().st_size / 1e6
    calls = f"{HELPS}, {RUNS} and {ROUNDS}"
    print(f"Medians of {calls} calls, and the slowest; `collect` and `report` once.\n")
    columns = ["command", "seconds:", "slowest:", "peak memory, MiB:", "allowed, s:"]
    print(*results.table(columns, rows), sep="\n")
    print(f"\n`report.html` of the thousand runs has {page_mb:.2f} MB (allowed: 5).")
    return 0


if __name__ == "__main__":
    sys.exit(main())
