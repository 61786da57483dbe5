"""A configuration against the one that lacks its last remedy, and against the baseline. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from hpcncf_analysis.advice import quality
from hpcncf_analysis.advice.recommend import Ratio, of_speeds
from hpcncf_analysis.summary import Configuration

# Nearer to 1 is nothing: the same settings measured twice differ by as much on a shared machine.
SLIGHT: Final = 0.1
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


def effects(configurations: Sequence[Configuration]) -> list[Effect]:
    """Of every configuration but the baseline, those that stand on it first; empty where the job
    names no baseline, or that one measured no speed."""
    measured = [one for one in configurations if one.speed]
    base = next((one for one in measured if one.rows[0].get("baseline")), None)
    if base is None:
        return []
    apart = {one.key: differences(one, base) for one in measured}
    found = [
        _effect(one, _under(one, measured, apart), base, apart)
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
    one: Configuration, on: Configuration, base: Configuration, apart: Mapping[str, Settings]
) -> Effect:
    gain = of_speeds(one, on)
    peaks = one.median("memory_peak_mib"), on.median("memory_peak_mib")
    more = None if None in peaks else (peaks[0] or 0.0) - (peaks[1] or 0.0)
    overall = of_speeds(one, base)
    changed, verdict = differences(one, on), _verdict(one, on, gain)
    return Effect(one, on, apart[on.key], changed, gain, overall, more, verdict)


def _verdict(one: Configuration, on: Configuration, gain: Ratio) -> Verdict:
    if quality.is_worse(one, on):
        return "worse model"
    if abs(gain.value - 1) <= SLIGHT:
        return "nothing"
    if gain.overlaps:
        return "open"
    return "gains" if gain.value > 1 else "loses"
