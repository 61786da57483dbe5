"""Memory: of ranks at full size, alone and two on a node, and of `hpcncf data prepare`.

Each rank is a process that trains and evaluates. Its data is made in a temporary folder (TMPDIR):
nobody else has it mapped. A table is prepared in memory; the larger one has ten times as many rows,
so that the difference shows what a row takes.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any, Final

import numpy as np
import psutil

from benchmarks import results
from benchmarks.training import per_s, trained
from benchmarks.verbs import measure_command
from hpcncf.data import synthetic
from hpcncf.data.prepared import load_prepared
from hpcncf.data.synthetic import SHAPES
from hpcncf.job.spec import Resources, Training
from hpcncf.launcher import environment
from hpcncf.ncf.distributed import join_group, leave_group, wait_for_ranks
from hpcncf.worker.process_exit import exit_now

ROUNDS: Final = 3
MOST_MIB: Final = 1_200e6 / 2**20
MOST_SHARE: Final = 1.05
SAMPLED_S: Final = 0.02
CASES: Final[dict[str, tuple[dict[str, Any], int]]] = {
    "reference, one sample at a time": ({"loader": "per_sample"}, 20),
    "reference": ({}, 20),
    "rowwise": ({"engine": "rowwise", "sync": "rows"}, 600),
    "native": ({"engine": "native", "sync": "rows"}, 6_000),
}
"""Settings and steps."""
SHAPE: Final = SHAPES["yelp"]
TABLES: Final = (50_000_000, 500_000_000)
"""Bytes."""
ROWS_AT_ONCE: Final = 1 << 16
CONTEXT: Final = [f"c{number}" for number in range(SHAPE.context)]


def mapped_mib(folder: Path) -> float:
    """This process's proportional share of the folder's files: a page that n processes have mapped
    counts for an nth."""
    maps = psutil.Process().memory_maps()
    return sum(each.pss for each in maps if str(folder) in each.path) / 2**20


def status_mib(name: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"/proc/self/status has no {name}")


class Anonymous(Thread):
    """Looks how much memory the process has that is not a file's; the largest is kept."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak_mib = 0.0

    def run(self) -> None:
        while True:
            self.peak_mib = max(self.peak_mib, status_mib("RssAnon"))
            time.sleep(SAMPLED_S)


def run_rank(folder: Path, settings: dict[str, Any]) -> dict[str, float]:
    place = environment.place()
    resources = Resources(tasks_per_node=place.world_size)
    join_group(place, resources, Training.model_validate(settings), "memory")
    watching = Anonymous()
    watching.start()
    record = trained(load_prepared(folder), folder, settings, place)
    wait_for_ranks(place)
    shared_mib = mapped_mib(folder)
    wait_for_ranks(place)  # until all have looked, all have the files mapped
    leave_group()
    return {
        "data": shared_mib,
        "own": watching.peak_mib,
        "peak": status_mib("VmHWM"),
        "speed": per_s(record),
    }


def ranks(folder: Path, settings: dict[str, Any], count: int) -> dict[str, float]:
    """What ranks, trained together, have: sums over them, and the peaks of the largest."""
    if count == 1:
        settings = settings | {"sync": "dense"}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "benchmarks.memory", str(folder), json.dumps(settings)]
    processes = []
    for rank in range(count):
        env = os.environ | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
        processes.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
    try:
        printed = [process.communicate()[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    if any(process.returncode for process in processes):
        raise SystemExit(f"failed: {' '.join(command)}")
    each = [json.loads(one.splitlines()[-1]) for one in printed]
    kinds = {"data": sum, "own": max, "peak": max, "speed": sum}
    return {name: kind(one[name] for one in each) for name, kind in kinds.items()}


def of_ranks(folder: Path) -> Iterator[str]:
    yield (
        f"Full size, medians of {ROUNDS} trainings. Data: mapped files, a page that two ranks have "
        "mapped counting half for each. Does one rank stay below "
        f"{MOST_MIB:,.0f} MiB, and do two share the data?\n"
    )
    rows = []
    for name, (settings, steps) in CASES.items():
        window = {"epochs": 1, "max_steps": steps} | settings
        found = [
            [ranks(folder, window, count) for _ in range(ROUNDS)]
            for count in ((1,) if "loader" in settings else (1, 2))
        ]
        one, *two = [{key: median(x[key] for x in runs) for key in runs[0]} for runs in found]
        cells = [name, f"{one['peak']:,.0f}", f"{one['own']:,.0f}", f"{one['data']:,.0f}"]
        kept = one["peak"] < MOST_MIB
        for both in two:
            share, speed = (both[key] / one[key] for key in ("data", "speed"))
            cells += [f"{both['own']:,.0f}", f"{both['data']:,.0f}", f"{speed:.2f}×"]
            kept = kept and share <= MOST_SHARE
        rows.append([*cells, *[""] * (7 - len(cells)), "yes" if kept else "**no**"])
    columns = ["", "one rank: peak MiB:", "its own:", "data:", "two ranks: own of each:"]
    yield from results.table([*columns, "data of both:", "speed of both:", ""], rows)


def write_table(path: Path, size: int) -> int:
    """A CSV of so many bytes; returns its rows."""
    drawn = np.random.default_rng(1)
    context = [
        ",".join(f"{value:.4f}" for value in row) for row in drawn.random((997, SHAPE.context))
    ]
    rows = 0
    with path.open("w") as text:
        text.write(",".join(["user", "item", "time", *CONTEXT]) + "\n")
        while text.tell() < size:
            users = drawn.integers(0, SHAPE.users, ROWS_AT_ONCE).tolist()
            items = drawn.integers(0, SHAPE.items, ROWS_AT_ONCE).tolist()
            for at, (user, item) in enumerate(zip(users, items, strict=True), rows):
                text.write(f"user-{user},item-{item},{at},{context[at % len(context)]}\n")
            rows += ROWS_AT_ONCE
    return rows


def of_preparing(folder: Path) -> Iterator[str]:
    yield "\n`hpcncf data prepare csv` of made tables with the users and items of the full size:\n"
    rows = []
    for size in TABLES:
        source = folder / f"{size}.csv"
        count = write_table(source, size)
        command = [sys.executable, "-m", "hpcncf", "data", "prepare", "csv"]
        command += ["--source", str(source), "--user", "user", "--item", "item", "--time", "time"]
        command += ["--context", ",".join(CONTEXT), "-o", f"{source}.prepared"]
        cost = measure_command(command)
        cells = [f"{size / 1e6:,.0f} MB", f"{count:,}", f"{cost.seconds:.0f}"]
        rows.append([*cells, f"{count / cost.seconds:,.0f}", f"{cost.peak_bytes / 1e6:,.0f}"])
    yield from results.table(["CSV", "rows:", "seconds:", "rows/s:", "peak memory, MB:"], rows)


def main() -> int:
    """Print both tables."""
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        synthetic.prepare_synthetic_like(folder / "full", "yelp")
        print(*of_ranks(folder / "full"), sep="\n", flush=True)
        print(*of_preparing(folder), sep="\n")
    return 0


if __name__ == "__main__":
    if sys.argv[1:]:
        print(json.dumps(run_rank(Path(sys.argv[1]), json.loads(sys.argv[2]))), flush=True)
        exit_now(0)
    sys.exit(main())
