"""What the model reaches in 16 epochs, three seeds, one thread each: on Frappe, and on made data.

On Frappe HR@10 must pass 0.85 and NDCG@10 0.70; a correct naive implementation reaches 0.864 to
0.885 and 0.715 to 0.729. Exit code 1 where a seed does not. Frappe is found in the folder that
the environment variable HPCNCF_DATA names. Beside it stands made data of the same shape, whose
test pairs are almost all new: a task that a table of counts cannot do.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from hpcncf.ncf.data import frappe, prepared, synthetic
from hpcncf.ncf.data.prepared import Prepared
from hpcncf.ncf.train import Trainer
from hpcncf.paths import RunPaths
from hpcncf.plan import Run
from hpcncf.rank.launcher import Place
from hpcncf.records import TrainingRecord
from hpcncf.spec import Data, Model, Resources, Training

SEEDS = (0, 1, 2)
HR10, NDCG10 = 0.85, 0.70


def trained(data: Prepared, seed: int, folder: Path) -> TrainingRecord:
    run = Run(
        id=f"seed-{seed}",
        repeat=0,
        varied={},
        workload="ncf",
        resources=Resources(),
        data=Data(path=str(folder)),
        data_key=data.manifest.key,
        model=Model(),
        training=Training(
            epochs=16, global_batch_size=256, lr=0.001, threads=1, seed=seed, checkpoint_every=0
        ),
    )
    trainer = Trainer(run, data, Place(), RunPaths(folder / run.id), lambda _: None)
    trainer.train()
    return trainer.record()


def row(seed: int, record: TrainingRecord) -> tuple[str, bool]:
    """A line of the table, and whether the seed passes."""
    last, best = record.epochs[-1], max(record.epochs, key=lambda epoch: epoch.hr10 or 0.0)
    ndcg10 = max(epoch.ndcg10 or 0.0 for epoch in record.epochs)
    line = (
        f"| {seed} | {best.hr10:.4f} (epoch {best.epoch + 1}) | {last.hr10:.4f} | {ndcg10:.4f} "
        f"| {last.ndcg10:.4f} | {last.mrr:.4f} | {last.hr10_unseen:.4f} |"
    )
    return line, (best.hr10 or 0.0) > HR10 and ndcg10 > NDCG10


def measured(folder: Path, must_pass: bool) -> bool:
    """Print the data's table; whether every seed's HR@10 and NDCG@10 pass, where they must."""
    data, passed = prepared.load(folder), []
    print(f"### {data.manifest.title}\n")
    print("| seed | best HR@10 | last | best NDCG@10 | last | MRR | HR@10 unseen |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for seed in SEEDS:
        record = trained(data, seed, folder)
        line, good = row(seed, record)
        print(line, flush=True)
        passed.append(good or not must_pass)
    told = record.baseline or {}
    print(f"\nTable of counts: HR@10 {told['hr10']:.4f}, NDCG@10 {told['ndcg10']:.4f}.")
    unseen = f"{record.unseen_test_rows} of {data.manifest.test_rows}"
    print(f"Test pairs that do not occur in training: {unseen}.\n")
    return all(passed)


def main() -> int:
    source = os.environ.get("HPCNCF_DATA")
    passed = True
    with tempfile.TemporaryDirectory() as temporary:
        real, made = Path(temporary) / "real", Path(temporary) / "made"
        if source is None:
            print("Frappe: not measured, HPCNCF_DATA does not name the folder of its zip\n")
        else:
            frappe.prepare(real, Path(source))
            passed = measured(real, must_pass=True)
        synthetic.prepare_like(made, "frappe")
        measured(made, must_pass=False)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
