"""A program as a source of points: cores, threads, workers and remedies.

Its trials suggest more points, each a setup that the search adds to the grid of a job whose
workload is the program.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from hpcncf.errors import UsageError
from hpcncf.job.plan import Run
from hpcncf.job.spec import JobSpec, Program, Remedies, Resources
from hpcncf.paths import AttemptPaths, ResultPaths
from hpcncf.records.code_version import CODE
from hpcncf.records.schema import RankRecord, RecordError, read_record
from hpcncf.records.submissions import Cluster
from hpcncf.text import pluralize
from hpcncf.tune.search import Candidates
from hpcncf.tune.trials import (
    Ask,
    Fate,
    Figure,
    Known,
    Objective,
    Point,
    Rules,
    Trial,
    best_first,
    is_open,
)
from hpcncf.tune.tuning import Grid, Row, Tuning, build_run
from hpcncf_analysis.diagnosis.diagnose import diagnose_attempt
from hpcncf_analysis.diagnosis.evidence import Finding

# Losses of the first steps agree within this, relative to them or to 1: sums in another order
# round differently, and some steps of an optimizer spread that.
ROUNDING: Final = 1e-4
# A remedy is worth its line if it makes a step at least this much faster.
MIN_GAIN: Final = 1.05
UNCHANGED: Final = Remedies()
STAY: Final = "persistent_workers"
# How the names of settings end that a command may be given. Data is not looked at.
SETTINGS_END: Final = (".yaml", ".yml", ".json", ".toml", ".ini", ".cfg")

SUGGESTED: Final[dict[str, tuple[str, ...]]] = {
    "dense_optimizer": ("rowwise",),
    "python_input": ("workers=1", "workers=2", "workers=4"),
    "input_io": ("workers=2", "workers=4", "workers=8"),
    "too_few_workers": ("workers=2", "workers=4", "workers=8"),
    "worker_overhead": ("workers=0", STAY),
}
ALWAYS: Final = ("threads=1", "fused")


@dataclass(frozen=True)
class Setup:
    """Setup of a trial: cores, and the changes to the program."""

    cores: int
    remedies: Remedies = UNCHANGED

    @property
    def label(self) -> str:
        cores = pluralize(self.cores, "core")
        return f"{cores}, {self.remedies or 'unchanged'}"

    @property
    def settings(self) -> dict[str, Any]:
        """The setup as the dotted settings of a job file's point."""
        found = {
            f"remedies.{name}": value
            for name, value in self.remedies.model_dump(exclude_defaults=True).items()
        }
        return {"resources.cpus_per_task": self.cores, **found}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Setup:
        """The setup of a point; raises UsageError if an earlier version's settings are unknown."""
        values = {key.partition(".")[2]: value for key, value in settings.items()}
        try:
            return cls(values.pop("cpus_per_task"), Remedies.model_validate(values))
        except (KeyError, ValueError):
            raise UsageError(
                f"the tuning there tried {dict(settings)}, which this version does not know: "
                "give another folder with --results"
            ) from None

    @property
    def changes(self) -> frozenset[str]:
        return frozenset(filter(None, str(self.remedies).split(",")))

    def point(self, index: int) -> Point:
        return Point(index, self.label, self.cores, values=self.changes)


@dataclass(frozen=True)
class Programs(Tuning):
    """The tuning of a user's own program: which setups are tried, and which of them is best."""

    cores: int
    """The most of a trial."""
    work: ClassVar[Literal["epoch", "step"]] = "step"

    def named(self, point: int) -> dict[str, Any]:
        setup = self.setups[point]
        return {"cores": setup.cores, "with": str(setup.remedies)}

    @property
    def setups(self) -> list[Setup]:
        """The setup of each point of the grid, by point index."""
        return [Setup.from_settings(settings) for settings in self.grid.settings]

    def extended(self, more: Sequence[dict[str, Any]]) -> Programs:
        settings = (*self.grid.settings, *more)
        points = tuple(Setup.from_settings(each).point(at) for at, each in enumerate(settings))
        return replace(self, grid=replace(self.grid, settings=settings, points=points))

    def unchanged_run(self) -> Run:
        """Build the run of the first trial: the unchanged program on all cores."""
        settings = Setup(self.cores).settings
        return build_run(self.grid.job, settings, 0, self.grid.keys, self.grid.datasets)

    def hash_files(self) -> dict[str, str]:
        """SHA-256 of the scripts and settings files that the command names, by name."""
        run, found = self.unchanged_run(), dict[str, str]()
        assert isinstance(run.workload, Program)
        folder = Path(run.workload.folder)
        for word in run.words:
            name = word.partition("=")[2] if word.startswith("-") else word
            if name.endswith((*CODE, *SETTINGS_END)):
                with suppress(OSError):
                    found[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        return found

    def measured(self, trial: Trial, row: Row) -> Trial:
        folder = self.paths.run(row["run_id"]).folder
        for path in sorted(folder.glob("attempt-*"), reverse=True):
            attempt = AttemptPaths(path)
            with suppress(RecordError):
                return _measured(trial, attempt, read_record(attempt.rank(0), RankRecord))
        return replace(trial, fate="failed", reason="it left no record")

    def judged(self, trials: list[Trial], _: Mapping[str, Row]) -> tuple[list[Trial], Rules]:
        return judge(self.setups, trials), Rules(self.objective, self.core_hours, judges=False)

    def candidates(self, known: Known) -> Candidates | None:
        """The setups of the first stage that has untried ones."""
        tried = Tried(self, known)
        for why, setups in _stages(tried):
            new = [
                setup
                for setup in dict.fromkeys(setups)
                if setup not in self.setups
                and not tried.contains_failed(setup)
                and self.has_room(known, setup)
            ]
            if new:
                return self._offer(known, why, new)
            if tried.base not in tried.figures:
                break
        return None

    def has_room(self, known: Known, setup: Setup) -> bool:  # noqa: ARG002
        """Whether the setup can be tried where the trials run."""
        return True

    def _offer(self, known: Known, why: str, setups: Sequence[Setup]) -> Candidates:
        points = [setup.point(at) for at, setup in enumerate(setups, len(self.setups))]
        asks = tuple(known.ask(point) for point in points)
        return Candidates(why, points, asks, tuple(setup.settings for setup in setups))

    def doubtful(self, known: Known, best: Figure) -> list[Figure]:
        """Return the unchanged program and a best that was disturbed, if each ran only once."""
        unchanged = Tried(self, known).figures.get(Setup(self.cores))
        once = [best] if known.is_disturbed(best) else []
        once += [unchanged] if unchanged and unchanged not in once else []
        return [one for one in once if one.runs < 2]

    def choose(self, known: Known, _: Sequence[Figure]) -> Figure:
        return simplest(known, best_first(known.figures.values(), self.objective))

    def rivals(self, known: Known, chosen: Figure) -> Candidates | None:
        """Propose the unchanged program on the chosen setup's cores, if it may do as well there."""
        unchanged = Tried(self, known).figures.get(Setup(self.cores))
        plain = Setup(chosen.point.cores)
        if plain in self.setups or not (unchanged and is_equal(chosen, unchanged, self.objective)):
            return None
        return self._offer(known, "the program as it is, with as many cores as the best", [plain])

    def findings(self, setup: Setup) -> Sequence[Finding]:
        """Findings of the diagnosis of a setup's first trial; empty if it has not run."""
        if setup not in self.setups:
            return ()
        run = self.grid.run(Ask(self.setups.index(setup), None, 0))
        attempts = sorted(self.paths.run(run.id).folder.glob("attempt-*"))
        found = diagnose_attempt(AttemptPaths(attempts[-1])) if attempts else None
        return found.findings if found else ()

    def suggested(self, setup: Setup) -> list[Remedies]:
        """List the remedies to try next on a setup, by the causes that its diagnosis found.

        Remedies for the first cause come first. For the unchanged program, those that are
        always worth a trial follow. More than two workers per core are never suggested.
        """
        words: list[str] = []
        for finding in self.findings(setup):
            words += SUGGESTED.get(finding.cause, ())
        if not setup.remedies:
            words += ALWAYS if setup.cores > 1 else ALWAYS[1:]
        parsed = [Remedies.parse(word) for word in dict.fromkeys(words)]
        return [each for each in parsed if (each.workers or 0) <= 2 * setup.cores]


def build_tuning(
    command: Sequence[str],
    folder: Path | None,
    cores: int,
    core_hours: float,
    objective: Objective,
    cluster: Cluster,
    site: str | None,
    mem_gb: float,
) -> Programs:
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
    grid = Grid(job, {}, (), (), {})
    return Programs(paths, grid, objective, core_hours, cluster, None, cores)


def _measured(trial: Trial, attempt: AttemptPaths, rank: RankRecord) -> Trial:
    raw: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        raw = json.loads(attempt.trial.read_text())
    diagnosis = diagnose_attempt(attempt)
    causes = {finding.cause for finding in diagnosis.findings} if diagnosis else set()
    noted = [each for one in rank.program if not one.is_worker for each in one.remedies]
    applied = {each.remedy for each in noted if each.applied}
    reason = ""
    if "step_s" not in raw:
        reason = "no backward pass of PyTorch was seen"
        if raw:
            reason = f"it ended after {pluralize(raw['backwards'], 'step')}, too few to be timed"
    return replace(
        trial,
        fate="failed" if reason else trial.fate,
        epoch_s=raw.get("step_s"),
        steps=1,  # of no length that could be chosen: all of it counts as start-up
        error=raw.get("error", 0.0),
        reason=reason,
        disturbed="neighbour_load" in causes,
        losses=tuple(raw.get("losses", ())),
        applied=tuple((each.remedy, each.to) for each in noted if each.applied),
        not_applied=tuple(
            f"{each.remedy}: {each.to}" for each in noted if each.remedy not in applied
        ),
    )


def judge(setups: Sequence[Setup], trials: Sequence[Trial]) -> list[Trial]:
    """Mark trials as failed whose remedy was not applied or whose losses differ.

    Losses are compared with the unchanged program's.
    """
    done = [each for each in trials if each.fate == "completed"]
    unchanged = [each for each in done if not setups[each.ask.point].remedies and each.losses]
    judged: list[Trial] = []
    for each in trials:
        reason = _changed(setups[each.ask.point], each, unchanged) if each in done else ""
        judged.append(replace(each, fate="failed", reason=reason) if reason else each)
    return judged


def _changed(setup: Setup, seen: Trial, unchanged: Sequence[Trial]) -> str:
    """Explain why a trial's remedies do not count; "" if they do.

    Either a remedy was not applied, or the losses are not those of the unchanged program.
    """
    asked = str(setup.remedies).split(",") if setup.remedies else []
    applied = {remedy for remedy, _ in seen.applied}
    missing = [each for each in asked if each not in applied]
    if missing:
        reasons = [each for each in seen.not_applied if each.split(":")[0] in missing]
        return f"not applied: {'; '.join(reasons or missing)}"
    if not asked or not unchanged:
        return ""
    if not seen.losses:
        return "its losses were not seen, so nothing shows that its results are the same"
    differences = [first_difference(each.losses, seen.losses) for each in unchanged]
    at = differences[0]
    if at is None or None in differences:
        return ""
    again = [first_difference(unchanged[0].losses, each.losses) for each in unchanged]
    if any(each is not None for each in again):
        return "unchanged, its losses differ from run to run (does it go on from an earlier one?)"
    theirs, own = (
        "not finite" if each is None else f"{each:.7g}"
        for each in (unchanged[0].losses[at], seen.losses[at])
    )
    drawn = "; if the data set draws random numbers, workers draw others"
    return f"other results: loss {own} in step {at + 1}, unchanged {theirs}" + (
        drawn * bool(setup.remedies.workers)
    )


def first_difference(
    one: Sequence[float | None], other: Sequence[float | None], rounding: float = ROUNDING
) -> int | None:
    """Index of the first step whose losses differ by more than rounding; None if none does.

    Only the steps that both have are compared.
    """
    for at, (a, b) in enumerate(zip(one, other, strict=False)):
        if (a is None) != (b is None):
            return at
        if a is not None and b is not None and abs(a - b) > rounding * max(1.0, abs(a)):
            return at
    return None


@dataclass(frozen=True)
class Tried:
    """The setups of a program that trials have measured, with their figures."""

    tuning: Programs
    known: Known

    @property
    def base(self) -> Setup:
        """The setup of the unchanged program on all cores."""
        return Setup(self.tuning.cores)

    @cached_property
    def figures(self) -> dict[Setup, Figure]:
        setups = self.tuning.setups
        return {setups[at]: figure for at, figure in self.known.figures.items()}

    def step_s(self, setup: Setup) -> float:
        return self.figures[setup].epoch_s if setup in self.figures else math.inf

    def fastest(self, setups: Iterable[Setup], favoured: Setup | None = None) -> Setup:
        """Return the setup with the fastest step.

        Another setup must be faster than the favoured one by more than `MIN_GAIN` to win.
        """
        return min(
            setups, key=lambda one: self.step_s(one) / (MIN_GAIN if one == favoured else 1.0)
        )

    @property
    def names(self) -> set[str]:
        """Names of the remedies in all trials that ended, such as `workers`."""
        changes = [*self._changes("completed"), *self._changes("failed")]
        return {each.partition("=")[0] for some in changes for each in some}

    def contains_failed(self, setup: Setup) -> bool:
        """Whether the setup includes all changes, but `persistent_workers`, of one that failed."""
        failed = [changes - {STAY} for changes in self._changes("failed")]
        return any(each and each <= setup.changes for each in failed)

    def _changes(self, fate: Fate) -> list[frozenset[str]]:
        setups = self.tuning.setups
        return [setups[each.ask.point].changes for each in self.known.trials if each.fate == fate]


def simplest(known: Known, ranked: Sequence[Figure]) -> Figure:
    """Return the point with the fewest changes among those equal to the best.

    All have the best point's number of cores. A single trial that neighbours disturbed does not
    prove a gain; a point that beats one needs repeats that are all clear of it.
    """
    objective = known.rules.objective
    shown = [one for one in ranked if one.runs > 1 or not known.is_disturbed(one)]
    unchanged = [one for one in ranked if not one.point.values]
    if not any(one in shown for one in unchanged):
        better = ranked[: ranked.index(unchanged[0])] if unchanged else []
        clear = [
            one
            for one in better
            if one.runs > 1 and not any(is_equal(one, each, objective) for each in unchanged)
        ]
        shown = clear or unchanged or shown or list(ranked)
    best = shown[0]
    equal = [
        one
        for one in shown
        if one.point.cores == best.point.cores and is_equal(best, one, objective)
    ]
    return min(equal, key=lambda one: (len(one.point.values), one.epoch_s))


def is_equal(best: Figure, other: Figure, objective: Objective) -> bool:
    """Whether the other point is not known to be slower by at least `MIN_GAIN`."""
    return other.epoch_s < MIN_GAIN * best.epoch_s or is_open(best, other, objective)


def _stages(tried: Tried) -> Iterator[tuple[str, list[Setup]]]:
    base = tried.base
    yield "the program as it is", [base]
    singles = [Setup(base.cores, each) for each in tried.tuning.suggested(base)]
    yield "each remedy by itself", singles
    together = Setup(base.cores, _combined(tried, singles))
    yield "what helped, together", [together]
    parts: list[Setup] = []
    if together not in tried.figures:  # it is out, which one of them may have caused
        parts = _without_one(tried, together)
        yield "without one of them", parts
    best = tried.fastest([together, *parts, *singles, base], favoured=together)
    suggested = tried.tuning.suggested(best) if best.remedies else []
    more = [Setup(base.cores, _joined(best.remedies, each)) for each in suggested]
    yield "what is suggested next", more
    best = tried.fastest([best, *more], favoured=best)
    parts = _without_one(tried, best)
    yield "without one of them", parts
    simpler = [one for one in parts if tried.step_s(one) < MIN_GAIN * tried.step_s(best)]
    best = tried.fastest(simpler or [best])
    ladder = [base.cores // 2**power for power in range(base.cores.bit_length())]
    chosen = [best.remedies]
    if base.cores > 1:
        fastest = tried.fastest([best, *singles, base]).remedies
        chosen = list(dict.fromkeys([*chosen, fastest]))
    yield "fewer cores", [_fitting(cores, each) for cores in ladder if cores for each in chosen]


def _combined(tried: Tried, singles: Iterable[Setup]) -> Remedies:
    """Combine all remedies that made a step faster by themselves.

    Of several values of one setting the fastest is taken.
    """
    before = tried.step_s(tried.base)
    helped = [one for one in singles if tried.step_s(one) * MIN_GAIN < before]
    found = UNCHANGED
    for one in sorted(helped, key=lambda one: -tried.step_s(one)):
        found = _joined(found, one.remedies)
    return found


def _joined(one: Remedies, other: Remedies) -> Remedies:
    values = one.model_dump(exclude_defaults=True) | other.model_dump(exclude_defaults=True)
    values[STAY] = bool(values.get("workers"))
    return Remedies.model_validate(values)


def _without_one(tried: Tried, best: Setup) -> list[Setup]:
    """List variants of the best setup with one remedy removed from each.

    The remedy that helps most by itself always stays: it may have left another one nothing to
    gain.
    """
    values = best.remedies.model_dump(exclude_defaults=True)
    values.pop(STAY, None)  # comes and goes with the workers
    alone = {
        name: tried.step_s(Setup(best.cores, Remedies.model_validate({name: value})))
        for name, value in values.items()
    }
    found = []
    for name in sorted(values, key=lambda name: alone[name])[1:]:
        kept = {other: value for other, value in values.items() if other != name}
        found.append(Setup(best.cores, _joined(UNCHANGED, Remedies.model_validate(kept))))
    return found


def _fitting(cores: int, remedies: Remedies) -> Setup:
    threads = remedies.threads
    if threads is not None and threads >= cores:
        remedies = remedies.model_copy(update={"threads": None})
    return Setup(cores, remedies)
