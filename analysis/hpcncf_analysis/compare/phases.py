"""Which part of a step made the difference. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from hpcncf.tables.trained import PHASES_TRAINED
from hpcncf_analysis.summary import Configuration


@dataclass(frozen=True)
class Moved:
    """The phase whose time for an instance changed most in the direction of the whole."""

    phase: str
    a_us: float
    """Microseconds of a step's time for each instance of all ranks: share / instances_per_s."""
    b_us: float


def moved(a: Configuration, b: Configuration) -> Moved | None:
    """None where the records do not tell phases, or the speeds are equal."""
    ours, theirs = _per_instance(a), _per_instance(b)
    if not ours or not theirs:
        return None
    change = {phase: theirs[phase] - ours[phase] for phase in PHASES_TRAINED}
    whole = sum(change.values())
    most = max(PHASES_TRAINED, key=lambda phase: change[phase] * whole)
    return Moved(most, ours[most], theirs[most]) if change[most] * whole > 0 else None


def _per_instance(one: Configuration) -> dict[str, float]:
    """Phase -> microseconds; empty where any is not known."""
    speed = one.median("instances_per_s")
    shares = {phase: one.median(f"{phase}_share") for phase in PHASES_TRAINED}
    if not speed:
        return {}
    told = {phase: 1e6 * share / speed for phase, share in shares.items() if share is not None}
    return told if len(told) == len(PHASES_TRAINED) else {}
