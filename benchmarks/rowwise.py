"""`hpcncf.remedies` in programs of one's own: time of a step, and equality or quality beside it.

Programs of this module take turns, window by window, on one core: the machine's drift is nobody's
gain. CPU time is measured: with one thread it is the elapsed time of a core without neighbours.
RecBole and the forum user's code run as programs of their own, by turns. An absent one is skipped
with the reason.
"""

from __future__ import annotations

import argparse
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks import results
from benchmarks.peers.__main__ import HERE as PEERS
from benchmarks.peers.__main__ import write_pairs
from benchmarks.training import in_turn, real_frappe
from benchmarks.verbs import cloned, measured
from hpcncf.data.arrays import unpack_context
from hpcncf.monitor.cgroup import usable_cpus
from hpcncf.remedies import rowwise

FORUM: Final = "AlexAbades/recsys@f7734c0"
"""Of branch story/YELP-CNCF."""
FORUM_PROGRAM: Final = Path(__file__).with_name("forum_program.py")
FULL_SIZE = (215_366, 95_895)
"""The forum user's users and items."""
FORUM_CONTEXT, FORUM_ROWS = 22, 264 * 303
FRAPPE_EPOCHS, FRAPPE_SEEDS = 2, 3
LARGE = (300_000, 100_000, 64, 1024)
"""Users, items, width, batch."""
SMALL = (654, 1_127, 32, 256)
"""Frappe's tables."""
ROUNDS = 5
WARMUP_STEPS = 20
LONG, ROWS_WARMUP_STEPS = 60, 600
"""Programs with windows of so many steps warm up longer: a row never read before costs no
catch-up, so that early steps would flatter `rowwise`."""
EQUAL_STEPS = 1000
NEAR: Final = 2e-6

Sizes = tuple[int, int, int, int]
Goal = tuple[str, str, float, float, str, str]
"""Program, lines changed, milliseconds of a step without and with the remedy, goal, beside it."""


class Factorization(nn.Module):
    def __init__(self, sizes: Sizes, sparse: bool) -> None:
        super().__init__()
        users, items, width, _ = sizes
        self.users = nn.Embedding(users, width, sparse=sparse)
        self.items = nn.Embedding(items, width, sparse=sparse)
        for table in (self.users, self.items):
            nn.init.normal_(table.weight, std=0.01)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        return (self.users(users) * self.items(items)).sum(dim=1)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-3)


def fused(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)


def sparse_adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SparseAdam(list(model.parameters()), lr=1e-3)


def by_rows(model: nn.Module, small: int | None = None) -> torch.optim.Optimizer:
    optimizer = adam(model)
    rowwise(model, optimizer, small=small)
    return optimizer


def always_by_rows(model: nn.Module) -> torch.optim.Optimizer:
    return by_rows(model, small=0)


@dataclass
class TimedTraining:
    name: str
    make: Callable[[nn.Module], torch.optim.Optimizer]
    steps: int
    """Of a window."""
    sizes: Sizes = LARGE
    dtype: torch.dtype = torch.float32
    steps_ms: list[float] = field(default_factory=list)
    """A window's mean step."""

    def start(self) -> TimedTraining:
        torch.manual_seed(0)
        self.model = Factorization(self.sizes, self.make is sparse_adam).to(self.dtype)
        self.optimizer = self.make(self.model)
        self.batches = torch.Generator().manual_seed(1)
        return self

    def warm_up(self) -> TimedTraining:
        self.start().train(
            min(self.steps, WARMUP_STEPS) if self.steps < LONG else ROWS_WARMUP_STEPS
        )
        return self

    def batch(self) -> tuple[Tensor, Tensor, Tensor]:
        """Users by a skewed law, and a taste that can be learnt: about half of the pairs."""
        users, items, _, size = self.sizes
        drawn = torch.rand(2, size, generator=self.batches, dtype=torch.float64) ** 2
        user, item = (drawn[0] * users).long(), (drawn[1] * items).long()
        return user, item, ((user * 7 + item * 13) % 10 < 5).to(self.dtype)

    def loss(self, user: Tensor, item: Tensor, label: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(self.model(user, item), label)

    def train(self, steps: int) -> float:
        """Returns the CPU milliseconds of a step."""
        batches = [self.batch() for _ in range(steps)]
        began = time.process_time()
        for batch in batches:
            self.optimizer.zero_grad()
            self.loss(*batch).backward()
            self.optimizer.step()
        return 1e3 * (time.process_time() - began) / steps


def compare_speeds(programs: Sequence[TimedTraining], rounds: int) -> None:
    for program in programs:
        program.warm_up()
    for number in range(rounds):
        for _, program in in_turn(number, programs):
            program.steps_ms.append(program.train(program.steps))


def difference(name: str, first: nn.Module, second: nn.Module) -> list[str]:
    """A row: of the parameters of two models."""
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    apart = torch.cat([(one - other).detach().flatten() for one, other in pairs]).abs_()
    far, root = int((apart > NEAR).sum()), float(apart.square().mean()) ** 0.5
    return [name, f"{float(apart.max()):.1e}", f"{root:.1e}", f"{far:,} of {apart.numel():,}"]


def trained(make: Any, steps: int, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, float]:
    """A model after so many steps, and its loss of 20 further batches, the same for all."""
    program = TimedTraining("", make, 1, dtype=dtype).start()
    for _ in range(steps):
        program.train(1)
    with torch.no_grad():
        found = [program.loss(*program.batch()).item() for _ in range(20)]
    return program.model, statistics.mean(found)


def compare_results(steps: int) -> tuple[list[list[str]], dict[str, float]]:
    """Differences of parameters after so many steps from the same values; and losses."""
    truth, _ = trained(fused, steps, torch.float64)
    rows, _ = trained(by_rows, steps, torch.float64)
    apart = [difference("`rowwise` in float64, and Adam in float64", rows, truth)]
    dense, loss = trained(fused, steps)
    rows, loss_by_rows = trained(by_rows, steps)
    apart += [
        difference("`rowwise` in float32, and Adam in float32", rows, dense),
        difference("Adam in float32, and Adam in float64", dense, truth),
        difference("`rowwise` in float32, and Adam in float64", rows, truth),
    ]
    del truth, rows
    # How far torch's own two orders of rounding lead apart.
    apart.append(difference("fused and foreach Adam in float32", trained(adam, steps)[0], dense))
    # fused and Adam differ in speed alone
    losses = {"Adam": loss, "Adam, fused": loss, "Adam, `rowwise`": loss_by_rows}
    losses["SparseAdam, another algorithm"] = trained(sparse_adam, steps)[1]
    return apart, losses


def speed_rows(programs: Sequence[TimedTraining], losses: dict[str, float]) -> Iterator[list[str]]:
    stock = programs[0].steps_ms
    for program in programs:
        ratios = [first / second for first, second in zip(stock, program.steps_ms, strict=True)]
        mine = statistics.median(program.steps_ms)
        cells = [program.name, f"{mine:.2f}", f"{statistics.median(stock) / mine:.2f}"]
        cells.append(f"{min(ratios):.2f} to {max(ratios):.2f}")
        yield [*cells, f"{losses[program.name]:.6f}"] if losses else cells


def print_speeds(programs: Sequence[TimedTraining], losses: dict[str, float] | None = None) -> None:
    columns = ["optimizer", "CPU ms per step:", "×:", "range of ×:", *(["loss:"] if losses else [])]
    print(*results.table(columns, speed_rows(programs, losses or {})), sep="\n", flush=True)


def by_turns(
    stock: list[str], remedied: list[str], folder: str, remedies: str | None = None, rounds: int = 1
) -> tuple[list[float], list[float]]:
    """Medians of each of their figures. Programs start anew for each round, and their CPU time
    scatters little."""
    found: list[list[list[float]]] = [[], []]
    for _ in range(rounds):
        found[0].append(measured(stock, folder))
        found[1].append(measured(remedied, folder, remedies))
    first, second = ([statistics.median(each) for each in zip(*one, strict=True)] for one in found)
    return first, second


def own_goals(folder: str, rounds: int) -> Iterator[Goal]:
    """This module as a program without `rowwise`."""
    for title, small, steps, goal, turns in (
        ("matrix factorisation, `--with rowwise`", [], ("8", "200"), "25", 1),
        ("Frappe's tables, `--with rowwise`", ["--small"], ("1500", "1500"), "0.95", rounds),
    ):
        program = [sys.executable, "-m", "benchmarks.rowwise", "--program", *small, "--steps"]
        stock, remedied = ([*program, each] for each in steps)
        first, second = by_turns(stock, remedied, folder, "rowwise", turns)
        bare = statistics.median(measured(stock, folder, "")[0] for _ in range(turns))
        beside = f"{bare:.2f} ms under `hpcncf run` without `--with`"
        yield title, "0", first[0], second[0], goal, beside


def recbole_goals(folder: str) -> Iterator[Goal]:
    """Raises FileNotFoundError where it is not installed."""
    python = PEERS / ".venv/recbole/bin/python"
    if not python.exists():
        raise FileNotFoundError("RecBole: python -m benchmarks peers installs it")
    users, items = FULL_SIZE
    draw = np.random.default_rng(0)
    user = np.concatenate([draw.permutation(users), draw.integers(0, users, 60_000)])
    item = np.concatenate([draw.permutation(items), draw.integers(0, items, len(user) - items)])
    draw.shuffle(item)
    (Path(folder) / "data").mkdir()
    write_pairs(Path(folder, "data/data.inter"), user, item)
    settings = '{"eval_args": {"split": {"RS": [0.98, 0.01, 0.01]}}}'
    for model in ("NeuMF", "BPR"):
        short, longer = (
            [str(python), str(PEERS / "train_recbole.py"), model, folder, steps, settings]
            for steps in ("15", "100")
        )
        first, second = by_turns(short, longer, folder, "rowwise")
        same_steps = measured(short, folder, "rowwise")
        title = f"RecBole's {model}, {users:,} users x {items:,} items, `--with rowwise`"
        beside = f"loss of 15 steps {first[1]:.6f}, {same_steps[1]:.6f}"
        yield title, "0", first[0], second[0], "15", beside


def forum_data(folder: Path, sizes: Sequence[int], rows: Any, test: dict[str, Any]) -> Path:
    """The forum user's input: rows [n] of user, item, 1 and context as text, each user's items."""
    folder.mkdir()
    np.savetxt(folder / f"{folder.name}.train.rating", rows, fmt="%g", delimiter="\t")
    seen: dict[int, set[int]] = {}
    for user, item in rows[:, :2].astype(int).tolist():
        seen.setdefault(user, set()).add(item)
    (folder / f"{folder.name}.positive_samples.pkl").write_bytes(pickle.dumps(seen))
    np.savez(folder / "test.npz", sizes=np.array(sizes), **test)
    return folder


def forum_goals(folder: str) -> Iterator[Goal]:
    """Raises FileNotFoundError if the forum user's code or Frappe cannot be had."""
    try:
        code = str(cloned(FORUM, (), Path(folder) / "forum"))
    except subprocess.CalledProcessError as error:
        raise FileNotFoundError(f"the forum user's code, {FORUM}: {error}") from None

    def words(data: Path, way: str, steps: int, epochs: int = 1, seed: int = 0) -> list[str]:
        figures = [str(each) for each in (steps, epochs, seed)]
        return [sys.executable, str(FORUM_PROGRAM), code, str(data), way, *figures]

    draw, (users, items), width = np.random.default_rng(0), FULL_SIZE, FORUM_CONTEXT
    ids = [draw.integers(0, end, FORUM_ROWS) for end in FULL_SIZE]
    context = draw.integers(0, 2, (FORUM_ROWS, width))
    nobody = {"users": np.zeros(1, np.int64), "candidates": np.arange(100)[None]}
    nobody["context"] = np.zeros((1, width), np.float32)
    rows = np.column_stack([*ids, np.ones(FORUM_ROWS), context])
    full = forum_data(Path(folder) / "full", (users, items, width), rows, nobody)
    for title, lines, goal, ways, steps in (
        ("the forum user's program", "3", "30", ("stock", "changed"), (8, 303)),
        ("the same, `rowwise` alone", "1", "", ("stock", "rowwise"), (8, 8)),
        ("its model's step, no loader", "1", "", ("batches", "batches-rowwise"), (18, 303)),
    ):
        pair = [words(full, *each) for each in zip(ways, steps, strict=True)]
        first, second = by_turns(*pair, folder)
        beside = "other negatives"
        if ways[1] != "changed":
            losses = [measured(words(full, way, min(steps)), folder)[2] for way in ways]
            beside = f"loss of the {min(steps)}th step {losses[0]:.6f}, {losses[1]:.6f}"
        size = f"{title}, {users:,} users x {items:,} items"
        yield size, lines, first[0], second[0], goal, beside
    data = real_frappe(Path(folder) / "prepared")
    if data is None:
        raise FileNotFoundError(
            "Frappe by the forum user's code: HPCNCF_DATA names no folder of it"
        )
    order = np.random.default_rng(0).permutation(len(data.train_users))
    ids = [data.train_users, data.train_items, np.ones(len(order))]
    rows = np.column_stack([*ids, unpack_context(data.train_rows)])[order]
    test = {
        "users": data.test_users.astype(np.int64),
        "candidates": np.column_stack([data.test_items, data.test_negatives]).astype(np.int64),
        "context": np.asarray(data.test_context, np.float32),
    }
    sizes = (data.manifest.users, data.manifest.items, rows.shape[1] - 3)
    small = forum_data(Path(folder) / "frappe", sizes, rows, test)
    speeds, qualities = [], []
    for way in ("stock", "changed"):
        seeds = range(FRAPPE_SEEDS)
        runs = [measured(words(small, way, len(rows), FRAPPE_EPOCHS, at), folder) for at in seeds]
        steps_ms, hits, _ = zip(*runs, strict=True)
        speeds.append(statistics.median(steps_ms))
        mean = statistics.mean(hits)
        qualities.append(f"{mean:.3f} ({min(hits):.3f} to {max(hits):.3f})")
    beside = f"HR@10 after {FRAPPE_EPOCHS} epochs {', '.join(qualities)}; {FRAPPE_SEEDS} seeds"
    yield "the forum user's program on Frappe", "3", *speeds, "6", beside


def compare(steps: int, rounds: int) -> None:
    apart, losses = compare_results(steps)  # not timed: on all cores
    os.sched_setaffinity(0, {max(usable_cpus())})
    torch.set_num_threads(1)
    users, items, width, batch = LARGE
    print(f"Matrix factorisation, {users:,} + {items:,} rows x {width}, batch {batch:,}, one core;")
    print(f"medians of {rounds} rounds. Loss: after {steps} steps, of 20 other batches.\n")
    large = [
        TimedTraining("Adam", adam, 4),
        TimedTraining("Adam, fused", fused, 10),
        TimedTraining("SparseAdam, another algorithm", sparse_adam, 60),
        TimedTraining("Adam, `rowwise`", by_rows, 60),
    ]
    compare_speeds(large, rounds)
    print_speeds(large, losses)
    print(f"\nParameters after {steps:,} steps from the same values:\n")
    columns = ["difference between", "largest:", "root mean square:", f"more than {NEAR:g}:"]
    print(*results.table(columns, apart), sep="\n", flush=True)
    print("\nSmall tables, {:,} + {:,} rows x {}, batch {:,}; `rowwise`".format(*SMALL))
    print("leaves them to torch, `small=0` makes it take them.\n")
    small = [
        TimedTraining("Adam", adam, 300, SMALL),
        TimedTraining("Adam, `rowwise`", by_rows, 300, SMALL),
        TimedTraining("Adam, `rowwise`, `small=0`", always_by_rows, 300, SMALL),
    ]
    compare_speeds(small, 3 * rounds)
    print_speeds(small)
    stock_ms, rows_ms = (statistics.median(large[at].steps_ms) for at in (0, 3))
    title = f"matrix factorisation, {users:,} + {items:,} rows, `rowwise`"
    beside = f"parameters within {apart[1][1]} and {apart[0][1]} of dense Adam's (float32, float64)"
    goals: list[Goal] = [(title, "1", stock_ms, rows_ms, "25", beside)]
    print(f"\nFigures to reach; one run of each program, {rounds} with small tables,")
    print(f"{FRAPPE_SEEDS} on Frappe:\n")
    skipped = []
    with tempfile.TemporaryDirectory() as folder:
        goals += own_goals(folder, rounds)
        for others in (recbole_goals, forum_goals):
            try:
                goals.extend(others(folder))
            except FileNotFoundError as error:
                skipped.append(str(error))
    columns = ["program, one core", "lines changed:", "stock ms per step:", "remedied:", "×:"]
    cells = (
        [name, lines, f"{stock:.2f}", f"{remedied:.2f}", f"{stock / remedied:.2f}", goal, more]
        for name, lines, stock, remedied, goal, more in goals
    )
    print(*results.table([*columns, "goal:", "beside"], cells), sep="\n")
    for reason in skipped:
        print(f"\nSkipped: {reason}")


def main() -> None:
    asking = argparse.ArgumentParser()
    asking.add_argument("--steps", type=int, default=EQUAL_STEPS, help="before comparing")
    asking.add_argument("--rounds", type=int, default=ROUNDS)
    asking.add_argument("--program", action="store_true", help="be the program, with torch's Adam")
    asking.add_argument("--small", action="store_true", help="with Frappe's tables")
    asked = asking.parse_args()
    if not asked.program:
        compare(asked.steps, asked.rounds)
        return
    torch.set_num_threads(1)
    program = TimedTraining("", adam, asked.steps, SMALL if asked.small else LARGE).warm_up()
    print(f"measured: {program.train(asked.steps)}")


if __name__ == "__main__":
    main()
