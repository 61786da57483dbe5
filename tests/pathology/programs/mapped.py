"""Adds up pages of a mapped file: those that memory has no room for are read again."""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np


def drawn(pages: int) -> Iterator[int]:
    chance = random.Random(1)
    while True:
        yield chance.randrange(pages)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--scanned", action="store_true", help="from begin to end, again and again")
    parser.add_argument("--seconds", type=float, default=10)
    asked = parser.parse_args()
    table = np.memmap(asked.file, dtype=np.float32, mode="r").reshape(-1, 1024)
    pages = itertools.cycle(range(len(table))) if asked.scanned else drawn(len(table))
    total, until = 0.0, time.monotonic() + asked.seconds
    while time.monotonic() < until:
        for page in itertools.islice(pages, 1_000):
            total += float(table[page].sum())
    print(total)


if __name__ == "__main__":
    main()
