"""`NegativeSampler` and `BatchLoader`: exact, reproducible, and as a DataLoader gives them."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset, TensorDataset

from hpcncf.remedies import BatchLoader, NegativeSampler

USERS = torch.tensor([0, 0, 0, 1, 2, 2, 2, 2, 2, 2, 2])
ITEMS = torch.tensor([0, 1, 1, 7, 0, 1, 2, 3, 4, 5, 6])


def chi_squared(drawn: Tensor, allowed: list[int]) -> float:
    counts = torch.bincount(drawn.reshape(-1), minlength=8)[allowed].double()
    mean = counts.sum() / len(allowed)
    return float(((counts - mean) ** 2 / mean).sum())


@pytest.mark.parametrize("most_bits", [2**29, 0])
def test_negatives_are_uniform_over_the_items_that_a_user_lacks(
    most_bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcncf.remedies.negative_sampler.MOST_BITS", most_bits)
    sampler = NegativeSampler(USERS, ITEMS, 8, seed=1)
    for user, own in ((0, {0, 1}), (1, {7}), (2, set(range(7))), (3, set[int]()), (99, set[int]())):
        drawn = sampler(torch.full((500,), user), 8)
        allowed = sorted(set(range(8)) - own)
        assert drawn.shape == (500, 8)
        assert drawn.dtype == torch.int64
        assert set(drawn.unique().tolist()) == set(allowed)
        assert chi_squared(drawn, allowed) < 30  # of 7 degrees of freedom: p = 0.0001


def test_a_user_with_nearly_all_items_gets_the_one_that_is_left() -> None:
    items = np.delete(np.arange(5000), 4321)
    sampler = NegativeSampler(np.zeros(4999, np.int64), items, 5000, seed=0)
    drawn = sampler(np.zeros(10, np.int64), 3)
    assert isinstance(drawn, np.ndarray)
    assert (drawn == 4321).all()


def test_no_pair_of_a_large_table_is_drawn() -> None:
    random = np.random.default_rng(0)
    users, items = random.integers(40_000, size=400_000), random.integers(20_000, size=400_000)
    sampler = NegativeSampler(users, items, 20_000, seed=0)
    asked = torch.from_numpy(users[:100_000])
    keys = (asked[:, None] * 20_000 + sampler(asked, 4)).numpy()
    assert not np.isin(keys, users * 20_000 + items).any()
    # The pairs that there are, asked for one by one, are all known as such.
    assert len(sampler._taken(users * 20_000 + items)) == 400_000


@pytest.mark.parametrize(
    ("users", "items", "n_items", "asked"),
    [
        ([0, 1], [0], 5, [0]),
        ([0], [5], 5, [0]),
        ([-1], [0], 5, [0]),
        ([0.5], [0], 5, [0]),
        ([[0]], [[0]], 5, [0]),
        ([0], [0], 5, [-1]),
        ([0], [0], 5, [0.5]),
        ([0, 0], [0, 1], 2, [0]),  # no negative is left
    ],
)
def test_pairs_and_users_that_cannot_be_are_refused(
    users: Any, items: Any, n_items: int, asked: list[Any]
) -> None:
    with pytest.raises(ValueError, match=r"users|items"):
        NegativeSampler(users, items, n_items)(torch.tensor(asked))


def test_seed_and_epoch_decide_and_a_pickled_sampler_goes_on() -> None:
    first, second = (NegativeSampler(USERS, ITEMS, 8, seed=5) for _ in range(2))
    users = torch.zeros(100, dtype=torch.int64)
    drawn = [first(users) for _ in range(2)]
    assert not torch.equal(*drawn)
    assert torch.equal(drawn[0], second(users))
    assert torch.equal(drawn[1], pickle.loads(pickle.dumps(second))(users))
    first.set_epoch(0)
    assert torch.equal(drawn[0], first(users))
    first.set_epoch(1)
    assert not torch.equal(drawn[0], first(users))
    torch.manual_seed(3)
    one = NegativeSampler(USERS, ITEMS, 8)
    torch.manual_seed(3)
    assert torch.equal(one(users), NegativeSampler(USERS, ITEMS, 8)(users))


def test_labelled_pairs_come_before_their_negatives() -> None:
    users, items, labels = NegativeSampler(USERS, ITEMS, 8, seed=0).labelled(USERS, ITEMS, 2)
    assert torch.equal(items[:11], ITEMS)
    assert users.tolist() == [*USERS.tolist(), *USERS.repeat_interleave(2).tolist()]
    assert labels.tolist() == [1.0] * 11 + [0.0] * 22
    pairs = set(zip(USERS.tolist(), ITEMS.tolist(), strict=True))
    assert not pairs & set(zip(users[11:].tolist(), items[11:].tolist(), strict=True))


X = torch.arange(103 * 3, dtype=torch.float32).reshape(103, 3)
Y = torch.arange(103)


def same(ours: Any, theirs: Any) -> None:
    """Batch for batch, over three epochs from one state of the random numbers."""
    epochs = []
    for loader in (ours, theirs):
        torch.manual_seed(0)
        if loader.generator is not None:
            loader.generator.manual_seed(1)
        epochs.append([[*loader, [torch.rand(2)]] for _ in range(3)])
    for mine, other in zip(*epochs, strict=True):
        assert len(mine) == len(other) == len(ours) + 1
        for batch, expected in zip(mine, other, strict=True):
            assert len(batch) == len(expected)
            assert all(torch.equal(a, b) for a, b in zip(batch, expected, strict=True))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("seeded", [False, True])
@pytest.mark.parametrize("prefetch", [0, 3])
def test_the_batches_are_a_dataloaders_bit_for_bit(
    shuffle: bool, drop_last: bool, seeded: bool, prefetch: int
) -> None:
    options = {"batch_size": 10, "shuffle": shuffle, "drop_last": drop_last}
    generators = [torch.Generator() if seeded else None for _ in range(2)]
    same(
        BatchLoader(X, Y, prefetch=prefetch, generator=generators[0], **options),
        DataLoader(TensorDataset(X, Y), generator=generators[1], **options),
    )


def test_subsets_and_samplers_are_a_dataloaders_too() -> None:
    part = Subset(Subset(TensorDataset(X, Y), range(5, 90)), [3, 1, 4, 1, 5, 9, 2, 6])
    same(
        BatchLoader(part, batch_size=3, shuffle=True),
        DataLoader(part, batch_size=3, shuffle=True),
    )
    samplers = [DistributedSampler(TensorDataset(X, Y), 3, 1, seed=4) for _ in range(2)]
    ours = BatchLoader(X, Y, batch_size=8, sampler=samplers[0])
    theirs = DataLoader(TensorDataset(X, Y), batch_size=8, sampler=samplers[1])
    same(ours, theirs)
    before = [batch[1] for batch in ours]
    ours.set_epoch(1)
    samplers[1].set_epoch(1)
    same(ours, theirs)
    assert not torch.equal(before[0], next(iter(ours))[1])


class Whole(Dataset[Any]):
    """Makes a batch at once; or samples, as torch's own contract has it."""

    def __init__(self, samples: bool) -> None:
        self.samples, self.calls = samples, 0

    def __len__(self) -> int:
        return 20

    def __getitems__(self, rows: list[int]) -> Any:
        self.calls += 1
        return [{"row": row} for row in rows] if self.samples else {"row": torch.tensor(rows)}


@pytest.mark.parametrize("samples", [False, True])
def test_a_data_set_is_asked_once_for_each_batch(samples: bool) -> None:
    data = Whole(samples)
    torch.manual_seed(0)
    batches = [batch["row"] for batch in BatchLoader(data, batch_size=8, shuffle=True)]
    assert [len(batch) for batch in batches] == [8, 8, 4]
    assert sorted(torch.cat(batches).tolist()) == list(range(20))
    assert data.calls == 3


def test_a_batch_is_the_programs_own() -> None:
    for shuffle in (False, True):
        for x, _ in BatchLoader(X, Y, batch_size=10, shuffle=shuffle):
            x.zero_()
    assert X.sum() == torch.arange(309).sum()


def test_negatives_as_a_transform_follow_set_epoch() -> None:
    sampler = NegativeSampler(USERS, ITEMS, 8, seed=0)

    def epoch(number: int, prefetch: int) -> list[list[Tensor]]:
        loader = BatchLoader(USERS, ITEMS, batch_size=4, transform=sampler_pairs, prefetch=prefetch)
        loader.set_epoch(number)
        sampler.set_epoch(number)
        return [list(batch) for batch in loader]

    def sampler_pairs(users: Tensor, items: Tensor) -> tuple[Tensor, ...]:
        return sampler.labelled(users, items, 2)

    for first, second in zip(epoch(3, 0), epoch(3, 2), strict=True):
        assert all(map(torch.equal, first, second))
    assert not torch.equal(epoch(3, 0)[0][1], epoch(4, 0)[0][1])
    direct = BatchLoader(USERS, batch_size=11, transform=sampler)
    direct.set_epoch(9)
    assert sampler.epoch == 9
    assert next(iter(direct)).shape == (11, 1)


class Drawn:
    """A transform that can be pickled."""

    def __init__(self) -> None:
        self.sampler = NegativeSampler(torch.arange(1), torch.arange(1), 10_000, seed=0)

    def __call__(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return rows, self.sampler(rows)


@pytest.mark.parametrize("shuffle", [False, True])
def test_workers_share_the_batches_and_draw_negatives_of_their_own(shuffle: bool) -> None:
    def epochs() -> list[Any]:
        torch.manual_seed(0)
        loader = BatchLoader(Y, batch_size=10, shuffle=shuffle, transform=Drawn())
        return [list(DataLoader(loader, batch_size=None, num_workers=2)) for _ in range(2)]

    first, second = epochs()
    again, _ = epochs()
    assert len(first) == 11
    rows = torch.cat([batch[0] for batch in first])
    assert torch.equal(rows.sort().values, Y)
    assert torch.equal(rows, Y) is not shuffle
    drawn = torch.stack([batch[1][:3] for batch in first])
    assert len(drawn.unique(dim=0)) == 11
    assert all(torch.equal(a[1], b[1]) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0][1], second[0][1])


def test_workers_that_stay_shuffle_each_epoch_anew() -> None:
    loader = BatchLoader(Y, batch_size=10, shuffle=True)
    stay = DataLoader(loader, batch_size=None, num_workers=2, persistent_workers=True)
    first, second = (torch.cat([rows for (rows,) in stay]) for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(first.sort().values, second.sort().values)


def test_a_thread_ends_with_the_loop_and_its_error_is_the_programs() -> None:
    def fails(x: Tensor) -> Tensor:
        if x[0] >= 50:
            raise RuntimeError("no such row")
        return x

    before = set(threading.enumerate())
    for x in BatchLoader(Y, batch_size=10, prefetch=2):
        assert len(x[0]) == 10
        break
    assert set(threading.enumerate()) <= before
    loader = BatchLoader(Y, batch_size=10, transform=fails, prefetch=2)
    seen: list[int] = []
    with pytest.raises(RuntimeError, match="no such row"):
        seen.extend(int(x[0]) for x in loader)
    assert seen == [0, 10, 20, 30, 40]
    assert set(threading.enumerate()) <= before


def test_a_slow_transform_starts_a_thread_and_the_order_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hpcncf.remedies.batch_loader._usable_cores", lambda: 2)
    threads = set()

    def slow(x: Tensor) -> Tensor:
        threads.add(threading.current_thread().name)
        threading.Event().wait(0.002)
        return x

    before = torch.get_num_threads()
    rows = torch.cat(list(BatchLoader(Y, batch_size=2, transform=slow)))
    assert torch.equal(rows, Y)
    assert len(threads) == 2
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("data", "options"),
    [
        ((), {}),
        ((X, Y[:5]), {}),
        ((TensorDataset(X), 64), {}),
        (("text",), {}),
        ((X,), {"batch_size": 0}),
        ((X,), {"shuffle": True, "sampler": range(3)}),
    ],
)
def test_what_cannot_be_loaded_is_refused(data: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"expected|exclude|batch_size=64"):
        BatchLoader(*data, **options)
