"""How long the login node waits for `hpcncf --help`."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

RUNS = 11


def seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started


def main() -> int:
    """Print the medians of `hpcncf --help` and of an empty Python, taken in turn, in ms."""
    ours, empty = [sys.executable, "-m", "hpcncf", "--help"], [sys.executable, "-c", ""]
    pairs = [(seconds(ours), seconds(empty)) for _ in range(RUNS)]
    help_ms, python_ms = (1000 * statistics.median(times) for times in zip(*pairs, strict=True))
    print("| command | median of 11, ms |\n|---|---|")
    print(f"| `hpcncf --help` | {help_ms:.0f} |\n| `python -c ''` | {python_ms:.0f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
