"""A small recommender in torch as users write one: a Dataset, a DataLoader, a loop, perhaps DDP.

It trains until its time is over and tells how long each phase of its steps took.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from samples import ITEMS, ROWS, Positives, Tensors
from told import Phases
from torch import Tensor, nn
from torch.utils.data import DataLoader

PHASES = ("input", "forward", "backward", "sync", "optimizer", "evaluation", "checkpoint")


class Model(nn.Module):
    def __init__(self, table: int, width: int) -> None:
        super().__init__()
        self.users = nn.Embedding(table, 32)
        self.items = nn.Embedding(ITEMS, 32)
        self.mlp = nn.Sequential(
            nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
        )

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        both = torch.cat([self.users(users), self.items(items)], dim=1)
        return self.mlp(both).squeeze(1)  # type: ignore[no-any-return]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", default="tensors", help="or drawn, parsed, remote, file")
    parser.add_argument("--file", type=Path)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--table", type=int, default=ITEMS)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--optimizer", choices=["adam", "sgd"], default="sgd")
    parser.add_argument("--threads", type=int, help="default: torch's own choice")
    parser.add_argument("--evaluate", type=int, default=0, metavar="USERS", help="after each epoch")
    parser.add_argument("--save", type=Path, metavar="FILE", help="a checkpoint after each epoch")
    parser.add_argument("--twice-on", type=int, metavar="RANK", help="it computes each step twice")
    parser.add_argument("--more-on", type=int, metavar="RANK", help="its batches are three times")
    parser.add_argument(
        "--index", type=float, default=0, metavar="SECONDS", help="before it starts"
    )
    parser.add_argument("--seconds", type=float, default=10)
    return parser.parse_args()


class Loop:
    def __init__(self, asked: argparse.Namespace, ranks: int) -> None:
        self.asked, self.rank, self.ranks = asked, int(os.environ.get("RANK", 0)), ranks
        self.model = Model(asked.table, asked.width)
        made = torch.optim.Adam if asked.optimizer == "adam" else torch.optim.SGD
        self.optimizer: torch.optim.Optimizer = made(self.model.parameters(), lr=1e-3)
        self.phases = Phases(*PHASES)
        self.phases.others["table_rows"] = asked.table + ITEMS

    def batches(self) -> Iterator[list[Tensor]]:
        asked = self.asked
        batch = asked.batch * (3 if self.rank == asked.more_on else 1)
        if asked.samples == "tensors":
            return iter(Tensors(batch))
        rows = Positives(asked.samples, asked.file)
        return iter(DataLoader(rows, batch, shuffle=True, num_workers=asked.workers))

    def train(self) -> None:
        for _ in itertools.count():
            with self.phases.of("input"):
                batches = self.batches()
            while (batch := self._next(batches)) is not None:
                self._step(batch)
                if self._over():
                    return
            if self.asked.evaluate:
                self._evaluate()
            if self.asked.save:
                self._save()

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
        for _ in range(2 if self.rank == self.asked.twice_on else 1):
            self.optimizer.zero_grad()
            with self.phases.of("forward"):
                wanted = (items % 2).float()
                told = self.model(users, items)
                loss = nn.functional.binary_cross_entropy_with_logits(told, wanted)
            with self.phases.of("backward"):
                loss.backward()
        self._exchange()
        with self.phases.of("optimizer"):
            self.optimizer.step()
        self.phases.step(len(users))

    def _exchange(self) -> None:
        """Means of the gradients, as DDP's without its overlap, so that the wait can be told."""
        if self.ranks == 1:
            return
        with self.phases.of("sync"):
            for each in self.model.parameters():
                assert each.grad is not None
                dist.all_reduce(each.grad)
                each.grad /= self.ranks

    @torch.no_grad()
    def _evaluate(self) -> None:
        """Each user against all items, one user at a time."""
        items = torch.arange(ITEMS)
        with self.phases.of("evaluation"):
            for user in range(self.asked.evaluate):
                self.model(torch.full_like(items, user % ITEMS), items).topk(10)

    def _save(self) -> None:
        """Written to its end, as one that is to survive a node's end must be."""
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        with self.phases.of("checkpoint"), self.asked.save.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())


def index(seconds: float) -> dict[int, list[int]]:
    """What each user has, built anew at every start, for so long."""
    until, found = time.monotonic() + seconds, dict[int, list[int]]()
    while time.monotonic() < until:
        for user in range(ITEMS):
            found[user] = [row * 7 % ITEMS for row in range(user, ROWS, ITEMS)]
    return found


def main() -> None:
    asked = arguments()
    if asked.threads:
        torch.set_num_threads(asked.threads)
    torch.manual_seed(1)
    index(asked.index)
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    if ranks > 1:
        dist.init_process_group("gloo")
    loop = Loop(asked, ranks)
    loop.train()
    loop.phases.tell()
    if ranks > 1:
        dist.destroy_process_group()
        sys.stdout.flush()
        os._exit(0)  # one of gloo's threads may still hold a tensor, and abort Python's end


if __name__ == "__main__":
    main()
