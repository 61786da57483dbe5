"""Pairs of user and item that evaluation ranks in a second, at full size, on one core.

The naive way is the model's forward for the candidates of one test row after another. All take
turns in each round, and rank as many of the same test rows as a window of about a second holds.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks import results
from benchmarks.training import Stepper, full_size, in_turn
from hpcncf.data.prepared import PreparedData
from hpcncf.job.spec import Model, Training
from hpcncf.ncf import model
from hpcncf.ncf.evaluate import Candidates, Ranker, count_pairs
from hpcncf.ncf.model import NeuMF

ROUNDS = 5
KINDS: tuple[Candidates, ...] = ("sampled", "full")


@dataclass(frozen=True)
class Naive:
    model: NeuMF

    @torch.no_grad()
    def ranks(
        self, data: PreparedData, first: int, last: int, candidates: Candidates
    ) -> Iterator[Tensor]:
        for row in range(first, last):
            others = data.test_negatives[row] if candidates == "sampled" else unknown(data, row)
            items = torch.from_numpy(np.append(data.test_items[row], others))
            user = torch.tensor(data.test_users[row]).expand(len(items))
            context = torch.tensor(data.test_context[row]).expand(len(items), -1)
            scores = self.model(user, items, context)
            yield (~(scores[1:] < scores[0])).sum().view(1)


def unknown(data: PreparedData, row: int) -> NDArray[Any]:
    """All items but the held-out one and those that the user has in training."""
    others = np.ones(data.manifest.items, dtype=np.bool_)
    begin, end = data.positives_indptr[data.test_users[row] :][:2]
    others[data.positives[begin:end]] = others[data.test_items[row]] = False
    return np.flatnonzero(others).astype(np.int32)


@dataclass
class Contender:
    name: str
    ranker: Ranker
    rows: dict[Candidates, int]
    """Of a window."""
    ranks: dict[Candidates, Tensor] = field(default_factory=dict)

    def window(self, data: PreparedData, candidates: Candidates) -> float:
        """Pairs per second, what is done once for all rows included."""
        rows = self.rows[candidates]
        began = time.perf_counter()
        self.ranks[candidates] = torch.cat(list(self.ranker.ranks(data, 0, rows, candidates)))
        each = data.manifest.items if candidates == "full" else 1 + data.test_negatives.shape[1]
        return rows * each / (time.perf_counter() - began)


def contenders(data: PreparedData) -> list[Contender]:
    naive = Naive(model.initial_model(data.manifest, Model(), Training().seed).eval())
    rowwise, native = (
        Stepper(data, {"engine": name}, warmup_steps=0).engine for name in ("rowwise", "native")
    )
    return [
        Contender("the model's forward, row by row", naive, {"sampled": 4_000, "full": 12}),
        Contender("engines reference and rowwise", rowwise, {"sampled": 60_000, "full": 120}),
        Contender("engine native", native, {"sampled": 200_000, "full": 240}),
    ]


def medians(
    all_of_them: list[Contender], data: PreparedData, candidates: Candidates
) -> list[float]:
    found: list[list[float]] = [[] for _ in all_of_them]
    for number in range(ROUNDS + 1):
        for at, contender in in_turn(number, all_of_them):
            found[at].append(contender.window(data, candidates))
    return [statistics.median(speeds[1:]) for speeds in found]  # the first warmed up


def same(one: Contender, other: Contender, candidates: Candidates) -> str:
    """How many of the test rows that both ranked have the same rank."""
    both = zip(one.ranks[candidates].tolist(), other.ranks[candidates].tolist(), strict=False)
    equal = [mine == its for mine, its in both]
    return f"{sum(equal) / len(equal):.2%}"


def main() -> int:
    """Print a table for each kind of candidates."""
    torch.set_num_threads(1)
    data = full_size()
    each = contenders(data)
    print(f"{data.manifest.title}; one core, medians of {ROUNDS} rounds.\n")
    for candidates in KINDS:
        speeds = medians(each, data, candidates)
        rows = []
        for contender, speed in zip(each, speeds, strict=True):
            cells = [contender.name, f"{speed:,.0f}", f"{speed / speeds[0]:.1f}×"]
            cells.append(f"{count_pairs(data, candidates) / speed:,.1f}")
            rows.append([*cells, same(each[0], contender, candidates)])
        columns = [f"evaluation: {candidates}", "pairs/s:", ":", "all rows would take, s:"]
        print(*results.table([*columns, "same ranks:"], rows), "", sep="\n", flush=True)
    print("Ranks differ where two scores differ by their rounding.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
