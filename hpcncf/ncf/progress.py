"""Report how far training is, every two seconds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from hpcncf.launcher.environment import Place
from hpcncf.ncf.step_clock import StepClock

REPORT_EVERY_S: Final = 2.0

TrainingPhase = Literal["startup", "training", "evaluation", "checkpoint"]


@dataclass(frozen=True)
class TrainingProgress:
    phase: TrainingPhase
    epoch: int
    step: int
    steps_per_epoch: int
    instances_per_s: float | None
    evaluated: float | None = None
    """Share of the first rank's test rows."""


class ProgressReporter:
    """Reports rank 0's progress about every two seconds.

    A step or an evaluation may take only a millisecond. The beginning of a phase is reported as
    well if that phase took longer the last time.
    """

    def __init__(
        self,
        on_progress: Callable[[TrainingProgress], None],
        place: Place,
        clock: StepClock,
        steps_per_epoch: int,
    ) -> None:
        self._on_progress, self._place, self._clock = on_progress, place, clock
        self._steps_per_epoch = steps_per_epoch
        self._reported_at = 0.0
        self._phase: TrainingPhase = "startup"
        self._began_at = 0.0
        self._took_s: dict[TrainingPhase, float] = {}

    def __call__(
        self, phase: TrainingPhase, epoch: int, step: int, evaluated: float | None = None
    ) -> None:
        now = time.perf_counter()
        begins_a_long_one = (
            self._begins(phase, now) and self._took_s.get(phase, math.inf) > REPORT_EVERY_S
        )
        too_soon = now - self._reported_at < REPORT_EVERY_S and not begins_a_long_one
        if self._place.rank != 0 or too_soon:
            return
        self._reported_at = now
        clock, speed = self._clock, None
        if clock.counted_s:  # ranks have equal shares of each step
            speed = clock.counted_instances * self._place.world_size / clock.counted_s
        self._on_progress(
            TrainingProgress(phase, epoch, step, self._steps_per_epoch, speed, evaluated)
        )

    def _begins(self, phase: TrainingPhase, now: float) -> bool:
        if phase == self._phase:
            return False
        self._took_s[self._phase] = now - self._began_at
        self._phase, self._began_at = phase, now
        return True
