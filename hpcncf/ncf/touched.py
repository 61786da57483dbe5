"""How many embedding rows a step reads, beside how many there are: what a dense optimiser walks."""

from __future__ import annotations

from typing import Final

import numpy as np

from hpcncf.ncf import sampling
from hpcncf.ncf.data.prepared import Prepared
from hpcncf.ncf.instances import Schedule, Source
from hpcncf.spec import Training

# Some milliseconds at the start of a training, whatever its batch.
MOST_STEPS: Final = 8
MOST_POSITIVES: Final = 4_096


def rows_per_step(data: Prepared, training: Training, schedule: Schedule) -> float | None:
    """Mean distinct users and items that a step of this rank reads, by the first epoch's real
    indices, of steps spread over it. None where the rank has no row in any of them.

    Of a step with more positives than `MOST_POSITIVES` all are counted, but of no other step.
    """
    source = Source(data, training)
    counts = [_rows(source, schedule, step) for step in _steps(schedule)]
    counts = [count for count in counts if count]
    return sum(counts) / len(counts) if counts else None


def table_rows(data: Prepared) -> int:
    return data.manifest.users + data.manifest.items


def _steps(schedule: Schedule) -> range:
    """Whole ones: an epoch's last step has fewer positives."""
    whole = max(1, schedule.rows // schedule.batch)
    some = max(1, min(MOST_STEPS, whole, MOST_POSITIVES * schedule.world_size // schedule.batch))
    return range(0, whole, -(-whole // some))


def _rows(source: Source, schedule: Schedule, step: int) -> int:
    start, stop = schedule.positions(step)
    rows = sampling.epoch_rows(source.seed, 0, start, stop, schedule.rows)
    users, items, _ = source.gather(0, rows)
    return len(np.unique(users.numpy())) + len(np.unique(items.numpy()))
