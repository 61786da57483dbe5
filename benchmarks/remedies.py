"""jobs/remedies.yaml, run as a user runs it: its report's table of what each remedy did.

With two epochs and two repeats, to take about a quarter of an hour on two cores. On Frappe where
HPCNCF_DATA names the folder of its zip, else on made data of its shape.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Final

from benchmarks import results
from benchmarks.verbs import VerbFailed, Verbs, end_in_order
from hpcncf.collect.collect import Collected, collect
from hpcncf.paths import ResultPaths
from hpcncf_analysis import remedies
from hpcncf_analysis.configurations import group_configurations

JOB: Final = Path(__file__).parent.parent / "jobs/remedies.yaml"
SHORTER: Final = ("-s", "training.epochs=2", "-s", "repeats=2")
LIMIT_S: Final = 3600.0


def ran(folder: Path) -> Collected:
    """The job's results. Raises VerbFailed."""
    verbs, data = Verbs(folder, LIMIT_S), folder / "data"
    source = os.environ.get("HPCNCF_DATA")
    real = ["frappe", "--source", str(Path(source).resolve())] if source else []
    verbs("data", "prepare", *(real or ["synthetic", "--like", "frappe"]), "-o", str(data))
    job = folder / "remedies.yaml"
    job.write_text(JOB.read_text().replace("../data/frappe", str(data)))
    to = ("--cluster", "local", "--wait", "--results", str(folder / "results"))
    verbs("submit", str(job), *SHORTER, *to)
    return collect(ResultPaths(folder / "results"))


def main() -> int:
    end_in_order()
    with tempfile.TemporaryDirectory() as temporary:
        try:
            found = ran(Path(temporary))
        except VerbFailed as error:
            print(f"remedies: {error}", file=sys.stderr)
            return 1
    effects = remedies.measure_effects(group_configurations(found.runs))
    table = remedies.remedies_table(effects)
    if table is None:
        print(f"remedies: nothing measured: {found.counts()}", file=sys.stderr)
        return 1
    print(
        f"{found.runs[0]['data_title']}. 2 epochs, 2 repeats. "
        f"{remedies.describe_baseline(effects)}\n"
    )
    print(*results.table(table.columns, table.rows), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
