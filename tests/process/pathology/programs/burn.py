"""Keeps as many cores busy as it has processes, in C code; it says nothing of itself."""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import time


def work(until: float) -> None:
    while time.monotonic() < until:
        hashlib.pbkdf2_hmac("sha256", b"word", b"salt", 10_000)


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
