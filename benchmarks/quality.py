"""Whether the engines are equal in quality: HR@10 and NDCG@10 of each over five seeds.

Equal seeds are equal instances in equal order, so that differences are taken seed by seed; their
95 % interval is Student's. On Frappe every run of Adam must pass HR@10 0.85 and NDCG@10 0.70 at its
best epoch: a correct naive implementation reaches 0.864 to 0.885 and 0.715 to 0.729. Runs share the
cores, one thread each: nothing here is timed.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any, Final

from benchmarks import results
from benchmarks.training import ENGINES, in_processes, made_movielens, real_frappe, trained
from hpcncf.data import epoch_order
from hpcncf.data.prepared import PreparedData, load_prepared
from hpcncf.records.schema import TrainingRecord

HR10, NDCG10 = 0.85, 0.70
SEEDS: Final = (0, 1, 2, 3, 4)
BLOCKS: Final = "native, rows in blocks"
VARIANTS: Final[dict[str, dict[str, Any]]] = ENGINES | {BLOCKS: ENGINES["native"]}
"""An epoch of large data visits rows in blocks of 16 neighbours, in random order either way; one of
small data visits row after row, so that blocks are as visible here as they can be."""
AGAINST: Final = {
    "rowwise": "reference",
    "native": "reference",
    "native, lazy_adam": "reference",
    BLOCKS: "native",
}
STUDENT: Final = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365}
"""Its 97.5 % quantile, by degrees of freedom."""


@dataclass(frozen=True)
class Difference:
    """Of pairs: the mean, and half the width of its 95 % interval."""

    mean: float
    within: float

    @property
    def verdict(self) -> str:
        if abs(self.mean) <= self.within:
            return "not distinguishable"
        return "lower" if self.mean < 0 else "higher"

    def __str__(self) -> str:
        return f"{self.mean:+.4f} ± {self.within:.4f}"


def difference(ours: Sequence[float], theirs: Sequence[float]) -> Difference:
    """Of two runs or more, paired one by one."""
    each = [mine - other for mine, other in zip(ours, theirs, strict=True)]
    error = stdev(each) / math.sqrt(len(each))
    return Difference(mean(each), STUDENT[len(each) - 1] * error)


def finished(folder: Path, variant: str, seed: int, epochs: int) -> TrainingRecord:
    """In a process of the pool."""
    if variant == BLOCKS:
        epoch_order.MANY_ROWS = 0
    else:
        epoch_order.MANY_ROWS = sys.maxsize
    settings = VARIANTS[variant] | {"seed": seed, "epochs": epochs}
    return trained(load_prepared(folder), folder, settings)


def of_variants(folder: Path, epochs: int) -> dict[str, list[TrainingRecord]]:
    """Of each variant, by seed."""
    jobs = list(product(VARIANTS, SEEDS))
    records = in_processes(finished, [(folder, *job, epochs) for job in jobs])
    return {
        variant: [record for job, record in zip(jobs, records, strict=True) if job[0] == variant]
        for variant in VARIANTS
    }


def row(variant: str, found: dict[str, list[TrainingRecord]]) -> list[str]:
    def last(name: str, measure: str) -> list[float]:
        return [getattr(record.epochs[-1], measure) for record in found[name]]

    measures = ("hr10", "ndcg10")
    mine = [last(variant, measure) for measure in measures]
    cells = [variant, *(f"{median(x):.4f} ({min(x):.4f} to {max(x):.4f})" for x in mine)]
    if variant not in AGAINST:
        return [*cells, *[""] * 4]
    theirs = [last(AGAINST[variant], measure) for measure in measures]
    hr10, ndcg10 = map(difference, mine, theirs)
    return [*cells, AGAINST[variant], str(hr10), str(ndcg10), hr10.verdict]


def show(data: PreparedData, found: dict[str, list[TrainingRecord]], epochs: int) -> None:
    record = found["reference"][0]
    counts = record.baseline or {}
    print(
        f"**{data.manifest.title}**, {epochs} epochs. A table of counts has HR@10 "
        f"{counts['hr10']:.4f}, NDCG@10 {counts['ndcg10']:.4f}. Test pairs new to their users: "
        f"{record.unseen_test_rows} of {data.manifest.test_rows}.\n"
    )
    columns = ["", "HR@10", "NDCG@10", "against", "HR@10 differs by:", "NDCG@10 differs by:"]
    rows = [row(variant, found) for variant in found]
    print(*results.table([*columns, "HR@10 is"], rows), "", sep="\n", flush=True)


def passes(record: TrainingRecord) -> bool:
    """Whether the best epochs reach what the paper's model does on Frappe."""
    return (
        max(each.hr10 or 0.0 for each in record.epochs) > HR10
        and max(each.ndcg10 or 0.0 for each in record.epochs) > NDCG10
    )


def main() -> int:
    print(
        f"Batch 256, lr 0.001, 4 negatives, {len(SEEDS)} seeds. After the last epoch: medians and "
        "ranges; differences by seed: means and 95 % intervals, one in twenty of which leaves out "
        "0 by chance.\n"
    )
    epoch_order.MANY_ROWS = 0  # all data is prepared in random order
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "frappe"
        if data := real_frappe(folder):
            found = of_variants(folder, epochs=14)
            show(data, found, epochs=14)
            adams = [each for name, runs in found.items() if "lazy" not in name for each in runs]
            passed = "yes" if all(map(passes, adams)) else "**NO**"
            print(f"Every run of Adam passes {HR10} and {NDCG10}: {passed}.\n")
        else:
            print("Frappe: not measured, HPCNCF_DATA does not name the folder of its zip.\n")
        folder = Path(temporary) / "made"
        data = made_movielens(folder)
        show(data, of_variants(folder, epochs=8), epochs=8)
    return 0


if __name__ == "__main__":
    sys.exit(main())
