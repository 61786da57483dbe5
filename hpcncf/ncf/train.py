"""One rank's training: epoch after epoch, evaluation, checkpoints, and what it measured."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist

from hpcncf.errors import HpcncfError
from hpcncf.monitor import procfs
from hpcncf.ncf import checkpoint, distributed, model, sampling
from hpcncf.ncf.data.baseline import counts_baseline
from hpcncf.ncf.data.prepared import Prepared
from hpcncf.ncf.evaluate import evaluate
from hpcncf.ncf.loaders import Loader, Schedule
from hpcncf.ncf.phases import StepClock
from hpcncf.ncf.step import Stepper
from hpcncf.paths import RunPaths
from hpcncf.plan import Run
from hpcncf.rank.launcher import Place
from hpcncf.records import Epoch, TrainingRecord
from hpcncf.spec import Training

TELL_EVERY_S = 2.0

Phase = Literal["startup", "training", "evaluation", "checkpoint"]


@dataclass(frozen=True)
class Position:
    """Where training stands, for `progress.json`."""

    phase: Phase
    epoch: int
    step: int
    steps_per_epoch: int
    instances_per_s: float | None


def _refuse_untested(training: Training, data: Prepared) -> None:
    if training.evaluation != "none" and not data.manifest.test_rows:
        raise HpcncfError(
            f"training.evaluation {training.evaluation}: {data.manifest.title} has no test row, "
            "because no user has two rows; use evaluation: none, or other data"
        )


class Trainer:
    """Trains a run's model on this rank. `record` tells what was done so far, at any time."""

    def __init__(
        self,
        run: Run,
        data: Prepared,
        place: Place,
        paths: RunPaths,
        tell: Callable[[Position], None],
        tell_epoch: Callable[[Epoch], None] = lambda _: None,
    ) -> None:
        assert run.training is not None
        assert run.model is not None
        _refuse_untested(run.training, data)
        self.run, self.data, self.place, self.paths, self.tell = run, data, place, paths, tell
        self.tell_epoch = tell_epoch
        self.training = run.training
        self.threads = distributed.set_threads(run.training, run.resources, place)
        self.device = distributed.device(run.training, run.resources, place)
        batch = run.training.batch_over_ranks(place.world_size)
        self.schedule = Schedule(data.manifest.train_rows, batch, place.rank, place.world_size)
        self.loader = Loader(data, run.training, self.schedule)
        self.warnings: list[str] = []
        self.epochs: list[Epoch] = []
        self.resumed_epoch: int | None = None
        self.done = 0
        self.instances = 0
        self.startup_s = 0.0
        self.baseline: dict[str, float] | None = None
        self._told_at = 0.0
        self.model = model.initial(data.manifest, run.model, run.training.seed).to(self.device)
        found = self._checkpoint()
        if found:
            self.model.load_state_dict(found.model)
            self.epochs, self.done, self.resumed_epoch = found.epochs, found.step, found.epoch
        self.clock = StepClock(self.total_steps - self.done, self.schedule.steps, self.done)
        self.stepper = Stepper(
            self.model, run.training.lr, place.world_size, self.device, self.clock
        )
        if found:
            self.stepper.optimizer.load_state_dict(found.optimizer)

    @property
    def total_steps(self) -> int:
        """Of the whole run, earlier attempts included."""
        all_epochs = self.training.epochs * self.schedule.steps
        return min(all_epochs, self.training.max_steps or all_epochs)

    def _checkpoint(self) -> checkpoint.Checkpoint | None:
        """What all ranks can resume from; None, with a warning, where one of them cannot."""
        path, found, problem = self.paths.checkpoint, None, "not all ranks can read the same"
        if path.exists():
            try:
                found = checkpoint.load(path, self.run)
            except checkpoint.Unusable as error:
                problem = str(error)
        steps = distributed.gathered(found.step if found else None, self.place)
        if found and steps == [found.step] * len(steps):
            return found
        if path.exists():
            self.warnings.append(f"{path}: not used, training started again: {problem}")
        return None

    def train(self) -> None:
        """From where the checkpoint stands to the end. Raises HpcncfError where it diverges."""
        self.startup_s = procfs.age_s(os.getpid())
        first = self.done // self.schedule.steps
        for epoch in range(first, -(-self.total_steps // self.schedule.steps)):
            self._epoch(epoch)
        # It ranks the sampled negatives: beside a full ranking it would flatter the table.
        if self.place.rank == 0 and self.training.evaluation == "sampled":
            self.baseline = counts_baseline(self.data)

    def _epoch(self, epoch: int) -> None:
        steps = min(self.schedule.steps, self.total_steps - epoch * self.schedule.steps)
        before, self.stepper.loss = self.clock.training_s, torch.zeros_like(self.stepper.loss)
        # The first rank still writes the checkpoint: its wait is not the others' training.
        distributed.wait_for_all(self.place)
        first_batch_s, instances = self._steps(epoch, steps)
        self.epochs.append(
            Epoch(
                epoch=epoch,
                training_s=self.clock.training_s - before,
                evaluation_s=0.0,
                checkpoint_s=0.0,
                first_batch_s=first_batch_s,
                steps=steps,
                instances=instances,
                loss=self._mean_loss(epoch, instances),
            )
        )
        self._evaluate(epoch, steps)
        self._save(epoch, steps)
        if self.place.rank == 0:
            self.tell_epoch(self.epochs[-1])

    def _steps(self, epoch: int, steps: int) -> tuple[float, int]:
        """The seconds waited for the first batch, and the instances of all ranks."""
        if self.run.model and self.run.model.dropout:
            high, low, *_ = sampling.philox_block(
                self.training.seed, sampling.DROPOUT, epoch, self.place.rank, 0
            )
            torch.manual_seed(high << 32 | low)
        self.clock.start()
        batches = self.loader.epoch(epoch, range(steps))
        first_batch_s, total = 0.0, 0
        for step in range(steps):
            instances = self.schedule.positives(step) * (1 + self.training.negatives)
            waited, mine = self.stepper.step(batches, instances)
            first_batch_s = first_batch_s or waited
            total += instances
            self.instances += mine
            self.done += 1
            self._tell("training", epoch, step + 1)
            self.clock.lap("other")
            self.clock.end_step(mine)
        return first_batch_s, total

    def _mean_loss(self, epoch: int, instances: int) -> float:
        total = self.stepper.loss.clone()
        if self.place.world_size > 1:
            dist.all_reduce(total)
        loss = float(total) / instances
        if not math.isfinite(loss):
            raise HpcncfError(
                f"epoch {epoch}: the loss became {loss}: training diverged; "
                f"training.lr is {self.training.lr}, try a smaller one"
            )
        return loss

    def _evaluate(self, epoch: int, steps: int) -> None:
        if self.training.evaluation == "none":
            return
        self._tell("evaluation", epoch, steps)
        began = time.perf_counter()
        quality = evaluate(self.model, self.data, self.place, self.device, self.training.evaluation)
        self._complete_epoch(evaluation_s=time.perf_counter() - began, **vars(quality))

    def _save(self, epoch: int, steps: int) -> None:
        every = self.training.checkpoint_every
        if self.place.rank != 0 or not every or (epoch + 1) % every or steps < self.schedule.steps:
            return
        self._tell("checkpoint", epoch, steps)
        began = time.perf_counter()
        checkpoint.save(
            self.paths.checkpoint,
            self.run,
            self.done,
            self.epochs,
            self.model,
            self.stepper.optimizer,
        )
        self._complete_epoch(checkpoint_s=time.perf_counter() - began)

    def _complete_epoch(self, **fields: float | None) -> None:
        self.epochs[-1] = self.epochs[-1].model_copy(update=fields)

    def _tell(self, phase: Phase, epoch: int, step: int) -> None:
        """Of training at most every two seconds: a step may take one millisecond."""
        now = time.perf_counter()
        if self.place.rank != 0 or (phase == "training" and now - self._told_at < TELL_EVERY_S):
            return
        self._told_at = now
        self.tell(Position(phase, epoch, step, self.schedule.steps, self._instances_per_s()))

    def _instances_per_s(self) -> float | None:
        """Over all ranks, which share every step alike."""
        if not self.clock.counted_s:
            return None
        return self.clock.counted_instances * self.place.world_size / self.clock.counted_s

    def record(self) -> TrainingRecord:
        """What this attempt did on this rank; `epochs` holds those of earlier attempts too."""
        ours = [each for each in self.epochs if each.epoch >= (self.resumed_epoch or 0)]
        return TrainingRecord(
            device=str(self.device),
            backend=self.training.backend_for(self.run.resources),
            threads=self.threads,
            parameters=model.parameters(self.model),
            startup_s=self.startup_s,
            training_s=self.clock.training_s,
            evaluation_s=sum(each.evaluation_s for each in ours),
            checkpoint_s=sum(each.checkpoint_s for each in ours),
            steps=self.clock.steps,
            instances=self.instances,
            warmup_steps=self.clock.warmup_steps,
            counted_steps=self.clock.counted_steps,
            counted_instances=self.clock.counted_instances,
            counted_s=self.clock.counted_s,
            phases=self.clock.phases(),
            epochs=self.epochs,
            batches=self.clock.batches(),
            model_sha256=model.sha256(self.model),
            resumed_epoch=self.resumed_epoch,
            baseline=self.baseline,
            unseen_test_rows=int(self.data.test_unseen.sum()),
        )
