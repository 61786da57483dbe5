"""A configuration against the one that lacks its last remedy, and against the baseline. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log, sqrt
from statistics import fmean, median, variance
from typing import Any, Final, Literal

from hpcncf_analysis.advice import quality
from hpcncf_analysis.advice.recommend import Ratio, of_speeds
from hpcncf_analysis.summary import Configuration

# Nearer to 1 is nothing, where the repeats tell as much.
SLIGHT: Final = 0.1
# So many standard errors are no chance: of tables with fifty remedies that do nothing, one in seven
# says that one does something. The repeats must lie apart besides.
ERRORS: Final = 3
MIB: Final = 16.0

Settings = Mapping[str, Any]
Verdict = Literal["gains", "loses", "nothing", "open", "worse model"]


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


def effects(configurations: Sequence[Configuration]) -> list[Effect]:
    """Of every configuration but the baseline, those that stand on it first; empty where the job
    names no baseline, or that one measured no speed."""
    measured = [one for one in configurations if one.speed]
    base = next((one for one in measured if one.rows[0].get("baseline")), None)
    if base is None:
        return []
    apart = {one.key: differences(one, base) for one in measured}
    variances = [each for one in measured if (each := _variance(one)) is not None]
    usual = median(variances) if variances else None
    found = [
        _effect(one, _under(one, measured, apart), base, apart, usual)
        for one in measured
        if one is not base
    ]
    return sorted(found, key=lambda each: (each.on is not base, -each.overall.value))


def differences(one: Configuration, other: Configuration) -> dict[str, Any]:
    """Varied settings whose value is another, with `one`'s."""
    ours, theirs = one.rows[0]["varied"], other.rows[0]["varied"]
    return {key: value for key, value in ours.items() if value != theirs.get(key)}


def _under(
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
    gain = of_speeds(one, on)
    peaks = one.median("memory_peak_mib"), on.median("memory_peak_mib")
    more = None if None in peaks else (peaks[0] or 0.0) - (peaks[1] or 0.0)
    overall = of_speeds(one, base)
    verdict = _verdict(one, on, gain, _error(one, on, usual))
    better, changed = quality.is_worse(on, one), differences(one, on)
    return Effect(one, on, apart[on.key], changed, gain, overall, more, verdict, better)


def _verdict(one: Configuration, on: Configuration, gain: Ratio, error: float | None) -> Verdict:
    """`error` is the standard error of the gain's logarithm; None where nothing was repeated."""
    if quality.is_worse(one, on):
        return "worse model"
    if abs(gain.value - 1) <= SLIGHT:
        return "nothing" if error is None or error <= SLIGHT else "open"
    if gain.overlaps or (error is not None and abs(log(gain.value)) <= ERRORS * error):
        return "open"
    return "gains" if gain.value > 1 else "loses"


def _error(one: Configuration, on: Configuration, usual: float | None) -> float | None:
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
