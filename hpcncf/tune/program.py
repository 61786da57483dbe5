"""Tune any program: which cores, threads, workers and remedies, by short trials of it.

Each setup is a run of a job whose workload is a trial; the local queue runs them one after another,
in rounds of random order, and Slurm as arrays. All decisions follow from the trials in the results
folder, so a tuning may be killed anywhere and be called again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

from hpcncf.errors import UsageError, plural
from hpcncf.job.plan import Plan, Run
from hpcncf.job.spec import JobSpec, Program, Remedies, Resources
from hpcncf.launch.submit import Launched, submit
from hpcncf.paths import AttemptPaths, ResultPaths
from hpcncf.records.plan_file import leave_plan, read_plan
from hpcncf.records.schema import RankRecord, RecordError, read_record
from hpcncf.records.submissions import Cluster
from hpcncf.tune.search import (
    REPEATS,
    Ask,
    Figure,
    Objective,
    Point,
    Trial,
    best_first,
    build_run,
    figures_of_points,
    open_ones,
)
from hpcncf_analysis.diagnosis.diagnose import diagnose_attempt

# Losses of the first steps agree within this, relative to them or to 1: sums in another order
# round differently, and some steps of an optimizer spread that.
ROUNDING: Final = 1e-4
# A remedy is worth its line if it makes a step at least this much faster.
WORTH: Final = 1.05
MEMORY_SPARE: Final = 1.3
UNCHANGED: Final = Remedies()

SUGGESTED: Final[dict[str, tuple[str, ...]]] = {
    "dense_optimizer": ("rowwise",),
    "python_input": ("workers=1", "workers=2", "workers=4"),
    "input_io": ("workers=2", "workers=4", "workers=8"),
    "too_few_workers": ("workers=2", "workers=4", "workers=8"),
    "worker_overhead": ("workers=0", "persistent_workers"),
}
ALWAYS: Final = ("threads=1", "fused")


@dataclass(frozen=True)
class Setup:
    """What is tried: cores, and what is changed in the program."""

    cores: int
    remedies: Remedies = UNCHANGED

    @property
    def label(self) -> str:
        cores = plural(self.cores, "core")
        return f"{cores}, {self.remedies or 'unchanged'}"

    @property
    def settings(self) -> dict[str, Any]:
        """Of a job file's point."""
        found = {
            f"remedies.{name}": value
            for name, value in self.remedies.model_dump(exclude_defaults=True).items()
        }
        return {"resources.cpus_per_task": self.cores, **found}


@dataclass(frozen=True)
class Seen:
    """One trial that ended."""

    setup: Setup
    repeat: int
    run_id: str
    core_hours: float
    step_s: float | None
    """None where its steps were too few, or it failed."""
    error: float
    """Half the width of the 95 % interval, relative."""
    losses: tuple[float | None, ...]
    memory_mib: float
    used: float | None
    """Cores."""
    not_applied: tuple[str, ...]
    applied: tuple[tuple[str, str], ...]
    """Remedy, and to what."""
    reason: str = ""
    """Why there is no figure."""


@dataclass(frozen=True)
class Tuning:
    """What is fixed for all rounds."""

    paths: ResultPaths
    job: JobSpec
    cores: int
    """The most of a trial."""
    core_hours: float
    objective: Objective
    cluster: Cluster


def build_tuning(
    command: Sequence[str],
    folder: Path | None,
    cores: int,
    core_hours: float,
    objective: Objective,
    cluster: Cluster,
    site: str | None,
    mem_gb: float,
) -> Tuning:
    """Raises UsageError."""
    script = next((Path(word).stem for word in command if word.endswith(".py")), "program")
    name = "".join(each if each.isalnum() else "-" for each in script).strip("-") or "program"
    job = JobSpec(
        name=f"{name[:50]}-tune",
        site=site or "cpu",
        workload=Program(
            command=[word.replace("{", "{{").replace("}", "}}") for word in command],
            folder=str(Path.cwd()),
            trial=True,
        ),
        resources=Resources(mem_gb=mem_gb, timeout_min=15, requeues=0),
    )
    paths = ResultPaths((folder or Path("results") / job.name).resolve())
    return Tuning(paths, job, cores, core_hours, objective, cluster)


def read_trials(tuning: Tuning) -> list[Seen]:
    """Those that ended, in the plan's order."""
    if not tuning.paths.plan.exists():
        return []
    plan = read_plan(tuning.paths)
    if plan.job != tuning.job.name or any(run.workload != tuning.job.workload for run in plan.runs):
        raise UsageError(
            f"{tuning.paths.folder}: holds trials of another command. Choose another folder with "
            "--results"
        )
    return [seen for run in plan.active() if (seen := _read_trial(tuning.paths, run))]


def _read_trial(paths: ResultPaths, run: Run) -> Seen | None:
    folder = paths.run(run.id).folder
    for path in sorted(folder.glob("attempt-*"), reverse=True):
        attempt = AttemptPaths(path)
        with suppress(RecordError):
            return _seen(run, attempt, read_record(attempt.rank(0), RankRecord))
    return None


def _seen(run: Run, attempt: AttemptPaths, rank: RankRecord) -> Seen:
    raw: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        raw = json.loads(attempt.trial.read_text())
    programs = [each for each in rank.program if not each.is_worker]
    noted = [each for program in programs for each in program.remedies]
    reason = ""
    if "step_s" not in raw:
        reason = "no backward pass of PyTorch was seen" if not raw else "too few steps"
        if rank.exit_code:
            reason = f"it failed: exit code {rank.exit_code}, see hpcncf logs {run.id}"
    applied = {each.remedy for each in noted if each.applied}
    return Seen(
        setup=Setup(run.resources.cpus_per_task, run.remedies),
        repeat=run.repeat,
        run_id=run.id,
        core_hours=rank.elapsed_s * run.resources.cores / 3600,
        step_s=raw.get("step_s"),
        error=raw.get("error", 0.0),
        losses=tuple(raw.get("losses", ())),
        memory_mib=rank.memory.rss_peak_mib,
        used=rank.cores.used,
        not_applied=tuple(
            f"{each.remedy}: {each.to}" for each in noted if each.remedy not in applied
        ),
        applied=tuple((each.remedy, each.to) for each in noted if each.applied),
        reason=reason,
    )


@dataclass(frozen=True)
class State:
    """Results of all trials."""

    tuning: Tuning
    seen: Sequence[Seen]
    setups: tuple[Setup, ...]
    points: tuple[Point, ...]
    figures: dict[int, Figure]
    """Of sound setups, by their place in `setups`."""
    left_out: dict[Setup, str]
    """Why a setup is out: it failed, nothing of it was applied, or its losses are others."""
    spent_core_h: float

    def figure(self, setup: Setup) -> Figure | None:
        return self.figures.get(self.setups.index(setup)) if setup in self.setups else None

    def ranked(self) -> list[Figure]:
        return best_first(self.figures.values(), self.tuning.objective)

    def of(self, setup: Setup) -> list[Seen]:
        return [each for each in self.seen if each.setup == setup]


def judge(tuning: Tuning, seen: Sequence[Seen]) -> State:
    setups = tuple(dict.fromkeys(each.setup for each in seen))
    points = tuple(
        Point(at, setup.label, setup.cores, 0.0, 1, 1, None) for at, setup in enumerate(setups)
    )
    left_out: dict[Setup, str] = {}
    unchanged = [each for each in seen if not each.setup.remedies and each.losses]
    for each in seen:
        reason = each.reason or _changed(each, unchanged)
        if reason:
            left_out.setdefault(each.setup, reason)
    trials = [
        Trial(
            Ask(setups.index(each.setup), None, each.repeat),
            "completed",
            each.core_hours,
            epoch_s=each.step_s,
            training_s=1.0,
        )
        for each in seen
        if each.setup not in left_out
    ]
    figures = {at: _widened(one, seen) for at, one in figures_of_points(points, trials).items()}
    spent = sum(each.core_hours for each in seen)
    return State(tuning, seen, setups, points, figures, left_out, spent)


def _changed(seen: Seen, unchanged: Sequence[Seen]) -> str:
    """Why a remedy does not count: nothing of it was applied, or the losses are not the same."""
    asked = str(seen.setup.remedies).split(",") if seen.setup.remedies else []
    applied = {remedy for remedy, _ in seen.applied}
    missing = [each for each in asked if each not in applied]
    if missing:
        return next(
            (f"not applied: {each}" for each in seen.not_applied if each.split(":")[0] in missing),
            f"not applied: {missing[0]}",
        )
    if not asked or not unchanged:
        return ""
    if not seen.losses:
        return "its losses were not seen, so nothing shows that its results are the same"
    differences = [first_difference(each.losses, seen.losses) for each in unchanged]
    at = differences[0]
    if at is None or None in differences:
        return ""
    theirs, own = unchanged[0].losses[at], seen.losses[at]
    return f"other results: loss {own} in step {at + 1}, unchanged {theirs}"


def first_difference(
    one: Sequence[float | None], other: Sequence[float | None], rounding: float = ROUNDING
) -> int | None:
    """The first step whose losses differ by more than rounding; None if all agree."""
    for at, (a, b) in enumerate(zip(one, other, strict=False)):
        if (a is None) != (b is None):
            return at
        if a is not None and b is not None and abs(a - b) > rounding * max(1.0, abs(a)):
            return at
    return None


def _widened(figure: Figure, seen: Sequence[Seen]) -> Figure:
    """One trial alone has the interval of its own steps."""
    if figure.runs > 1:
        return figure
    own = [each for each in seen if each.step_s == figure.epoch_s]
    error = max((each.error for each in own), default=0.0)
    return replace(
        figure, low=figure.epoch_s * max(0.0, 1 - error), high=figure.epoch_s * (1 + error)
    )


@dataclass(frozen=True)
class Round:
    why: str
    wanted: tuple[tuple[Setup, int], ...]
    """Setups, and which repeat of each."""


def next_round(state: State) -> Round | None:
    """What to try now; None when all is known."""
    base = Setup(state.tuning.cores)
    for why, setups in _stages(state, base):
        new = [setup for setup in dict.fromkeys(setups) if setup not in state.setups]
        if new:
            return Round(why, tuple((setup, 0) for setup in new))
        if base in state.left_out:
            return None
    ranked = [one for one in state.ranked() if one.point.index < len(state.setups)]
    near = open_ones(ranked[:REPEATS], state.tuning.objective) if ranked else []
    repeats = [(state.setups[one.point.index], one.runs) for one in near]
    unchanged = state.figure(base)
    if unchanged is not None and unchanged.runs < 2:
        repeats.append((base, unchanged.runs))
    if not repeats:
        return None
    return Round("repeats, for some are near each other", tuple(dict.fromkeys(repeats)))


def _stages(state: State, base: Setup) -> Iterator[tuple[str, list[Setup]]]:
    yield "the program as it is", [base]
    singles = [Setup(base.cores, each) for each in _suggested(state, base)]
    yield "each remedy by itself", singles
    best = _combined(state, base, singles)
    together = Setup(base.cores, best)
    yield "what helped, together", [together]
    more = [Setup(base.cores, _joined(best, each)) for each in _suggested(state, together)]
    yield "what is suggested next", more
    best = min(
        [together, *more], key=lambda one: _step_s(state, one) / (WORTH if one == together else 1)
    ).remedies
    ladder = [base.cores // 2**power for power in range(base.cores.bit_length())]
    chosen = [best]
    if base.cores > 1:
        alternatives = [Setup(base.cores, best), *singles, base]
        fastest = min(
            (one for one in alternatives if state.figure(one)), key=lambda one: _step_s(state, one)
        )
        chosen = list(dict.fromkeys([*chosen, fastest.remedies]))
    yield "fewer cores", [Setup(cores, each) for cores in ladder if cores for each in chosen]


def _step_s(state: State, setup: Setup) -> float:
    figure = state.figure(setup)
    return figure.epoch_s if figure else math.inf


def _suggested(state: State, setup: Setup) -> list[Remedies]:
    """By the diagnosis of a trial; for the unchanged program also what is always worth a look."""
    words: list[str] = []
    if not setup.remedies:
        words += ALWAYS if setup.cores > 1 else ALWAYS[1:]
    for seen in state.of(setup)[:1]:
        attempts = sorted(state.tuning.paths.run(seen.run_id).folder.glob("attempt-*"))
        found = diagnose_attempt(AttemptPaths(attempts[-1]))
        for finding in found.findings if found else ():
            words += SUGGESTED.get(finding.cause, ())
    most = 2 * setup.cores
    parsed = [Remedies.parse(word) for word in dict.fromkeys(words)]
    return [each for each in parsed if (each.workers or 0) <= most]


def _combined(state: State, base: Setup, singles: Iterable[Setup]) -> Remedies:
    """All that made a step faster by itself; of several for one setting, the fastest."""
    before = _step_s(state, base)
    helped = [one for one in singles if _step_s(state, one) * WORTH < before]
    found = UNCHANGED
    for one in sorted(helped, key=lambda one: -_step_s(state, one)):
        found = _joined(found, one.remedies)
    return found


def _joined(one: Remedies, other: Remedies) -> Remedies:
    values = one.model_dump(exclude_defaults=True) | other.model_dump(exclude_defaults=True)
    values["persistent_workers"] = bool(values.get("workers"))
    return Remedies.model_validate(values)


def fitting(state: State, wanted: Round) -> Round | None:
    """The trials that the budget has room for; a trial costs what the others did."""
    left = state.tuning.core_hours - state.spent_core_h
    seconds = [3600 * each.core_hours / each.setup.cores for each in state.seen]
    each_h = median(seconds) / 3600 if seconds else 0.0
    kept = []
    for setup, repeat in wanted.wanted:
        if left < each_h * setup.cores or left <= 0:
            break
        left -= each_h * setup.cores
        kept.append((setup, repeat))
    return replace(wanted, wanted=tuple(kept)) if kept else None


def send(tuning: Tuning, wanted: Round) -> Launched:
    runs = [build_run(tuning.job, setup.settings, at, {}, {}) for setup, at in wanted.wanted]
    known: dict[str, Run] = {}
    if tuning.paths.plan.exists():
        known = {run.id: run for run in read_plan(tuning.paths).runs}
    known |= {run.id: run for run in runs}
    leave_plan(tuning.paths, tuning.job, Plan(job=tuning.job.name, runs=list(known.values())))
    plan = Plan(job=tuning.job.name, runs=runs)
    return submit(tuning.paths, tuning.job, plan, tuning.cluster)


@dataclass(frozen=True)
class Advice:
    setup: Setup
    figure: Figure
    speedup: float | None
    """Over the unchanged program with all the cores."""
    mem_gb: int
    used: float | None
    changes: tuple[str, ...]
    """Lines of the program to change for good."""


def advise(state: State) -> Advice | None:
    ranked = state.ranked()
    if not ranked:
        return None
    setup = state.setups[ranked[0].point.index]
    base = state.figure(Setup(state.tuning.cores))
    own = state.of(setup)
    memory = max(each.memory_mib for each in own) * MEMORY_SPARE / 1024
    return Advice(
        setup,
        ranked[0],
        base.epoch_s / ranked[0].epoch_s if base else None,
        max(1, math.ceil(memory)),
        next((each.used for each in own if each.used is not None), None),
        tuple(dict.fromkeys(_line(*each) for each in own[0].applied)),
    )


FOR_GOOD: Final[dict[str, str]] = {
    "threads": "torch.set_num_threads({value}) at its begin",
    "workers": "DataLoader(..., num_workers={value})",
    "persistent_workers": "DataLoader(..., persistent_workers=True)",
    "prefetch_factor": "DataLoader(..., prefetch_factor={value})",
    "pin_memory": "DataLoader(..., pin_memory=True)",
    "fused": "fused=True",
    "foreach": "foreach=True",
    "rowwise": "hpcncf.remedies.rowwise(model, optimizer) behind it",
    "omp": "export OMP_WAIT_POLICY={value} in the batch script",
}


def _line(remedy: str, to: str) -> str:
    name, _, value = remedy.partition("=")
    line = FOR_GOOD[name].format(value=value)
    return line if name in ("threads", "omp") else f"{to}: {line}"
