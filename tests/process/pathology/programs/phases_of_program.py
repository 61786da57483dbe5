"""What these programs say hpcncf of themselves, as docs/any-program.md says a program may."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil


class Phases:
    """Seconds of each phase, steps and instances, reported when the program ends; made when it is
    ready for its first step."""

    def __init__(self, *phases: str) -> None:
        self.seconds = dict.fromkeys(phases, 0.0)
        self.steps = self.instances = 0
        self.others: dict[str, float] = {}
        """What else there is to say, by name."""
        self._began = time.monotonic()
        self.startup_s = time.time() - psutil.Process().create_time()

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

    def say(self) -> None:
        """By a line for a job file's ranks, by a file for `hpcncf run`."""
        seen: dict[str, float] = {f"{phase}_s": took for phase, took in self.seconds.items()}
        seen |= {"steps": self.steps, "instances": self.instances, "startup_s": self.startup_s}
        seen |= self.others
        seen["instances_per_s"] = self.instances / self.elapsed_s()
        print("hpcncf:", *(f"{key}={value}" for key, value in seen.items()), flush=True)
        output = os.environ.get("HPCNCF_OUTPUT")
        if output and os.environ.get("RANK", "0") == "0":
            (Path(output) / "metrics.json").write_text(json.dumps(seen))
