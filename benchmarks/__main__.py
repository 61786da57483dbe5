"""`make bench`: every benchmark, one after another, as Markdown on standard output.

`python -m benchmarks NAME...` runs those named.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from hpcncf import environment

BENCHMARKS = {
    "cli_start": "The login node's wait",
    "monitor": "The monitor: agreement with the kernel, and cost",
    "speed": "Loaders, cores and ranks",
    "engines": "The ladder of engines and optimizers",
    "quality": "Quality on Frappe",
}


def main() -> int:
    """Run them all, each in a namespace of its own; exit code 1 when one fails."""
    about = environment.describe()
    print(f"# Benchmarks\n\n{about['cpu_model']}, torch {about['torch']}\n")
    asked = sys.argv[1:] or list(BENCHMARKS)
    del sys.argv[1:]  # a benchmark has arguments of its own
    failed = [name for name in asked if not passed(name)]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def passed(name: str) -> bool:
    print(f"\n## {BENCHMARKS[name]}\n", flush=True)
    try:
        runpy.run_path(str(Path(__file__).parent / f"{name}.py"), run_name="__main__")
    except SystemExit as end:
        return not end.code
    return True


if __name__ == "__main__":
    sys.exit(main())
