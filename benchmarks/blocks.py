"""Whether models are as good where an epoch visits rows in blocks: engine native, seed by seed.

Rows lie in random order either way, so that the order of an epoch is all that differs. Large data
is always visited in blocks, small data never; here both are done to both. The less data, and the
smaller the batch, the more blocks could do: with 16 positives, a batch has the same in every epoch.
Runs share the cores, one thread each: nothing here is timed.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Final

from benchmarks.quality import difference, last, spread
from benchmarks.training import in_processes, made_movielens, real_frappe, trainer
from hpcncf.ncf import sampling
from hpcncf.ncf.data import synthetic
from hpcncf.ncf.data.prepared import Prepared, load_prepared
from hpcncf.records.schema import TrainingRecord

SEEDS: Final = range(8)
MEASURES: Final = ("hr10", "ndcg10")


def made_full_size(folder: Path) -> Prepared:
    synthetic.prepare_synthetic_like(folder, "yelp")
    return load_prepared(folder)


Settings = dict[str, int]
DATA: Final[dict[Callable[[Path], Prepared | None], list[Settings]]] = {
    real_frappe: [
        {"epochs": 16, "global_batch_size": 256},
        {"epochs": 16, "global_batch_size": 16},
    ],
    made_movielens: [
        {"epochs": 10, "global_batch_size": 256},
        {"epochs": 10, "global_batch_size": 16},
    ],
    made_full_size: [{"epochs": 3, "global_batch_size": 256}],
}


def visited(folder: Path, in_blocks: bool, seed: int, settings: Settings) -> TrainingRecord:
    """In a process of the pool."""
    sampling.MANY_ROWS = 0 if in_blocks else sys.maxsize
    each = {"engine": "native", "seed": seed} | settings
    training = trainer(load_prepared(folder), folder, each)
    training.train()
    return training.record()


def trained(folder: Path, settings: Settings) -> dict[bool, list[TrainingRecord]]:
    """In blocks and row by row, by seed."""
    records = in_processes(visited, product([folder], (False, True), SEEDS, [settings]))
    return {way: records[way * len(SEEDS) :][: len(SEEDS)] for way in (False, True)}


def show(data: Prepared, found: dict[bool, list[TrainingRecord]], settings: Settings) -> None:
    blocks = data.manifest.train_rows // sampling.ROWS_PER_BLOCK
    batch, epochs = settings["global_batch_size"], settings["epochs"]
    print(f"{data.manifest.title}; {blocks:,} blocks, batch {batch}, {epochs} epochs:\n")
    print("| | row by row | in blocks | differs by | |\n|---|---|---|---:|---|")
    for measure in MEASURES:
        single, together = (last(found[way], measure) for way in (False, True))
        differs = difference(together, single)
        print(
            f"| {'HR@10' if measure == 'hr10' else 'NDCG@10'} | {spread(single)} "
            f"| {spread(together)} | {differs} | {differs.verdict} |"
        )
    print(flush=True)


def main() -> int:
    """Print a table for each data set."""
    print(f"Medians and ranges of {len(SEEDS)} seeds; differences as in `quality`.\n")
    sampling.MANY_ROWS = 0  # all data is prepared in random order
    for make, settings in DATA.items():
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "data"
            data = make(folder)
            if data is None:
                print("Frappe: not measured, HPCNCF_DATA does not name the folder of its zip.\n")
                continue
            for each in settings:
                show(data, trained(folder, each), each)
    return 0


if __name__ == "__main__":
    sys.exit(main())
