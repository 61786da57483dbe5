"""The demo's question, run as a user runs it: the rows that README.md shows, and those beside them.

Configurations of jobs/demo.yaml, on Frappe where HPCNCF_DATA names the folder of its zip, else on
made data of its shape.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import yaml

from benchmarks import results
from benchmarks.verbs import Verbs, end_in_order
from hpcncf_analysis.quality import at_equal_epochs

JOB: Final = Path(__file__).parent.parent / "jobs/demo.yaml"
SHOWN: Final = {
    "2 cores · naive loop": 2,
    "2 ranks × 1 core · naive loop": 3,
    "1 core · naive loop": 0,
    "1 core · whole batches": 4,
    "1 core · engine native": 7,
    "2 cores · engine native": 8,
}
"""Name of a row -> the point's place in the job file."""


USUAL: Final = {
    "resources.cpus_per_task": 1,
    "resources.tasks_per_node": 1,
    "training.engine": "reference",
}
LIMIT_S: Final = 600.0


def row(name: str, runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Of one configuration's repeats."""

    def of(column: str) -> float:
        return median(run[column] for run in runs)

    speeds = [run["instances_per_s"] for run in runs]
    rounded = float(f"{median(speeds):.3g}")
    return [
        name,
        f"{rounded:,.0f}",
        f"{min(speeds):,.0f}–{max(speeds):,.0f}",
        f"{of('hr10'):.3f}",
        f"{of('cores_allocated'):g} / {of('cores_used'):.2f}",
        f"{of('cpu_efficiency'):.0%}".replace("%", " %"),
        f"{of('core_s_per_epoch'):.2f}",
    ]


def main() -> int:
    """Print the table."""
    end_in_order()
    job = yaml.safe_load(JOB.read_text())
    job["points"] = [job["points"][place] for place in SHOWN.values()]
    with tempfile.TemporaryDirectory() as temporary:
        verbs = Verbs(Path(temporary), LIMIT_S)
        job["data"] = {"path": verbs.frappe()}
        found = verbs.results(job)
        compared = at_equal_epochs(found.runs, found.epochs)
        rows = []
        for name, point in zip(SHOWN, job["points"], strict=True):
            settings = [(key.split(".")[1], value) for key, value in (USUAL | point).items()]
            runs = [run for run in compared if all(run[key] == x for key, x in settings)]
            assert len(runs) == job["repeats"], name
            rows.append(row(name, runs))
    title = found.runs[0]["data_title"]
    print(f"{title}; {job['repeats']} runs of each in turn: medians, least and most speed.\n")
    columns = [
        "configuration",
        "instances/s:",
        "range:",
        f"HR@10, {compared[0]['scored_epochs']} epochs:",
    ]
    columns += ["cores allocated / used:", "CPU efficiency:", "core-s per epoch:"]
    print(*results.table(columns, rows), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
