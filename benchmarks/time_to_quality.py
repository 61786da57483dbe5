"""Seconds of training and evaluation until HR@10 reaches a target, medians over seeds.

One thread each, one run after another, the variants in turn for each seed. Every epoch is evaluated
by the engine that trains. Loading the data and building the engine are not counted.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal

from benchmarks import results
from benchmarks.training import ENGINES, made_movielens, real_frappe, real_movielens, trainer
from hpcncf.data.prepared import PreparedData
from hpcncf.job.spec import Model
from hpcncf.records.schema import Epoch

Init = Literal["torch", "paper"]
Variants = Sequence[tuple[str, Init]]

SEEDS: Final = (0, 1, 2)
MOST_EPOCHS: Final = 30
NATIVE: Final[Variants] = (("native", "torch"), ("native", "paper"))
FRAPPE: Final[Variants] = (("reference", "torch"), ("reference", "paper"), ("rowwise", "paper"))
MADE: Final[Variants] = (("reference", "torch"),)
# Of NeuMF with 16 predictive factors, whose tables are small enough for larger batches.
MOVIELENS: Final[dict[str, Any]] = {"global_batch_size": 1024}
GMF_WIDTH: Final = 16


class Reached(Exception):
    """The epoch just evaluated is good enough."""


def epochs_to_target(
    data: PreparedData, folder: Path, target: float, model: Model, settings: dict[str, Any]
) -> list[Epoch]:
    """The epochs up to the first that reached the target, or all of them."""

    def stop_there(epoch: Epoch) -> None:
        if (epoch.hr10 or 0.0) >= target:
            raise Reached

    epochs = {"epochs": MOST_EPOCHS}
    training = trainer(data, folder, settings | epochs, stop_there, model=model)
    with contextlib.suppress(Reached):
        training.train()
    return training.epochs


def seconds(epochs: Sequence[Epoch]) -> float:
    return sum(each.training_s + each.evaluation_s for each in epochs)


def show(
    data: PreparedData,
    folder: Path,
    variants: Variants,
    target: float,
    gmf_width: int = 8,
    more: Mapping[str, Any] | None = None,
) -> None:
    """Print the table of a data set; `more`: settings of all variants."""
    found: dict[tuple[str, Init], list[list[Epoch]]] = {variant: [] for variant in variants}
    for seed in SEEDS:
        for (engine, init), runs in found.items():
            model = Model(init=init, gmf_width=gmf_width)
            settings = {**ENGINES[engine], "seed": seed, **(more or {})}
            runs.append(epochs_to_target(data, folder, target, model, settings))
    print(f"**{data.manifest.title}: HR@10 {target}**\n")
    slowest, rows = median(map(seconds, found[variants[0]])), []
    for (engine, init), runs in found.items():
        both = [seconds(run) for run in runs]
        epochs = [len(run) for run in runs]
        rows.append(
            [
                *(engine, init, f"{median(epochs):g} ({min(epochs)} to {max(epochs)})"),
                f"{median(sum(epoch.training_s for epoch in run) for run in runs):.2f}",
                f"{median(sum(epoch.evaluation_s for epoch in run) for run in runs):.2f}",
                f"{median(both):.2f} ({min(both):.2f} to {max(both):.2f})",
                f"{slowest / median(both):.1f}×",
            ]
        )
    columns = ["engine", "`model.init`", "epochs:", "training, s:", "evaluation, s:", "both, s:"]
    print(*results.table([*columns, ":"], rows), "", sep="\n")
    late = sum((run[-1].hr10 or 0.0) < target for runs in found.values() for run in runs)
    if late:
        print(f"{late} runs did not reach {target} in {MOST_EPOCHS} epochs: counted so far.\n")


def main() -> int:
    print(f"One thread, medians and ranges of {len(SEEDS)} seeds.\n", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "frappe"
        if data := real_frappe(folder):
            show(data, folder, [*FRAPPE, *NATIVE], 0.85)
        else:
            print("Frappe: not measured, HPCNCF_DATA does not name the folder of its zip.\n")
        folder = Path(temporary) / "movielens"
        if data := real_movielens(folder):
            settings = ", ".join(f"`{key}: {value}`" for key, value in MOVIELENS.items())
            print(f"MovieLens-1M with `gmf_width: {GMF_WIDTH}`, {settings}.\n")
            show(data, folder, NATIVE, 0.68, GMF_WIDTH, MOVIELENS)
        else:
            print("MovieLens-1M: not measured, HPCNCF_DATA has no ml-1m.train.rating.\n")
        folder = Path(temporary) / "made"
        show(made_movielens(folder), folder, [*MADE, *NATIVE], 0.65)
    return 0


if __name__ == "__main__":
    sys.exit(main())
