"""What a rank's training tells in its record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcncf.ncf import model, touched
from hpcncf.ncf.step import Reference
from hpcncf.records import Sync, TrainingRecord

if TYPE_CHECKING:
    from hpcncf.ncf.train import Trainer


def of(trainer: Trainer) -> TrainingRecord:
    clock, training = trainer.clock, trainer.training
    return TrainingRecord(
        device=str(trainer.device),
        backend=training.backend_for(trainer.run.resources),
        threads=trainer.threads,
        parameters=model.parameters(trainer.model),
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
        model_sha256=model.sha256(trainer.model),
        resumed_epoch=trainer.resumed_epoch,
        resumed_step=trainer.resumed_step,
        baseline=trainer.baseline,
        unseen_test_rows=int(trainer.data.test_unseen.sum()),
        rows_per_step=trainer.rows_per_step,
        table_rows=touched.table_rows(trainer.data),
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
        every=training.sync_every if trainer.apart else 1,
        exchanges=clock.counted_exchanges,
        bytes=clock.counted_bytes,
        seconds=clock.phases().sync_s,
    )
