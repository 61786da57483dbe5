"""Memory of ranks at full size, alone and two on a node, and with ten times the positives.

Data is made in a temporary folder (TMPDIR) of its own, so that nobody else has it mapped, and is
gone at the end. Each rank is a process that trains, evaluates and, alone, writes a checkpoint.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from hpcncf.ncf.data.arrays import ColumnFile, Interactions
from hpcncf.ncf.data.prepare import Recipe, write_prepared
from hpcncf.ncf.data.split import SplitCounts, leave_one_out
from hpcncf.ncf.data.synthetic import SHAPES, Draws, column_names

ROUNDS: Final = 5
SHAPE: Final = SHAPES["yelp"]
FREE_GB: Final = 8
"""Ten times the positives take 1.5 GB, and 6 GB while they are made."""
MOST_MIB: Final = 1_200e6 / 2**20
MOST_SHARE: Final = 1.05
Told = dict[str, float]


@dataclass(frozen=True)
class Case:
    name: str
    settings: dict[str, Any]
    steps: int


ALONE: Final = (
    Case("reference, per_sample", {"loader": "per_sample"}, 30),
    Case("reference, batched", {"loader": "batched"}, 30),
    Case("reference, vectorized", {}, 30),
    Case("rowwise, per_sample", {"engine": "rowwise", "loader": "per_sample"}, 60),
    Case("rowwise, batched", {"engine": "rowwise", "loader": "batched"}, 300),
    Case("rowwise, vectorized", {"engine": "rowwise"}, 300),
    Case("native", {"engine": "native"}, 3_000),
)
TOGETHER: Final = (
    Case("reference", {}, 30),
    Case("rowwise", {"engine": "rowwise", "sync": "rows"}, 3_000),
    Case("native", {"engine": "native", "sync": "rows"}, 26_000),
)


SIZES: Final = {"1×": 1, "10×": 10, "1×, again": 1}
"""Times the rows. The last tells by how much equal runs differ."""


@dataclass(frozen=True)
class InFiles:
    """Made rows, in files until they are split."""

    users: ColumnFile
    items: ColumnFile
    context: ColumnFile
    context_columns: list[str]
    user_names: range
    item_count: int


def make(folder: Path, times: int) -> None:
    """Data of Yelp's shape with so many times its rows, drawn and written a shape at a time."""

    def fill(into: Path) -> SplitCounts:
        with tempfile.TemporaryDirectory(dir=into) as drawn, ExitStack() as files:
            return leave_one_out(into, _drawn(Path(drawn), times, files), 1, 99)

    title = f"Synthetic data, {times} times Yelp's rows"
    write_prepared(folder, Recipe("synthetic", {"name": title}, {"times": times}), title, fill)


def _drawn(folder: Path, times: int, files: ExitStack) -> Interactions:
    users = files.enter_context(ColumnFile(folder / "users", np.int32))
    items = files.enter_context(ColumnFile(folder / "items", np.int32))
    context = files.enter_context(ColumnFile(folder / "context", np.float32, (SHAPE.context,)))
    draws = Draws(SHAPE, 1)
    for _ in range(times):
        owners, moods = draws.owners(), draws.moods(SHAPE.train_rows)
        users.append(owners)
        items.append(draws.cover(draws.items(owners, moods)))
        context.append(draws.context(moods))
    columns = column_names(SHAPE.context)
    return InFiles(users, items, context, columns, range(SHAPE.users), SHAPE.items)


def ranks(folder: Path, case: Case, count: int) -> Told:
    """What ranks, trained together, have: sums over them, and the peaks of the largest."""
    settings = {"threads": 1, "epochs": 1, "max_steps": case.steps} | case.settings
    if count == 1:
        settings |= {"sync": "dense"}
    if case in ALONE:
        settings |= {"checkpoint_every_min": 0.02}
    told = _told(folder, settings, count)
    return {
        "data_mib": sum(each["data_mib"] for each in told),
        "own_mib": max(each["own_mib"] for each in told),
        "peak_mib": max(each["peak_mib"] for each in told),
        "instances_per_s": sum(each["instances_per_s"] for each in told),
        "major_faults": sum(each["major_faults"] for each in told),
    }


def _told(folder: Path, settings: dict[str, Any], count: int) -> list[Told]:
    port = _free_port()
    command = [sys.executable, "-m", "benchmarks.memory_rank", str(folder), json.dumps(settings)]
    processes = []
    for rank in range(count):
        env = os.environ | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
        processes.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
    try:
        said = [process.communicate()[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    if any(process.returncode for process in processes):
        raise SystemExit(f"failed: {' '.join(command)}")
    return [json.loads(each.splitlines()[-1]) for each in said]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def in_rounds(measure: Callable[[Any], Told], cases: list[Any], rounds: int) -> list[list[Told]]:
    """Of each case what each round told; in each all take their turn."""
    found: list[list[Told]] = [[] for _ in cases]
    for number in range(rounds):
        order = list(enumerate(cases))
        for at, case in order if number % 2 == 0 else reversed(order):
            found[at].append(measure(case))
    return found


def median(told: list[Told], name: str) -> float:
    return statistics.median(each[name] for each in told)


def speed(told: list[Told], base: list[Told]) -> str:
    """The median, and its ratio to the base's: of the two of each round, which run one after
    the other, so that a machine that gets slower meanwhile slows both."""
    name = "instances_per_s"
    ratios = [each[name] / of[name] for each, of in zip(told, base, strict=True)]
    scatter = f" ({min(ratios):.2f}-{max(ratios):.2f})" if told is not base else ""
    return f"| {median(told, name):,.0f} | {statistics.median(ratios):.2f}×{scatter} "


def alone(folder: Path) -> bool:
    """The table of one rank at full size; whether all stay below the limit."""
    print(f"Does one rank at full size stay below {MOST_MIB:,.0f} MiB (1.2 GB)?\n")
    print("| one rank | peak MiB | of that its own | data MiB (PSS) | |\n|---|---:|---:|---:|---|")
    peaks = []
    for case in ALONE:
        each = ranks(folder, case, 1)
        peaks.append(each["peak_mib"])
        print(
            f"| {case.name} | {each['peak_mib']:,.0f} | {each['own_mib']:,.0f} "
            f"| {each['data_mib']:,.0f} | {'yes' if each['peak_mib'] < MOST_MIB else '**no**'} |"
        )
    return max(peaks) < MOST_MIB


def together(folders: dict[int, Path], rounds: int) -> bool:
    """The table of one rank and two, on one and ten times the rows."""
    # The sizes innermost: they run one after another.
    cases = [(case, size, count) for case in TOGETHER for count in (1, 2) for size in SIZES]
    told = in_rounds(lambda each: ranks(folders[SIZES[each[1]]], each[0], each[2]), cases, rounds)
    found = {
        (case.name, size, count): each
        for (case, size, count), each in zip(cases, told, strict=True)
    }
    print(
        f"\nMedians of {rounds} rounds; the first reading of each page is part of the speed. "
        "To 1×: the median of the rounds' ratios, least and most; in the rows `again`, of equal "
        "runs. Faults: times that a page was read from the disk meanwhile, by one rank and by "
        "two.\n"
    )
    print("| engine | positives | data MiB (PSS) 1 rank | 2 ranks | ratio ", end="")
    print(
        "| own MiB 1 rank | 2 ranks, each | instances/s 1 rank | to 1× | 2 ranks | to 1× | faults |"
    )
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    shares = []
    for case in TOGETHER:
        for size in SIZES:
            one, two = found[case.name, size, 1], found[case.name, size, 2]
            shares.append(median(two, "data_mib") / median(one, "data_mib"))
            print(
                f"| {case.name} | {size} | {median(one, 'data_mib'):,.0f} "
                f"| {median(two, 'data_mib'):,.0f} | {shares[-1]:.3f} "
                f"| {median(one, 'own_mib'):,.0f} | {median(two, 'own_mib'):,.0f} "
                + speed(one, found[case.name, "1×", 1])
                + speed(two, found[case.name, "1×", 2])
                + f"| {median(one, 'major_faults'):,.0f}, {median(two, 'major_faults'):,.0f} |"
            )
    return max(shares) <= MOST_SHARE


def main(rounds: int = ROUNDS) -> int:
    """Print both tables; 1 where a limit is not kept."""
    with tempfile.TemporaryDirectory() as temporary:
        if shutil.disk_usage(temporary).free < FREE_GB * 1e9:
            print(f"memory: needs {FREE_GB} GB in {temporary}: set TMPDIR", file=sys.stderr)
            return 1
        folders = {times: Path(temporary) / f"{times}" for times in set(SIZES.values())}
        for times, folder in folders.items():
            make(folder, times)
        small = alone(folders[1])
        shared = together(folders, rounds)
    return 0 if small and shared else 1


if __name__ == "__main__":
    sys.exit(main())
