"""A small recommender in torch as users write one: a Dataset, a DataLoader, a loop, perhaps DDP.

It trains until its time is over and reports how long each phase of its steps took.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from phases_of_program import Phases
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

ROWS, ITEMS, BLOCK = 20_000, 5_000, 65_536
PHASES = ("input", "forward", "backward", "sync", "optimizer")


class Positives(Dataset[tuple[int, int]]):
    """User and item of each row; `kind` says what a sample costs."""

    def __init__(self, kind: str, file: Path | None) -> None:
        self.kind = kind
        self.file = os.open(file, os.O_RDONLY) if file else -1

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> tuple[int, int]:
        if self.kind == "remote":
            time.sleep(0.002)  # a file server's answer
        elif self.kind == "file":
            self._read()
        return row % ITEMS, row * 7 % ITEMS

    def _read(self) -> None:
        """A block from somewhere in the file; the kernel may not keep it, as it cannot keep a
        data set larger than memory."""
        size = os.fstat(self.file).st_size
        at = random.randrange(size // BLOCK) * BLOCK
        os.pread(self.file, BLOCK, at)
        os.posix_fadvise(self.file, at, BLOCK, os.POSIX_FADV_DONTNEED)


class Tensors:
    """The same rows as whole batches of tensors: what a good loader costs."""

    def __init__(self, batch: int) -> None:
        self.batch = batch

    def __iter__(self) -> Iterator[list[Tensor]]:
        for rows in torch.randperm(ROWS).split(self.batch):
            yield [rows % ITEMS, rows * 7 % ITEMS]


class Model(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.users = nn.Embedding(ITEMS, 32)
        self.items = nn.Embedding(ITEMS, 32)
        self.mlp = nn.Sequential(
            nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
        )

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        both = torch.cat([self.users(users), self.items(items)], dim=1)
        return self.mlp(both).squeeze(1)  # type: ignore[no-any-return]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", default="tensors", help="or remote, file")
    parser.add_argument("--file", type=Path)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--threads", type=int, help="default: torch's own choice")
    parser.add_argument("--more-on", type=int, metavar="RANK", help="its batches are three times")
    parser.add_argument("--seconds", type=float, default=10)
    return parser.parse_args()


class Loop:
    def __init__(self, asked: argparse.Namespace, ranks: int) -> None:
        self.asked, self.rank, self.ranks = asked, int(os.environ.get("RANK", 0)), ranks
        self.model = Model(asked.width)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.phases = Phases(*PHASES)
        self.phases.others["table_rows"] = 2 * ITEMS

    def batches(self) -> Iterator[list[Tensor]]:
        asked = self.asked
        batch = asked.batch * (3 if self.rank == asked.more_on else 1)
        if asked.samples == "tensors":
            return iter(Tensors(batch))
        rows = Positives(asked.samples, asked.file)
        return iter(DataLoader(rows, batch, shuffle=True))

    def train(self) -> None:
        for _ in itertools.count():
            with self.phases.of("input"):
                batches = self.batches()
            while (batch := self._next(batches)) is not None:
                self._step(batch)
                if self._over():
                    return

    def _next(self, batches: Iterator[list[Tensor]]) -> list[Tensor] | None:
        with self.phases.of("input"):
            return next(batches, None)

    def _over(self) -> bool:
        """All ranks stop at one step: the first one's clock counts."""
        over = torch.tensor(float(self.phases.elapsed_s() > self.asked.seconds))
        if self.ranks > 1:
            with self.phases.of("sync"):
                dist.broadcast(over, 0)
        return bool(over)

    def _step(self, batch: list[Tensor]) -> None:
        users, items = batch
        if not self.phases.steps:
            self.phases.others["rows_per_step"] = len(users.unique()) + len(items.unique())
        self.optimizer.zero_grad()
        with self.phases.of("forward"):
            wanted = (items % 2).float()
            seen = self.model(users, items)
            loss = nn.functional.binary_cross_entropy_with_logits(seen, wanted)
        with self.phases.of("backward"):
            loss.backward()
        self._exchange()
        with self.phases.of("optimizer"):
            self.optimizer.step()
        self.phases.step(len(users))

    def _exchange(self) -> None:
        """Means of the gradients, as DDP's without its overlap, so that the wait is seen."""
        if self.ranks == 1:
            return
        with self.phases.of("sync"):
            for each in self.model.parameters():
                assert each.grad is not None
                dist.all_reduce(each.grad)
                each.grad /= self.ranks


def main() -> None:
    asked = arguments()
    if asked.threads:
        torch.set_num_threads(asked.threads)
    torch.manual_seed(1)
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    if ranks > 1:
        dist.init_process_group("gloo")
    loop = Loop(asked, ranks)
    loop.train()
    loop.phases.say()
    if ranks > 1:
        dist.destroy_process_group()
        sys.stdout.flush()
        os._exit(0)  # one of gloo's threads may still hold a tensor, and abort Python's end


if __name__ == "__main__":
    main()
