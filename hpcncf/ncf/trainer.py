"""Train one rank: epochs, evaluation, checkpoints, record."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable
from typing import Final

import numpy as np
import torch

from hpcncf.errors import HpcncfError
from hpcncf.job.plan import Run
from hpcncf.job.spec import Model, Training
from hpcncf.monitor import procfs
from hpcncf.ncf import model, sampling
from hpcncf.ncf.checkpoint import (
    Checkpoint,
    CheckpointNotSaved,
    PartialEpoch,
    ProgressReporter,
    TrainingProgress,
    UnusableCheckpoint,
    checkpoint_paths,
    load_checkpoint,
    save_checkpoint,
    set_aside,
)
from hpcncf.ncf.data.baseline import score_counts
from hpcncf.ncf.data.prepared import Prepared
from hpcncf.ncf.device_data import check_device_loader, check_model_memory, copy_warnings
from hpcncf.ncf.distributed import (
    Agreement,
    Decision,
    gather_objects,
    restore_rng,
    rng_state,
    seed_dropout,
    select_device,
    set_threads,
    synchronize,
    thread_warnings,
    wait_for_ranks,
)
from hpcncf.ncf.engines import base
from hpcncf.ncf.engines.base import Engine
from hpcncf.ncf.engines.precision import check_precision, tf32_allowed, tf32_warnings
from hpcncf.ncf.engines.reference import Reference, parallel_warnings
from hpcncf.ncf.evaluate import count_pairs, evaluate
from hpcncf.ncf.instances import InstanceSource, Schedule
from hpcncf.ncf.loaders import Loader, check_shared_memory
from hpcncf.ncf.step_clock import StepClock
from hpcncf.ncf.sync import local_sgd
from hpcncf.ncf.sync.transport import DeviceTransport, Transport
from hpcncf.paths import RunPaths
from hpcncf.records.schema import Epoch, Sync, TrainingRecord
from hpcncf.worker.environment import Place
from hpcncf.worker.signals import Request, Stopped


def newest_checkpoint(
    paths: RunPaths, run: Run, place: Place
) -> tuple[Checkpoint | None, list[str]]:
    """The newest that all ranks can resume from, and warnings: why a newer one is not used."""
    warnings = list[str]()
    for path in checkpoint_paths(paths):
        there, found, problem = path.exists(), None, "not all ranks can read the same"
        try:
            found = load_checkpoint(path, run) if there else None
        except UnusableCheckpoint as error:
            problem = str(error)
        steps = gather_objects(found.step if found else None, place)
        if found and steps == [found.step] * len(steps):
            return found, warnings
        if there:
            warnings.append(f"{path}: not used: {problem}")
            if found is None and place.rank == 0:  # every rank has looked at it
                with contextlib.suppress(OSError):
                    set_aside(path)
    if warnings:
        warnings.append("no checkpoint could be used: training started again")
    return None, warnings


# Some milliseconds at the start of a training, whatever its batch.
MAX_STEPS_SAMPLED: Final = 8
MAX_POSITIVES_SAMPLED: Final = 4_096


def mean_rows_per_step(data: Prepared, training: Training, schedule: Schedule) -> float | None:
    """Mean distinct users and items that a step of this rank reads, by the first epoch's real
    indices, of steps spread over it. None where the rank has no row in any of them.

    Of a step with more positives than `MOST_POSITIVES` all are counted, but of no other step.
    """
    source = InstanceSource(data, training)
    counts = [_rows(source, schedule, step) for step in _steps(schedule)]
    counts = [count for count in counts if count]
    return sum(counts) / len(counts) if counts else None


def table_rows(data: Prepared) -> int:
    return data.manifest.users + data.manifest.items


def _steps(schedule: Schedule) -> range:
    """Whole ones: an epoch's last step has fewer positives."""
    whole = max(1, schedule.rows // schedule.batch)
    some = max(
        1,
        min(
            MAX_STEPS_SAMPLED, whole, MAX_POSITIVES_SAMPLED * schedule.world_size // schedule.batch
        ),
    )
    return range(0, whole, -(-whole // some))


def _rows(source: InstanceSource, schedule: Schedule, step: int) -> int:
    start, stop = schedule.positions(step)
    rows = sampling.epoch_rows(source.seed, 0, start, stop, schedule.rows)
    users, items, _ = source.gather(0, rows)
    return len(np.unique(users.numpy())) + len(np.unique(items.numpy()))


def training_record(trainer: Trainer) -> TrainingRecord:
    clock, training = trainer.clock, trainer.training
    return TrainingRecord(
        device=str(trainer.device),
        backend=training.backend_for(trainer.run.resources),
        threads=trainer.threads,
        parameters=model.count_parameters(trainer.model),
        lr=training.lr,
        skipped_steps=_skipped(trainer),
        startup_s=trainer.startup_s,
        training_s=clock.training_s,
        evaluation_s=trainer.evaluation_s,
        checkpoint_s=trainer.checkpoint_s,
        steps=clock.steps,
        instances=trainer.instances,
        warmup_steps=clock.warmup_steps,
        counted_steps=clock.counted_steps,
        counted_instances=clock.counted_instances,
        counted_s=clock.counted_s,
        phases=clock.phases(),
        sync=_sync(trainer) if trainer.place.world_size > 1 else None,
        epochs=trainer.epochs,
        batches=clock.batches(),
        model_sha256=model.model_sha256(trainer.model),
        resumed_epoch=trainer.resumed_epoch,
        resumed_step=trainer.resumed_step,
        baseline=trainer.baseline,
        unseen_test_rows=int(trainer.data.test_unseen.sum()),
        rows_per_step=trainer.rows_per_step,
        table_rows=table_rows(trainer.data),
        waiting_s=trainer.waiting_s if trainer.place.world_size > 1 else None,
    )


def _skipped(trainer: Trainer) -> int | None:
    return trainer.engine.skipped_steps if isinstance(trainer.engine, Reference) else None


def _sync(trainer: Trainer) -> Sync:
    clock, training = trainer.clock, trainer.training
    backend = training.backend_for(trainer.run.resources)
    return Sync(
        how=training.sync,
        over=trainer.transport.name if trainer.transport else backend,
        every=training.sync_every if trainer.local_sgd else 1,
        exchanges=clock.counted_exchanges,
        bytes=clock.counted_bytes,
        seconds=clock.phases().sync_s,
    )


def _refuse(
    run: Run, data: Prepared, schedule: Schedule, device: torch.device, ranks_here: int
) -> None:
    """What cannot be trained on this machine, or from these data. Raises HpcncfError."""
    assert run.training is not None
    _refuse_untested(run.training, data)
    check_shared_memory(run.training, schedule, data, ranks_here)
    check_device_loader(data, run.training, schedule, device, ranks_here)
    check_precision(run.training, device)
    check_model_memory(run, data.manifest, ranks_here)


def _refuse_untested(training: Training, data: Prepared) -> None:
    if training.evaluation != "none" and not data.manifest.test_rows:
        raise HpcncfError(
            f"training.evaluation {training.evaluation}: {data.manifest.title} has no test row, "
            "because no user has two rows; use evaluation: none, or other data"
        )


def _warnings(training: Training, data: Prepared, device: torch.device) -> list[str]:
    """Of data that tell little, and of settings that do nothing here, or not what they say."""
    caution = data.manifest.ranking_warning if training.evaluation == "sampled" else None
    return [
        *([caution] if caution else []),
        *parallel_warnings(training, device),
        *copy_warnings(training, device),
        *thread_warnings(training),
        *tf32_warnings(training, device),
    ]


class Trainer:
    """Trains a run's model on this rank. `record` tells what was done so far, at any time."""

    def __init__(
        self,
        run: Run,
        data: Prepared,
        place: Place,
        paths: RunPaths,
        tell: Callable[[TrainingProgress], None],
        tell_epoch: Callable[[Epoch], None] = lambda _: None,
        stop: Request | None = None,
        after_step: Callable[[], None] = lambda: None,
    ) -> None:
        assert run.training is not None
        assert run.model is not None
        self.run, self.data, self.place, self.paths = run, data, place, paths
        self.on_epoch, self.stop = tell_epoch, stop or Request()
        self.after_step = after_step
        self.training = run.training.scaled(place.world_size)
        self.threads = set_threads(run.training, run.resources, place)
        self.device = select_device(run.training, run.resources, place)
        batch = run.training.batch_over_ranks(place.world_size)
        self.schedule = Schedule(data.manifest.train_rows, batch, place.rank, place.world_size)
        _refuse(run, data, self.schedule, self.device, place.local_world_size)
        self.loader = Loader(data, run.training, self.schedule, self.device)
        self.rows_per_step = mean_rows_per_step(data, run.training, self.schedule)
        self.local_sgd = local_sgd.uses_local_sgd(run.training, place.world_size)
        self._drops_out = run.model.dropout > 0
        self.epochs: list[Epoch] = []
        self.partial_epoch, self.steps_done, self.instances = PartialEpoch(), 0, 0
        self.resumed_epoch: int | None = None
        self.resumed_step: int | None = None
        self.startup_s = self.evaluation_s = self.checkpoint_s = self.waiting_s = 0.0
        self.baseline: dict[str, float] | None = None
        self.model = model.initial_model(data.manifest, run.model, run.training.seed).to(
            self.device
        )
        found, unused = newest_checkpoint(paths, run, place)
        self.warnings = [*unused, *_warnings(run.training, data, self.device)]
        if found:
            self._go_on_from(found)
        self.clock = StepClock(
            self.total_steps - self.steps_done, self.schedule.steps, self.steps_done
        )
        self.transport, self.engine = self._connected(run.model)
        if found:
            self.engine.load(found.optimizer)
        self.report = ProgressReporter(tell, place, self.clock, self.schedule.steps)
        every_min = run.training.checkpoint_every_min if run.training.checkpoint_every else 0.0
        self.agreement = Agreement(place.world_size, self.device, self.stop, every_min)

    def _go_on_from(self, found: Checkpoint) -> None:
        self.model.load_state_dict(found.model)
        self.epochs, self.steps_done, self.partial_epoch = (
            found.epochs,
            found.step,
            found.partial_epoch,
        )
        self.resumed_epoch, self.resumed_step = len(found.epochs), found.partial_epoch.steps

    def _connected(self, sizes: Model) -> tuple[Transport | DeviceTransport | None, Engine]:
        """The engine, and what carries its messages to the other ranks, where it sends any."""
        ground = base.with_transport(
            base.EngineInputs(self.data, sizes, self.schedule, self.threads),
            *(self.model, self.training, self.place, self.device, self.clock),
        )
        made = base.build_engine(
            *(self.model, self.training, self.place.world_size, self.device, self.clock, ground)
        )
        return ground.transport, made

    @property
    def total_steps(self) -> int:
        """Of the whole run, earlier attempts included."""
        all_epochs = self.training.epochs * self.schedule.steps
        return min(all_epochs, self.training.max_steps or all_epochs)

    def train(self) -> None:
        """From where the checkpoint stands to the end. Raises HpcncfError where it diverges, and
        Stopped where all ranks agreed to: the checkpoint is written then."""
        self.startup_s = procfs.age_s(os.getpid())
        with self.stop.doing("deferred"):
            for epoch in range(len(self.epochs), -(-self.total_steps // self.schedule.steps)):
                self._epoch(epoch)
        # It ranks the sampled negatives: beside a full ranking it would flatter the table.
        if self.place.rank == 0 and self.training.evaluation == "sampled":
            self.baseline = score_counts(self.data)
        if self.transport:
            self.transport.close()

    def _epoch(self, epoch: int) -> None:
        steps = min(self.schedule.steps, self.total_steps - epoch * self.schedule.steps)
        self._begin(epoch)
        # The first rank still writes the checkpoint: its wait is not the others' training.
        self.waiting_s += wait_for_ranks(self.place)
        with tf32_allowed(self.training, self.device):
            self._steps(epoch, steps)
        loss = self._mean_loss(epoch, steps)
        quality = self._evaluate(epoch, steps)
        self.epochs.append(
            Epoch(
                epoch=epoch,
                training_s=self.partial_epoch.training_s,
                checkpoint_s=self.partial_epoch.checkpoint_s,
                first_batch_s=self.partial_epoch.first_batch_s,
                steps=steps,
                instances=self._instances(steps),
                loss=loss,
                **quality,
            )
        )
        self.partial_epoch = PartialEpoch()
        self._save_whole(epoch, steps)
        if self.place.rank == 0:
            self.on_epoch(self.epochs[-1])

    def _begin(self, epoch: int) -> None:
        """Where the epoch was left: what it summed up to, and where its dropout's draws are."""
        rank, so_far = self.place.rank, self.partial_epoch
        self.engine.loss.fill_(so_far.losses[rank] if so_far.losses else 0.0)
        if so_far.generators:
            restore_rng(self.device, so_far.generators[rank])
        elif self._drops_out:
            seed_dropout(self.training.seed, epoch, rank)

    def _steps(self, epoch: int, steps: int) -> None:
        so_far, before_s = self.partial_epoch, self.clock.training_s
        self.clock.start()
        batches = self.engine.batches(self.loader, epoch, range(so_far.steps, steps))
        first = True
        while so_far.steps < steps:
            step, most = so_far.steps, self._alike_from(so_far.steps, steps)
            waited, mine = self.engine.step(batches, self._divisor(step), most)
            last = step + len(mine) - 1
            meets = local_sgd.syncs_after(self.training, self.place.world_size, last, steps)
            if meets and self.local_sgd:
                self.engine.average()
                self.clock.lap("sync")
            if last + 1 == steps:  # in the step's time: it is part of what the training costs
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
            agreed = self.agreement.after_step(last=last + 1 == steps) if meets else None
            self.clock.lap("other")
            self.clock.end_step(mine[-1])
            self.after_step()
            if agreed:
                so_far.training_s += self.clock.training_s - before_s
                before_s = self.clock.training_s
                self._pause(epoch, agreed)
        so_far.training_s += self.clock.training_s - before_s
        began = time.perf_counter()
        so_far.losses = gather_objects(float(self.engine.loss), self.place)
        self.waiting_s += time.perf_counter() - began

    def _alike_from(self, step: int, steps: int) -> int:
        """So many steps from this one on, of as many instances, ask nothing of anybody else."""
        if self.training.profile == "torch":
            return 1  # it looks at single steps
        alike = min(steps - step, self.schedule.equal_steps_from(step))
        return (
            min(alike, local_sgd.steps_until_mean(self.training, step)) if self.local_sgd else alike
        )

    def _divisor(self, step: int) -> int:
        """Instances that the step's gradient is the mean of; ranks that step apart have each its
        own, and where one has none its layers still take the step."""
        if not self.local_sgd:
            return self._instances_of(step)
        start, stop = self.schedule.positions(step)
        return max(1, stop - start) * (1 + self.training.negatives)

    def _instances_of(self, step: int) -> int:
        """Of all ranks."""
        return self.schedule.positives(step) * (1 + self.training.negatives)

    def _instances(self, steps: int) -> int:
        return sum(self._instances_of(step) for step in range(steps))

    def _mean_loss(self, epoch: int, steps: int) -> float:
        loss = sum(self.partial_epoch.losses) / self._instances(steps)
        if not math.isfinite(loss):
            raise HpcncfError(
                f"epoch {epoch}: the loss became {loss}: training diverged; "
                f"training.lr is {self.training.lr}, try a smaller one"
            )
        return loss

    def _evaluate(self, epoch: int, steps: int) -> dict[str, float]:
        """The epoch's part of the record. Stopped meanwhile, it is all that is to be repeated."""
        candidates = self.training.evaluation
        if candidates == "none":
            return {"evaluation_s": 0.0}

        began = done_at = time.perf_counter()

        def tell(done: float) -> None:
            nonlocal done_at
            self.report("evaluation", epoch, steps, done)
            done_at = time.perf_counter()

        tell(0.0)
        try:
            with self.stop.doing("at_once"):
                quality = evaluate(
                    self.engine, self.data, self.place, self.device, candidates, tell
                )
        except (Stopped, RuntimeError):  # the latter, where another rank was stopped first
            self._save(epoch)
            raise
        took_s = time.perf_counter() - began
        self.waiting_s += began + took_s - done_at  # its own rows were ranked by then
        self.evaluation_s += took_s
        scored = count_pairs(self.data, candidates)
        return {"evaluation_s": took_s, "evaluation_pairs": scored, **vars(quality)}

    def _pause(self, epoch: int, agreed: Decision) -> None:
        """Every rank is here, in mid-epoch, after the same step."""
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

    def _save_whole(self, epoch: int, steps: int) -> None:
        every = self.training.checkpoint_every
        if not every or (epoch + 1) % every or steps < self.schedule.steps:
            return
        took_s = self._save(epoch)
        self.epochs[-1] = self.epochs[-1].model_copy(
            update={"checkpoint_s": self.epochs[-1].checkpoint_s + took_s}
        )

    def _save(self, epoch: int) -> float:
        """The first rank writes what all have alike; returns the seconds that took."""
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
        except CheckpointNotSaved as error:  # what is trained is worth more than the checkpoint
            self.warnings.append(str(error))
        took_s = time.perf_counter() - began
        self.checkpoint_s += took_s
        return took_s

    def record(self) -> TrainingRecord:
        """What this attempt did on this rank; `epochs` holds those of earlier attempts too."""
        return training_record(self)
