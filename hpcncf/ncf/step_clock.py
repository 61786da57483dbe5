"""Time the phases of training steps."""

from __future__ import annotations

import statistics
import time
from array import array

from hpcncf.records.schema import Batches, Phases

MAX_ENTRIES = 600
PAUSE_FACTOR = 10.0
PAUSE_S = 0.05
MAX_PAUSES = 200

PHASE_NAMES = tuple(name.removesuffix("_s") for name in Phases.model_fields)


def count_warmup_steps(steps: int) -> int:
    """Number of first steps left out of the figures: 20, at most a tenth of all."""
    return min(20, steps // 10)


class StepClock:
    """Laps of a step; what follows one lap belongs to the next, so that they add up.

    `steps` is how many are to come, `steps_per_epoch` and `first_step` place them in epochs.
    """

    def __init__(self, steps: int, steps_per_epoch: int, first_step: int = 0) -> None:
        self.warmup_steps = count_warmup_steps(steps)
        self.counted_s = 0.0
        self.counted_instances = 0
        self.counted_exchanges = self.counted_bytes = 0
        self._planned, self._per_epoch, self._first = steps, steps_per_epoch, first_step
        self._totals = dict.fromkeys(PHASE_NAMES, 0.0)
        self._step = dict.fromkeys(PHASE_NAMES, 0.0)
        self._sent: list[int] = []
        self._seconds = array("d")
        self.training_s = 0.0
        self._at = 0.0

    @property
    def steps(self) -> int:
        return len(self._seconds)

    @property
    def counted_steps(self) -> int:
        return max(0, self.steps - self.warmup_steps)

    def start(self) -> None:
        """Start the first lap; called before an epoch's first step."""
        self._at = time.perf_counter()

    def lap(self, phase: str, until: float | None = None) -> float:
        """Add the seconds since the last lap to `phase` and return them.

        With `until` the lap ends at that time instead of now.
        """
        now = time.perf_counter() if until is None else until
        passed, self._at = now - self._at, now
        self._step[phase] += passed
        return passed

    def sent(self, size: int) -> None:
        """Count a message of `size` bytes that this step sent to the other ranks."""
        self._sent.append(size)

    def end_step(self, instances: int) -> None:
        """Close the current step, whose time is the sum of its laps."""
        seconds = sum(self._step.values())
        self._seconds.append(seconds)
        self.training_s += seconds
        if self.steps > self.warmup_steps:
            self.counted_s += seconds
            self.counted_instances += instances
            self.counted_exchanges += len(self._sent)
            self.counted_bytes += sum(self._sent)
            for phase, value in self._step.items():
                self._totals[phase] += value
        self._step = dict.fromkeys(PHASE_NAMES, 0.0)
        self._sent.clear()

    def phases(self) -> Phases:
        return Phases(**{f"{phase}_s": value for phase, value in self._totals.items()})

    def batches(self) -> Batches:
        """Durations in seconds of equal groups of steps, at most MAX_ENTRIES, and the pauses.

        Steps after the last whole group are left out.
        """
        every = max(1, -(-self._planned // MAX_ENTRIES))
        whole = self.steps - self.steps % every
        sums = [sum(self._seconds[at : at + every]) for at in range(0, whole, every)]
        return Batches(every=every, seconds=sums, pauses=self._pauses())

    def _pauses(self) -> list[dict[str, float]]:
        """Find the counted steps that took over ten times the median and over 50 ms.

        Of more than 200 such steps the longest are kept. Each has its epoch, step and seconds.
        """
        counted = range(self.warmup_steps, self.steps)
        if not counted:
            return []
        median = statistics.median(self._seconds[at] for at in counted)
        limit = max(PAUSE_FACTOR * median, PAUSE_S)
        found = [at for at in counted if self._seconds[at] > limit]
        kept = sorted(sorted(found, key=lambda at: -self._seconds[at])[:MAX_PAUSES])
        places = [divmod(self._first + at, self._per_epoch) for at in kept]
        return [
            {"epoch": epoch, "step": step, "seconds": self._seconds[at]}
            for at, (epoch, step) in zip(kept, places, strict=True)
        ]
