"""A grid of generated speeds: what tuning's runs cost and say there, with noise of known size."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from math import ceil
from pathlib import Path

from hpcncf.paths import ResultPaths
from hpcncf.tune.job_file import JobFile
from hpcncf.tune.search import Step, next_step
from hpcncf.tune.trials import Ask, Known, Objective, Point, Rules, Trial
from hpcncf.tune.tuning import Grid as JobGrid

ROWS = 83_731
# Positives per second of one thread, and what a second one adds; none is measured.
ENGINES = {"slow": (28_000.0, 0.05), "middle": (95_000.0, 0.2), "fast": (800_000.0, 0.6)}
LOADERS = {"easy": 1.0, "hard": 0.35}
BATCHES = (256, 1024, 4096)


@dataclass
class Grid:
    """Points and their true seconds for an epoch; runs of it scatter by `noise`."""

    epochs: int = 10
    startup_s: float = 3.0
    noise: float = 0.03
    seed: int = 0
    hr10: dict[int, float] = field(default_factory=lambda: {256: 0.8, 1024: 0.79, 4096: 0.6})

    def __post_init__(self) -> None:
        axes = product(ENGINES, LOADERS, (1, 2), BATCHES)
        self.points, self.epoch_s = [], []
        for index, (engine, loader, threads, batch) in enumerate(axes):
            rate, more = ENGINES[engine]
            rate *= LOADERS[loader] * (1 + more * (threads - 1))
            steps = ceil(ROWS / batch)
            self.epoch_s.append(ROWS / rate + steps * 20e-6)
            label = f"{engine} {loader} {threads} {batch}"
            values = frozenset((engine, loader, f"{threads} threads", f"{batch} a step"))
            whole = steps * self.epochs
            self.points.append(Point(index, label, threads, 0, batch, whole, batch, values))

    def run(self, ask: Ask) -> Trial:
        """The same ask gives the same trial, as a record does."""
        point, chance = self.points[ask.point], random.Random(f"{self.seed} {ask}")
        whole = point.whole_steps
        steps = whole if ask.steps is None else ask.steps
        true_s = self.epoch_s[ask.point] * chance.lognormvariate(0, self.noise)
        trained_s = true_s * self.epochs * steps / whole
        apart_s = 0.4 * self.epochs if ask.steps is None else 0.0
        elapsed_s = self.startup_s + trained_s + apart_s
        return Trial(
            ask=ask,
            fate="completed",
            core_hours=point.cores * elapsed_s / 3600,
            epoch_s=true_s,
            training_s=trained_s,
            elapsed_s=elapsed_s,
            apart_s=apart_s,
            steps=steps,
            hr10=self.hr10[point.batch] if ask.steps is None else None,
        )

    def all_core_hours(self) -> float:
        """Of the whole grid, each point once as the job has it."""
        return sum(self.run(Ask(point.index, None, 0)).core_hours for point in self.points)

    def unsound(self, trials: Sequence[Trial]) -> frozenset[int]:
        """Classes more than 0.02 below the best that was seen."""
        seen = {self.points[t.ask.point].batch: t.hr10 for t in trials if t.hr10 is not None}
        best = max(seen.values(), default=0.0)
        return frozenset(batch for batch, hr10 in seen.items() if hr10 < best - 0.02)


def decided(points: Sequence[Point], trials: Sequence[Trial], rules: Rules) -> Step:
    grid = JobGrid(None, {}, (), tuple(points), {})  # type: ignore[arg-type]
    source = JobFile(ResultPaths(Path()), grid, rules.objective, rules.core_hours, "local", None)
    return next_step(Known(points, trials, rules), source)


def tuned(
    grid: Grid, core_hours: float, objective: Objective = "knee", trials: Sequence[Trial] = ()
) -> tuple[Step, list[Trial]]:
    """Let tuning run to its end."""
    made = list(trials)
    for _ in range(200):
        rules = Rules(objective, core_hours, unsound=grid.unsound(made))
        step = decided(grid.points, made, rules)
        if step.kind != "send":
            return step, made
        made += [grid.run(ask) for ask in step.asks]
    raise AssertionError("it never ends")
