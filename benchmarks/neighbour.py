"""The native engine on two cores, alone and where a busy neighbour is bound to one of them.

Half of that core is the neighbour's. An engine whose threads waited for one another would be as
slow as its scheduler's time slices are long; one that leaves the core to it has one thread's speed.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch

from benchmarks.engines import Climber, Rung
from benchmarks.training import full_size
from hpcncf.monitor.cgroup import usable_cpus

ROUNDS: Final = 7
ONE: Final = Rung("one thread", {"engine": "native"}, 2000)
TWO: Final = Rung("two threads", {"engine": "native", "threads": 2}, 4000)
BUSY: Final = "import os\nos.sched_setaffinity(0, {%d})\nwhile True: pass"


@contextmanager
def stopped_neighbour(cpu: int) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", BUSY % cpu]) as process:
        process.send_signal(signal.SIGSTOP)
        yield process
        process.kill()


def measured(cpu: int) -> list[list[float]]:
    """Instances per second of each round: one thread, two, two beside the neighbour."""
    data = full_size()
    one, two = Climber(ONE, data), Climber(TWO, data)
    found: list[list[float]] = [[], [], []]

    def beside(neighbour: subprocess.Popen[bytes]) -> float:
        neighbour.send_signal(signal.SIGCONT)
        try:
            return two.window(TWO.steps)
        finally:
            neighbour.send_signal(signal.SIGSTOP)

    with stopped_neighbour(cpu) as neighbour:
        for _ in range(ROUNDS):
            found[0].append(one.window(ONE.steps))
            found[1].append(two.window(TWO.steps))
            found[2].append(beside(neighbour))
    return found


def main() -> int:
    """Print the table."""
    cpus = sorted(usable_cpus())[:2]
    if len(cpus) < 2:
        print("one core is usable here: nothing to measure")
        return 0
    os.sched_setaffinity(0, cpus)
    torch.set_num_threads(1)
    names = (ONE.name, TWO.name, f"{TWO.name}, a busy neighbour on one of the cores")
    medians = [statistics.median(each) for each in measured(cpus[1])]
    print(f"256 positives, medians of {ROUNDS} rounds.\n")
    print("| | instances/s | of two threads alone |\n|---|---:|---:|")
    for name, per_s in zip(names, medians, strict=True):
        print(f"| {name} | {per_s:,.0f} | {per_s / medians[1]:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
