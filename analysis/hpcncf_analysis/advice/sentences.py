"""The sentences that say what to ask for, and against what. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpcncf_analysis import words
from hpcncf_analysis.advice.front import front
from hpcncf_analysis.advice.quality import QUALITY_SLACK, is_worse, quality_gap, task
from hpcncf_analysis.advice.recommend import (
    Ratio,
    mostly_disturbed,
    of_cores,
    of_speeds,
    per_core,
    price,
)
from hpcncf_analysis.advice.request import asked
from hpcncf_analysis.labels import counted
from hpcncf_analysis.summary import Configuration


def nothing(counts: Mapping[str, int]) -> str:
    total = sum(counts.values())
    states = ", ".join(f"{number} {state}" for state, number in sorted(counts.items()))
    return (
        f"No run is complete yet ({states} of {counted(total, 'run')}): nothing to conclude from. "
        "`hpcncf status` tells why."
    )


def compared(
    best: Configuration, others: Sequence[Configuration], all_of_them: Sequence[Configuration]
) -> str:
    """What the best gains over the worst waste, and what the fastest would cost."""
    dearest = max(others, key=price(others))
    choices = front(all_of_them)
    quickest = choices.fastest.one if choices else best
    doubt = _doubt(best, dearest, quickest)
    gain = _as_fast(best, dearest, doubt) if best is quickest else _per_core(best, dearest, doubt)
    fastest = f"it is the fastest ({_speed(best)})"
    if best is not quickest:
        fastest = _faster(best, dearest, quickest, doubt)
    told = f"{gain}{_quality(best, dearest)}; {fastest}"
    settings = asked(best, all_of_them)
    if doubt:
        return f"Not settled: {doubt}; {told}: repeat before you ask for {settings}."
    unless = "" if best is quickest else ", unless you need the time"
    return f"Ask for {settings}{unless}: {told}."


def _doubt(best: Configuration, dearest: Configuration, quickest: Configuration) -> str:
    """Why the ratio may be another the next time; nothing where it is settled."""
    gain = (of_speeds if best is quickest else of_cores)(best, dearest)
    if mostly_disturbed([best, dearest, *([quickest] if quickest not in (best, dearest) else [])]):
        return "neighbours disturbed most of these runs"
    return "the repeats' speeds overlap" if gain.overlaps else ""


def _as_fast(best: Configuration, dearest: Configuration, doubt: str) -> str:
    verb = "runs" if best.is_command else "trains"
    return (
        f"{best.label} {verb} {_times(of_speeds(best, dearest), doubt)} as fast as the dearest, "
        f"{dearest.label}, and keeps {_busy(best)} busy against {_busy(dearest)}"
    )


def _per_core(best: Configuration, dearest: Configuration, doubt: str) -> str:
    return (
        f"{best.label} gives {_times(of_cores(best, dearest), doubt)} as much per core as the "
        f"dearest, {dearest.label}, and keeps {_busy(best)} busy against {_busy(dearest)}"
    )


def _faster(
    best: Configuration, dearest: Configuration, quickest: Configuration, doubt: str
) -> str:
    which = "that one" if quickest is dearest else quickest.label
    faster = of_speeds(quickest, best)
    less = (
        ""
        if quickest is dearest
        else (f", but gives {words.percent(per_core(quickest) / per_core(best))} as much per core")
    )
    return (
        f"the fastest is {which} ({_speed(quickest)}, "
        f"{_times(faster, doubt or faster.overlaps)} as fast{less})"
    )


def _times(ratio: Ratio, doubt: str | bool) -> str:
    if not doubt or ratio.low is None or ratio.high is None:
        return words.times(ratio.value)
    return f"{words.times(ratio.low)} to {words.times(ratio.high)}"


def _speed(one: Configuration) -> str:
    return f"{words.number(one.speed)} {'runs an hour' if one.by_time else 'instances/s'}"


def _busy(one: Configuration) -> str:
    return f"{words.percent(one.median('cpu_efficiency'))} of {cores(one)}"


def cores(one: Configuration) -> str:
    return counted(one.cores, "core")


def _quality(best: Configuration, other: Configuration) -> str:
    ours, theirs = best.median("hr10"), other.median("hr10")
    if ours is None or theirs is None:
        if best.is_command:
            return ""
        return ", quality not evaluated"
    if task(best) != task(other):
        return ", quality not comparable: evaluated on other candidates or data"
    return f", {_alike(best, other)} (HR@10 {words.score(ours)} and {words.score(theirs)})"


def _alike(one: Configuration, other: Configuration) -> str:
    if abs(quality_gap(one, other) or 0.0) <= QUALITY_SLACK:
        return "at equal quality"
    apart = is_worse(one, other) or is_worse(other, one)
    return "at UNEQUAL quality" if apart else "at a quality within chance"


def alone(one: Configuration) -> str:
    does = "does" if one.by_time else "trains"
    efficiency = words.percent(one.median("cpu_efficiency"))
    return (
        f"{one.label} {does} {_speed(one)} and keeps {efficiency} of its {cores(one)} "
        f"busy{_use(one)}; nothing stands beside it to compare."
    )


def _use(one: Configuration) -> str:
    return (
        f" ({words.cores(one.median('cores_used'))} used, "
        f"{words.cores(one.median('cores_usable'))} usable)"
    )
