"""What ranks gain and cost on one node: one rank against two, for each way of synchronising.

Every step has 256 positives over all ranks. At full size windows of all ways take turns; a way's
speed is that of its slower rank. Then each trains three epochs of Frappe, real where HPCNCF_DATA
names the folder of its zip. Rows go over gloo where the ranks take themselves to be on two nodes.
Exposed waiting and bytes are a rank's mean step's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import chain
from pathlib import Path
from statistics import mean, median
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed import FileStore  # type: ignore[attr-defined]

from benchmarks import results
from benchmarks.training import Stepper, frappe_or_made, full_size, in_turn, trained
from hpcncf.data.prepared import PreparedData, load_prepared
from hpcncf.launcher.environment import Place
from hpcncf.monitor.cgroup import usable_cpus
from hpcncf.ncf.distributed import gather_objects, wait_for_ranks
from hpcncf.worker.process_exit import exit_now

ROUNDS: Final = 5
EPOCHS: Final = 3
ROWWISE: Final = {"engine": "rowwise"}
NATIVE: Final = {"engine": "native"}
ROWS: Final = {"sync": "rows"}


@dataclass(frozen=True)
class Way:
    name: str
    settings: dict[str, Any]
    steps: int
    """Of a window: about a second of them."""
    ranks: int = 2
    nodes: int = 1

    def place(self, rank: int) -> Place:
        return Place(rank, rank, self.ranks, self.ranks // self.nodes)


# The first of each engine is what its others are compared with.
WAYS: Final = (
    (
        Way("dense Adam, one rank", {}, 12, ranks=1),
        Way("DDP", {}, 12),
    ),
    (
        Way("row-wise, one rank", ROWWISE, 256, ranks=1),
        Way("rows over gloo", ROWWISE | ROWS, 128),
    ),
    (
        Way("compiled, one rank", NATIVE, 2048, ranks=1),
        Way("one rank of two threads", NATIVE | {"threads": 2}, 4096, ranks=1),
        Way("rows over gloo", NATIVE | ROWS, 256),
    ),
)


@dataclass(frozen=True)
class Speed:
    """Of all ranks; the last two of a rank's mean step."""

    per_s: float
    sync_ms: float
    kib: float


def at_full_size(rank: int) -> list[list[Speed]]:
    """Each way's rounds, as rank 0 knows them."""
    data, ways = full_size(), list(chain(*WAYS))
    steppers = []
    for way in ways:
        bind(way, rank)
        steppers.append(Stepper(data, way.settings, way.place(rank)) if rank < way.ranks else None)
    found: list[list[Speed]] = [[] for _ in ways]
    for number in range(ROUNDS):
        for at, way in in_turn(number, ways):
            dist.barrier()
            if stepper := steppers[at]:
                bind(way, rank)
                found[at].append(measured(stepper, way.steps))
    return found


def measured(stepper: Stepper, steps: int) -> Speed:
    wait_for_ranks(stepper.place)
    sent, waited_s = stepper.clock.counted_bytes, stepper.clock.phases().sync_s
    seconds = stepper.window(steps)
    waited_s = stepper.clock.phases().sync_s - waited_s
    mine = (seconds, waited_s, stepper.clock.counted_bytes - sent)
    slowest, *means = zip(*gather_objects(mine, stepper.place), strict=True)
    waited, size = (mean(each) / steps for each in means)
    return Speed(stepper.instances(steps) / max(slowest), 1000 * waited, size / 1024)


def bind(way: Way, rank: int) -> None:
    """Each of two ranks to a core of its own, as a launcher does."""
    cpus = [int(cpu) for cpu in os.environ["BENCHMARK_CPUS"].split(",")]
    os.sched_setaffinity(0, {cpus[rank % len(cpus)]} if way.ranks > 1 else cpus)


def on_frappe(rank: int, folder: Path) -> list[tuple[float, float]]:
    """Each way's instances per second, and its HR@10 after some epochs."""
    data, found = load_prepared(folder), []
    for way in chain(*WAYS):
        dist.barrier()
        if rank < way.ranks:
            bind(way, rank)
            found.append(of_way(way, data, folder, rank))
        else:
            found.append((0.0, 0.0))
    return found


def of_way(way: Way, data: PreparedData, folder: Path, rank: int) -> tuple[float, float]:
    place = way.place(rank)
    mine = trained(data, folder, way.settings | {"epochs": EPOCHS}, place)
    records = gather_objects(mine, place)
    instances = sum(each.counted_instances for each in records)
    slowest_s = max(each.counted_s for each in records)
    return instances / slowest_s, records[0].epochs[-1].hr10 or 0.0


def run_rank(rank: int, folder: Path) -> int:
    torch.set_num_threads(1)
    store = FileStore(str(folder / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    full, small = at_full_size(rank), on_frappe(rank, folder / "data")
    if rank == 0:
        print(*page(full, small), sep="\n")
    dist.barrier()
    exit_now(0)


def page(full: Sequence[Sequence[Speed]], small: Sequence[tuple[float, float]]) -> list[str]:
    rows, each = [], iter(zip(full, small, strict=True))
    for group in WAYS:
        first = first_small = 0.0
        for way in group:
            rounds, (small_per_s, hr10) = next(each)
            per_s, sync_ms, kib = map(median, zip(*map(astuple, rounds), strict=True))
            first, first_small = first or per_s, first_small or small_per_s
            ends = [speed.per_s for speed in rounds]
            cells = [way.name, f"{per_s:,.0f}", f"{min(ends):,.0f}–{max(ends):,.0f}"]
            cells += [f"{per_s / first:.2f}×"]
            cells += [f"{sync_ms:.3g}", f"{kib:,.0f}"] if kib else ["–", "–"]
            cells += [f"{small_per_s:,.0f}", f"{small_per_s / first_small:.2f}×", f"{hr10:.4f}"]
            rows.append(cells)
    columns = ["256 positives", "full size: instances/s:", "range:", ":", "sync ms/step:"]
    columns += ["KiB/step:", "Frappe: instances/s:", ":", "HR@10:"]
    return [*results.table(columns, rows)]


def main() -> int:
    """Print the table; two processes measure."""
    if len(usable_cpus()) < 2:
        print("Not measured: two ranks need two cores.")
        return 0
    title = full_size().manifest.title
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        small = frappe_or_made(folder / "data").manifest.title
        print(
            f"{title}: medians of {ROUNDS} windows, least and most. {small}: one training of "
            f"{EPOCHS} epochs.\n",
            flush=True,
        )
        known = {"BENCHMARK_CPUS": ",".join(map(str, usable_cpus())), "GLOO_SOCKET_IFNAME": "lo"}
        command = [sys.executable, "-m", "benchmarks.ranks", temporary]
        ranks = [subprocess.Popen([*command, rank], env=os.environ | known) for rank in ("0", "1")]
        return max(rank.wait() for rank in ranks)


if __name__ == "__main__":
    sys.exit(run_rank(int(sys.argv[2]), Path(sys.argv[1])) if len(sys.argv) > 1 else main())
