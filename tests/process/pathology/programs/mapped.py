"""Adds up pages of a mapped table in random order: those that memory has no room for come again."""

from __future__ import annotations

import argparse
import mmap
import random
import time
from pathlib import Path

import numpy as np

PAGE = 4096


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--table", type=int, default=280, metavar="MIB", help="of the file")
    parser.add_argument("--kept", type=int, default=0, metavar="MIB", help="of memory of its own")
    parser.add_argument("--seconds", type=float, default=10)
    asked = parser.parse_args()
    kept = np.ones(asked.kept * 2**20, dtype=np.uint8)
    with asked.file.open("rb") as file:
        table = mmap.mmap(file.fileno(), asked.table * 2**20, access=mmap.ACCESS_READ)
    pages, chance, total = len(table) // PAGE, random.Random(1), len(kept)
    total += sum(table[::PAGE])  # once all of it, in order: what is read later was there before
    table.madvise(mmap.MADV_RANDOM)
    until = time.monotonic() + asked.seconds
    while time.monotonic() < until:
        at = chance.randrange(pages) * PAGE
        total += sum(table[at : at + PAGE : 256])
    print(total)


if __name__ == "__main__":
    main()
