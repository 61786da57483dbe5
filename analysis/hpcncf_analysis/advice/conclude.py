"""One sentence that says what to ask for, and the facts that it rests on. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from hpcncf_analysis import commands, words
from hpcncf_analysis.advice.quality import (
    QUALITY_SLACK,
    best_quality,
    is_worse,
    quality_gap,
    sound_ones,
    task,
)
from hpcncf_analysis.advice.recommend import (
    Ratio,
    mostly_disturbed,
    of_cores,
    of_speeds,
    per_core,
    price,
    recommended,
)
from hpcncf_analysis.advice.request import asked, memory
from hpcncf_analysis.labels import counted
from hpcncf_analysis.summary import Configuration, by_series

# Below this share of its cores a single run is told to try fewer.
IDLE: Final = 0.8
# More configurations than that are told by their number.
FEW: Final = 3


@dataclass(frozen=True)
class Conclusion:
    sentence: str
    facts: list[str]


def conclude(configurations: Sequence[Configuration], counts: Mapping[str, int]) -> Conclusion:
    """`counts`: state -> runs."""
    if not configurations:
        return Conclusion(_nothing(counts), [])
    if len(configurations) == 1 and not configurations[0].is_command:
        return _of_one(configurations[0])
    if all(one.is_command for one in configurations):
        return _of_commands(configurations)
    return _of_comparable(configurations)


def _of_commands(configurations: Sequence[Configuration]) -> Conclusion:
    """Compared where all are the same command at different sizes."""
    judged = [one for one in configurations if not commands.is_short(one)]
    if len(judged) > 1 and len(commands.by_name(configurations)) == 1:
        return _of_comparable(judged)
    return Conclusion(
        commands.sentence(configurations),
        [
            *commands.facts(configurations),
            *(_idle_cores(judged[0]) if len(configurations) == len(judged) == 1 else []),
        ],
    )


def _of_comparable(configurations: Sequence[Configuration]) -> Conclusion:
    best = recommended(configurations)
    others = [one for one in configurations if one is not best and one.speed]
    if best is None:
        return Conclusion("The completed runs measured no speed: nothing can be compared.", [])
    if not others:
        return _of_one(best)
    facts = [*_against_base(best, configurations), *_cheapest(configurations)]
    facts += [*_lower_quality(configurations), *_losses(configurations), *memory(best)]
    return Conclusion(_compared(best, others, configurations), facts)


def _of_one(one: Configuration) -> Conclusion:
    return Conclusion(_alone(one), [*_idle_cores(one), *memory(one)])


def _nothing(counts: Mapping[str, int]) -> str:
    total = sum(counts.values())
    states = ", ".join(f"{number} {state}" for state, number in sorted(counts.items()))
    return (
        f"No run is complete yet ({states} of {counted(total, 'run')}): nothing to conclude from."
    )


def _compared(
    best: Configuration, others: Sequence[Configuration], all_of_them: Sequence[Configuration]
) -> str:
    """What the best gains over the worst waste, and what the fastest would cost."""
    dearest = max(others, key=price(others))
    quickest = max(sound_ones(all_of_them), key=lambda one: one.speed or 0.0)
    doubt = _doubt(best, dearest, quickest)
    gain = _as_fast(best, dearest, doubt) if best is quickest else _per_core(best, dearest, doubt)
    fastest = f"it is the fastest ({_speed(best)})"
    if best is not quickest:
        fastest = _faster(best, dearest, quickest, doubt)
    told = f"{gain}{_quality(best, dearest)}; {fastest}"
    ask = f"ask for {asked(best, all_of_them)}"
    if doubt:
        return f"Not settled: {doubt}; {told}: repeat before you {ask}."
    return f"{told}: {ask}{'' if best is quickest else ', unless you need the time'}."


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
    return f"{words.percent(one.median('cpu_efficiency'))} of {_cores(one)}"


def _cores(one: Configuration) -> str:
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


def _alone(one: Configuration) -> str:
    does = "does" if one.by_time else "trains"
    efficiency = words.percent(one.median("cpu_efficiency"))
    return (
        f"{one.label} {does} {_speed(one)} and keeps {efficiency} of its {_cores(one)} "
        f"busy{_use(one)}; nothing stands beside it to compare."
    )


def _use(one: Configuration) -> str:
    return (
        f" ({words.cores(one.median('cores_used'))} used, "
        f"{words.cores(one.median('cores_usable'))} usable)"
    )


def _idle_cores(one: Configuration) -> list[str]:
    used, efficiency = one.median("cores_used"), one.median("cpu_efficiency")
    if used is None or efficiency is None or efficiency >= IDLE or mostly_disturbed([one]):
        return []
    fewer = max(ceil(used - 0.1), 1)
    if fewer >= one.cores:
        return []
    return [
        f"About {words.cores(round(one.cores - used, 1))} of {_cores(one)} went unused: "
        f"measure the same with {counted(fewer, 'core')}."
    ]


def _against_base(best: Configuration, configurations: Sequence[Configuration]) -> list[str]:
    series = by_series(configurations).get(best.series, [])
    if len(series) < 2:
        return ["It has no other size of its series beside it, so no speed-up is known."]
    gains = [
        f"{one.shape} is {words.times(one.median('speedup'))} as fast "
        f"({words.percent(one.median('parallel_efficiency'))} parallel efficiency)"
        for one in series[1:]
    ]
    return [f"Against {series[0].label}: {', '.join(gains)}."]


def _cheapest(configurations: Sequence[Configuration]) -> list[str]:
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


def _lower_quality(configurations: Sequence[Configuration]) -> list[str]:
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


def _losses(configurations: Sequence[Configuration]) -> list[str]:
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
