"""One sentence that says what to ask for, and the facts that it rests on. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from hpcncf_analysis import words
from hpcncf_analysis.labels import counted
from hpcncf_analysis.summary import Configuration, by_series

# More cores are worth asking for while each delivers this share of what the base's cores do.
WORTH: Final = 0.7
# HR@10 over some hundred test users is uncertain by about 0.014: less apart is not told apart.
QUALITY_SLACK: Final = 0.02
# Below this share of its cores a single run is told to try fewer.
IDLE: Final = 0.8


@dataclass(frozen=True)
class Conclusion:
    sentence: str
    facts: list[str]


def conclude(configurations: Sequence[Configuration], counts: Mapping[str, int]) -> Conclusion:
    """`counts`: state -> runs."""
    if not configurations:
        return Conclusion(_nothing(counts), [])
    if len(configurations) == 1:
        return Conclusion(_alone(configurations[0]), _idle_cores(configurations[0]))
    best = recommended(configurations)
    if best is None:
        return Conclusion("The completed runs measured no speed: nothing can be compared.", [])
    others = [one for one in configurations if one is not best and one.speed]
    if not others:
        return Conclusion(_alone(best), _idle_cores(best))
    idlest = min(others, key=lambda one: (one.median("cpu_efficiency") or 0.0, one.speed or 0.0))
    facts = [*_against_base(best, configurations), *_cheapest(configurations)]
    return Conclusion(_compared(best, idlest), facts + _rejected(configurations))


def _nothing(counts: Mapping[str, int]) -> str:
    total = sum(counts.values())
    states = ", ".join(f"{number} {state}" for state, number in sorted(counts.items()))
    return (
        f"No run is complete yet ({states} of {counted(total, 'run')}): nothing to conclude from."
    )


def recommended(configurations: Sequence[Configuration]) -> Configuration | None:
    """The fastest of those whose quality holds and whose cores each do enough of their series'."""
    sound = [one for one in configurations if one.speed and holds_quality(one, configurations)]
    worth = [one for one in sound if (one.median("parallel_efficiency") or 0.0) >= WORTH] or sound
    return max(worth, key=lambda one: one.speed or 0.0, default=None)


def holds_quality(one: Configuration, all_of_them: Sequence[Configuration]) -> bool:
    reached = [hr10 for other in all_of_them if (hr10 := other.median("hr10")) is not None]
    own = one.median("hr10")
    return own is None or own >= max(reached) - QUALITY_SLACK


def _compared(best: Configuration, idlest: Configuration) -> str:
    assert best.speed
    assert idlest.speed
    ratio = best.speed / idlest.speed
    pace = f"{words.times(ratio)} as fast as" if ratio >= 1 else "slower than"
    return (
        f"{best.label} {_verb(best)} {pace} {idlest.label} and keeps "
        f"{words.percent(best.median('cpu_efficiency'))} of its {_cores(best)} busy against "
        f"{words.percent(idlest.median('cpu_efficiency'))} of {_cores(idlest)}"
        f"{_quality(best, idlest)}: ask for {asked(best)}."
    )


def _verb(one: Configuration) -> str:
    return "runs" if one.is_command else "trains"


def _cores(one: Configuration) -> str:
    return counted(one.cores, "core")


def _quality(best: Configuration, other: Configuration) -> str:
    if best.is_command:
        return ""
    ours, theirs = best.median("hr10"), other.median("hr10")
    if ours is None or theirs is None:
        return ", quality not evaluated"
    equal = "equal" if abs(ours - theirs) <= QUALITY_SLACK else "UNEQUAL"
    return f", at {equal} quality (HR@10 {words.score(ours)} and {words.score(theirs)})"


def asked(one: Configuration) -> str:
    """The settings of a job file that make this configuration."""
    row = one.rows[0]
    if one.is_command:
        return counted(one.cores, "core")
    names = ["nodes"] if row["nodes"] > 1 else []
    names += ["tasks_per_node", "cpus_per_task"]
    names += ["gpus_per_node"] if row["gpus_per_node"] else []
    names += ["loader", *(["num_workers"] if row.get("num_workers") else [])]
    return ", ".join(f"{name}: {row[name]}" for name in names)


def _alone(one: Configuration) -> str:
    efficiency = words.percent(one.median("cpu_efficiency"))
    if one.is_command:
        return f"The command kept {efficiency} of its {_cores(one)} busy{_use(one)}."
    return (
        f"{one.label} trains {words.number(one.speed)} instances/s and keeps {efficiency} of its "
        f"{_cores(one)} busy{_use(one)}; nothing stands beside it to compare."
    )


def _use(one: Configuration) -> str:
    return (
        f" ({words.cores(one.median('cores_used'))} used, "
        f"{words.cores(one.median('cores_usable'))} usable)"
    )


def _idle_cores(one: Configuration) -> list[str]:
    used, efficiency = one.median("cores_used"), one.median("cpu_efficiency")
    if used is None or efficiency is None or efficiency >= IDLE or one.cores <= 1:
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


def _rejected(configurations: Sequence[Configuration]) -> list[str]:
    worse = [one for one in configurations if not holds_quality(one, configurations)]
    return [
        f"Not recommended, however fast: {one.label} reaches only HR@10 "
        f"{words.score(one.median('hr10'))}."
        for one in worse
    ]
