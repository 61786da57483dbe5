"""One call of a tuning: read its trials, select and submit the next.

All decisions follow from the records in the results folder, so that a tuning may be killed anywhere
and be called again.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Literal, Self

from hpcncf.collect import collect
from hpcncf.errors import UsageError
from hpcncf.job.expand import expand_job
from hpcncf.job.plan import Plan, Run
from hpcncf.job.spec import JobSpec
from hpcncf.launch.submit import Launched, submit
from hpcncf.paths import ResultPaths
from hpcncf.records import schema
from hpcncf.records.plan_file import locked, record_plan, writing
from hpcncf.records.schema import Record, RecordPart
from hpcncf.records.submissions import Cluster
from hpcncf.slurm.preflight import Limits
from hpcncf.tune.search import PointSource, Step, next_step
from hpcncf.tune.trials import Ask, Fate, Known, Objective, Point, Rules, Trial
from hpcncf_analysis.configurations import is_disturbed


class Round(RecordPart):
    why: str
    asks: list[Ask]
    more: list[dict[str, Any]] = []  # noqa: RUF012  pydantic copies it
    """Settings of points that it adds to the grid: a program's begins with none."""


class Saved(Record):
    """Saved state of a tuning: the job, and the rounds of runs asked for so far."""

    kind: Literal["tuning"] = "tuning"
    job: dict[str, Any]
    """The job file's settings, resolved, but those at their defaults, which a later version may
    have more of: the grid whose places the asks name."""
    rounds: list[Round] = []  # noqa: RUF012  pydantic copies it
    files: dict[str, str] = {}  # noqa: RUF012  pydantic copies it
    """Of a program: the files that its command names, with their SHA-256 before the first trial.
    Tunings of earlier versions have none."""

    def asks(self) -> list[Ask]:
        return [ask for one in self.rounds for ask in one.asks]

    def then(self, step: Step) -> Saved:
        """Copy the saved tuning with the step appended as a round."""
        last = Round(why=step.why, asks=list(step.asks), more=list(step.more))
        return self.model_copy(update={"rounds": [*self.rounds, last]})


def read_saved(paths: ResultPaths, job: JobSpec) -> Saved:
    """Read the tuning saved in the folder; one without rounds if the folder has none.

    Raises UsageError if it has another grid's.
    """
    plain = job.model_dump(mode="json", exclude_defaults=True)
    if not paths.tuning.exists():
        return Saved(job=plain)
    found = schema.read_record(paths.tuning, Saved)
    if found.job != plain:
        keys = found.job.keys() | plain.keys()
        changed = sorted(key for key in keys if found.job.get(key) != plain.get(key))
        raise UsageError(
            f"{paths.tuning}: belongs to a job with other settings ({', '.join(changed)}): call it "
            "with the same job file or command to go on, or give another folder with --results"
        )
    return found


# What a run that is cut short does not need. Like its length, that makes it another run than the
# whole one, with a folder of its own.
CUT: Final = {"training.evaluation": "none", "training.checkpoint_every": 0}


@dataclass(frozen=True)
class Grid:
    job: JobSpec
    keys: Mapping[str, str | None]
    """Data path -> what the prepared folder calls its content."""
    settings: tuple[dict[str, Any], ...]
    """Of each point, dotted."""
    points: tuple[Point, ...]
    datasets: Mapping[str, str]
    """Data path -> format of the prepared data."""
    left_out: tuple[str, ...] = ()
    """Points that cannot run here, with the reason."""

    def run(self, ask: Ask) -> Run:
        """Build the run of an ask from the job file's settings.

        A cut run differs in its length, and has neither evaluation nor checkpoints.
        """
        cut = {} if ask.steps is None else {**CUT, "training.max_steps": ask.steps}
        settings = self.settings[ask.point] | cut
        return build_run(self.job, settings, ask.repeat, self.keys, self.datasets)

    def plan(self, asks: Sequence[Ask]) -> Plan:
        runs = {run.id: run for run in map(self.run, asks)}
        return Plan(job=self.job.name, runs=list(runs.values()))

    def without(self, reasons: Mapping[int, str]) -> Grid:
        """Copy the grid without some points; `reasons` maps their indices to the reasons."""
        kept = tuple(point for point in self.points if point.index not in reasons)
        gone = [point for point in self.points if point.index in reasons]
        gone_points = tuple(f"{point.label}: {reasons[point.index]}" for point in gone)
        return replace(self, points=kept, left_out=self.left_out + gone_points)


def build_run(
    job: JobSpec,
    settings: Mapping[str, Any],
    repeat: int,
    keys: Mapping[str, str | None],
    datasets: Mapping[str, str],
) -> Run:
    alone = {"grid": {}, "points": [dict(settings)], "exclude": [], "repeats": repeat + 1}
    runs = expand_job(job.model_copy(update=alone), keys, datasets).runs
    return next(run for run in runs if run.repeat == repeat)


Row = Mapping[str, Any]

FATES: Final[dict[str, Fate]] = {
    "completed": "completed",
    "pending": "under way",
    "running": "under way",
    "unknown": "under way",
    "failed": "failed",
    "timeout": "failed",
    "out_of_memory": "failed",
    "planned": "open",
    "stopped": "open",
    "cancelled": "open",
    "node_failed": "open",
    "lost": "open",
}
# What was cut off so often by no fault of its own is given up.
ATTEMPTS: Final = 3


@dataclass(frozen=True)
class Tuning(PointSource):
    """One tuning of a job file or a program: what stays the same in all of its steps."""

    paths: ResultPaths
    grid: Grid
    objective: Objective
    core_hours: float
    """The budget."""
    cluster: Cluster
    limits: Limits | None
    work: ClassVar[Literal["epoch", "step"]] = "epoch"
    """What is timed."""

    def named(self, point: int) -> dict[str, Any]:  # noqa: ARG002
        """Settings of a point as a command line has them."""
        return {}

    def extended(self, more: Sequence[dict[str, Any]]) -> Self:  # noqa: ARG002
        """Copy the tuning with more points in its grid, one for each entry of settings."""
        return self

    def hash_files(self) -> dict[str, str]:
        """SHA-256 of the files on which the trials depend, by file name."""
        return {}

    def measured(self, trial: Trial, row: Row) -> Trial:
        """Fill in a completed trial's figures from its row of the table of runs."""
        raise NotImplementedError

    def judged(self, trials: list[Trial], rows: Mapping[str, Row], /) -> tuple[list[Trial], Rules]:
        """Return the trials and the rules; trials whose results do not count are marked failed."""
        raise NotImplementedError

    def read_trials(self, asks: Sequence[Ask], rows: Mapping[str, Row]) -> list[Trial]:
        """Build the trial of each ask, in the order of `asks`.

        `rows` maps run ids to rows of the table of runs.
        """
        counted = set[str]()
        found = []
        for ask in asks:
            run_id = self.grid.run(ask).id
            row = rows.get(run_id)
            # Two points may be one and the same run when cut: it is paid once.
            paid = row is not None and run_id not in counted
            core_hours = float(row["core_hours_all"] or 0.0) if row is not None and paid else 0.0
            counted.add(run_id)
            found.append(self._trial(ask, row, core_hours))
        return found

    def _trial(self, ask: Ask, row: Row | None, core_hours: float) -> Trial:
        if row is None:
            return Trial(ask, "open")
        fate = FATES[row["state"]]
        if fate == "open" and (row["attempts"] or 0) >= ATTEMPTS:
            fate = "failed"
        if fate != "completed":
            reason = f"{row['state']}{', ' if row['reason'] else ''}{row['reason']}"
            return Trial(ask, fate, core_hours, reason=reason)
        trial = Trial(
            ask,
            fate,
            core_hours,
            elapsed_s=row["elapsed_s"] or 0.0,
            disturbed=is_disturbed(row),
            cores_used=row["cores_used"],
            memory_mib=row["memory_peak_mib"],
        )
        return self.measured(trial, row)


@dataclass(frozen=True)
class Now:
    """The state of the records at this moment, and the next step."""

    tuning: Tuning
    """With the points so far."""
    saved: Saved
    known: Known
    rows: Mapping[str, Row]
    """The table of runs, by run id."""
    step: Step

    @property
    def step_core_h(self) -> float | None:
        """Predicted core-hours of the step, resubmitted runs included; None if unknown.

        They are unknown until a run has completed.
        """
        known = replace(self.known, points=self.tuning.extended(self.step.more).grid.points)
        there = {point.index for point in known.points}
        again = [trial.ask for trial in known.trials if trial.fate == "open"]
        return known.price([ask for ask in (*again, *self.step.asks) if ask.point in there])


def read_state(tuning: Tuning) -> Now:
    saved = read_saved(tuning.paths, tuning.grid.job)
    tuning = tuning.extended([settings for one in saved.rounds for settings in one.more])
    asks, rows = saved.asks(), dict[str, Row]()
    if asks and tuning.paths.plan.exists():
        rows = {row["run_id"]: row for row in collect.collect(tuning.paths).runs}
    known = Known(tuning.grid.points, *tuning.judged(tuning.read_trials(asks, rows), rows))
    return Now(tuning, saved, known, rows, next_step(known, tuning))


def find_study(tuning: Tuning) -> tuple[Tuning, list[str]]:
    """Find or begin the tuning of the files in their present state.

    The folder and its numbered successors are searched for a tuning whose trials used the
    present files. Returns the tuning, and the changed files because of which a new one begins
    (empty if none begins).
    """
    first, changed = tuning.paths.folder, list[str]()
    for number in itertools.count(2):
        changed = changed_files(tuning) if tuning.paths.tuning.exists() else changed
        if not changed or not tuning.paths.tuning.exists():
            break
        tuning = replace(tuning, paths=ResultPaths(first.with_name(f"{first.name}-{number}")))
    return tuning, changed


def changed_files(tuning: Tuning) -> list[str]:
    """List the files that changed since the first trial.

    If no trial could be measured, files that are new or were not noted also count, because they
    may have caused the failure.
    """
    saved, now = read_saved(tuning.paths, tuning.grid.job), tuning.hash_files()
    changed = [name for name, sha256 in saved.files.items() if now.get(name) != sha256]
    others = [name for name in now if name not in saved.files]
    if others and not changed:
        step = read_state(tuning).step
        changed = others if step.kind == "done" and step.chosen is None else []
    return changed


def send(now: Now) -> Launched:
    """Save the step's round, then submit its runs and all earlier ones that did not end."""
    tuning, plan = record_round(now)
    paths, grid = tuning.paths, tuning.grid
    failed = {grid.run(trial.ask).id for trial in now.known.trials if trial.fate == "failed"}
    return submit(paths, grid.job, plan, tuning.cluster, limits=tuning.limits, without=failed)


def record_round(now: Now) -> tuple[Tuning, Plan]:
    """Save the step's round. Returns the tuning with its points, and the plan with its runs."""
    tuning = now.tuning.extended(now.step.more)
    paths, grid = tuning.paths, tuning.grid
    saved = now.saved.then(now.step) if now.step.asks else now.saved
    if not saved.files:
        saved = saved.model_copy(update={"files": tuning.hash_files()})
    with writing(paths.folder), locked(paths):
        if read_saved(paths, grid.job) != now.saved:
            raise UsageError(f"{paths.folder}: another `hpcncf tune` is at work there")
        schema.write_record(paths.tuning, saved)
    return tuning, record_plan(paths, grid.job, grid.plan(saved.asks()))
