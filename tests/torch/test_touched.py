"""The rows a step reads: counted by hand over the batches that the loader really gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcncf.job.spec import Training
from hpcncf.ncf.batches import Schedule
from hpcncf.ncf.data.prepared import Prepared, load_prepared
from hpcncf.ncf.loaders import Loader
from hpcncf.ncf.trainer import _sampled_steps, mean_rows_per_step


@pytest.fixture(scope="module")
def data(tiny_data: Path) -> Prepared:
    return load_prepared(tiny_data)


@pytest.mark.parametrize(("rank", "world_size"), [(0, 1), (1, 2)])
def test_it_is_the_mean_over_the_loaders_own_batches(
    data: Prepared, rank: int, world_size: int
) -> None:
    training = Training(negatives=3)
    rows = data.manifest.train_rows
    schedule = Schedule(rows, rows // 2, rank, world_size)  # so that both whole steps are seen
    steps = [next(Loader(data, training, schedule).epoch(0, range(s, s + 1))) for s in (0, 1)]
    counts = [len(set(b.users.tolist())) + len(set(b.items.tolist())) for b in steps]
    assert mean_rows_per_step(data, training, schedule) == sum(counts) / 2


def test_a_rank_without_a_row_says_none(data: Prepared) -> None:
    schedule = Schedule(1, 1, rank=0, world_size=2)
    assert mean_rows_per_step(data, Training(), schedule) is None


@pytest.mark.parametrize(
    ("rows", "batch", "steps"),
    [(10, 100, 1), (64, 4, 8), (1_000_000, 256, 8), (1_000_000, 1_024, 4), (10**6, 65_536, 1)],
)
def test_few_steps_of_large_batches_are_looked_at(rows: int, batch: int, steps: int) -> None:
    chosen = _sampled_steps(Schedule(rows, batch))
    assert len(chosen) == steps
    assert (chosen[-1] + 1) * batch <= max(rows, batch)
