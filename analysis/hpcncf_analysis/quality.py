"""Whether two models are equally good, and the time until a model is good enough."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isinf, sqrt
from statistics import median
from typing import Any, Final, Literal

from hpcncf.text import pluralize
from hpcncf_analysis.configurations import Configuration
from hpcncf_analysis.formatting import format_duration

# HR@10 that differs by no more than this is equal, however many test rows there are.
QUALITY_SLACK: Final = 0.02
# A reported figure that differs by no more than this share of the better one is equal.
REPORTED_SLACK: Final = 0.05
STANDARD_ERRORS: Final = 2
SCORES: Final = ("hr10", "ndcg10", "hr10_unseen", "loss")
TIMED: Final = ("training_s", "evaluation_s", "checkpoint_s")

Row = Mapping[str, Any]


def at_equal_epochs(runs: Sequence[Row], epochs: Iterable[Row]) -> list[Row]:
    """Return the runs with scores taken after the fewest epochs that any run of a task has.

    `scored_epochs` says how many; `hr10_at_end` keeps the score at the end of the run.

    Unchanged where a run of the task was not evaluated after that epoch.
    """
    tasks: dict[tuple[Any, ...], list[Row]] = {}
    for row in runs:
        if row["hr10"] is not None and epochs_trained(row) and not row.get("max_steps"):
            key = (row.get("evaluation"), row.get("data_key"), row.get("instances_per_epoch"))
            tasks.setdefault(key, []).append(row)
    courses = {(each["run_id"], each["epoch"]): each for each in epochs}
    scored = {}
    for rows in tasks.values():
        fewest = min(epochs_trained(row) or 0 for row in rows)
        then = [courses.get((row["run_id"], fewest - 1), {}) for row in rows]
        if len({epochs_trained(row) for row in rows}) == 1 or any(
            each.get("hr10") is None for each in then
        ):
            continue
        for row, course in zip(rows, then, strict=True):
            scored[row["run_id"]] = {
                "scored_epochs": fewest,
                "hr10_at_end": row["hr10"],
                **{name: course.get(name) for name in SCORES},
            }
    return [{**row, **scored.get(row["run_id"], {})} for row in runs]


def epochs_trained(row: Row) -> int | None:
    """Number of whole epochs of a run: those that were planned, unless `max_s` ended it earlier."""
    done = row.get("epochs_done")
    return row.get("epochs") if done is None or done != done else int(done)


QualityVerdict = Literal["worse", "better", "alike", "not compared"]


def compare_quality(baseline: Configuration, candidate: Configuration) -> QualityVerdict:
    """Compare the candidate's model quality with the baseline's, beyond chance."""
    if quality_gap(baseline, candidate) is None:  # not evaluated, or not on the same task
        return "not compared"
    if is_worse(candidate, baseline):
        return "worse"
    return "better" if is_worse(baseline, candidate) else "alike"


def worse_models(configurations: Sequence[Configuration]) -> set[str]:
    """Keys of configurations whose model is clearly worse than the best of the same task."""
    tasks: dict[tuple[Any, ...], list[Configuration]] = {}
    for one in configurations:
        tasks.setdefault(evaluation_task(one), []).append(one)
    found = set()
    for members in tasks.values():
        best = best_quality(members)
        found |= {one.key for one in members if best and is_worse(one, best)}
    return found


def evaluation_task(one: Configuration) -> tuple[Any, ...]:
    """Key of the task a quality score belongs to; only scores of equal keys are compared.

    Models are compared after equal numbers of instances, and a rank among all items is not one
    among 99 of them.
    """
    row = one.rows[0]
    if one.is_command:
        return ("command", one.command, quality_metric(one))
    scored = {**row, "epochs_done": row.get("scored_epochs") or row.get("epochs_done")}
    return row.get("evaluation"), row.get("data_key"), instances_seen(scored)


def instances_seen(row: Row) -> int | None:
    """Number of instances the model was trained on; None if data or epochs are unknown.

    A run that `max_steps` cut short saw a batch, with its negatives, in each step.
    """
    whole, epochs = row.get("instances_per_epoch"), epochs_trained(row)
    seen = None if not whole or not epochs else int(whole * epochs)
    steps, batch = row.get("max_steps"), row.get("batch")
    if not steps or not batch:
        return seen
    cut = int(steps * batch * (1 + (row.get("negatives") or 0)))
    return cut if seen is None else min(cut, seen)


def is_mostly_warmup(row: Row) -> bool:
    """Whether more than half of the training time went to steps that the speed does not count."""
    seen, speed, training_s = instances_seen(row), row["instances_per_s"], row.get("training_s")
    if not seen or not speed or not training_s or row.get("resumed_epoch") is not None:
        return False
    return bool(seen / speed < training_s / 2)


def quality_metric(one: Configuration) -> tuple[str, bool]:
    """Name of the figure by which quality is judged, and whether higher is better.

    HR@10; for a command the figure that its job names (`quality`, `better`), by default the
    loss.
    """
    name, _, better = str(one.rows[0].get("quality") or "loss:lower").partition(":")
    if not one.is_command or (name == "loss" and one.median("hr10") is not None):
        return "hr10", True
    return (name if name in one.figures else f"metric_{name}"), better == "higher"


def best_quality(configurations: Sequence[Configuration]) -> Configuration | None:
    judged = [one for one in configurations if quality(one) is not None]
    return max(judged, key=_higher_is_better, default=None)


def quality(one: Configuration) -> float | None:
    return one.median(quality_metric(one)[0])


def _higher_is_better(one: Configuration) -> float:
    return (quality(one) or 0.0) * (1 if quality_metric(one)[1] else -1)


def is_worse(one: Configuration, best: Configuration) -> bool:
    """Whether the model of `one` is worse than `best` by more than slack and chance explain."""
    lower = quality_gap(one, best)
    if lower is None:
        return False
    name, higher = quality_metric(one)
    if name == "hr10":
        return lower > max(QUALITY_SLACK, chance_margin(one, best) or 0.0)
    if lower <= REPORTED_SLACK * abs(quality(best) or 0.0):
        return False
    ours = one.figures.get(f"{name}_{'high' if higher else 'low'}")
    theirs = best.figures.get(f"{name}_{'low' if higher else 'high'}")
    if ours is None or theirs is None:  # not repeated
        return True
    return ours < theirs if higher else ours > theirs


def quality_gap(one: Configuration, best: Configuration) -> float | None:
    """Difference by which `best` has the better quality; None if they are not comparable."""
    if evaluation_task(one) != evaluation_task(best):
        return None
    if quality(one) is None or quality(best) is None:
        return None
    return _higher_is_better(best) - _higher_is_better(one)


def chance_margin(one: Configuration, other: Configuration) -> float | None:
    """Two standard errors of the difference between two hit rates (independent binomials).

    Both were tested on the same rows, and hit many of them together: the real error is smaller.
    None if the number of test rows is not known.
    """
    variances = []
    for each in (one, other):
        share, rows = each.median("hr10"), each.rows[0].get("test_rows")
        if share is None or not rows:
            return None
        variances.append(share * (1 - share) / rows)
    return STANDARD_ERRORS * sqrt(max(0.0, sum(variances)))


# Time to quality as MLPerf Training counts it (Mattson et al. 2020): from the first step to the end
# of the first evaluation that reaches the target. Evaluation and checkpoints count, start-up does
# not.


@dataclass(frozen=True)
class TimeToQuality:
    """Time to the target of one configuration's runs; None where the median never reaches it."""

    configuration: Configuration
    target: float
    seconds: float | None
    """Median over the runs, one that never reached the target counting as longer than any."""
    low: float | None
    high: float | None
    """The range; None of one run, and high where one never reached it."""
    core_hours: float | None
    epochs: float | None
    reached: int
    runs: int


def describe_time_to_quality(found: Sequence[TimeToQuality], target: float) -> str:
    """Sentence on which configuration reaches the target first, and how many runs never do."""
    if not found:
        return f"No run evaluated HR@10: there is no time to {target:g}."
    runs, reached = sum(each.runs for each in found), sum(each.reached for each in found)
    timed = [each for each in found if each.seconds is not None]
    if not timed:
        return f"HR@10 {target:g}: {reached} of {pluralize(runs, 'run')} reached it; no median."
    first = min(timed, key=lambda each: each.seconds or inf)
    never = "all runs reached it" if reached == runs else f"{runs - reached} of {runs} runs never"
    return (
        f"HR@10 {target:g}: {first.configuration.label} gets there first, after "
        f"{format_duration(first.seconds)} of training and evaluation; {never}."
    )


def time_to_target(epochs: Sequence[Row], target: float) -> tuple[float, int] | None:
    """(seconds, epochs) until one run's `epochs` rows reach the target; None if never.

    The epochs of earlier attempts count as the checkpoint kept them; work that was lost does not.
    """
    seconds = 0.0
    for number, row in enumerate(epochs, start=1):
        seconds += sum(row[name] for name in TIMED)
        if row["hr10"] is not None and row["hr10"] >= target:
            return seconds, number
    return None


def times_to_quality(
    shown: Iterable[Configuration], epochs: Iterable[Row], target: float
) -> list[TimeToQuality]:
    """Time to the target HR@10 of each configuration that evaluated HR@10."""
    by_run: dict[str, list[Row]] = {}
    for row in epochs:
        by_run.setdefault(row["run_id"], []).append(row)
    found = []
    for one in shown:
        courses = [by_run.get(row["run_id"], []) for row in one.rows]
        judged = [rows for rows in courses if any(row["hr10"] is not None for row in rows)]
        if not judged:
            continue
        ways = [time_to_target(rows, target) or (inf, inf) for rows in judged]
        seconds = [way[0] for way in ways]
        middle, several = _finite(median(seconds)), len(ways) > 1
        found.append(
            TimeToQuality(
                configuration=one,
                target=target,
                seconds=middle,
                low=_finite(min(seconds)) if several else None,
                high=_finite(max(seconds)) if several else None,
                core_hours=None if middle is None else middle * one.cores / 3600,
                epochs=_finite(median(way[1] for way in ways)),
                reached=sum(way[0] < inf for way in ways),
                runs=len(ways),
            )
        )
    return found


def _finite(value: float) -> float | None:
    return None if isinf(value) else value
