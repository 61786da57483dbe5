"""Data that lie on the device: what they need there, and that a step waits for nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from make_results import manifest
from make_runs import planned, tiny

from hpcncf.errors import HpcncfError
from hpcncf.job.spec import Model, Training
from hpcncf.ncf import sampling
from hpcncf.ncf.batches import (
    Resident,
    Schedule,
    build_batch,
    check_device_room,
    check_model_memory,
    device_loader_bytes,
)
from hpcncf.ncf.data.prepared import Prepared

ROW = 4 + 4 + 4 + 8
TRAINING = Training(loader="device", negatives=4)


def test_what_a_rank_holds_is_counted(data: Prepared) -> None:
    schedule, pairs = Schedule(1501, 50), data.manifest.train_pairs
    # A row's user, item and 9 context columns, 8 of them small; the bounds of 40 users; all pairs.
    arrays = 1501 * ROW + 41 * 8 + pairs * 4
    # The order, and every row drawn: user, 5 items, context. More than 3 tables of 2,048 numbers.
    drawn = 8 * 1501 + 1501 * (8 + 5 * 8 + 36)
    assert drawn > 3 * 8 * 2048
    assert device_loader_bytes(data, TRAINING, schedule, torch.device("cpu")) == arrays + drawn


def test_of_little_data_the_order_is_most(data: Prepared) -> None:
    narrow = TRAINING.model_copy(update={"negatives": 1})
    ranks = Schedule(1501, 50, 0, 50)
    arrays = 1501 * ROW + 41 * 8 + data.manifest.train_pairs * 4
    assert device_loader_bytes(data, narrow, ranks, torch.device("cpu")) == arrays + 3 * 8 * 2048


def test_of_an_order_of_blocks_the_rows_and_the_blocks_are_held(
    data: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "MANY_ROWS", 1_000)
    narrow = TRAINING.model_copy(update={"negatives": 1})
    ranks = Schedule(1501, 50, 0, 50)
    arrays = 1501 * ROW + 41 * 8 + data.manifest.train_pairs * 4
    order = 8 * (1501 + 93 + 1501)
    assert device_loader_bytes(data, narrow, ranks, torch.device("cpu")) == arrays + order


def test_too_little_memory_is_reported_with_both_sizes() -> None:
    check_device_room(2**20, 2, 2**20, "GPU 0")
    with pytest.raises(HpcncfError, match=r"2 ranks take at least 3 MiB, and 1 MiB are free"):
        check_device_room(3 * 2**20, 2, 2**20, "GPU 0")


def test_no_value_of_a_batch_is_asked_for_on_the_host(data: Prepared) -> None:
    """Tensors of device meta have none: what would make a GPU wait fails there."""
    meta = torch.device("meta")
    there = Resident(data, TRAINING, Schedule(1501, 50), meta)
    batches = [build_batch(rows) for rows in there.rows(0, range(31))]
    assert [len(each.labels) for each in batches] == [250] * 30 + [5]
    assert {part.device for part in batches[-1]} == {meta}


def test_the_prepared_files_are_copied_not_changed(tmp_path: Path) -> None:
    data = tiny(tmp_path / "tiny")
    users, _, _ = next(
        Resident(data, TRAINING, Schedule(1501, 50), torch.device("cpu")).rows(0, range(1))
    )
    before = data.train_users.copy()
    users.zero_()
    assert (data.train_users == before).all()


def test_a_model_larger_than_the_node_is_refused_by_its_rank(tiny_data: Path) -> None:
    run = planned(tiny_data)
    assert run.model is not None
    wide = run.model_copy(update={"model": Model(gmf_width=10**9)})
    data = manifest()
    check_model_memory(run, data, ranks=1)
    with pytest.raises(HpcncfError, match=r"654 users and 1,127 items.* GiB on each of 2 ranks"):
        check_model_memory(wide, data, ranks=2)
