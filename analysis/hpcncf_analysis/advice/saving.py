"""What a choice costs, and what it saves against what was asked for. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hpcncf_analysis import words
from hpcncf_analysis.advice.front import Front, Standing
from hpcncf_analysis.scaling.comparable import cautions


@dataclass(frozen=True)
class Saving:
    """What the choice saves against another for a unit of work; negative where it costs more."""

    against: Standing
    """What was asked for, or the dearest."""
    was_asked: bool
    core_h: float
    gpu_h: float
    seconds: float
    cautions: tuple[str, ...] = ()
    """What makes the comparison worth less."""


def saving(chosen: Standing, choices: Front, base: str | None) -> Saving | None:
    """`base`: the configuration asked for; the dearest stands for it where that is not measured or
    is the choice. None where there is no other."""
    others = [each for each in choices.standings if each.key != chosen.key]
    asked = next((each for each in others if each.key == base), None)
    against = asked or max(others, key=lambda each: each.cost, default=None)
    if against is None:
        return None
    return Saving(
        against=against,
        was_asked=asked is not None,
        core_h=against.core_h - chosen.core_h,
        gpu_h=against.gpu_h - chosen.gpu_h,
        seconds=against.seconds - chosen.seconds,
        cautions=tuple(cautions(chosen.one, against.one)),
    )


def price_saving(each: Standing, unit: str) -> str:
    """`12.4 s and 24.8 core-s for an epoch`."""
    parts = [words.duration(each.seconds), words.core_time(each.core_h)]
    parts += [gpu_time(each.gpu_h)] if each.on_gpus else []
    return f"{', '.join(parts[:-1])} and {parts[-1]} {for_a(unit)}"


def gpu_time(gpu_h: float | None) -> str:
    """In GPU-seconds below a tenth of a GPU-hour."""
    return words.core_time(gpu_h).replace("core", "GPU")


def for_a(unit: str) -> str:
    return f"for {'an' if unit == 'epoch' else 'a'} {unit}"


def told(saves: Saving, unit: str) -> str:
    """`Against what was asked for, 2 cores: saves 1.2 core-h (40 %) and 3 s for an epoch.`"""
    dearer = saves.core_h > 0 or saves.gpu_h > 0
    which = "what was asked for, " if saves.was_asked else "the dearest, " if dearer else ""
    before = saves.against
    mind = f" Mind: {'; '.join(saves.cautions)}." if saves.cautions else ""
    parts = [_change(saves.core_h, before.core_h, words.core_time, ("saves", "costs"))]
    if before.on_gpus or saves.gpu_h:
        parts += [_change(saves.gpu_h, before.gpu_h, gpu_time, ("saves", "costs"))]
    parts += [_change(saves.seconds, before.seconds, words.duration, ("takes", "takes"))]
    return f"Against {which}{before.label}, it {', '.join(parts)}, {for_a(unit)}.{mind}"


def predicted(before: Standing, costs: tuple[float, float, float], unit: str) -> str:
    """`Predicted: 5.9 core-s (4.7 core-s to 8.8 core-s) for an epoch instead of 20 core-s.`"""
    value, low, high = (words.core_time(before.core_h * each) for each in costs)
    was = words.core_time(before.core_h)
    return f"Predicted: {value} ({low} to {high}) {for_a(unit)} instead of {was}."


def _change(
    less: float, before: float, show: Callable[[float | None], str], verbs: tuple[str, str]
) -> str:
    verb, more = verbs[less < 0], " more" if less < 0 else " less" if verbs[0] == "takes" else ""
    share = f" ({words.percent(abs(less) / before)})" if before else ""
    return f"{verb} {show(abs(less))}{more}{share}"
