"""Loaders, cores and ranks against each other, run as a user would run them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.results import first_table

JOB = Path(__file__).parent / "speed.yaml"
DATA = Path(__file__).parent.parent / "data/frappe"


def hpcncf(*args: str) -> None:
    subprocess.run([sys.executable, "-m", "hpcncf", *args], check=True, stdout=sys.stderr)


def main() -> int:
    """Print the report's table: medians of three rounds, speed with quality beside it."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "bench-speed"
        hpcncf("data", "prepare", "frappe", "--or-synthetic", "-o", str(DATA))
        hpcncf("submit", str(JOB), "--cluster", "local", "--wait", "--results", str(results))
        hpcncf("report", str(results))
        print(first_table((results / "report/report.md").read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
