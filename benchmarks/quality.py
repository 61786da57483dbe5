"""Whether the engines are equal in quality: HR@10 and NDCG@10 of each over five seeds.

Equal seeds are equal instances in equal order, so that differences are taken seed by seed; their
95 % interval is Student's. Engines of one optimizer are held against `reference`, lazy_adam itself
against adam. On Frappe every run of adam must pass HR@10 0.85 and NDCG@10 0.70 at its best epoch: a
correct naive implementation reaches 0.864 to 0.885 and 0.715 to 0.729. Runs share the cores, one
thread each: nothing here is timed.
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Final

from benchmarks.training import ENGINES, SEEDS, in_processes, made_movielens, real_frappe, trainer
from hpcncf.ncf.data.prepared import Prepared, load_prepared
from hpcncf.records.schema import Epoch, TrainingRecord

HR10, NDCG10 = 0.85, 0.70
AGAINST: Final = {
    "rowwise, adam": "reference, adam",
    "native, adam": "reference, adam",
    "reference, lazy_adam": "reference, adam",
    "rowwise, lazy_adam": "reference, lazy_adam",
    "native, lazy_adam": "reference, lazy_adam",
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
    error = statistics.stdev(each) / math.sqrt(len(each))
    return Difference(statistics.mean(each), STUDENT[len(each) - 1] * error)


def finished(folder: Path, engine: str, seed: int, epochs: int) -> TrainingRecord:
    """In a process of the pool."""
    settings = ENGINES[engine] | {"seed": seed, "epochs": epochs}
    training = trainer(load_prepared(folder), folder, settings)
    training.train()
    return training.record()


def trained(folder: Path, epochs: int) -> dict[str, list[TrainingRecord]]:
    """Of each engine, by seed."""
    jobs = list(product(ENGINES, SEEDS))
    records = in_processes(finished, [(folder, *job, epochs) for job in jobs])
    return {
        engine: [record for job, record in zip(jobs, records, strict=True) if job[0] == engine]
        for engine in ENGINES
    }


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.4f} ({min(values):.4f} to {max(values):.4f})"


def last(records: list[TrainingRecord], measure: str) -> list[float]:
    return [getattr(record.epochs[-1], measure) for record in records]


def row(engine: str, by_engine: dict[str, list[TrainingRecord]]) -> str:
    mine = [last(by_engine[engine], measure) for measure in ("hr10", "ndcg10")]
    cells = [engine, *map(spread, mine)]
    other = AGAINST.get(engine)
    if other:
        theirs = [last(by_engine[other], measure) for measure in ("hr10", "ndcg10")]
        hr10, ndcg10 = map(difference, mine, theirs)
        cells += [other, str(hr10), str(ndcg10), hr10.verdict]
    else:
        cells += [""] * 4
    return f"| {' | '.join(cells)} |"


def show(data: Prepared, by_engine: dict[str, list[TrainingRecord]], epochs: int) -> None:
    print(f"{epochs} epochs, batch 256, lr 0.001, 4 negatives, {len(SEEDS)} seeds. After the last")
    print(
        "epoch: medians and ranges; differences by seed: means and 95 % intervals, one in twenty of"
    )
    print("which leaves out 0 by chance.\n")
    print("| | HR@10 | NDCG@10 | against | HR@10 differs by | NDCG@10 differs by | HR@10 is |")
    print("|---|---|---|---|---:|---:|---|")
    for engine in by_engine:
        print(row(engine, by_engine))
    record = by_engine["reference, adam"][0]
    told = record.baseline or {}
    print(f"\nTable of counts: HR@10 {told['hr10']:.4f}, NDCG@10 {told['ndcg10']:.4f}.")
    print(
        f"Test pairs new to their users: {record.unseen_test_rows} of {data.manifest.test_rows}.\n"
    )


def passes(epochs: list[Epoch]) -> bool:
    """Whether the best epochs reach what the paper's model does on Frappe."""
    return (
        max(each.hr10 or 0.0 for each in epochs) > HR10
        and max(each.ndcg10 or 0.0 for each in epochs) > NDCG10
    )


def measured(data: Prepared, folder: Path, epochs: int) -> dict[str, list[TrainingRecord]]:
    print(f"### {data.manifest.title}\n", flush=True)
    found = trained(folder, epochs)
    show(data, found, epochs)
    return found


def main() -> int:
    passed = True
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "frappe"
        real = real_frappe(folder)
        if real is None:
            print("Frappe: not measured, HPCNCF_DATA does not name the folder of its zip.\n")
        else:
            found = measured(real, folder, epochs=16)
            adams = [found[engine] for engine in ENGINES if engine.endswith(", adam")]
            passed = all(passes(record.epochs) for records in adams for record in records)
            print(f"Every run of adam passes {HR10} and {NDCG10}: {'yes' if passed else 'NO'}.\n")
        folder = Path(temporary) / "made"
        measured(made_movielens(folder), folder, epochs=10)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
