"""What a question for a configuration that was not run gets: figures, or why there are none."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Prediction:
    """Of training alone, as `seconds_per_epoch` of the tables: neither evaluation nor start-up."""

    label: str
    seconds_per_epoch: float
    low: float | None
    high: float | None
    """The interval's ends; None where too few configurations could be held out."""
    instances_per_s: float
    core_s_per_epoch: float
    efficiency: float | None
    """Parallel efficiency against `base`; None where nothing of its settings was run."""
    base: str | None
    """The measured configuration of the fewest cores with the same settings."""
    phases: dict[str, float]
    """Seconds of a step, by part: compute, input, sync."""
    basis: str
    """What it rests on, in words."""


@dataclass(frozen=True)
class Ran:
    """Of one that was run after all: its own figures, medians over its runs."""

    label: str
    seconds_per_epoch: float
    low: float | None
    high: float | None
    """The range of its runs; None of one run."""
    runs: int
    instances_per_s: float
    core_s_per_epoch: float
    efficiency: float | None
    base: str | None
    phases: dict[str, float]
    without_it: Prediction | Refusal
    """What the other configurations alone would have told."""


@dataclass(frozen=True)
class Refusal:
    """Why the results support no prediction, and which runs would."""

    label: str
    reason: str
    run: tuple[str, ...] = ()
    """`-s` settings of runs to make; empty where the configuration itself is the one to run."""
