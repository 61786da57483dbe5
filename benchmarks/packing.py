"""Runs side by side, each on a core of its own: what they bring together, and one on all of them.

On Frappe where HPCNCF_DATA names the folder of its zip, else on made data of its shape.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Final

import yaml

from benchmarks.remedies import markdown
from benchmarks.verbs import VerbFailed, Verbs, end_in_order
from hpcncf.collect.collect import Collected, collect
from hpcncf.monitor.cgroup import usable
from hpcncf.paths import ResultPaths
from hpcncf_analysis import packing
from hpcncf_analysis.packing import sentences, table

LIMIT_S: Final = 600.0
# Of 1, 2 and 4 runs four repeats are whole packs.
SIZES: Final = (1, 2, 4)
REPEATS: Final = 4
# Some seconds of steps each: a pack's runs are to be at work together.
ENGINES: Final = (
    {"training.loader": "per_sample", "training.max_steps": 900},
    {"training.engine": "native", "training.epochs": 60},
)


def job(data: Path, cores: int) -> dict[str, object]:
    """Each engine alone, side by side on as many cores as there are, and alone on as many."""
    sizes = [size for size in SIZES if size <= cores]
    shapes = [{"resources.runs_per_node": size} for size in sizes]
    shapes += [{"resources.cpus_per_task": size} for size in sizes[1:]]
    return {
        "name": "packing",
        "data": {"path": str(data)},
        "resources": {"mem_gb": 1, "timeout_min": 5},
        "training": {"evaluation": "none", "checkpoint_every": 0},
        "points": [engine | shape for engine in ENGINES for shape in shapes],
        "repeats": REPEATS,
    }


def ran(folder: Path) -> Collected:
    """The job's results. Raises VerbFailed."""
    verbs, data = Verbs(folder, LIMIT_S), folder / "data"
    source = os.environ.get("HPCNCF_DATA")
    real = ["frappe", "--source", str(Path(source).resolve())] if source else []
    verbs("data", "prepare", *(real or ["synthetic", "--like", "frappe"]), "-o", str(data))
    file = folder / "packing.yaml"
    file.write_text(yaml.safe_dump(job(data, int(usable()))))
    verbs.submit(file, folder / "results")
    return collect(ResultPaths(folder / "results"))


def main() -> int:
    end_in_order()
    with tempfile.TemporaryDirectory() as temporary:
        try:
            found = ran(Path(temporary))
        except VerbFailed as error:
            print(f"packing: {error}", file=sys.stderr)
            return 1
    curves = packing.curves(found.runs)
    if not curves:
        print(f"packing: fewer than two cores, or nothing measured: {found.counts()}")
        return 1
    print(f"{found.runs[0]['data_title']}.\n")
    print("\n".join(markdown(table(curves))))
    print()
    for each in curves:
        print("\n".join(f"- {sentence}" for sentence in sentences(each)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
