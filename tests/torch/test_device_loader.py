"""Loader `device`: every positive once an epoch, negatives drawn uniformly, the same again after a
resumption."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from make_results import manifest
from make_runs import planned, tiny

from hpcncf.data.prepared import PreparedData
from hpcncf.errors import HpcncfError
from hpcncf.job.spec import Model, Training
from hpcncf.ncf import batches
from hpcncf.ncf.batches import (
    BatchRows,
    Resident,
    Schedule,
    check_device_loader,
    check_model_memory,
    device_loader_bytes,
    nth_absent,
)

CPU = torch.device("cpu")
TRAINING = Training(loader="device", negatives=4)
SCHEDULE = Schedule(1501, 50)


def drawn(data: PreparedData, schedule: Schedule, epoch: int, steps: range) -> list[BatchRows]:
    return list(Resident(data, TRAINING, schedule, CPU).rows(epoch, steps))


def equal(one: BatchRows, other: BatchRows) -> bool:
    return all(torch.equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))


def pairs(found: list[BatchRows]) -> Counter[tuple[int, int]]:
    both = (zip(users.tolist(), items[:, 0].tolist(), strict=True) for users, items, _ in found)
    return Counter(pair for each in both for pair in each)


@given(held=st.sets(st.integers(0, 29), max_size=29).map(sorted))
def test_nth_absent_lists_the_items_that_are_not_held(held: list[int]) -> None:
    absent = [item for item in range(30) if item not in held]
    nth = torch.arange(len(absent))[None]
    first, number = torch.tensor([[1]]), torch.tensor([[len(held)]])
    found = nth_absent(nth, torch.tensor([5, *held, 7], dtype=torch.int32), first, number, 29)
    assert found.tolist() == [absent]


def test_epoch_has_every_positive_once_and_no_negative_is_a_positive(data: PreparedData) -> None:
    found = drawn(data, SCHEDULE, 0, range(31))
    there = zip(data.train_users.tolist(), data.train_items.tolist(), strict=True)
    assert pairs(found) == Counter(there)
    held = {user: set(data.positives[a:b].tolist()) for user, (a, b) in enumerate(bounds(data))}
    for users, items, _ in found:
        for user, mine in zip(users.tolist(), items[:, 1:].tolist(), strict=True):
            assert not held[user] & set(mine)
            assert max(mine) < data.manifest.items


def bounds(data: PreparedData) -> list[tuple[int, int]]:
    return list(pairwise(data.positives_indptr.tolist()))


def test_negatives_of_a_user_are_uniform(data: PreparedData) -> None:
    """Over 40 epochs, within five standard deviations of a user's most and least drawn items."""
    user = int(torch.from_numpy(data.train_users.copy()).mode().values)
    start, stop = bounds(data)[user]
    counts = torch.zeros(data.manifest.items)
    for epoch in range(40):
        for users, items, _ in drawn(data, SCHEDULE, epoch, range(31)):
            mine = items[users == user, 1:].reshape(-1)
            counts += torch.bincount(mine, minlength=len(counts))
    absent = torch.ones(len(counts), dtype=torch.bool)
    absent[torch.from_numpy(data.positives[start:stop].astype("int64"))] = False
    expected = counts.sum() / absent.sum()
    assert counts[~absent].sum() == 0
    assert (counts[absent] - expected).abs().max() < 5 * expected.sqrt()


def test_resumed_epoch_draws_what_an_uninterrupted_one_does(
    data: PreparedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven steps are drawn together: the twelfth is in the middle."""
    monkeypatch.setattr(batches, "POSITIVES_AT_ONCE", 7 * 50)
    whole = drawn(data, SCHEDULE, 3, range(31))
    for start in (7, 12, 30):
        rest = drawn(data, SCHEDULE, 3, range(start, 31))
        assert all(map(equal, rest, whole[start:]))
        assert len(rest) == 31 - start
    assert not equal(whole[0], drawn(data, SCHEDULE, 4, range(1))[0])


def test_ranks_share_one_order_and_draw_their_own_negatives(data: PreparedData) -> None:
    ranks = [drawn(data, Schedule(1501, 50, rank, 2), 0, range(31)) for rank in range(2)]
    assert pairs(ranks[0]) + pairs(ranks[1]) == pairs(drawn(data, SCHEDULE, 0, range(31)))
    assert not torch.equal(ranks[0][0][1][:, 1:], ranks[1][0][1][:, 1:])


def test_memory_of_a_rank_is_counted(data: PreparedData) -> None:
    # A row's user, item and 9 context columns, 8 of them small; the bounds of 40 users; all pairs.
    arrays = 1501 * (4 + 4 + 4 + 8) + 41 * 8 + data.manifest.train_pairs * 4
    # The order, and every row drawn: user, 5 items, context.
    row = 8 + 5 * 8 + 36
    assert device_loader_bytes(data, TRAINING, SCHEDULE) == arrays + 1501 * (8 + row)
    halves = Schedule(1501, 50, 0, 2)
    assert device_loader_bytes(data, TRAINING, halves) == arrays + 8 * 1501 + row * 1501 // 2


def test_data_that_does_not_fit_is_refused_with_both_sizes(
    data: PreparedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks on one of two GPUs."""
    schedule, place = SCHEDULE, torch.device("cuda", 1)
    needed = 2 * device_loader_bytes(data, TRAINING, schedule)
    free = [needed, needed - 1]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free.pop(0), 0))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    check_device_loader(data, TRAINING, schedule, place, ranks=4)
    with pytest.raises(HpcncfError, match=r"2 ranks take at least 0 MiB, .* free in GPU 1"):
        check_device_loader(data, TRAINING, schedule, place, ranks=3)
    check_device_loader(data, TRAINING, schedule, CPU, ranks=3)
    check_device_loader(data, Training(), schedule, place, ranks=3)


def test_the_prepared_files_are_copied_not_changed(tmp_path: Path) -> None:
    data = tiny(tmp_path / "tiny")
    users, _, _ = next(Resident(data, TRAINING, Schedule(1501, 50), CPU).rows(0, range(1)))
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
