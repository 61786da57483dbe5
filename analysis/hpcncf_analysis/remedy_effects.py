"""The effect of each remedy, alone and on top of others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from hpcncf.table import Table
from hpcncf.text import pluralize
from hpcncf_analysis.configurations import Configuration, settings_without_effect
from hpcncf_analysis.formatting import (
    NONE,
    format_duration,
    format_interval,
    format_mebibytes,
    format_number,
    format_ratio,
    format_score,
)
from hpcncf_analysis.quality import QualityVerdict, compare_quality
from hpcncf_analysis.significance import ALPHA, Ratio, Verdict, compare_repeats

SLIGHT_GAIN: Final = 0.1
"""A remedy that changes the speed by no more than this share is hardly worth its line."""
SLIGHT_MEMORY_MIB: Final = 16.0

ChangedSettings = Mapping[str, Any]


@dataclass(frozen=True)
class Effect:
    """Measured effect of one remedy: speed, model quality and memory against the run without it."""

    one: Configuration
    on: Configuration
    """What it is added to."""
    before: ChangedSettings
    """The remedies that `on` has: what differs there from the baseline."""
    changed: ChangedSettings
    """The remedy: dotted settings that differ from `on`."""
    gain: Ratio
    """Speed against `on`, with the verdict of its repeats."""
    overall: Ratio
    """Speed against the baseline."""
    quality: QualityVerdict
    """The model's, against `on`'s."""
    memory_mib: float | None
    """More than `on` at its peak."""
    warning: str = ""
    """The record's own sentence, if none of the changed settings can act here."""


def measure_effects(configurations: Sequence[Configuration]) -> list[Effect]:
    """Effect of each remedy, those added directly to the baseline first.

    Empty if the job names no baseline, or if the baseline has no measured speed.
    """
    measured = [one for one in configurations if one.speed]
    base = next((one for one in measured if one.rows[0].get("baseline")), None)
    if base is None:
        return []
    apart = {one.key: changed_settings(one, base) for one in measured}
    found = [
        _effect(one, _find_reference(one, measured, apart), base, apart)
        for one in measured
        if one is not base
    ]
    return sorted(found, key=lambda each: (each.on is not base, -each.overall.value))


def changed_settings(one: Configuration, other: Configuration) -> dict[str, Any]:
    """Varied settings of `one` whose value differs in `other`, dotted name -> value in `one`."""
    ours, theirs = one.rows[0]["varied"], other.rows[0]["varied"]
    return {key: value for key, value in ours.items() if value != theirs.get(key)}


def _find_reference(
    one: Configuration, measured: Sequence[Configuration], apart: Mapping[str, ChangedSettings]
) -> Configuration:
    """Find the configuration that has most of this one's changes and no others.

    It lacks only the last remedy, whose effect the comparison shows. The fastest decides
    between equals.
    """
    mine = apart[one.key].items()
    below = [each for each in measured if each is not one and apart[each.key].items() < mine]
    return max(below, key=lambda each: (len(apart[each.key]), each.speed or 0.0))


def _effect(
    one: Configuration,
    on: Configuration,
    base: Configuration,
    apart: Mapping[str, ChangedSettings],
) -> Effect:
    gain = compare_repeats(on.speeds, one.speeds)
    peaks = one.median("memory_peak_mib"), on.median("memory_peak_mib")
    more = None if None in peaks else (peaks[0] or 0.0) - (peaks[1] or 0.0)
    overall = compare_repeats(base.speeds, one.speeds)
    changed, quality = changed_settings(one, on), compare_quality(on, one)
    inert = settings_without_effect(one)
    warning = "; ".join(inert[key] for key in changed if key in inert)
    if warning and set(changed) <= set(inert):
        gain, quality = replace(gain, verdict=Verdict.NO_EFFECT), "not compared"
    return Effect(one, on, apart[on.key], changed, gain, overall, quality, more, warning)


def _describe_speed(gain: Ratio) -> str:
    """Describe in a few words how a remedy changes the speed."""
    times = format_ratio(gain.value)
    match gain.verdict:
        case Verdict.FASTER | Verdict.SLOWER if gain.is_within(SLIGHT_GAIN):
            return f"changes little here: {times}"
        case Verdict.FASTER:
            return f"gains {times}"
        case Verdict.SLOWER:
            return f"loses: {times} of the speed"
        case Verdict.TOO_FEW:
            return f"{times}, but too few repeats to be sure"
        case _ if gain.is_within(SLIGHT_GAIN):
            return "does nothing here"
        case _:
            return "not settled: repeats of the same settings differ by as much"


COLUMNS: Final = [
    "remedy",
    "on top of",
    "gain",
    "range",
    "against the baseline",
    "memory, MiB more",
    "HR@10",
    "what it does",
]


def remedies_table(effects: Sequence[Effect]) -> Table | None:
    if not effects:
        return None
    return Table(COLUMNS, [_row(each) for each in effects], frozenset({"on top of", COLUMNS[-1]}))


def _row(effect: Effect) -> list[str]:
    figures = [
        format_ratio(effect.gain.value),
        format_interval(effect.gain.low, effect.gain.high, format_ratio),
        format_ratio(effect.overall.value),
        format_number(effect.memory_mib),
        format_score(effect.one.median("hr10")),
    ]
    return [
        format_changes(effect.changed),
        format_changes(effect.before) or "the baseline",
        *([NONE] * len(figures) if effect.gain.verdict is Verdict.NO_EFFECT else figures),
        describe_effect(effect),
    ]


def format_changes(changed: Mapping[str, Any]) -> str:
    """Format settings without their sections, such as `loader: batched, num_workers: 2`."""
    plain = {k: str(v).lower() if isinstance(v, bool) else v for k, v in changed.items()}
    return ", ".join(f"{key.split('.')[-1]}: {value}" for key, value in plain.items())


def describe_effect(effect: Effect) -> str:
    """Describe a remedy's effect on speed and model, and its cost in cores and memory.

    A slower start-up due to compilation is mentioned, too.
    """
    if effect.gain.verdict is Verdict.NO_EFFECT:
        return effect.warning
    speed = _describe_speed(effect.gain)
    scores = " to ".join(format_score(one.median("hr10")) for one in (effect.on, effect.one))
    parts = [speed]
    if effect.quality == "worse":
        parts = [f"the model is worse, whatever the speed (HR@10 {scores})"]
    elif effect.quality == "better":
        parts = [f"a better model (HR@10 {scores}); {speed}"]
    cores = effect.one.cores - effect.on.cores
    if cores > 0:
        parts.append(f"for {pluralize(cores, 'core')} more")
    if effect.memory_mib is not None and abs(effect.memory_mib) >= SLIGHT_MEMORY_MIB:
        sign = "more" if effect.memory_mib > 0 else "less"
        parts.append(f"with {format_mebibytes(abs(effect.memory_mib))} {sign}")
    return ", ".join([*parts, *_describe_startup(effect)])


def _describe_startup(effect: Effect) -> list[str]:
    """Start-up time that compilation adds and the number of steps that recover it, or empty."""
    compiled = effect.changed.get("training.compile") not in (None, "none")
    longer_s = (effect.one.median("startup_s") or 0.0) - (effect.on.median("startup_s") or 0.0)
    if not compiled or longer_s <= 0:
        return []
    text = f"compilation adds {format_duration(longer_s)} to the start-up"
    saved_s = (_step_s(effect.on) or 0.0) - (_step_s(effect.one) or 0.0)
    if saved_s <= 0 or effect.quality == "worse" or effect.gain.verdict is Verdict.SLOWER:
        return [f"{text} and never pays"]
    return [f"{text} and pays after {format_number(longer_s / saved_s)} steps"]


def _step_s(one: Configuration) -> float | None:
    """Seconds of an optimiser step, negatives included, at the median speed; None if unknown."""
    row, speed = one.rows[0], one.speed
    instances = (row.get("batch") or 0) * (1 + (row.get("negatives") or 0))
    return instances / speed if speed and instances else None


def describe_baseline(effects: Sequence[Effect]) -> str:
    base = next(each.on for each in effects if each.on.rows[0].get("baseline"))
    compared = sum(not each.warning for each in effects)
    return (
        f"Baseline: {base.label}. A remedy is compared with the configuration that has all of its "
        "changes but the last, by the test that `hpcncf compare` makes. Of "
        f"{pluralize(compared, 'comparison')} {ALPHA * compared:.1f} would differ by chance alone."
    )
