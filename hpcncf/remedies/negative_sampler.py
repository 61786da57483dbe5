"""Negative samples for whole batches: items that a user has no pair with."""

from __future__ import annotations

from typing import Any, Final, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.utils.data import get_worker_info

Ints = NDArray[np.int64]
Users = TypeVar("Users", Tensor, NDArray[Any])

# A bit for each pair of user and item, exact, as long as they are no more than this (64 MiB).
MOST_BITS: Final = 2**29
# Else so many bits for each pair that there is, by a hash: one absent pair in 16 is searched for.
BITS_PER_PAIR: Final = 16
BITS: Final = np.left_shift(1, np.arange(8)).astype(np.uint8)
MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)  # Knuth's multiplicative hash, 2^64 / phi
# From the 8th draw on, who still hits own items has nearly all of them: absent ones are listed.
MOST_DRAWS: Final = 8


class NegativeSampler:
    """Uniform sampler of items that a user has no pair with.

    Exact: no negative is ever one of the user's items, and all others are equally likely. A batch
    is drawn at once; draws that hit one of the user's items are drawn again.

    `users`, `items`: pairs, as tensors or arrays of integers [pairs]; equal pairs count once.
    `n_items`: items are 0 to n_items - 1. `seed`: the same seed gives the same negatives; None
    takes one from `generator`, or from torch's default generator: `torch.manual_seed` decides.

    In a DataLoader's worker the stream depends on the worker's seed, so no two workers repeat each
    other. Ranks need seeds of their own, as `seed=1000 + rank`.

    Raises ValueError for ids outside their range.
    """

    def __init__(
        self,
        users: Tensor | ArrayLike,
        items: Tensor | ArrayLike,
        n_items: int,
        *,
        seed: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        pairs_users, pairs_items = _integers(users, "users"), _integers(items, "items")
        if len(pairs_users) != len(pairs_items):
            raise ValueError(f"users: {len(pairs_users)} for {len(pairs_items)} items; give pairs")
        if len(pairs_items) and int(pairs_items.max()) >= n_items:
            raise ValueError(f"items: {int(pairs_items.max())} came, n_items is {n_items}")
        self.n_items = int(n_items)
        self.n_users = int(pairs_users.max(initial=-1)) + 1
        self.seed = _drawn_seed(generator) if seed is None else int(seed)
        self.epoch = 0
        self._worker: int | None = None
        self._random = np.random.default_rng([self.seed, self.epoch])
        keys = np.sort(pairs_users * self.n_items + pairs_items)  # np.unique takes 20 times as long
        self._keys: Ints = keys[np.flatnonzero(np.diff(keys, prepend=-1))]
        self._held = np.bincount(self._keys // self.n_items, minlength=self.n_users + 1)
        # The row behind the last user is of users without a pair.
        bits = (self.n_users + 1) * self.n_items
        self._exact = bits <= MOST_BITS
        if not self._exact:
            bits = 1 << max(10, (BITS_PER_PAIR * len(self._keys) - 1).bit_length())
        self._shift = np.uint64(64 - (bits.bit_length() - 1))
        self._bits = np.zeros(bits // 8 + 1, np.uint8)
        places = np.sort(self._places(self._keys))
        firsts = np.flatnonzero(np.diff(places >> 3, prepend=-1))
        if len(firsts):
            self._bits[places[firsts] >> 3] = np.bitwise_or.reduceat(_bit(places), firsts)

    def __call__(self, users: Users, count: int = 1) -> Users:
        """Draw `count` random items for each user that the user has no pair with, [users, count].

        The result is a tensor if `users` is one, and a NumPy array otherwise.

        A user without a pair may get any item. Raises ValueError for a user who has all items.
        """
        self._follow_worker()
        asked = users.cpu().numpy() if isinstance(users, Tensor) else np.asarray(users)
        known = np.minimum(_integers(asked.reshape(-1), "users"), self.n_users)
        if (self._held[known] >= self.n_items).any():
            full = int(known[self._held[known] >= self.n_items][0])
            raise ValueError(f"user {full} has all {self.n_items} items: no negative is left")
        drawn = self._random.integers(self.n_items, size=(len(known), count))
        first_keys, flat = (known * self.n_items)[:, None], drawn.reshape(-1)
        taken = self._taken((first_keys + drawn).reshape(-1))
        for _ in range(MOST_DRAWS):
            if not len(taken):
                break
            flat[taken] = self._random.integers(self.n_items, size=len(taken))
            taken = taken[self._taken(first_keys[taken // count, 0] + flat[taken])]
        for at in taken:
            flat[at] = self._random.choice(self._absent(int(known[at // count])))
        if isinstance(users, Tensor):
            return torch.from_numpy(drawn).to(users.device)
        return drawn

    def labelled(self, users: Tensor, items: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Add `count` negatives to each pair: users, items and labels [pairs * (1 + count)].

        Labels are float32, 1 for the pairs that were given. They come first.
        """
        negatives = self(users, count)
        labels = torch.zeros(len(users) * (1 + count), device=users.device)
        labels[: len(users)] = 1
        everyone = torch.cat([users, users.repeat_interleave(count)])
        return everyone, torch.cat([items, negatives.reshape(-1).to(items.dtype)]), labels

    def set_epoch(self, epoch: int) -> None:
        """Start an epoch; its negatives depend only on the seed and the epoch's number."""
        self.epoch, self._worker = int(epoch), None
        self._random = np.random.default_rng([self.seed, self.epoch])

    def _follow_worker(self) -> None:
        worker = get_worker_info()
        if worker is not None and worker.seed != self._worker:
            self._worker = worker.seed
            self._random = np.random.default_rng([self.seed, self.epoch, worker.seed])

    def _places(self, keys: Ints) -> Ints:
        """Return the bit positions of user-item pairs in the table of existing pairs."""
        if self._exact:
            return keys
        return (keys.astype(np.uint64) * MULTIPLIER >> self._shift).astype(np.int64)

    def _taken(self, keys: Ints) -> Ints:
        """Return the positions in `keys` of pairs that exist already."""
        places = self._places(keys)
        found = np.flatnonzero(self._bits[places >> 3] & _bit(places))
        if self._exact or not len(found):
            return found
        at = np.minimum(np.searchsorted(self._keys, keys[found]), len(self._keys) - 1)
        taken: Ints = found[self._keys[at] == keys[found]]
        return taken

    def _absent(self, user: int) -> Ints:
        first, last = np.searchsorted(self._keys, [user * self.n_items, (user + 1) * self.n_items])
        return np.setdiff1d(np.arange(self.n_items), self._keys[first:last] - user * self.n_items)


def _integers(values: Any, name: str) -> Ints:
    found = values.cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if found.ndim != 1 or (len(found) and found.dtype.kind not in "iu"):
        raise ValueError(f"{name}: expected integers [pairs], came {found.dtype} {found.shape}")
    if len(found) and int(found.min()) < 0:
        raise ValueError(f"{name}: {int(found.min())} came; ids begin at 0")
    return found.astype(np.int64, copy=False)


def _drawn_seed(generator: torch.Generator | None) -> int:
    """Draw a random seed from the generator, as DataLoader does."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def _bit(places: Ints) -> NDArray[np.uint8]:
    bits: NDArray[np.uint8] = BITS[places & 7]
    return bits
