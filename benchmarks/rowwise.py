"""`hpcncf.remedies.rowwise` on plain matrix factorisation: time of a step, loss, and equality.

All programs take turns, window by window, on one core: the machine's drift is nobody's gain. CPU
time is measured: with one thread it is the elapsed time of a core without neighbours. Batches are
drawn before.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hpcncf.monitor.cgroup import usable_cpus
from hpcncf.remedies import rowwise

USERS, ITEMS, WIDTH, BATCH = 300_000, 100_000, 64, 1024
SMALL = (654, 1_127, 32, 256)
"""Frappe's tables."""
ROUNDS = 7
WARMUP_STEPS = 20
EQUAL_STEPS = 1000

Sizes = tuple[int, int, int, int]


class Factorization(nn.Module):
    def __init__(self, sizes: Sizes, sparse: bool, dtype: torch.dtype) -> None:
        super().__init__()
        users, items, width, _ = sizes
        self.users = nn.Embedding(users, width, sparse=sparse, dtype=dtype)
        self.items = nn.Embedding(items, width, sparse=sparse, dtype=dtype)
        for table in (self.users, self.items):
            nn.init.normal_(table.weight, std=0.01)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        return (self.users(users) * self.items(items)).sum(dim=1)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-3)


def fused(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)


def by_rows(model: nn.Module) -> torch.optim.Optimizer:
    optimizer = adam(model)
    rowwise(model, optimizer)
    return optimizer


def always_by_rows(model: nn.Module) -> torch.optim.Optimizer:
    optimizer = adam(model)
    rowwise(model, optimizer, small=0)
    return optimizer


def sparse_adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SparseAdam(list(model.parameters()), lr=1e-3)


@dataclass
class Program:
    name: str
    make: Callable[[nn.Module], torch.optim.Optimizer]
    steps: int
    """Of a window."""
    sizes: Sizes = (USERS, ITEMS, WIDTH, BATCH)
    dtype: torch.dtype = torch.float32
    steps_ms: list[float] = field(default_factory=list)
    """A window's mean step."""

    def start(self) -> Program:
        torch.manual_seed(0)
        self.model = Factorization(self.sizes, self.make is sparse_adam, self.dtype)
        self.optimizer = self.make(self.model)
        self.batches = torch.Generator().manual_seed(1)
        self.taken = 0
        return self

    def batch(self) -> tuple[Tensor, Tensor, Tensor]:
        """Users by a skewed law, and a taste that can be learnt: about half of the pairs."""
        users, items, _, size = self.sizes
        drawn = torch.rand(2, size, generator=self.batches, dtype=torch.float64) ** 2
        user, item = (drawn[0] * users).long(), (drawn[1] * items).long()
        return user, item, ((user * 7 + item * 13) % 10 < 5).to(self.dtype)

    def train(self, steps: int) -> float:
        """Returns the last step's loss."""
        for user, item, label in [self.batch() for _ in range(steps)]:
            self.optimizer.zero_grad()
            loss = F.binary_cross_entropy_with_logits(self.model(user, item), label)
            loss.backward()
            self.optimizer.step()
        self.taken += steps
        return loss.item()

    def window(self) -> None:
        batches = [self.batch() for _ in range(self.steps)]
        began = time.process_time()
        for user, item, label in batches:
            self.optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(self.model(user, item), label).backward()
            self.optimizer.step()
        self.steps_ms.append(1e3 * (time.process_time() - began) / self.steps)
        self.taken += self.steps


def compare_speeds(programs: list[Program], rounds: int) -> None:
    for program in programs:
        program.start().train(min(program.steps, WARMUP_STEPS))
    for number in range(rounds):
        for program in programs if number % 2 == 0 else programs[::-1]:
            program.window()


def trained(make: Any, steps: int, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, float]:
    """A model after so many steps, and its loss of 20 further batches, the same for all."""
    program = Program("", make, 1, dtype=dtype).start()
    program.train(steps)
    with torch.no_grad():
        found = [
            F.binary_cross_entropy_with_logits(program.model(user, item), label).item()
            for user, item, label in (program.batch() for _ in range(20))
        ]
    return program.model, statistics.mean(found)


def print_speeds(programs: list[Program], losses: dict[str, float] | None = None) -> None:
    stock = statistics.median(programs[0].steps_ms)
    print("| optimizer | CPU ms per step | × | range of × |" + (" loss |" if losses else ""))
    print("|---|---:|---:|---:|" + ("---:|" if losses else ""))
    for program in programs:
        pairs = zip(programs[0].steps_ms, program.steps_ms, strict=True)
        ratios = [first / second for first, second in pairs]
        mine = statistics.median(program.steps_ms)
        line = f"| {program.name} | {mine:.2f} | {stock / mine:.2f} "
        line += f"| {min(ratios):.2f} to {max(ratios):.2f} |"
        print(line + (f" {losses[program.name]:.6f} |" if losses else ""), flush=True)


def difference(first: nn.Module, second: nn.Module) -> float:
    """The largest, of a parameter."""
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return max(float((one - other).detach().abs().max()) for one, other in pairs)


def main() -> None:
    asking = argparse.ArgumentParser()
    asking.add_argument("--steps", type=int, default=EQUAL_STEPS, help="before comparing")
    steps = asking.parse_args().steps
    os.sched_setaffinity(0, {max(usable_cpus())})
    torch.set_num_threads(1)
    named: list[tuple[str, Any, int]] = [
        ("Adam", adam, 4),
        ("Adam, fused", fused, 10),
        ("SparseAdam, another algorithm", sparse_adam, 60),
        ("Adam, `rowwise`", by_rows, 60),
    ]
    print(f"Matrix factorisation, {USERS:,} + {ITEMS:,} rows x {WIDTH}, batch {BATCH:,}, one core;")
    print(f"medians of {ROUNDS} rounds. Loss: after {steps} steps, of 20 other batches.\n")
    programs = [Program(*each) for each in named]
    compare_speeds(programs, ROUNDS)
    apart, losses = {}, {}
    for dtype in (torch.float32, torch.float64):
        dense, losses["Adam, fused"] = trained(fused, steps, dtype)
        rows, losses["Adam, `rowwise`"] = trained(by_rows, steps, dtype)
        apart[dtype] = (
            difference(dense, rows),
            difference(dense, Program("", fused, 1, dtype=dtype).start().model),
        )
        del dense, rows
        if dtype == torch.float32:
            _, losses["SparseAdam, another algorithm"] = trained(sparse_adam, steps)
            losses["Adam"] = losses["Adam, fused"]  # they differ in speed alone
            print_speeds(programs, losses)
    print(f"\nLargest difference of a parameter to dense Adam's after {steps} steps:\n")
    print("| type | difference | farthest move of a parameter |\n|---|---:|---:|")
    for dtype, (difference_, moved) in apart.items():
        name = str(dtype).removeprefix("torch.")
        print(f"| {name} | {difference_:.1e} | {moved:.2f} |", flush=True)
    users, items, width, batch = SMALL
    print(
        f"\nSmall tables, {users:,} + {items:,} rows x {width}, batch {batch:,}; `rowwise` leaves "
    )
    print("them to torch, `small=0` makes it take them.\n")
    small = [
        Program("Adam", adam, 300, SMALL),
        Program("Adam, `rowwise`", by_rows, 300, SMALL),
        Program("Adam, `rowwise`, `small=0`", always_by_rows, 300, SMALL),
    ]
    compare_speeds(small, 3 * ROUNDS)
    print_speeds(small)


if __name__ == "__main__":
    main()
