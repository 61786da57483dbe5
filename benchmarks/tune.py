"""`hpcncf tune` against the whole grid: the same best configuration, for how many core-hours?

The whole grid runs first, each point once; a quarter of what it cost is the budget.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.verbs import FRAPPE_FOLDER, hpcncf
from hpcncf.collect import collect
from hpcncf.paths import ResultPaths
from hpcncf.tune import outcome
from hpcncf.tune.outcome import Outcome
from hpcncf.tune.search import Ask
from hpcncf.tune.trial import Going, Now, grid_of, job_of, read_state
from hpcncf_analysis.advice.judge import Judgement, judge
from hpcncf_analysis.configurations import group_configurations

JOB: Final = Path(__file__).parent / "tune.yaml"
SHARE: Final = 0.25
# Single runs decide whether a second thread is worth its cost; which is fastest is clearer.
OBJECTIVE: Final = "fastest"
# A single run of each point scatters by that: nobody can say which of two so near is better.
SCATTER: Final = 0.05


@dataclass(frozen=True)
class Whole:
    """The whole grid: each point's row of the table of runs, and the report's judgement."""

    rows: Mapping[int, Mapping[str, Any]]
    table: Judgement

    @property
    def core_h(self) -> float:
        return sum(row["core_hours_all"] or 0.0 for row in self.rows.values())

    @property
    def best(self) -> int:
        assert self.table.fastest
        chosen = self.table.fastest.one.rows[0]["run_id"]
        return next(index for index, row in self.rows.items() if row["run_id"] == chosen)


def whole_grid(folder: Path, tuning: Going) -> Whole:
    hpcncf("submit", str(JOB), "--cluster", "local", "--wait", "--results", str(folder))
    rows = {row["run_id"]: row for row in collect.collect(ResultPaths(folder)).runs}
    points = tuning.grid.points
    found = {each.index: rows[tuning.grid.run(Ask(each.index, None, 0)).id] for each in points}
    table = judge(group_configurations(found.values()))
    if table is None or any(row["state"] != "completed" for row in found.values()):
        sys.exit("a run of the whole grid failed")
    return Whole(found, table)


def tuned(tuning: Going) -> tuple[Now, Outcome]:
    """A budget that is spent before all is known is part of what is measured."""
    command = ["tune", str(JOB), "--budget", f"{tuning.core_hours}", "--wait"]
    command += ["--objective", OBJECTIVE]
    try:
        hpcncf(*command, "--cluster", "local", "--results", str(tuning.paths.folder))
    except subprocess.CalledProcessError as ended:
        if ended.returncode != 3:
            raise
    now = read_state(tuning)
    found = outcome.find_outcome(tuning, now)
    assert found is not None
    return now, found


def table(tuning: Going, whole: Whole, now: Now) -> str:
    """Every point: what the whole grid measured of it, and what tuning spent on it."""
    lines = ["| | s/epoch | core-s/epoch | HR@10 | core-s, whole grid | core-s, tuning | runs |"]
    lines += ["|---|---:|---:|---:|---:|---:|---:|"]
    rows = whole.rows
    for point in sorted(tuning.grid.points, key=lambda one: rows[one.index]["seconds_per_epoch"]):
        row = rows[point.index]
        own = [trial for trial in now.trials if trial.ask.point == point.index]
        marks = " ← whole grid" * (point.index == whole.best)
        marks += " ← tuning" * (point.index == now.step.chosen)
        cells = [
            point.label + marks,
            f"{row['seconds_per_epoch']:.3f}",
            f"{row['core_s_per_epoch']:.3f}",
            f"{row['hr10']:.4f}",
            f"{3600 * row['core_hours_all']:.0f}",
            f"{3600 * sum(trial.core_hours for trial in own):.0f}",
            str(len(own)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def verdict(whole: Whole, now: Now, found: Outcome) -> tuple[str, bool]:
    """What was found for how much, and whether it is as good as the whole grid's."""
    chosen, best = found.best.point.index, whole.best
    share = now.spent_core_h / whole.core_h
    told = (
        f"The whole grid: {len(whole.rows)} runs, {whole.core_h:.3f} core-hours. Tuning: "
        f"{len(now.trials)} runs, {now.spent_core_h:.3f} core-hours, {share:.0%} of it"
    )
    told += "" if found.verified else " and no room for a whole run of its choice"
    if chosen == best:
        return f"{told}, and the same configuration.", found.verified
    slower = whole.rows[chosen]["seconds_per_epoch"] / whole.rows[best]["seconds_per_epoch"] - 1
    told += f", and another configuration, whose epoch took {slower:+.0%} in the whole grid."
    return told, found.verified and abs(slower) <= SCATTER


def main() -> int:
    """1 where tuning's choice is neither the whole grid's nor as fast."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        hpcncf("data", "prepare", "frappe", "--or-synthetic", "-o", str(FRAPPE_FOLDER))
        job = job_of(JOB, [])
        grid = grid_of(job, "local", None)
        paths = ResultPaths(folder / "bench-tune-tune")
        tuning = Going(paths, grid, OBJECTIVE, 0.0, "local", None)
        whole = whole_grid(folder / "bench-tune", tuning)
        tuning = Going(paths, grid, OBJECTIVE, SHARE * whole.core_h, "local", None)
        now, found = tuned(tuning)
    told, held = verdict(whole, now, found)
    print(f"The fastest at held quality. {told} The budget was {SHARE:.0%}.\n")
    print(table(tuning, whole, now))
    return 0 if held and now.spent_core_h <= SHARE * whole.core_h else 1


if __name__ == "__main__":
    sys.exit(main())
