"""What a tuning ends with: the best point, how sure that is, and what to ask for and to change."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from hpcncf.slurm.site import load_site
from hpcncf.tune.job_file import SUFFIX, JobFile, enough, select_whole_runs
from hpcncf.tune.program import Programs, Setup, Tried, is_equal
from hpcncf.tune.search import LONG_ENOUGH, SHORTEST_S
from hpcncf.tune.trials import Figure, Known, best_first, compare_figures, is_open
from hpcncf.tune.tuning import Now
from hpcncf_analysis.advice.judge import judge
from hpcncf_analysis.advice.next_job import Advice, build_advice
from hpcncf_analysis.configurations import Configuration
from hpcncf_analysis.diagnosis.evidence import Finding
from hpcncf_analysis.diagnosis.format import headline
from hpcncf_analysis.planned_job import PlannedJob
from hpcncf_analysis.scaling import MODELS, distinct
from hpcncf_analysis.significance import Ratio, Verdict, compare_times

# A run cut shorter than the first race is too short to be near another.
FIRST_RACE_S: Final = LONG_ENOUGH * SHORTEST_S
MEMORY_SPARE: Final = 1.3


@dataclass(frozen=True)
class Outcome:
    """Result of a tuning: the best point, its settings, and how sure it is."""

    best: Figure
    settings: dict[str, Any]
    verified: bool
    """Whether it ran as the job file has it, or as the trials of a program do."""
    verdicts: dict[str, Verdict]
    """Of every other measured point against the best."""
    left_open: tuple[str, ...]
    disturbed: bool
    """Whether neighbours used much of its cores, or of the unchanged program's, so that its figures
    are worth less."""
    unseen: tuple[str, ...]
    """Points that the budget had no room for."""
    models: tuple[str, ...]
    """CPU and GPU models of its runs, if they had more than one of a kind: speeds of two do not
    compare."""
    base: Figure | None = None
    """The unchanged program with all the cores."""
    against_unchanged: Ratio | None = None
    """Speed over it."""
    unsettled: tuple[str, ...] = ()
    """Setups that are better by their figures, but not recommended: their trials or the unchanged
    program's are single ones beside neighbours, or differ."""
    enough_core_h: float | None = None
    """The least budget that has room for all of a grid; None if this one had, or it is unknown."""
    hr10: float | None = None
    job_yaml: str | None = None
    """The job file to go on with; None while its point is not verified."""
    program: ProgramRequest | None = None


@dataclass(frozen=True)
class ProgramRequest:
    """Next request, and the changes to make in the program."""

    setup: Setup
    mem_gb: int
    changes: tuple[str, ...]
    """Lines of the program to change for good."""
    costs: tuple[str, ...]
    """What still costs its time, and where."""


def find_outcome(now: Now) -> Outcome | None:
    """Build the outcome of a tuning; None if no point could be measured."""
    if now.step.chosen is None:
        return None
    known, tuning = now.known, now.tuning
    best = known.figures[now.step.chosen]
    models = [distinct(now.rows.values(), column) for column in MODELS]
    found = Outcome(
        best=best,
        settings=tuning.grid.settings[best.point.index],
        verified=now.step.verified,
        verdicts={
            one.point.label: compare_figures(best, one, known.rules.objective).verdict
            for one in known.figures.values()
            if one is not best
        },
        left_open=left_open(known, best),
        disturbed=known.is_disturbed(best),
        unseen=tuple(one.label for one in known.points if one.index not in known.seen),
        models=tuple(model for kind in models if len(kind) > 1 for model in kind),
    )
    if isinstance(tuning, Programs):
        return _of_program(found, tuning, known)
    assert isinstance(tuning, JobFile)
    return _of_job_file(found, tuning, now)


def _of_job_file(found: Outcome, tuning: JobFile, now: Now) -> Outcome:
    """Add the quality of the best point, and the job file to go on with."""
    enough_h = enough(now.known) if now.step.why else None
    if not found.verified:
        return replace(found, enough_core_h=enough_h)
    ran_whole = select_whole_runs(tuning.grid, now.known.trials, now.rows)
    own = dict(ran_whole)[found.best.point.index]
    advice, hr10 = _advise(tuning, now, ran_whole, own), own.median("hr10")
    job_yaml = advice.job_yaml if advice else None
    return replace(found, enough_core_h=enough_h, hr10=hr10, job_yaml=job_yaml)


def _of_program(found: Outcome, tuning: Programs, known: Known) -> Outcome:
    """Add how the best setup compares with the unchanged program, and what to ask for."""
    tried, best, objective = Tried(tuning, known), found.best, known.rules.objective
    setup, base = tuning.setups[best.point.index], tried.figures.get(tried.base)
    own = [trial for trial in known.trials_of(best.point.index) if trial.epoch_s]
    ranked = best_first(known.figures.values(), objective)
    better = ranked[: ranked.index(best)]
    memory = max(each.memory_mib or 0.0 for each in own) * MEMORY_SPARE / 1024
    return replace(
        found,
        disturbed=found.disturbed or (base is not None and known.is_disturbed(base)),
        base=base,
        against_unchanged=compare_times(base.times, best.times) if base else None,
        unsettled=tuple(one.point.label for one in better if not is_equal(one, best, objective)),
        program=ProgramRequest(
            setup=setup,
            mem_gb=max(1, math.ceil(memory)),
            changes=tuple(dict.fromkeys(_line(*each) for each in own[0].applied)),
            costs=tuple(
                ": ".join(
                    [headline(one), *(each.name for each in one.places[:1]), advice(tried, one)]
                )
                for one in tuning.findings(setup)
                if one.cause != "neighbour_load"
            ),
        ),
    )


def left_open(known: Known, best: Figure) -> tuple[str, ...]:
    """Labels of points that may be as fast (or cheap) as the best one.

    Their repeats overlap the best point's, or both ran once and are near each other. Classes of
    worse quality and runs shorter than the first race are excluded.
    """
    return tuple(
        one.point.label
        for one in known.figures.values()
        if one is not best
        and one.point.quality not in known.rules.unsound
        and (one.whole or one.trained_s >= FIRST_RACE_S)
        and is_open(best, one, known.rules.objective)
    )


def left_out(now: Now) -> tuple[str, ...]:
    """Describe the points that cannot win, each with the reason.

    Points that train the same model with worse quality share one entry.
    """
    known, points = now.known, {point.index: point for point in now.tuning.grid.points}
    found = {
        trial.ask.point: f"{points[trial.ask.point].label}: {trial.reason}"
        for trial in known.trials
        if trial.fate == "failed" and trial.ask.point in points
    }
    for quality in known.rules.unsound:
        members = [point for point in points.values() if point.quality == quality]
        ran = [one for one in known.trials if one.hr10 is not None and one.ask.point in points]
        own = next(one for one in ran if points[one.ask.point] in members)
        more = f", and {len(members) - 1} more that train the same model" * (len(members) > 1)
        label = points[own.ask.point].label
        found[own.ask.point] = f"{label}{more}: its quality is worse (HR@10 {own.hr10:.3f})"
    return (*now.tuning.grid.left_out, *(found[at] for at in sorted(found)))


def _advise(
    tuning: JobFile,
    now: Now,
    whole: Sequence[tuple[int, Configuration]],
    chosen: Configuration,
) -> Advice | None:
    """Build the job file to go on with; None if the report's rule rejects the chosen point.

    The rule is applied to all whole runs, then, if it prefers another point, to the chosen one
    alone. The advice keeps the measured settings, because only those were verified.
    """
    runs = [tuning.grid.run(trial.ask) for trial in now.known.trials if trial.whole]
    job, ids = tuning.grid.job, {run.id: run for run in runs}
    name = job.name.removesuffix(SUFFIX)
    asked = PlannedJob(name=name, runs=ids, job=job, site=load_site(job.site))
    choice = "recommended" if tuning.objective == "knee" else tuning.objective
    for among in ([one for _, one in whole], [chosen]):
        table = judge(among)
        found = build_advice(table, asked, choice=choice, as_measured=True) if table else None
        if found is not None and found.chosen.key == chosen.key:
            return found
    return None


# Causes whose only remedies are what trials apply: tried, and not recommended, they are settled.
APPLIED: Final = {"dense_optimizer": ("rowwise", "fused")}


def advice(tried: Tried, finding: Finding) -> str:
    names = APPLIED.get(finding.cause)
    if names and tried.names.issuperset(names):
        return f"{' and '.join(names)} were tried, and gain no more here."
    return finding.remedy


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
