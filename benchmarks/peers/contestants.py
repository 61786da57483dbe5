"""Who is compared: hpcncf's engines in this process, each peer in one of its own."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from benchmarks.peers import environments
from benchmarks.peers.export import Scored
from hpcncf.errors import HpcncfError
from hpcncf.job.spec import Model, Training
from hpcncf.ncf import model
from hpcncf.ncf.batches import Schedule
from hpcncf.ncf.data.prepared import Prepared
from hpcncf.ncf.engines.base import EngineInputs, build_engine
from hpcncf.ncf.evaluate import Quality, evaluate
from hpcncf.ncf.loaders import Loader
from hpcncf.ncf.step_clock import StepClock
from hpcncf.worker.environment import Place

CPU = torch.device("cpu")
ENDS_S = 120


@dataclass(frozen=True)
class Window:
    instances: int
    seconds: float

    @property
    def per_s(self) -> float:
        return self.instances / self.seconds


class Contestant(Protocol):
    def window(self, steps: int) -> Window:
        """Takes the next steps."""

    def quality(self) -> Quality:
        """Of the model as it is now, by hpcncf's evaluation; no window comes after it."""

    def stop(self) -> None:
        """Frees what it holds."""


class Ours:
    """An engine of hpcncf, without the trainer around it."""

    def __init__(self, data: Prepared, training: Training, own_start: bool) -> None:
        """Otherwise it starts as the peers do: the MLP's embeddings as small as those of MF."""
        self._data, self._each = data, 1 + training.negatives
        self._schedule = Schedule(data.manifest.train_rows, training.batch_over_ranks(1))
        self._loader = Loader(data, training, self._schedule)
        self._clock = StepClock(self._schedule.steps, self._schedule.steps)
        start = model.initial_model(data.manifest, Model(), training.seed)
        if not own_start:
            for table in start.tables():
                torch.nn.init.normal_(table.weight, std=Model().embedding_std)
        ground = EngineInputs(data, Model(), self._schedule, threads=1)
        self._engine = build_engine(start, training, 1, CPU, self._clock, ground)
        self._epoch = self._step = 0

    def window(self, steps: int) -> Window:
        self._clock.start()
        began, instances = time.perf_counter(), 0
        while steps:
            taken = self._take(steps)
            instances += sum(taken)
            steps -= len(taken)
        return Window(instances, time.perf_counter() - began)

    def _take(self, most: int) -> list[int]:
        """Instances of the next steps, up to so many; settles where the trainer does."""
        schedule, step = self._schedule, self._step
        if step == 0:
            steps = range(schedule.steps)
            self._batches = self._engine.batches(self._loader, self._epoch, steps)
        instances = schedule.positives(step) * self._each
        most = min(most, schedule.equal_steps_from(step))
        _, taken = self._engine.step(self._batches, instances, most)
        self._step += len(taken)
        if self._step == schedule.steps:
            self._engine.settle()
            self._epoch, self._step = self._epoch + 1, 0
        return taken

    def quality(self) -> Quality:
        self._engine.settle()
        return evaluate(self._engine, self._data, Place(), CPU, "sampled")

    def stop(self) -> None:
        """Nothing outlives it."""


class Peer:
    """RecBole or cornac, which trains in its own environment while a window asks it to."""

    def __init__(self, name: str, data: Prepared, folder: Path, settings: dict[str, Any]) -> None:
        """`folder` holds the exported data. Raises HpcncfError where the peer does not start."""
        self._name, self._data, self._folder = name, data, folder
        self._log = folder / f"{name}.log"
        script = environments.HERE / f"train_{name}.py"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [environments.python_of(name), script, folder, json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=folder,  # RecBole leaves files where it is started
            )
        self.versions: dict[str, str] = self._heard()["versions"]

    def _heard(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._failed()
        message: dict[str, Any] = json.loads(line)
        return message

    def _failed(self) -> HpcncfError:
        status, said = self._process.wait(), self._log.read_text().splitlines()
        return HpcncfError("\n".join([f"{self._name}: ended with {status}:", *said[-10:]]))

    def window(self, steps: int) -> Window:
        assert self._process.stdin is not None
        print(json.dumps({"steps": steps}), file=self._process.stdin, flush=True)
        return Window(**self._heard())

    def quality(self) -> Quality:
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self._process.wait(ENDS_S):
            raise self._failed()
        scores = np.load(self._folder / f"scores-{self._name}.npy").astype(np.float32)
        return evaluate(Scored(self._data, scores), self._data, Place(), CPU, "sampled")

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
