"""A command's seconds, and its memory at the peak."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

WAITING: Final = """
import resource, subprocess, sys
status = subprocess.call(sys.argv[1:], stdout=sys.stderr)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(status)
"""
"""A small process, whose one child the command is: to Linux a command's peak is that of the process
that began it, where that has more."""


@dataclass(frozen=True)
class Took:
    seconds: float
    peak_bytes: int


def took(command: Sequence[str]) -> Took:
    """What it prints goes to standard error. Raises SystemExit where it fails."""
    began = time.perf_counter()
    process = subprocess.run([sys.executable, "-c", WAITING, *command], stdout=subprocess.PIPE)
    seconds = time.perf_counter() - began
    if process.returncode:
        raise SystemExit(f"failed: {' '.join(command)}")
    return Took(seconds, 1024 * int(process.stdout))
