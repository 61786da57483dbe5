"""The effect of each remedy, alone and on top of others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log, sqrt
from statistics import fmean, median, variance
from typing import Any, Final, Literal

from hpcncf_analysis.advice.judge import Ratio, settings_without_effect, speed_ratio
from hpcncf_analysis.configurations import Configuration, Table, pluralize
from hpcncf_analysis.formatting import (
    NONE,
    format_duration,
    format_interval,
    format_mebibytes,
    format_number,
    format_ratio,
    format_score,
)
from hpcncf_analysis.quality import is_worse

# Nearer to 1 is nothing, if the repeats show as much.
SLIGHT: Final = 0.1
# So many standard errors are no chance: of tables with fifty remedies that do nothing, one in seven
# says that one does something. The repeats must lie apart besides.
ERRORS: Final = 3
MIB: Final = 16.0

Settings = Mapping[str, Any]
Verdict = Literal["gains", "loses", "nothing", "open", "worse model", "no effect"]


@dataclass(frozen=True)
class Effect:
    """What one remedy did."""

    one: Configuration
    on: Configuration
    """What it is added to."""
    before: Settings
    """The remedies that `on` has: what differs there from the baseline."""
    changed: Settings
    """The remedy: dotted settings that differ from `on`."""
    gain: Ratio
    """Of the speeds, against `on`."""
    overall: Ratio
    """Against the baseline."""
    memory_mib: float | None
    """More than `on` at its peak."""
    verdict: Verdict
    better: bool
    """Whether its model is better than `on`'s by more than chance explains."""
    warning: str = ""
    """The record's own sentence, if none of the changed settings can act here."""


def measure_effects(configurations: Sequence[Configuration]) -> list[Effect]:
    """Of every configuration but the baseline, those that stand on it first; empty where the job
    names no baseline, or that one measured no speed."""
    measured = [one for one in configurations if one.speed]
    base = next((one for one in measured if one.rows[0].get("baseline")), None)
    if base is None:
        return []
    apart = {one.key: changed_settings(one, base) for one in measured}
    variances = [each for one in measured if (each := _variance(one)) is not None]
    usual = median(variances) if variances else None
    found = [
        _effect(one, _find_reference(one, measured, apart), base, apart, usual)
        for one in measured
        if one is not base
    ]
    return sorted(found, key=lambda each: (each.on is not base, -each.overall.value))


def changed_settings(one: Configuration, other: Configuration) -> dict[str, Any]:
    """Varied settings whose value is another, with `one`'s."""
    ours, theirs = one.rows[0]["varied"], other.rows[0]["varied"]
    return {key: value for key, value in ours.items() if value != theirs.get(key)}


def _find_reference(
    one: Configuration, measured: Sequence[Configuration], apart: Mapping[str, Settings]
) -> Configuration:
    """The one with the most of its changes, and no other: it lacks this one's last remedy."""
    mine = apart[one.key].items()
    below = [each for each in measured if each is not one and apart[each.key].items() < mine]
    return max(below, key=lambda each: (len(apart[each.key]), each.speed or 0.0))


def _effect(
    one: Configuration,
    on: Configuration,
    base: Configuration,
    apart: Mapping[str, Settings],
    usual: float | None,
) -> Effect:
    gain = speed_ratio(one, on)
    peaks = one.median("memory_peak_mib"), on.median("memory_peak_mib")
    more = None if None in peaks else (peaks[0] or 0.0) - (peaks[1] or 0.0)
    overall = speed_ratio(one, base)
    verdict = _verdict(one, on, gain, _standard_error(one, on, usual))
    better, changed = is_worse(on, one), changed_settings(one, on)
    inert = settings_without_effect(one)
    warning = "; ".join(inert[key] for key in changed if key in inert)
    if warning and set(changed) <= set(inert):
        verdict, better = "no effect", False
    return Effect(one, on, apart[on.key], changed, gain, overall, more, verdict, better, warning)


def _verdict(one: Configuration, on: Configuration, gain: Ratio, error: float | None) -> Verdict:
    """`error` is the standard error of the gain's logarithm; None where nothing was repeated."""
    if is_worse(one, on):
        return "worse model"
    if abs(gain.value - 1) <= SLIGHT:
        return "nothing" if error is None or error <= SLIGHT else "open"
    if gain.overlaps or (error is not None and abs(log(gain.value)) <= ERRORS * error):
        return "open"
    return "gains" if gain.value > 1 else "loses"


def _standard_error(one: Configuration, on: Configuration, usual: float | None) -> float | None:
    """From the two's own scatter; where few repeats happen to agree, from what is usual in the job.

    `usual` is the median of its configurations' variances of the speed's logarithm.
    """
    if usual is None:
        return None
    own = [each for each in (_variance(one), _variance(on)) if each is not None]
    return sqrt(max(fmean(own or [usual]), usual) * (1 / len(one.rows) + 1 / len(on.rows)))


def _variance(one: Configuration) -> float | None:
    """Of the logarithm of its repeats' speeds."""
    name = "elapsed_s" if one.by_time else "instances_per_s"
    logs = [log(row[name]) for row in one.rows if row.get(name)]
    return variance(logs) if len(logs) > 1 else None


SENTENCES: Final[dict[Verdict, str]] = {
    "gains": "gains {gain}",
    "loses": "loses: {gain} of the speed",
    "nothing": "does nothing here",
    "open": "not settled: repeats of the same settings differ by as much",
    "worse model": "the model is worse, whatever the speed",
    "no effect": "not compared",
}
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
        *([NONE] * len(figures) if effect.verdict == "no effect" else figures),
        describe_effect(effect),
    ]


def format_changes(changed: Mapping[str, Any]) -> str:
    """`loader: batched, num_workers: 2`."""
    plain = {k: str(v).lower() if isinstance(v, bool) else v for k, v in changed.items()}
    return ", ".join(f"{key.split('.')[-1]}: {value}" for key, value in plain.items())


def describe_effect(effect: Effect) -> str:
    """What it does, what it costs in cores, memory and start-up, and whether it was repeated."""
    if effect.verdict == "no effect":
        return effect.warning
    parts = [SENTENCES[effect.verdict].format(gain=format_ratio(effect.gain.value))]
    scores = " to ".join(format_score(one.median("hr10")) for one in (effect.on, effect.one))
    if effect.verdict == "worse model":
        parts = [f"{parts[0]} (HR@10 {scores})"]
    elif effect.better:
        nothing = effect.verdict == "nothing"
        speed = "does nothing for the speed here" if nothing else parts[0]
        parts = [f"a better model (HR@10 {scores}); {speed}"]
    cores = effect.one.cores - effect.on.cores
    if cores > 0:
        parts.append(f"for {pluralize(cores, 'core')} more")
    if effect.memory_mib is not None and abs(effect.memory_mib) >= MIB:
        sign = "more" if effect.memory_mib > 0 else "less"
        parts.append(f"with {format_mebibytes(abs(effect.memory_mib))} {sign}")
    if effect.gain.low is None:
        parts.append("measured once")
    return ", ".join([*parts, *_describe_startup(effect)])


def _describe_startup(effect: Effect) -> list[str]:
    """What compilation adds to the start-up, and the steps after which it pays."""
    compiled = effect.changed.get("training.compile") not in (None, "none")
    longer_s = (effect.one.median("startup_s") or 0.0) - (effect.on.median("startup_s") or 0.0)
    if not compiled or longer_s <= 0:
        return []
    text = f"compilation adds {format_duration(longer_s)} to the start-up"
    saved_s = (_step_s(effect.on) or 0.0) - (_step_s(effect.one) or 0.0)
    if saved_s <= 0 or effect.verdict in ("loses", "worse model"):
        return [f"{text} and never pays"]
    return [f"{text} and pays after {format_number(longer_s / saved_s)} steps"]


def _step_s(one: Configuration) -> float | None:
    """Seconds of an optimiser step: a batch and its negatives at the median speed."""
    row, speed = one.rows[0], one.speed
    instances = (row.get("batch") or 0) * (1 + (row.get("negatives") or 0))
    return instances / speed if speed and instances else None


def describe_baseline(effects: Sequence[Effect]) -> str:
    base = next(each.on for each in effects if each.on.rows[0].get("baseline"))
    return (
        f"Baseline: {base.label}. A remedy is compared with the configuration that has all of its "
        "changes but the last; the range is from the slowest to the fastest repeats. It gains or "
        f"loses where those lie apart and it is more than {ERRORS} standard errors from 1, by the "
        "scatter of its repeats or what is usual in the job, if that is more."
    )
