"""What tuning decides upon: points of a grid, the runs asked for, and what came of them. Pure."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Literal

Objective = Literal["knee", "fastest", "cheapest"]
OBJECTIVES: Final[tuple[Objective, ...]] = ("knee", "fastest", "cheapest")
Fate = Literal["open", "under way", "failed", "completed"]


@dataclass(frozen=True)
class Point:
    """A configuration of the grid."""

    index: int
    """Its place in the grid."""
    label: str
    cores: int
    gpus: float
    batch: int
    """Positives of an optimiser step over all ranks."""
    whole_steps: int
    """Optimiser steps of a run as the job file asks for it."""
    quality: Hashable
    """Points with equal ones train the same model, however fast."""
    values: frozenset[str] = frozenset()
    """What the grid sets here, as `engine=native`."""
    gpu_hour: float = 0.0
    """Core-hours that an hour of one of its GPUs counts for; 0: GPUs are compared by themselves,
    and the budget does not count them."""

    @property
    def charged(self) -> float:
        """Core-hours of the budget that an hour of it takes."""
        return self.cores + self.gpu_hour * self.gpus

    @property
    def price(self) -> float:
        """Of an hour, as points are compared: what is charged, or where GPUs have no price in
        core-hours, GPU-hours. A grid has one of the two (`grid.Grid.priced`)."""
        return float(self.gpus) if self.gpus and not self.gpu_hour else self.charged


@dataclass(frozen=True)
class Ask:
    """One run: a point, cut after so many steps; None: whole, as the job file has it."""

    point: int
    steps: int | None
    repeat: int


@dataclass(frozen=True)
class Trial:
    """What came of an ask. Figures are None unless it is completed."""

    ask: Ask
    fate: Fate
    core_hours: float = 0.0
    """Charged for all its attempts so far."""
    epoch_s: float | None = None
    """Seconds of an epoch's training, extrapolated where the run was cut."""
    training_s: float = 0.0
    elapsed_s: float = 0.0
    apart_s: float = 0.0
    """Evaluation and checkpoints."""
    steps: int = 0
    hr10: float | None = None
    reason: str = ""
    """Why it failed."""

    @property
    def startup_s(self) -> float:
        """All but training, evaluation and checkpoints."""
        return max(self.elapsed_s - self.training_s - self.apart_s, 0.0)

    @property
    def whole(self) -> bool:
        return self.ask.steps is None


@dataclass(frozen=True)
class Step:
    """What to do now."""

    kind: Literal["send", "wait", "done"]
    why: str
    asks: tuple[Ask, ...] = ()
    """The new runs of `send`; those that are open are sent again with them."""
    chosen: int | None = None
    """Of `done`: the point; None where none could be measured."""
    verified: bool = False
    """Of `done`: whether the chosen one ran as the job file has it."""
