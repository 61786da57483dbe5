"""Where training stands, told now and then for `progress.json`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from hpcncf.ncf.phases import StepClock
from hpcncf.rank.launcher import Place

TELL_EVERY_S = 2.0

Phase = Literal["startup", "training", "evaluation", "checkpoint"]


@dataclass(frozen=True)
class Position:
    phase: Phase
    epoch: int
    step: int
    steps_per_epoch: int
    instances_per_s: float | None
    evaluated: float | None = None
    """Share of the first rank's test rows."""


class Teller:
    """Tells the first rank's position; of what is going on at most every two seconds, for a step
    may take one millisecond."""

    def __init__(
        self, tell: Callable[[Position], None], place: Place, clock: StepClock, steps_per_epoch: int
    ) -> None:
        self.tell, self._place, self._clock = tell, place, clock
        self._steps_per_epoch = steps_per_epoch
        self._told_at = 0.0

    def __call__(self, phase: Phase, epoch: int, step: int, evaluated: float | None = None) -> None:
        now = time.perf_counter()
        goes_on = phase == "training" or bool(evaluated)
        too_soon = goes_on and now - self._told_at < TELL_EVERY_S
        if self._place.rank != 0 or too_soon:
            return
        self._told_at = now
        speed = self._instances_per_s()
        self.tell(Position(phase, epoch, step, self._steps_per_epoch, speed, evaluated))

    def _instances_per_s(self) -> float | None:
        """Over all ranks, which share every step alike."""
        if not self._clock.counted_s:
            return None
        return self._clock.counted_instances * self._place.world_size / self._clock.counted_s
