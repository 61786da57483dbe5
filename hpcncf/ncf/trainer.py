"""Train one rank: epochs, evaluation, checkpoints, record."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from hpcncf.data import epoch_order
from hpcncf.data.prepared import PreparedData, score_counts
from hpcncf.errors import HpcncfError
from hpcncf.job.plan import Run
from hpcncf.job.spec import Training
from hpcncf.job.validate import describe_no_effect
from hpcncf.launcher.environment import Place
from hpcncf.launcher.signals import Stopped, StopRequest
from hpcncf.monitor import procfs
from hpcncf.ncf import model
from hpcncf.ncf.batches import (
    InstanceSource,
    Schedule,
    check_device_loader,
    check_model_memory,
)
from hpcncf.ncf.checkpoint import (
    Checkpoint,
    CheckpointNotSaved,
    PartialEpoch,
    UnusableCheckpoint,
    checkpoint_paths,
    load_checkpoint,
    save_checkpoint,
    set_aside,
)
from hpcncf.ncf.distributed import (
    Agreement,
    StepDecision,
    gather_objects,
    restore_rng,
    rng_state,
    seed_dropout,
    select_device,
    set_threads,
    synchronize,
    wait_for_ranks,
)
from hpcncf.ncf.engines import base
from hpcncf.ncf.engines.base import Engine
from hpcncf.ncf.engines.reference import ReferenceEngine
from hpcncf.ncf.evaluate import count_pairs, evaluate
from hpcncf.ncf.loaders import RankLoader, check_shared_memory
from hpcncf.ncf.progress import ProgressReporter, TrainingProgress
from hpcncf.ncf.step_clock import StepClock
from hpcncf.paths import RunPaths
from hpcncf.records.schema import Epoch, Sync, TrainingRecord


def newest_checkpoint(
    paths: RunPaths, run: Run, place: Place
) -> tuple[Checkpoint | None, list[str]]:
    """Load the newest checkpoint that all ranks can read; None if there is none.

    Also returns warnings about newer checkpoints that could not be used.
    """
    warnings = list[str]()
    for path in checkpoint_paths(paths):
        exists, found, problem = path.exists(), None, "not all ranks can read the same"
        try:
            found = load_checkpoint(path, run) if exists else None
        except UnusableCheckpoint as error:
            problem = str(error)
        steps = gather_objects(found.step if found else None, place)
        if found and steps == [found.step] * len(steps):
            return found, warnings
        if exists:
            warnings.append(f"{path}: not used: {problem}")
            if found is None and place.rank == 0:  # after every rank has read it
                with contextlib.suppress(OSError):
                    set_aside(path)
    if warnings:
        warnings.append("no checkpoint could be used: training starts from the beginning")
    return None, warnings


# Costs a few milliseconds at the start of training, for any batch size.
MAX_STEPS_SAMPLED: Final = 8
MAX_POSITIVES_SAMPLED: Final = 4_096


def mean_rows_per_step(data: PreparedData, training: Training, schedule: Schedule) -> float | None:
    """Mean number of distinct users and items that a step of this rank reads.

    It is taken over steps spread over the first epoch, and is None if the rank has no row in
    any of them.

    If a step has more positives than `MAX_POSITIVES_SAMPLED`, one whole step is counted.
    """
    source, counts = InstanceSource(data, training), list[int]()
    for step in _sampled_steps(schedule):
        bounds = schedule.positions(step)
        users, items, _ = source.gather(
            0, epoch_order.epoch_rows(source.seed, 0, *bounds, schedule.rows)
        )
        counts.append(len(np.unique(users.numpy())) + len(np.unique(items.numpy())))
    counts = [count for count in counts if count]
    return sum(counts) / len(counts) if counts else None


def _sampled_steps(schedule: Schedule) -> range:
    """Select whole steps spread evenly over the first epoch, at most MAX_STEPS_SAMPLED.

    An epoch's last step is left out if it has fewer positives.
    """
    whole = max(1, schedule.rows // schedule.batch)
    most = MAX_POSITIVES_SAMPLED * schedule.world_size // schedule.batch
    return range(0, whole, -(-whole // max(1, min(MAX_STEPS_SAMPLED, whole, most))))


def _check_runnable(
    run: Run, data: PreparedData, schedule: Schedule, device: torch.device, ranks_here: int
) -> None:
    """Check that the run can train here and from these data. Raises HpcncfError if not."""
    assert run.training is not None
    if run.training.evaluation != "none" and not data.manifest.test_rows:
        raise HpcncfError(
            f"training.evaluation {run.training.evaluation}: {data.manifest.title} has no test "
            "row, because no user has two rows. Use evaluation: none, or other data."
        )
    check_shared_memory(run.training, schedule, data, ranks_here)
    check_device_loader(data, run.training, schedule, device, ranks_here)
    check_model_memory(run, data.manifest, ranks_here)


@dataclass(frozen=True)
class BatchProgress:
    """The last `log_every` batches of an epoch, or fewer at its end, on this rank."""

    epoch: int
    batch: int
    """Number of the last one in its epoch, from 1."""
    of: int
    loss: float
    instances_per_s: float


class Trainer:
    """Trains a run's model on this rank. `record` describes the progress at any time."""

    def __init__(
        self,
        run: Run,
        data: PreparedData,
        place: Place,
        paths: RunPaths,
        on_progress: Callable[[TrainingProgress], None],
        on_epoch: Callable[[Epoch], None] = lambda _: None,
        stop: StopRequest | None = None,
        after_step: Callable[[], None] = lambda: None,
        on_batches: Callable[[BatchProgress], None] = lambda _: None,
    ) -> None:
        assert run.training is not None
        assert run.model is not None
        self.run, self.data, self.place, self.paths = run, data, place, paths
        self.on_epoch, self.stop = on_epoch, stop or StopRequest()
        self.after_step, self.on_batches = after_step, on_batches
        self.training = run.training
        self.threads = set_threads(run.training, run.resources, place)
        self.device = select_device(run.training, run.resources, place)
        batch = run.training.batch_over_ranks(place.world_size)
        self.schedule = Schedule(data.manifest.train_rows, batch, place.rank, place.world_size)
        _check_runnable(run, data, self.schedule, self.device, place.local_world_size)
        self.loader = RankLoader(data, run.training, self.schedule, self.device)
        self.rows_per_step = mean_rows_per_step(data, run.training, self.schedule)
        self._drops_out = run.model.dropout > 0
        self.epochs: list[Epoch] = []
        self.partial_epoch, self.steps_done, self.instances = PartialEpoch(), 0, 0
        self.resumed_epoch: int | None = None
        self.resumed_step: int | None = None
        self.startup_s = self.evaluation_s = self.checkpoint_s = self.waiting_s = 0.0
        self.baseline: dict[str, float] | None = None
        self._is_over = False
        self.model = model.initial_model(data.manifest, run.model, run.training.seed).to(
            self.device
        )
        found, unused = newest_checkpoint(paths, run, place)
        self.warnings = [*unused, *describe_no_effect(run.training, self.device.type)]
        if run.training.evaluation == "sampled" and data.manifest.ranking_warning:
            self.warnings.append(data.manifest.ranking_warning)
        if found:
            self.model.load_state_dict(found.model)
            self.epochs, self.steps_done = found.epochs, found.step
            self.partial_epoch = found.partial_epoch
            self.resumed_epoch, self.resumed_step = len(found.epochs), found.partial_epoch.steps
        self.clock = StepClock(
            self.total_steps - self.steps_done, self.schedule.steps, self.steps_done
        )
        inputs = base.with_transport(
            base.EngineInputs(data, run.model, self.schedule, self.threads),
            *(self.model, self.training, place, self.clock),
        )
        self.transport = inputs.transport
        self.engine: Engine = base.build_engine(
            *(self.model, self.training, place.world_size, self.device, self.clock, inputs)
        )
        if found:
            self.engine.load(found.optimizer)
        self.report = ProgressReporter(on_progress, place, self.clock, self.schedule.steps)
        every_min = run.training.checkpoint_every_min if run.training.checkpoint_every else 0.0
        self.agreement = Agreement(place.world_size, self.device, self.stop, every_min)

    @property
    def total_steps(self) -> int:
        """Number of steps of the whole run, including those of earlier attempts."""
        all_epochs = self.training.epochs * self.schedule.steps
        return min(all_epochs, self.training.max_steps or all_epochs)

    def train(self) -> None:
        """Train from the last checkpoint to the end.

        Raises HpcncfError if training diverges, and Stopped, after writing a checkpoint, if the
        ranks agreed to stop.
        """
        self.startup_s = procfs.age_s(os.getpid())
        with self.stop.doing("deferred"):
            for epoch in range(len(self.epochs), -(-self.total_steps // self.schedule.steps)):
                if self._is_over:
                    break
                self._epoch(epoch)
        # It ranks the sampled negatives only: next to a full ranking it would look too good.
        if self.place.rank == 0 and self.training.evaluation == "sampled":
            self.baseline = score_counts(self.data)

    def _epoch(self, epoch: int) -> None:
        steps = min(self.schedule.steps, self.total_steps - epoch * self.schedule.steps)
        # Continue with the loss and the dropout of an epoch that an attempt left unfinished.
        rank, so_far = self.place.rank, self.partial_epoch
        self.engine.loss.fill_(so_far.losses[rank] if so_far.losses else 0.0)
        if so_far.generators:
            restore_rng(self.device, so_far.generators[rank])
        elif self._drops_out:
            seed_dropout(self.training.seed, epoch, rank)
        # Rank 0 may still write the checkpoint: the other ranks do not train meanwhile.
        self.waiting_s += wait_for_ranks(self.place)
        planned, steps = steps, self._steps(epoch, steps)
        instances = sum(self._instances_of(step) for step in range(steps))
        loss = sum(self.partial_epoch.losses) / instances
        if not math.isfinite(loss):
            raise HpcncfError(
                f"epoch {epoch}: training diverged, the loss became {loss}. "
                f"Use a training.lr smaller than {self.training.lr}."
            )
        quality = self._evaluate(epoch, steps) if steps == planned else {"evaluation_s": 0.0}
        self.epochs.append(
            Epoch(
                epoch=epoch,
                training_s=self.partial_epoch.training_s,
                checkpoint_s=self.partial_epoch.checkpoint_s,
                first_batch_s=self.partial_epoch.first_batch_s,
                steps=steps,
                instances=instances,
                loss=loss,
                **quality,
            )
        )
        self.partial_epoch = PartialEpoch()
        every = self.training.checkpoint_every
        if every and (epoch + 1) % every == 0 and steps == self.schedule.steps:
            took_s = self.epochs[-1].checkpoint_s + self._save(epoch)
            self.epochs[-1] = self.epochs[-1].model_copy(update={"checkpoint_s": took_s})
        if self.place.rank == 0:
            self.on_epoch(self.epochs[-1])

    def _steps(self, epoch: int, steps: int) -> int:
        """Train the rest of an epoch of `steps`; returns how many it has: fewer after `max_s`."""
        so_far, before_s = self.partial_epoch, self.clock.training_s
        self.clock.start()
        batches = self.engine.batches(self.loader, epoch, range(so_far.steps, steps))
        first, log_every = True, self.training.log_every
        logged_loss = float(self.engine.loss) if log_every else 0.0
        logged_instances = self.instances
        logged_at = time.perf_counter()
        while so_far.steps < steps:
            step, most = so_far.steps, self._equal_steps(so_far.steps, steps)
            # The step's gradient is a mean over all ranks' instances. A rank without any takes the
            # step of the dense layers, too.
            waited, mine = self.engine.step(batches, self._instances_of(step), most)
            last = step + len(mine) - 1
            if last + 1 == steps:  # part of the step's time: it is a cost of training
                self.engine.settle()
                synchronize(self.device)
                self.clock.lap("optimizer")
            if first:
                so_far.first_batch_s += waited
                first = False
            self.instances += sum(mine)
            self.steps_done += len(mine)
            so_far.steps += len(mine)
            self.report("training", epoch, last + 1)
            is_due = log_every and ((last + 1) % log_every == 0 or last + 1 == steps)
            if is_due and self.place.rank == 0:
                loss, now = float(self.engine.loss), time.perf_counter()
                number = self.instances - logged_instances
                self.on_batches(
                    BatchProgress(
                        epoch,
                        last + 1,
                        steps,
                        (loss - logged_loss) / max(number, 1),
                        number / (now - logged_at),
                    )
                )
                logged_instances, logged_loss, logged_at = self.instances, loss, now
            agreed = self.agreement.after_step(last + 1 == steps, self._is_late())
            self.clock.lap("other")
            self.clock.end_step(mine[-1])
            self.after_step()
            if agreed and agreed.is_over and not agreed.signum:
                self._is_over = True
                break
            if agreed:
                so_far.training_s += self.clock.training_s - before_s
                before_s = self.clock.training_s
                self._save_mid_epoch(epoch, agreed)
        if so_far.steps < steps:
            self.engine.settle()
        so_far.training_s += self.clock.training_s - before_s
        began = time.perf_counter()
        so_far.losses = gather_objects(float(self.engine.loss), self.place)
        self.waiting_s += time.perf_counter() - began
        return so_far.steps

    def _is_late(self) -> bool:
        return self.training.max_s is not None and self.clock.training_s >= self.training.max_s

    def _equal_steps(self, step: int, steps: int) -> int:
        """Number of steps from this one on that may be taken in a single call, at least 1.

        They are of equal size, and neither logging nor the profiler needs to see single ones.
        """
        if self.training.profile == "torch":
            return 1  # the profiler sees single steps
        alike = min(steps - step, self.schedule.equal_steps_from(step))
        if every := self.training.log_every:
            alike = min(alike, every - step % every)
        return alike

    def _instances_of(self, step: int) -> int:
        """Number of instances of a step over all ranks."""
        return self.schedule.positives(step) * (1 + self.training.negatives)

    def _evaluate(self, epoch: int, steps: int) -> dict[str, float]:
        """Evaluate the model; returns the evaluation's fields of the epoch's record.

        If it is stopped, a checkpoint is saved first, so that only the evaluation is repeated.
        """
        candidates = self.training.evaluation
        if candidates == "none":
            return {"evaluation_s": 0.0}

        began = done_at = time.perf_counter()

        def report(done: float) -> None:
            nonlocal done_at
            self.report("evaluation", epoch, steps, done)
            done_at = time.perf_counter()

        report(0.0)
        try:
            with self.stop.doing("at_once"):
                quality = evaluate(
                    self.engine, self.data, self.place, self.device, candidates, report
                )
        except (Stopped, RuntimeError):  # RuntimeError: another rank was stopped first
            self._save(epoch)
            raise
        took_s = time.perf_counter() - began
        self.waiting_s += began + took_s - done_at  # by then its own rows were ranked
        self.evaluation_s += took_s
        scored = count_pairs(self.data, candidates)
        return {"evaluation_s": took_s, "evaluation_pairs": scored, **vars(quality)}

    def _save_mid_epoch(self, epoch: int, agreed: StepDecision) -> None:
        """Save a checkpoint within an epoch, and raise Stopped if the ranks agreed to stop.

        All ranks call it after the same step.
        """
        with self.stop.doing("undisturbed"):
            self.partial_epoch.losses = gather_objects(float(self.engine.loss), self.place)
            if self._drops_out:
                mine = rng_state(self.device)
                self.partial_epoch.generators = gather_objects(mine, self.place)
            took_s = self._save(epoch)
            self.waiting_s += wait_for_ranks(self.place)
        self.partial_epoch.checkpoint_s += took_s
        if agreed.signum:
            raise Stopped(agreed.signum)
        self.clock.start()

    def _save(self, epoch: int) -> float:
        """Write a checkpoint on rank 0; returns the seconds it took, 0 on other ranks."""
        self.agreement.checkpoint_saved()
        if self.place.rank != 0:
            return 0.0
        self.report("checkpoint", epoch, self.partial_epoch.steps or self.schedule.steps)
        began = time.perf_counter()
        state = Checkpoint(
            self.steps_done,
            self.model.state_dict(),
            self.engine.state(),
            self.epochs,
            self.partial_epoch,
        )
        try:
            with self.stop.doing("undisturbed"):
                save_checkpoint(self.paths, self.run, state)
        except CheckpointNotSaved as error:  # training is worth more than the checkpoint
            if str(error) not in self.warnings:  # a disk may be full for many of them
                self.warnings.append(str(error))
        took_s = time.perf_counter() - began
        self.checkpoint_s += took_s
        return took_s

    def record(self) -> TrainingRecord:
        """Build the record of this attempt on this rank.

        `epochs` includes the epochs of earlier attempts.
        """
        clock, training, manifest = self.clock, self.training, self.data.manifest
        several, backend = self.place.world_size > 1, training.backend_for(self.run.resources)
        phases = clock.phases()
        return TrainingRecord(
            device=str(self.device),
            backend=backend,
            threads=self.threads,
            parameters=model.count_parameters(self.model),
            lr=training.lr,
            skipped_steps=self.engine.skipped_steps
            if isinstance(self.engine, ReferenceEngine)
            else None,
            startup_s=self.startup_s,
            training_s=clock.training_s,
            evaluation_s=self.evaluation_s,
            checkpoint_s=self.checkpoint_s,
            steps=clock.steps,
            instances=self.instances,
            warmup_steps=clock.warmup_steps,
            counted_steps=clock.counted_steps,
            counted_instances=clock.counted_instances,
            counted_s=clock.counted_s,
            phases=phases,
            sync=Sync(
                how=training.sync,
                over=self.transport.name if self.transport else backend,
                exchanges=clock.counted_exchanges,
                bytes=clock.counted_bytes,
                seconds=phases.sync_s,
            )
            if several
            else None,
            epochs=self.epochs,
            batches=clock.batches(),
            model_sha256=model.model_sha256(self.model),
            resumed_epoch=self.resumed_epoch,
            resumed_step=self.resumed_step,
            baseline=self.baseline,
            unseen_test_rows=int(self.data.test_unseen.sum()),
            rows_per_step=self.rows_per_step,
            table_rows=manifest.users + manifest.items,
            waiting_s=self.waiting_s if several else None,
        )
