"""Whether models are as good where an epoch visits rows in blocks: engine native, seed by seed.

Rows lie in random order either way, so that the order of an epoch is all that differs. Large data
is always visited in blocks, small data never; here both are done to both. The less data, the more
blocks could do: of a Frappe there are five thousand, of the full size 228,000. Runs share the
cores, one thread each: nothing here is timed.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Final

from benchmarks.quality import difference, finished, last, spread
from benchmarks.training import made_movielens, real_frappe
from hpcncf.monitor.cores import usable_cpus
from hpcncf.ncf import sampling
from hpcncf.ncf.data import prepared, synthetic
from hpcncf.ncf.data.prepared import Prepared
from hpcncf.records import TrainingRecord

SEEDS: Final = range(8)
MEASURES: Final = ("hr10", "ndcg10")


def made_full_size(folder: Path) -> Prepared:
    synthetic.prepare_like(folder, "yelp")
    return prepared.load(folder)


DATA: Final[dict[Callable[[Path], Prepared | None], int]] = {
    real_frappe: 16,
    made_movielens: 10,
    made_full_size: 3,
}
"""And the epochs of a run."""


def visited(folder: Path, in_blocks: bool, seed: int, epochs: int) -> TrainingRecord:
    """In a process of the pool."""
    sampling.MANY_ROWS = 0 if in_blocks else sys.maxsize
    return finished(folder, "native, adam", seed, epochs)


def trained(folder: Path, epochs: int) -> dict[bool, list[TrainingRecord]]:
    """In blocks and row by row, by seed."""
    jobs = list(product((False, True), SEEDS))
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(usable_cpus()), mp_context=fresh) as pool:
        asked = [pool.submit(visited, folder, in_blocks, seed, epochs) for in_blocks, seed in jobs]
        records = [each.result() for each in asked]
    return {way: records[way * len(SEEDS) :][: len(SEEDS)] for way in (False, True)}


def show(data: Prepared, found: dict[bool, list[TrainingRecord]], epochs: int) -> None:
    blocks = data.manifest.train_rows // sampling.ROWS_PER_BLOCK
    print(f"{data.manifest.title}; {blocks:,} blocks, {epochs} epochs:\n")
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
    for make, epochs in DATA.items():
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "data"
            data = make(folder)
            if data is None:
                print("Frappe: not measured, HPCNCF_DATA does not name the folder of its zip.\n")
                continue
            show(data, trained(folder, epochs), epochs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
