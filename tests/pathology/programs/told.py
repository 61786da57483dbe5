"""What these programs tell hpcncf of themselves, as docs/any-program.md says a program may."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Phases:
    """Seconds of each phase, steps and instances, told when the program ends."""

    def __init__(self, *phases: str) -> None:
        self.seconds = dict.fromkeys(phases, 0.0)
        self.steps = self.instances = 0
        self._began = time.monotonic()

    @contextmanager
    def of(self, phase: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] += time.perf_counter() - began

    def step(self, instances: int) -> None:
        self.steps += 1
        self.instances += instances

    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def tell(self) -> None:
        """By a line for a job file's ranks, by a file for `hpcncf run`."""
        told: dict[str, float] = {f"{phase}_s": took for phase, took in self.seconds.items()}
        told |= {"steps": self.steps, "instances": self.instances}
        told["instances_per_s"] = self.instances / self.elapsed_s()
        print("hpcncf:", *(f"{key}={value}" for key, value in told.items()), flush=True)
        output = os.environ.get("HPCNCF_OUTPUT")
        if output and os.environ.get("RANK", "0") == "0":
            (Path(output) / "metrics.json").write_text(json.dumps(told))
