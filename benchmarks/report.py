"""How long `collect` and `report` take over a thousand runs, and how large the page is.

The records are generated: no run was made, and only the seconds and the bytes mean anything.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.verbs import measure_command
from hpcncf.paths import ResultPaths

TESTS: Final = Path(__file__).parent.parent / "tests"
RANKS: Final = 4
REPEATS: Final = 4
# A node record's most: what a run of ten minutes or longer leaves.
WINDOWS: Final = 600
# Verb -> seconds that it may take.
LIMITS: Final = {"collect": 10.0, "report": 20.0}


def points() -> Iterator[dict[str, Any]]:
    """250 settings of 4 ranks each."""
    for loader in ("per_sample", "vectorized"):
        for cores in (1, 2, 3, 4, 6):
            for batch in (256, 512, 1024, 2048, 4096):
                for negatives in (1, 2, 4, 6, 8):
                    yield {
                        "resources.tasks_per_node": RANKS,
                        "resources.cpus_per_task": cores,
                        "training.loader": loader,
                        "training.global_batch_size": batch,
                        "training.negatives": negatives,
                    }


def generated(folder: Path) -> ResultPaths:
    sys.path.append(str(TESTS))
    import make_results

    paths = make_results.demo(folder, points=[*points()], repeats=REPEATS)
    make_results.complete(paths, windows=WINDOWS)
    return paths


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        paths = generated(Path(folder))
        runs = REPEATS * len([*points()])
        print(
            f"Generated records of {runs:,} runs with {RANKS} ranks each, {WINDOWS} windows of "
            f"every core: {megabytes(paths.folder / 'runs'):.0f} MB.\n"
        )
        print("| command | seconds | allowed | peak memory, MiB |\n|---|---|---|---|")
        for verb, limit in LIMITS.items():
            one = measure_command([sys.executable, "-m", "hpcncf", verb, str(paths.folder)])
            peak_mib = one.peak_bytes / (1 << 20)
            print(f"| `hpcncf {verb}` | {one.seconds:.1f} | {limit:g} | {peak_mib:.0f} |")
        print("\n| file | MB | allowed |\n|---|---|---|")
        print(f"| `report.html` | {megabytes(paths.report / 'report.html'):.2f} | 5 |")
        print(f"| `report.md` | {megabytes(paths.report / 'report.md'):.2f} | |")
    return 0


def megabytes(path: Path) -> float:
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return sum(each.stat().st_size for each in files) / 1e6


if __name__ == "__main__":
    sys.exit(main())
