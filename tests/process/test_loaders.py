"""Four ways to make a batch give the same instances, whatever ranks, workers and start."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from make_runs import tiny

from hpcncf.data import epoch_order
from hpcncf.data.arrays import Rows, Split, unpack_context
from hpcncf.data.prepare import Recipe, write_prepared
from hpcncf.data.prepared import PreparedData, load_prepared
from hpcncf.data.split import draw_test_negatives, write_split
from hpcncf.errors import HpcncfError
from hpcncf.job.spec import Training
from hpcncf.job.validate import shared_memory_bytes
from hpcncf.ncf.batches import (
    Batch,
    EpochOrder,
    InstanceSource,
    Schedule,
    copied_to_device,
)
from hpcncf.ncf.loaders import RankLoader, check_shared_memory

LOADERS = ("per_sample", "batched", "vectorized")


def batches(
    data: PreparedData, epoch: int = 1, steps: range | None = None, place: tuple[int, int] = (0, 1),
    **training: Any,
) -> list[Batch]:  # fmt: skip
    schedule = Schedule(data.manifest.train_rows, 50, *place)
    loader = RankLoader(data, Training(seed=5, **training), schedule)
    return list(loader.epoch(epoch, steps or range(schedule.steps)))


def test_on_a_cpu_loader_device_reads_the_mapped_data(data: PreparedData) -> None:
    schedule = Schedule(data.manifest.train_rows, 50)
    loader = RankLoader(data, Training(seed=5, loader="device"), schedule)
    assert_same(list(loader.epoch(1, range(schedule.steps))), batches(data))
    assert "resident" not in vars(loader)


def assert_same(ours: list[Batch], theirs: list[Batch]) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        for left, right in zip(one, other, strict=True):
            assert left.dtype == right.dtype
            assert torch.equal(left, right)


@pytest.mark.parametrize("loader", ["per_sample", "batched"])
@pytest.mark.parametrize("negatives", [1, 4, 5])
def test_all_loaders_give_the_same_instances(
    data: PreparedData, loader: str, negatives: int
) -> None:
    expected = batches(data, loader="vectorized", negatives=negatives)
    assert_same(batches(data, loader=loader, negatives=negatives), expected)


@pytest.mark.parametrize(("numbers", "small"), [(0, 5), (1, 2), (2, 0), (0, 0)])
def test_every_loader_gives_a_row_its_context(tmp_path: Path, numbers: int, small: int) -> None:
    """Rows of 13 bytes, too, in which an id lies at any byte. A row's item is its number."""
    random, number = np.random.default_rng(1), np.arange(120, dtype=np.int32)
    parts = random.random((120, numbers)), random.integers(256, size=(120, small))
    context = np.concatenate(parts, axis=1, dtype=np.float32)
    names = [str(column) for column in range(numbers + small)]
    rows = Rows(number % 7, number, context, names, np.arange(7), 200)
    test = replace(rows, users=rows.users[:7], items=rows.items[:7], context=context[:7])
    split = Split(rows, test, draw_test_negatives(rows, test.users, 1, 4))
    folder, recipe = tmp_path / "data", Recipe("csv", {}, {})
    manifest = write_prepared(folder, recipe, "A", lambda into: write_split(into, split)).manifest
    assert (manifest.context_columns, manifest.small_columns) == (names, small)
    data = load_prepared(folder)
    made = ((loader, batch) for loader in LOADERS for batch in batches(data, loader=loader))
    for loader, batch in made:
        positive = batch.labels == 1
        expected = torch.from_numpy(context)[batch.items[positive]]
        assert torch.equal(batch.context[positive], expected), loader
        assert (batch.users[positive] == batch.items[positive] % 7).all()


@pytest.mark.parametrize(
    "settings",
    [
        {"loader": "batched", "num_workers": 1, "prefetch_factor": 3},
        {"loader": "per_sample", "num_workers": 2},
        {"loader": "batched", "num_workers": 2},
        {"loader": "batched", "num_workers": 1, "persistent_workers": False},
    ],
)
def test_how_batches_are_fetched_changes_nothing_in_any_epoch(
    data: PreparedData, settings: dict[str, Any]
) -> None:
    schedule = Schedule(data.manifest.train_rows, 50)
    fetched = RankLoader(data, Training(seed=5, **settings), schedule)
    for epoch in (0, 1):
        found = list(fetched.epoch(epoch, range(schedule.steps)))
        assert_same(found, batches(data, epoch, loader="vectorized"))


LEFT = """
import sys
from pathlib import Path
from hpcncf.ncf import loaders
from hpcncf.data import prepared
from hpcncf.ncf.batches import InstanceSource, Schedule
from hpcncf.job.spec import Training

loaders.TERMINATION_GRACE_S = 3600
data = prepared.load_prepared(Path(sys.argv[1]))
training = Training(loader="batched", num_workers=1, global_batch_size=8)
schedule = Schedule(data.manifest.train_rows, 8)
fetcher = loaders.DataLoaderFetcher(InstanceSource(data, training), training, schedule)
next(fetcher.epoch(0, range(2)))
"""


def test_a_rank_that_ends_waits_for_no_worker(tmp_path: Path) -> None:
    tiny(tmp_path / "tiny")
    command = [sys.executable, "-c", LEFT, str(tmp_path / "tiny")]
    ended = subprocess.run(command, capture_output=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_workers_hold_batches_in_shared_memory() -> None:
    training = Training(loader="batched", num_workers=3, prefetch_factor=4, negatives=4)
    # 3 x 4 prefetched and 2 under way, of 100 positives of 8 + 5 x 8 + 21 x 4 bytes.
    assert shared_memory_bytes(training, 100, 21) == 14 * 100 * 132
    assert shared_memory_bytes(Training(loader="batched"), 100, 21) == 0


def test_too_little_shared_memory_is_reported_before_workers_die_of_it(
    data: PreparedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(loader="batched", num_workers=3)
    schedule = Schedule(data.manifest.train_rows, 50)
    needed = 2 * shared_memory_bytes(training, 50, 9)
    free = [needed, needed - 1]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free.pop(0)))
    check_shared_memory(training, schedule, data, ranks=2)
    with pytest.raises(HpcncfError, match=r"/dev/shm: 0 MiB are free, .* 2 ranks need 0 MiB"):
        check_shared_memory(training, schedule, data, ranks=2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("pin", [False, True])
@pytest.mark.parametrize("ahead", [False, True])
def test_batches_reach_the_gpu_as_they_are(data: PreparedData, pin: bool, ahead: bool) -> None:
    schedule = Schedule(data.manifest.train_rows, 50)
    training = Training(seed=5, pin_memory=pin, prefetch_to_device=ahead)
    loader, steps = RankLoader(data, training, schedule), range(schedule.steps)
    moved = copied_to_device(loader.epoch(1, steps), training, torch.device("cuda"))
    assert_same([Batch(*(part.cpu() for part in each)) for each in moved], batches(data))


@pytest.mark.parametrize(("loader", "world"), [*product(LOADERS, [2, 3])])
def test_the_ranks_parts_of_a_step_make_up_the_step(
    data: PreparedData, loader: str, world: int
) -> None:
    whole = batches(data, loader="vectorized")
    parts = [batches(data, place=(rank, world), loader=loader) for rank in range(world)]
    joined = [
        Batch(*(torch.cat(same) for same in zip(*step, strict=True)))
        for step in zip(*parts, strict=True)
    ]
    assert_same(joined, whole)
    # 1,501 rows in steps of 50: the last step's one row leaves the other ranks with none.
    assert sorted(len(part[-1].labels) for part in parts) == [0] * (world - 1) + [5]


@pytest.mark.parametrize("loader", LOADERS)
def test_an_epoch_may_be_taken_up_at_any_step(data: PreparedData, loader: str) -> None:
    expected = batches(data, loader="vectorized")[17:23]
    assert_same(batches(data, steps=range(17, 23), loader=loader), expected)


def test_an_epoch_has_every_row_once_each_with_its_own_negatives(data: PreparedData) -> None:
    whole = Batch(*(torch.cat(same) for same in zip(*batches(data), strict=True)))
    positive = whole.labels == 1
    assert int(positive.sum()) == data.manifest.train_rows
    assert len(whole.labels) == 5 * data.manifest.train_rows
    order = epoch_order.epoch_rows(5, 1, 0, 1501, 1501)
    assert whole.users[positive].tolist() == data.train_users[order].tolist()
    assert whole.items[positive].tolist() == data.train_items[order].tolist()
    assert np.array_equal(whole.context[positive].numpy(), unpack_context(data.train_rows[order]))
    kinds = [torch.int64, torch.int64, torch.float32, torch.float32]
    assert [each.dtype for each in whole] == kinds
    pairs = set(zip(data.train_users.tolist(), data.train_items.tolist(), strict=True))
    negatives = zip(whole.users[~positive].tolist(), whole.items[~positive].tolist(), strict=True)
    assert not pairs & set(negatives)


def test_the_order_in_chunks_is_the_order() -> None:
    rows = 150_000  # more than two chunks
    order, expected = EpochOrder(3, 2, rows), epoch_order.epoch_rows(3, 2, 0, rows, rows)
    for start in range(0, rows, 20_000):
        stop = min(start + 20_000, rows)
        assert np.array_equal(order.between(start, stop), expected[start:stop])
    assert np.array_equal(order.between(10, 20), expected[10:20])


def test_loaders_read_the_mapped_pages(data: PreparedData) -> None:
    source = InstanceSource(data, Training())
    used = [source.train_rows, source.indptr, source.positives, *source.suspected.args]
    mapped = (data.train_rows, data.positives_indptr, data.positives)
    for ours, theirs in zip(used, (*mapped, data.buckets_indptr, data.buckets), strict=True):
        assert np.shares_memory(ours, theirs)
