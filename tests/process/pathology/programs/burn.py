"""Plain Python that keeps as many cores busy as it has processes; it says nothing of itself."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time


def work(until: float) -> int:
    total = 0
    while time.monotonic() < until:
        total += sum(number * number for number in range(20_000))
    return total


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--bind", type=int, help="to this CPU only, as OMP_PROC_BIND may do")
    asked = parser.parse_args()
    if asked.bind is not None:
        os.sched_setaffinity(0, {asked.bind})
    until = time.monotonic() + asked.seconds
    others = [
        multiprocessing.Process(target=work, args=(until,)) for _ in range(asked.processes - 1)
    ]
    for other in others:
        other.start()
    work(until)
    for other in others:
        other.join()


if __name__ == "__main__":
    main()
