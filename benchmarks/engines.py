"""The ladder from the naive loop to the compiled step: what each engine and optimizer gains.

Speed at full size is of windows of a few hundred steps at most: a naive epoch takes half an hour.
All rungs take turns in each round. Quality is that of three epochs of Frappe, real where
HPCNCF_DATA names the folder of its zip, else made.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch

from benchmarks import results
from benchmarks.training import Stepper, frappe_or_made, full_size, in_turn, per_s, trained
from hpcncf.data.prepared import PreparedData
from hpcncf.monitor.cgroup import usable_cpus

ROUNDS: Final = 5
ROUNDS_OF_EPOCHS: Final = 3
EPOCHS: Final = 3
BUSY: Final = "import os\nos.sched_setaffinity(0, {%d})\nwhile True: pass"


@dataclass(frozen=True)
class Rung:
    name: str
    settings: dict[str, Any]
    steps: int
    """Of a window: about a second of them."""
    beside_busy: bool = False
    """A foreign process is busy on one of the cores."""


FUSED: Final = {"adam": "fused"}
NATIVE: Final = {"engine": "native"}
LADDER: Final = (
    Rung("naive: one sample at a time, torch's Adam", {"loader": "per_sample"}, 10),
    Rung("vectorized loader", {}, 10),
    Rung("and foreach Adam", {"adam": "foreach"}, 10),
    Rung("or fused Adam", FUSED, 40),
    Rung("or fused Adam, two threads", FUSED | {"threads": 2}, 60),
    Rung("or fused Adam, batch 4,096", FUSED | {"global_batch_size": 4096}, 20),
    Rung("or sparse gradients, SparseAdam", {"sparse": True, "optimizer": "lazy_adam"}, 200),
    Rung("row-wise, exact Adam", {"engine": "rowwise"}, 300),
    Rung("row-wise, lazy Adam", {"engine": "rowwise", "optimizer": "lazy_adam"}, 300),
    Rung("compiled, exact Adam", NATIVE, 2000),
    Rung("compiled, lazy Adam", NATIVE | {"optimizer": "lazy_adam"}, 2000),
    Rung("compiled, exact Adam, two threads", NATIVE | {"threads": 2}, 4000),
    Rung("the same, one core shared with a busy process", NATIVE | {"threads": 2}, 2000, True),
)


@contextmanager
def busy(cpu: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process that would be busy on this core, and is stopped."""
    with subprocess.Popen([sys.executable, "-c", BUSY % cpu]) as process:
        process.send_signal(signal.SIGSTOP)
        try:
            yield process
        finally:
            process.kill()


def speeds(data: PreparedData, rungs: Sequence[Rung]) -> list[list[float]]:
    """Each rung's instances per second, by round."""
    steppers = [Stepper(data, rung.settings) for rung in rungs]
    found: list[list[float]] = [[] for _ in rungs]
    with busy(max(usable_cpus())) as neighbour:
        for number in range(ROUNDS):
            for at, rung in in_turn(number, rungs):
                if rung.beside_busy:
                    neighbour.send_signal(signal.SIGCONT)
                seconds = steppers[at].window(rung.steps)
                neighbour.send_signal(signal.SIGSTOP)
                found[at].append(steppers[at].instances(rung.steps) / seconds)
    return found


def on_frappe(data: PreparedData, folder: Path, rungs: Sequence[Rung]) -> list[tuple[float, float]]:
    """Each rung's median of instances per second, and its HR@10."""
    found: list[list[tuple[float, float]]] = [[] for _ in rungs]
    for number in range(ROUNDS_OF_EPOCHS):
        for at, rung in in_turn(number, rungs):
            record = trained(data, folder, rung.settings | {"epochs": EPOCHS})
            found[at].append((per_s(record), record.epochs[-1].hr10 or 0.0))
    return [(median(speed for speed, _ in runs), runs[0][1]) for runs in found]


def main() -> int:
    """Print the ladder."""
    torch.set_num_threads(1)
    rungs = [rung for rung in LADDER if rung.settings.get("threads", 1) <= len(usable_cpus())]
    os.sched_setaffinity(0, sorted(usable_cpus())[-2:])
    data = full_size()
    fast = speeds(data, rungs)
    alone = [rung for rung in rungs if not rung.beside_busy]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        small = frappe_or_made(folder)
        names = [rung.name for rung in alone]
        good = dict(zip(names, on_frappe(small, folder, alone), strict=True))
    print(
        f"{data.manifest.title}, batch 256: medians of {ROUNDS} windows, least and most. "
        f"{small.manifest.title}: medians of {ROUNDS_OF_EPOCHS} trainings of {EPOCHS} epochs.\n"
    )
    first, first_small = median(fast[0]), good[rungs[0].name][0]
    rows = []
    for rung, runs in zip(rungs, fast, strict=True):
        cells = [rung.name, f"{median(runs):,.0f}", f"{min(runs):,.0f}–{max(runs):,.0f}"]
        cells += [f"{median(runs) / first:.1f}×"]
        if rung.name in good:
            speed, hr10 = good[rung.name]
            cells += [f"{speed:,.0f}", f"{speed / first_small:.1f}×", f"{hr10:.4f}"]
        rows.append([*cells, *[""] * (7 - len(cells))])
    columns = ["", "instances/s:", "range:", ":", "Frappe:", ":", "HR@10:"]
    print(*results.table(columns, rows), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
