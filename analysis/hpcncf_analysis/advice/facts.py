"""The facts that a conclusion rests on, a sentence each. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hpcncf_analysis import words
from hpcncf_analysis.advice.change import fewer_cores
from hpcncf_analysis.advice.quality import QUALITY_SLACK, best_quality, is_worse, quality_gap, task
from hpcncf_analysis.labels import counted
from hpcncf_analysis.packing import curve, telling
from hpcncf_analysis.scaling.comparable import cautions
from hpcncf_analysis.summary import Configuration, by_series

# More configurations than that are told by their number.
FEW: Final = 3


def idle_cores(one: Configuration) -> list[str]:
    """What to measure next where much of a single run's cores went unused."""
    fewer = fewer_cores(one)
    if fewer is None:
        return []
    used = one.median("cores_used") or 0.0
    return [
        f"About {words.cores(round(one.cores - used, 1))} of {counted(one.cores, 'core')} went "
        f"unused: measure the same with {counted(fewer * one.ranks, 'core')}."
    ]


def against_base(best: Configuration, configurations: Sequence[Configuration]) -> list[str]:
    series = by_series(configurations).get(best.series, [])
    if len(series) < 2:
        return ["It has no other size of its series beside it, so no speed-up is known."]
    gains = [
        f"{one.shape} is {words.times(one.median('speedup'))} as fast "
        f"({words.percent(one.median('parallel_efficiency'))} parallel efficiency"
        f"{_mind(one, series[0])})"
        for one in series[1:]
    ]
    return [f"Against {series[0].label}: {', '.join(gains)}."]


def _mind(one: Configuration, base: Configuration) -> str:
    told = cautions(one, base)
    return f"; mind: {'; '.join(told)}" if told else ""


def cheapest(configurations: Sequence[Configuration]) -> list[str]:
    priced = [one for one in configurations if one.median("core_s_per_epoch") is not None]
    if not priced:
        return []
    cheapest = min(priced, key=lambda one: one.median("core_s_per_epoch") or 0.0)
    dearest = max(priced, key=lambda one: one.median("core_s_per_epoch") or 0.0)
    return [
        f"Cheapest epoch: {cheapest.label}, {words.number(cheapest.median('core_s_per_epoch'))} "
        f"core-seconds; dearest: {dearest.label}, "
        f"{words.number(dearest.median('core_s_per_epoch'))}."
    ]


def side_by_side(configurations: Sequence[Configuration]) -> list[str]:
    """Where packs were measured, that the comparison of single runs does not choose among them."""
    if not curve.curves(row for one in configurations for row in one.rows):
        return []
    return [
        "This is about what a single run takes and costs; how many together do most is another "
        f"question: see “{telling.TITLE}”."
    ]


def lower_quality(configurations: Sequence[Configuration]) -> list[str]:
    """Those below the best of their task by more than the slack: whether chance explains it."""
    tasks = dict.fromkeys(map(task, configurations))
    return [
        fact
        for each in tasks
        for fact in _lower_of_task([one for one in configurations if task(one) == each])
    ]


def _lower_of_task(configurations: Sequence[Configuration]) -> list[str]:
    best = best_quality(configurations)
    if best is None:
        return []
    lower = [one for one in configurations if (quality_gap(one, best) or 0.0) > QUALITY_SLACK]
    worse = [one for one in lower if is_worse(one, best)]
    if len(worse) <= FEW:
        return [_lower(one, best) for one in lower]
    told = [_lower(one, best) for one in lower if one not in worse]
    return [_many_worse(worse, best), *told]


def _many_worse(worse: Sequence[Configuration], best: Configuration) -> str:
    scores = [one.median("hr10") or 0.0 for one in worse]
    return (
        f"Not recommended, however fast: {len(worse)} configurations reach only HR@10 "
        f"{words.score(min(scores))} to {words.score(max(scores))} against "
        f"{words.score(best.median('hr10'))} of {best.label}; the table tells which."
    )


def losses(configurations: Sequence[Configuration]) -> list[str]:
    """Of a program of the user's, whose quality we do not know: only that speed is not all."""
    known = [(one.median("loss"), one.label) for one in configurations if one.is_command]
    told = sorted((loss, label) for loss, label in known if loss is not None)
    if not told or told[0][0] == told[-1][0]:
        return []
    least, most = (f"{words.metric(loss)} ({label})" for loss, label in (told[0], told[-1]))
    return [f"Speed alone is compared here; the loss goes from {least} to {most}."]


def _lower(one: Configuration, best: Configuration) -> str:
    reached, rows = words.score(one.median("hr10")), one.rows[0]["test_rows"]
    against = f"HR@10 {reached} against {words.score(best.median('hr10'))} of {best.label}"
    if is_worse(one, best):
        return f"Not recommended, however fast: {one.label} reaches only {against}."
    return f"{one.label} reaches {against}: within chance on {counted(rows, 'test row')}."
