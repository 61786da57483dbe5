"""`hpcncf.remedies` in programs of one's own: time of a step, and equality or quality beside it.

Programs of this module take turns, window by window, on one core: the machine's drift is nobody's
gain. CPU time is measured: with one thread it is the elapsed time of a core without neighbours.

RecBole (made by `python -m benchmarks.peers.environments`) and the forum user's code (cloned from
GitHub, or from the folder HPCNCF_PROGRAMS) run as programs of their own, by turns. An absent one is
skipped with the reason.
"""

from __future__ import annotations

import argparse
import os
import pickle
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.public.__main__ import cloned
from benchmarks.training import real_frappe
from hpcncf.monitor.cgroup import usable_cpus
from hpcncf.ncf.data.arrays import unpack_context
from hpcncf.remedies import rowwise

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parent
FULL_SIZE = (215_366, 95_895)
"""The forum user's users and items."""
FORUM: Final = "AlexAbades/recsys@f7734c0"
"""Of branch story/YELP-CNCF."""
FRAPPE_EPOCHS: Final = 2
FRAPPE_SEEDS: Final = 3
NO_REMEDY: Final = "none"
"""`hpcncf run` without `--with`: what the probe itself costs."""
USERS, ITEMS, WIDTH, BATCH = 300_000, 100_000, 64, 1024
SMALL = (654, 1_127, 32, 256)
"""Frappe's tables."""
ROUNDS = 5
ROUNDS_OF_PROGRAMS = 1
"""They start anew for each; their CPU time scatters little."""
WARMUP_STEPS = 20
LONG, ROWS_WARMUP_STEPS = 60, 600
"""Programs with windows of so many steps warm up longer: a row never read before costs no
catch-up, so that early steps would flatter `rowwise`."""
EQUAL_STEPS = 1000
NEAR: Final = 2e-6

Sizes = tuple[int, int, int, int]


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
        self.model = Factorization(self.sizes, self.make is sparse_adam).to(self.dtype)
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
        program.start().train(
            min(program.steps, WARMUP_STEPS) if program.steps < LONG else ROWS_WARMUP_STEPS
        )
    for number in range(rounds):
        for program in programs if number % 2 == 0 else programs[::-1]:
            program.window()


@dataclass
class Difference:
    """Of the parameters of two models."""

    largest: float
    mean_square: float
    far: int
    """Parameters that differ by more than NEAR."""
    of_all: int

    @staticmethod
    def of(first: nn.Module, second: nn.Module) -> Difference:
        pairs = zip(first.parameters(), second.parameters(), strict=True)
        apart = torch.cat([(one - other).detach().flatten() for one, other in pairs]).abs_()
        far, of_all = int((apart > NEAR).sum()), apart.numel()
        return Difference(float(apart.max()), float(apart.square().mean()), far, of_all)


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


def compare_results(steps: int) -> tuple[list[tuple[str, Difference]], dict[str, float]]:
    """Differences of parameters after so many steps from the same values; and losses."""
    truth, _ = trained(fused, steps, torch.float64)
    rows, _ = trained(by_rows, steps, torch.float64)
    apart = [("`rowwise` in float64, and Adam in float64", Difference.of(rows, truth))]
    del rows
    dense, loss = trained(fused, steps)
    rows, loss_by_rows = trained(by_rows, steps)
    apart += [
        ("`rowwise` in float32, and Adam in float32", Difference.of(rows, dense)),
        ("Adam in float32, and Adam in float64", Difference.of(dense, truth)),
        ("`rowwise` in float32, and Adam in float64", Difference.of(rows, truth)),
    ]
    del truth, rows
    # How far torch's own two orders of rounding lead apart.
    foreach, _ = trained(adam, steps)
    apart.append(("fused and foreach Adam in float32", Difference.of(foreach, dense)))
    del dense, foreach
    # fused and Adam differ in speed alone
    losses = {"Adam": loss, "Adam, fused": loss, "Adam, `rowwise`": loss_by_rows}
    _, losses["SparseAdam, another algorithm"] = trained(sparse_adam, steps)
    return apart, losses


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


@dataclass
class Goal:
    """A row of the last table."""

    program: str
    lines: str
    stock_ms: float
    remedied_ms: float
    goal: str
    beside: str


def print_goals(rows: list[Goal], skipped: list[str]) -> None:
    print(
        "| program, one core | lines changed | stock ms per step | remedied | × | goal | beside |"
    )
    print("|---|---:|---:|---:|---:|---:|---|")
    for row in rows:
        print(
            f"| {row.program} | {row.lines} | {row.stock_ms:.2f} | {row.remedied_ms:.2f} "
            f"| {row.stock_ms / row.remedied_ms:.2f} | {row.goal} | {row.beside} |",
            flush=True,
        )
    for reason in skipped:
        print(f"\nSkipped: {reason}")


def measured(command: list[str], folder: str, remedies: str = "") -> list[float]:
    """The figures that a program prints; `remedies`: of `hpcncf run --with`."""
    if remedies:
        run = [sys.executable, "-m", "hpcncf", "run", "--results", f"{folder}/results"]
        asked = [] if remedies == NO_REMEDY else ["--with", remedies]
        command = [*run, *asked, "--", *command]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = re.search(r"^measured: (.*)$", done.stdout, re.MULTILINE)
    if done.returncode or found is None:
        raise RuntimeError(f"{shlex.join(command)}: {done.stdout[-1500:]}{done.stderr[-1500:]}")
    return [float(each) for each in found[1].split()]


def by_turns(
    stock: list[str], remedied: list[str], folder: str, remedies: str, rounds: int
) -> tuple[list[float], list[float]]:
    """Medians of each of their figures."""
    found: list[list[list[float]]] = [[], []]
    for _ in range(rounds):
        found[0].append(measured(stock, folder))
        found[1].append(measured(remedied, folder, remedies))
    first, second = ([statistics.median(each) for each in zip(*one, strict=True)] for one in found)
    return first, second


def own_program(optimizer: str, small: bool, steps: int) -> list[str]:
    """This module as a program without `rowwise`."""
    words = [sys.executable, "-m", "benchmarks.rowwise", "--program", optimizer]
    return [*words, "--steps", str(steps), *(["--small"] if small else [])]


def run_program(optimizer: str, small: bool, steps: int) -> None:
    torch.set_num_threads(1)
    makes = {"adam": adam, "fused": fused}
    sizes = SMALL if small else (USERS, ITEMS, WIDTH, BATCH)
    program = Program("", makes[optimizer], steps, sizes).start()
    program.train(min(steps, WARMUP_STEPS) if steps < LONG else ROWS_WARMUP_STEPS)
    program.window()
    print(f"measured: {program.steps_ms[0]}")


def recbole_goals(folder: str, rounds: int) -> list[Goal]:
    """Raises FileNotFoundError where it is not installed."""
    python = HERE / "peers/.venv/recbole/bin/python"
    if not python.exists():
        raise FileNotFoundError("RecBole: python -m benchmarks.peers.environments installs it")
    users, items = FULL_SIZE
    draw = np.random.default_rng(0)
    user = np.concatenate([draw.permutation(users), draw.integers(0, users, 60_000)])
    item = np.concatenate([draw.permutation(items), draw.integers(0, items, len(user) - items)])
    draw.shuffle(item)
    made = Path(folder) / "made"
    made.mkdir()
    lines = (f"{each}\t{other}\n" for each, other in zip(user.tolist(), item.tolist(), strict=True))
    with (made / "made.inter").open("w") as file:
        file.write("user_id:token\titem_id:token\n")
        file.writelines(lines)
    goals = []
    for model in ("NeuMF", "BPR"):
        command = [str(python), str(HERE / "peers/train_recbole_stock.py"), model, folder]
        first, second = by_turns([*command, "15"], [*command, "100"], folder, "rowwise", rounds)
        short = measured([*command, "15"], folder, "rowwise")  # the loss of the same steps
        goals.append(
            Goal(
                f"RecBole's {model}, {users:,} users x {items:,} items, `--with rowwise`",
                *("0", first[0], second[0], "15"),
                f"loss of 15 steps {first[1]:.6f}, {short[1]:.6f}",
            )
        )
    return goals


def forum_data(folder: Path, sizes: Sequence[int], rows: Any, test: dict[str, Any]) -> Path:
    """His input: rows [n] of user, item, 1 and context as text, and each user's items."""
    folder.mkdir()
    np.savetxt(folder / f"{folder.name}.train.rating", rows, fmt="%g", delimiter="\t")
    seen: dict[int, set[int]] = {}
    for user, item in rows[:, :2].astype(int).tolist():
        seen.setdefault(user, set()).add(item)
    (folder / f"{folder.name}.positive_samples.pkl").write_bytes(pickle.dumps(seen))
    np.savez(folder / "test.npz", sizes=np.array(sizes), **test)
    return folder


def forum_goals(folder: str, rounds: int) -> list[Goal]:
    """Raises FileNotFoundError if his code cannot be had."""
    try:
        code = str(cloned(FORUM, (), Path(folder) / "forum"))
    except subprocess.CalledProcessError as error:
        raise FileNotFoundError(
            f"the forum user's code, {FORUM}: {error}. A folder with a clone of it as "
            f"{FORUM.partition('@')[0].replace('/', '+')}, named by HPCNCF_PROGRAMS, will do"
        ) from None

    def words(data: Path, way: str, steps: int, epochs: int = 1, seed: int = 0) -> list[str]:
        script = [sys.executable, str(HERE / "peers/train_forum.py"), code, str(data), way]
        return [*script, str(steps), str(epochs), str(seed)]

    draw, (users, items), width = np.random.default_rng(0), FULL_SIZE, 22
    count = 264 * 303
    pairs = [draw.integers(0, users, count), draw.integers(0, items, count), np.ones(count)]
    rows = np.column_stack([*pairs, draw.integers(0, 2, (count, width))])
    nobody = {"users": np.zeros(1, np.int64), "candidates": np.arange(100)[None]}
    nobody["context"] = np.zeros((1, width), np.float32)
    full = forum_data(Path(folder) / "full", (users, items, width), rows, nobody)
    goals = []
    for title, lines, goal, ways, steps in (
        ("the forum user's program", "3", "30", ("stock", "changed"), (8, 303)),
        ("the same, `rowwise` alone", "1", "", ("stock", "rowwise"), (8, 8)),
        ("his model's step, no loader", "1", "", ("batches", "batches-rowwise"), (18, 303)),
    ):
        pair = [words(full, *each) for each in zip(ways, steps, strict=True)]
        first, second = by_turns(*pair, folder, "", rounds)
        beside = "other negatives"
        if ways[1] != "changed":
            [_, _, loss], [_, _, other] = (
                measured(words(full, way, min(steps)), folder) for way in ways
            )
            beside = f"loss of the {min(steps)}th step {loss:.6f}, {other:.6f}"
        size = f"{title}, {users:,} users x {items:,} items"
        goals.append(Goal(size, lines, first[0], second[0], goal, beside))
    data = real_frappe(Path(folder) / "prepared")
    if data is None:
        print("\nSkipped: Frappe by the forum user's code: HPCNCF_DATA names no folder with it.")
        return goals
    order = np.random.default_rng(0).permutation(len(data.train_users))
    ids = [data.train_users, data.train_items, np.ones(len(order))]
    rows = np.column_stack([*ids, unpack_context(data.train_rows)])[order]
    manifest = data.manifest
    test = {
        "users": data.test_users.astype(np.int64),
        "candidates": np.column_stack([data.test_items, data.test_negatives]).astype(np.int64),
        "context": np.asarray(data.test_context, np.float32),
    }
    sizes = (manifest.users, manifest.items, rows.shape[1] - 3)
    small = forum_data(Path(folder) / "frappe", sizes, rows, test)
    found = {
        way: [
            measured(words(small, way, len(rows), FRAPPE_EPOCHS, seed), folder)
            for seed in range(FRAPPE_SEEDS)
        ]
        for way in ("stock", "changed")
    }
    speeds = [statistics.median(each[0] for each in runs) for runs in found.values()]
    quality = [
        f"{statistics.mean(hits):.3f} ({min(hits):.3f} to {max(hits):.3f})"
        for hits in ([each[1] for each in runs] for runs in found.values())
    ]
    beside = f"HR@10 after {FRAPPE_EPOCHS} epochs {quality[0]}, {quality[1]}; {FRAPPE_SEEDS} seeds"
    title = "the forum user's program on Frappe"
    return [*goals, Goal(title, "3", speeds[0], speeds[1], "6", beside)]


def main() -> None:
    asking = argparse.ArgumentParser()
    asking.add_argument("--steps", type=int, default=EQUAL_STEPS, help="before comparing")
    asking.add_argument("--rounds", type=int, default=ROUNDS)
    asking.add_argument("--program", choices=("adam", "fused"), help="run that program alone")
    asking.add_argument("--small", action="store_true", help="with Frappe's tables")
    asked = asking.parse_args()
    if asked.program:
        run_program(asked.program, asked.small, asked.steps)
    else:
        compare(asked.steps, asked.rounds)


def compare(steps: int, rounds: int) -> None:
    apart, losses = compare_results(steps)  # not timed: on all cores
    os.sched_setaffinity(0, {max(usable_cpus())})
    torch.set_num_threads(1)
    named: list[tuple[str, Any, int]] = [
        ("Adam", adam, 4),
        ("Adam, fused", fused, 10),
        ("SparseAdam, another algorithm", sparse_adam, 60),
        ("Adam, `rowwise`", by_rows, 60),
    ]
    print(f"Matrix factorisation, {USERS:,} + {ITEMS:,} rows x {WIDTH}, batch {BATCH:,}, one core;")
    print(f"medians of {rounds} rounds. Loss: after {steps} steps, of 20 other batches.\n")
    programs = [Program(*each) for each in named]
    compare_speeds(programs, rounds)
    print_speeds(programs, losses)
    print(f"\nParameters after {steps:,} steps from the same values:\n")
    print(f"| difference between | largest | root mean square | more than {NEAR:g} |")
    print("|---|---:|---:|---:|")
    for name, each in apart:
        root, share = each.mean_square**0.5, f"{each.far:,} of {each.of_all:,}"
        print(f"| {name} | {each.largest:.1e} | {root:.1e} | {share} |", flush=True)
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
    compare_speeds(small, 3 * rounds)
    print_speeds(small)
    worst = " and ".join(f"{each.largest:.1e}" for _, each in apart[1::-1])
    rows = [
        Goal(
            *(f"matrix factorisation, {USERS:,} + {ITEMS:,} rows, `rowwise`", "1"),
            *(statistics.median(programs[at].steps_ms) for at in (0, 3)),
            *("25", f"parameters within {worst} of dense Adam's (float32, float64)"),
        )
    ]
    skipped: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for title, is_small, more, goal, turns in (
            ("matrix factorisation, `--with rowwise`", False, (8, 200), "25", ROUNDS_OF_PROGRAMS),
            ("Frappe's tables, `--with rowwise`", True, (1500, 1500), "0.95", rounds),
        ):
            pair = [own_program("adam", is_small, each) for each in more]
            first, second = by_turns(*pair, folder, "rowwise", turns)
            bare = [measured(pair[0], folder, NO_REMEDY)[0] for _ in range(turns)]
            beside = f"{statistics.median(bare):.2f} ms under `hpcncf run` without `--with`"
            rows.append(Goal(title, "0", first[0], second[0], goal, beside))
        for make in (recbole_goals, forum_goals):
            try:
                rows += make(folder, ROUNDS_OF_PROGRAMS)
            except FileNotFoundError as error:
                skipped.append(str(error))
    print(f"\nFigures to reach; one run of each program, {rounds} with small tables, ")
    print(f"{FRAPPE_SEEDS} on Frappe:\n")
    print_goals(rows, skipped)


if __name__ == "__main__":
    main()
