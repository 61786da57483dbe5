"""The sentences that say what to ask for, and against what. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpcncf_analysis import words
from hpcncf_analysis.advice.front import front
from hpcncf_analysis.advice.quality import QUALITY_SLACK, is_worse, quality_gap, task
from hpcncf_analysis.advice.recommend import (
    Ratio,
    cpu_models,
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


@dataclass(frozen=True)
class Comparison:
    """The best, and what it is held against."""

    best: Configuration
    dearest: Configuration
    quickest: Configuration
    doubt: str
    """Why the ratio may be another the next time; empty where it is settled."""

    @property
    def is_fastest(self) -> bool:
        return self.best is self.quickest


def comparison(
    best: Configuration, others: Sequence[Configuration], all_of_them: Sequence[Configuration]
) -> Comparison:
    """The best against the worst waste, and against the fastest."""
    dearest, choices = max(others, key=price(others)), front(all_of_them)
    quickest = choices.fastest.one if choices else best
    return Comparison(best, dearest, quickest, _doubt(best, dearest, quickest))


def _doubt(best: Configuration, dearest: Configuration, quickest: Configuration) -> str:
    gain = (of_speeds if best is quickest else of_cores)(best, dearest)
    compared = [best, dearest, *([quickest] if quickest not in (best, dearest) else [])]
    if len(cpu_models(compared)) > 1:
        return "these runs had different CPU models"
    if mostly_disturbed(compared):
        return "neighbours disturbed most of these runs"
    return "the repeats' speeds overlap" if gain.overlaps else ""


def ask(compared: Comparison, among: Sequence[Configuration]) -> str:
    """What to ask for, and what that gains."""
    best, dearest, doubt = compared.best, compared.dearest, compared.doubt
    told = f"{best.label} {_gain(compared)} {_other(compared)}{_quality(best, dearest)}"
    settings = asked(best, among)
    if doubt:
        return f"Not settled: {doubt}; {told}: repeat before you ask for {settings}."
    unless = "" if compared.is_fastest else ", unless you need the time"
    return f"Ask for {settings}{unless}: {told}."


def _other(compared: Comparison) -> str:
    """The dearest of the others, which may cost less than the best all the same."""
    cost = price([compared.best, compared.dearest])
    dearer = cost(compared.dearest) > cost(compared.best)
    return f"{'the dearest, ' if dearer else ''}{compared.dearest.label}"


def _gain(compared: Comparison) -> str:
    best, dearest, doubt = compared.best, compared.dearest, compared.doubt
    if not compared.is_fastest:
        return f"gives {_times(of_cores(best, dearest), doubt)} as much per core as"
    verb = "runs" if best.is_command else "trains"
    return f"{verb} {_times(of_speeds(best, dearest), doubt)} as fast as"


def beside(compared: Comparison) -> list[str]:
    """How busy the two keep their cores, and what the fastest would cost."""
    best, dearest = compared.best, compared.dearest
    return [
        f"{best.label} keeps {_busy(best)} busy, {dearest.label} {_busy(dearest)}.",
        f"It is the fastest ({_speed(best)})." if compared.is_fastest else _faster(compared),
    ]


def _faster(compared: Comparison) -> str:
    best, quickest = compared.best, compared.quickest
    faster = of_speeds(quickest, best)
    times = _times(faster, compared.doubt or faster.overlaps)
    return (
        f"The fastest is {quickest.label} ({_speed(quickest)}, {times} as fast), which gives "
        f"{words.percent(per_core(quickest) / per_core(best))} as much per core."
    )


def _times(ratio: Ratio, doubt: str | bool) -> str:
    if not doubt or ratio.low is None or ratio.high is None:
        return words.times(ratio.value)
    return f"{words.times(ratio.low)} to {words.times(ratio.high)}"


def _speed(one: Configuration) -> str:
    return f"{words.number(one.speed)} {'runs an hour' if one.by_time else 'instances/s'}"


def _busy(one: Configuration) -> str:
    return f"{words.percent(one.median('cpu_efficiency'))} of {cores_sentences(one)}"


def cores_sentences(one: Configuration) -> str:
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
        f"{one.label} {does} {_speed(one)} and keeps {efficiency} of its {cores_sentences(one)} "
        f"busy{_use(one)}; nothing stands beside it to compare."
    )


def _use(one: Configuration) -> str:
    return (
        f" ({words.cores(one.median('cores_used'))} used, "
        f"{words.cores(one.median('cores_usable'))} usable)"
    )
