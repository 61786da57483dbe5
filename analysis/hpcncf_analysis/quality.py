"""Whether two models are equally good, and the time until a model is good enough."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isinf, sqrt
from statistics import median
from typing import Any, Final

from hpcncf_analysis.configurations import Configuration, pluralize
from hpcncf_analysis.formatting import format_duration

# So little HR@10 apart is called equal, however many test rows there are.
QUALITY_SLACK: Final = 0.02
STANDARD_ERRORS: Final = 2


def configurations_of_sound_quality(configurations: Sequence[Configuration]) -> list[Configuration]:
    """Those with a speed whose quality holds against the best of their task."""
    alike: dict[tuple[Any, Any], list[Configuration]] = {}
    for one in configurations:
        alike.setdefault(evaluation_task(one), []).append(one)
    best = {each: best_quality(members) for each, members in alike.items()}
    return [one for one in configurations if one.speed and _holds(one, best[evaluation_task(one)])]


def holds_quality(one: Configuration, all_of_them: Sequence[Configuration]) -> bool:
    return _holds(
        one,
        best_quality(
            [each for each in all_of_them if evaluation_task(each) == evaluation_task(one)]
        ),
    )


def _holds(one: Configuration, best: Configuration | None) -> bool:
    return best is None or not is_worse(one, best)


def evaluation_task(one: Configuration) -> tuple[Any, Any]:
    """What its HR@10 is the answer to: one is low among all items that is high among 99 of them."""
    return one.rows[0].get("evaluation"), one.rows[0].get("data_key")


def best_quality(configurations: Sequence[Configuration]) -> Configuration | None:
    judged = [one for one in configurations if one.median("hr10") is not None]
    return max(judged, key=lambda one: one.median("hr10") or 0.0, default=None)


def is_worse(one: Configuration, best: Configuration) -> bool:
    """Whether its HR@10 is lower by more than the slack and by more than chance explains."""
    lower = quality_gap(one, best)
    return lower is not None and lower > max(QUALITY_SLACK, chance_margin(one, best) or 0.0)


def quality_gap(one: Configuration, best: Configuration) -> float | None:
    ours, theirs = one.median("hr10"), best.median("hr10")
    known = (
        ours is not None and theirs is not None and evaluation_task(one) == evaluation_task(best)
    )
    return (theirs or 0.0) - (ours or 0.0) if known else None


def chance_margin(one: Configuration, other: Configuration) -> float | None:
    """Two standard errors of the difference of two shares of hits (binomial, independent).

    Both were asked of the same test rows, and hit many of them together: the real error is smaller.
    None where the number of test rows is not known.
    """
    variances = [_variance(one), _variance(other)]
    known = [variance for variance in variances if variance is not None]
    return STANDARD_ERRORS * sqrt(sum(known)) if len(known) == len(variances) else None


def _variance(one: Configuration) -> float | None:
    share, rows = one.median("hr10"), one.rows[0]["test_rows"]
    return None if share is None or not rows else share * (1 - share) / rows


# Time to quality as MLPerf Training counts it (Mattson et al. 2020): from the first step to the end
# of the first evaluation that reaches the target. Evaluation and checkpoints count, start-up does
# not.

Row = Mapping[str, Any]

TIMED: Final = ("training_s", "evaluation_s", "checkpoint_s")


@dataclass(frozen=True)
class TimeToQuality:
    """Of one configuration's runs that evaluated; seconds are None where the median never came."""

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
    """Who came first to the target, and how many runs never did."""
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
    """(seconds, epochs) of one run's rows of the table `epochs`, in order; None: never.

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
    """Of every configuration with a run that evaluated HR@10."""
    by_run: dict[str, list[Row]] = {}
    for row in epochs:
        by_run.setdefault(row["run_id"], []).append(row)
    found = [_time_of_configuration(one, by_run, target) for one in shown]
    return [each for each in found if each.runs]


def _time_of_configuration(
    one: Configuration, by_run: Mapping[str, Sequence[Row]], target: float
) -> TimeToQuality:
    courses = [by_run.get(row["run_id"], []) for row in one.rows]
    judged = [epochs for epochs in courses if any(row["hr10"] is not None for row in epochs)]
    ways = [time_to_target(epochs, target) or (inf, inf) for epochs in judged]
    seconds = [way[0] for way in ways] or [inf]
    middle = _finite(median(seconds))
    return TimeToQuality(
        configuration=one,
        target=target,
        seconds=middle,
        low=_finite(min(seconds)) if len(ways) > 1 else None,
        high=_finite(max(seconds)) if len(ways) > 1 else None,
        core_hours=None if middle is None else middle * one.cores / 3600,
        epochs=_finite(median(way[1] for way in ways)) if ways else None,
        reached=sum(way[0] < inf for way in ways),
        runs=len(ways),
    )


def _finite(value: float) -> float | None:
    return None if isinf(value) else value
