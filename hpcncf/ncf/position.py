"""Where training stands, told now and then for `progress.json`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from hpcncf.ncf.phases import StepClock
from hpcncf.rank.launcher import Place

EVERY_S: Final = 2.0

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
    """Tells the first rank's position, about every two seconds: a step may take one millisecond,
    and so may an evaluation. Of a phase that took longer the last time, its beginning as well."""

    def __init__(
        self, tell: Callable[[Position], None], place: Place, clock: StepClock, steps_per_epoch: int
    ) -> None:
        self.tell, self._place, self._clock = tell, place, clock
        self._steps_per_epoch = steps_per_epoch
        self._told_at = 0.0
        self._phase: Phase = "startup"
        self._began_at = 0.0
        self._took_s: dict[Phase, float] = {}

    def __call__(self, phase: Phase, epoch: int, step: int, evaluated: float | None = None) -> None:
        now = time.perf_counter()
        begins_a_long_one = self._begins(phase, now) and self._took_s.get(phase, math.inf) > EVERY_S
        too_soon = now - self._told_at < EVERY_S and not begins_a_long_one
        if self._place.rank != 0 or too_soon:
            return
        self._told_at = now
        speed = self._instances_per_s()
        self.tell(Position(phase, epoch, step, self._steps_per_epoch, speed, evaluated))

    def _begins(self, phase: Phase, now: float) -> bool:
        if phase == self._phase:
            return False
        self._took_s[self._phase] = now - self._began_at
        self._phase, self._began_at = phase, now
        return True

    def _instances_per_s(self) -> float | None:
        """Over all ranks, which share every step alike."""
        if not self._clock.counted_s:
            return None
        return self._clock.counted_instances * self._place.world_size / self._clock.counted_s
