"""Every job of tests/process/pathology, diagnosed: the cause that was made, and the one named.

On two quiet cores: what else computes there meanwhile is a cause of its own.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks import programs

TESTS = Path(__file__).parent.parent / "tests/process"


def arguments() -> argparse.Namespace:
    asking = argparse.ArgumentParser(prog="python -m benchmarks.pathology", description=__doc__)
    asking.add_argument("--keep", type=Path, metavar="FOLDER", help="for data and results")
    asking.add_argument(
        "--records", type=Path, metavar="FOLDER", help="diagnose what --keep left there, no run"
    )
    asking.add_argument("--tries", type=int, default=3, help="of one that was disturbed")
    asking.add_argument("names", nargs="*", metavar="CAUSE[.WAY]", help="default: all of them")
    return asking.parse_args()


def main() -> int:
    """Print the page; how far it is goes to standard error."""
    sys.path.append(str(TESTS))
    from pathology import beside, suite
    from pathology.start import Bench

    asked = arguments()
    can, cannot = suite.possible(suite.named(asked.names), beside.available())
    if not can + cannot:
        print(f"no case of {' '.join(asked.names)}", file=sys.stderr)
        return 2
    if asked.records:
        kept = Bench(asked.records.resolve())
        programs.show(suite.again(case, kept).row() for case in can + cannot if kept.has(case))
        return 0
    print(f"{len(can)} jobs, {sum(case.seconds for case in can) / 60:.0f} min", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench((asked.keep or Path(folder)).resolve())
        bench.folder.mkdir(parents=True, exist_ok=True)
        programs.show(suite.settled(case, bench, asked.tries).row() for case in can)
    for case in cannot:
        print(f"- Not made here: {case.name}: it needs {' and '.join(sorted(case.required))}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
