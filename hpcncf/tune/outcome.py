"""The outcome of a tuning: the best point, its verification, its job file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from hpcncf.slurm.site import load_sites
from hpcncf.tune.job_file import (
    LONG_ENOUGH,
    SHORTEST_S,
    SUFFIX,
    JobFile,
    enough,
    select_whole_runs,
)
from hpcncf.tune.search import Ask, Figure, best_first, core_hours, is_open
from hpcncf.tune.tuning import Now
from hpcncf_analysis.advice.judge import judge, mostly_disturbed
from hpcncf_analysis.advice.next_job import Advice, PlannedJob, build_advice
from hpcncf_analysis.configurations import Configuration
from hpcncf_analysis.scaling import MODELS, distinct

# A run cut shorter than the first race is too short to be near another.
FIRST_RACE_S: Final = LONG_ENOUGH * SHORTEST_S


@dataclass(frozen=True)
class Worse:
    """A class whose quality does not hold."""

    label: str
    """Of the point that ran whole."""
    hr10: float | None
    points: int
    """That train the same model."""


@dataclass(frozen=True)
class Outcome:
    best: Figure
    verified: bool
    """Whether it ran as the job file has it."""
    glimpsed_s: float | None
    """Seconds of an epoch of its longest cut run; None if it had none."""
    hr10: float | None
    advice: Advice | None
    """The job file to go on with; None while it is not verified."""
    left_open: tuple[str, ...]
    """Points of equal quality whose repeats overlap its own, or single runs that are near: chance
    may have chosen."""
    runner_up: tuple[str, float] | None
    """The second best whose quality is not known to be worse, and its seconds for an epoch."""
    disturbed: bool
    """Whether neighbours used much of its cores, so that its figures are worth less."""
    unsound: tuple[Worse, ...]
    """Classes left out for their quality."""
    failed: tuple[str, ...]
    """Points that could not be measured, with the reason."""
    unseen: tuple[str, ...]
    """Points that the budget had no room for."""
    enough_core_h: float | None
    """The least budget that has room for all of it; None if this one had, or it is unknown."""
    models: tuple[str, ...]
    """CPU and GPU models of its runs, where they had more than one of a kind: speeds of two do not
    compare."""
    grid_core_h: float | None
    """What the whole grid, each point once, would have cost: by the figures of all its points;
    None where some have none."""


def find_outcome(going: JobFile, now: Now) -> Outcome | None:
    """None where no point could be measured."""
    if now.step.chosen is None:
        return None
    known = now.known.of
    best = known[now.step.chosen]
    own = [trial for trial in now.trials if trial.ask.point == best.point.index]
    cut = [trial for trial in own if not trial.whole and trial.epoch_s]
    ran_whole = select_whole_runs(going.grid, now.trials, now.rows)
    whole = dict(ran_whole)
    return Outcome(
        best=best,
        verified=now.step.verified,
        glimpsed_s=max(cut, key=lambda one: one.training_s).epoch_s if cut else None,
        hr10=whole[best.point.index].median("hr10") if now.step.verified else None,
        advice=_advice(going, now, ran_whole, best) if now.step.verified else None,
        left_open=_left_open(going, now, known, best),
        runner_up=_runner_up(going, now, known, best),
        disturbed=now.step.verified and mostly_disturbed([whole[best.point.index]]),
        unsound=_unsound(going, now, ran_whole),
        failed=_failed(going, now),
        unseen=_unseen(going, now),
        enough_core_h=enough(now.known) if now.step.why else None,
        models=_models(now),
        grid_core_h=_whole_grid_hours(going, now, known),
    )


def _advice(
    going: JobFile, now: Now, whole: Sequence[tuple[int, Configuration]], best: Figure
) -> Advice | None:
    """By the report's own rule among what ran whole; of the best alone, where that says another.
    What ran is asked for, or it would not be what was verified."""
    runs = [going.grid.run(trial.ask) for trial in now.trials if trial.whole]
    job, ids = going.grid.job, {run.id: run for run in runs}
    name = job.name.removesuffix(SUFFIX)
    asked = PlannedJob(name=name, runs=ids, job=job, site=load_sites(job.site))
    chosen = dict(whole)[best.point.index]
    choice = "recommended" if going.objective == "knee" else going.objective
    for among in ([one for _, one in whole], [chosen]):
        table = judge(among)
        found = build_advice(table, asked, choice=choice, as_measured=True) if table else None
        if found is not None and found.chosen.key == chosen.key:
            return found
    return None


def _left_open(going: JobFile, now: Now, known: dict[int, Figure], best: Figure) -> tuple[str, ...]:
    sound = [one for one in known.values() if str(one.point.quality) not in now.known.rules.unsound]
    long = [one for one in sound if one.whole or one.trained_s >= FIRST_RACE_S]
    rivals = [one for one in long if one is not best]
    return tuple(one.point.label for one in rivals if is_open(best, one, going.objective))


def _runner_up(
    going: JobFile, now: Now, known: dict[int, Figure], best: Figure
) -> tuple[str, float] | None:
    sound = [one for one in known.values() if str(one.point.quality) not in now.known.rules.unsound]
    others = [one for one in best_first(sound, going.objective) if one is not best]
    return (others[0].point.label, others[0].epoch_s) if others else None


def _unsound(
    going: JobFile, now: Now, whole: Sequence[tuple[int, Configuration]]
) -> tuple[Worse, ...]:
    """A class each, by the first of it that ran whole."""
    points = {point.index: point for point in going.grid.points}
    found: dict[str, Worse] = {}
    for index, one in whole:
        of_class = str(points[index].quality)
        alike = sum(str(point.quality) == of_class for point in points.values())
        if of_class in now.known.rules.unsound:
            found.setdefault(of_class, Worse(points[index].label, one.median("hr10"), alike))
    return tuple(found.values())


def _failed(going: JobFile, now: Now) -> tuple[str, ...]:
    labels = {point.index: point.label for point in going.grid.points}
    failures = [
        f"{labels[one.ask.point]}: {one.reason}" for one in now.trials if one.fate == "failed"
    ]
    return (*going.grid.left_out, *dict.fromkeys(failures))


def _unseen(going: JobFile, now: Now) -> tuple[str, ...]:
    seen = {one.ask.point for one in now.trials}
    return tuple(point.label for point in going.grid.points if point.index not in seen)


def _models(now: Now) -> tuple[str, ...]:
    found = [distinct(now.rows.values(), column) for column in MODELS]
    return tuple(model for models in found if len(models) > 1 for model in models)


def _whole_grid_hours(going: JobFile, now: Now, known: dict[int, Figure]) -> float | None:
    points = {point.index: point for point in going.grid.points}
    asks: Sequence[Ask] = [Ask(index, None, 0) for index in points]
    if not set(points) <= set(known):
        return None
    prices = [core_hours(ask, points, known, now.trials) for ask in asks]
    return sum(price or 0.0 for price in prices)
