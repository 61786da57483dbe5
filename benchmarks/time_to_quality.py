"""Seconds of training and evaluation until HR@10 reaches a target, the median over five seeds.

One thread each, one run after another, the variants in turn for each seed. Every epoch is evaluated
by the engine that trains. Loading the data and building the engine are not counted.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Final, Literal

from benchmarks.training import ENGINES, SEEDS, made_movielens, real_frappe, trainer
from hpcncf.ncf.data.prepared import Prepared
from hpcncf.records.schema import Epoch

Init = Literal["torch", "paper"]

FRAPPE, MADE = 0.85, 0.65
MOST_EPOCHS: Final = 30
VARIANTS: Final[tuple[tuple[str, Init], ...]] = (
    ("reference, adam", "torch"),
    ("rowwise, adam", "torch"),
    ("native, adam", "torch"),
    ("reference, adam", "paper"),
    ("rowwise, adam", "paper"),
    ("native, adam", "paper"),
)


class Reached(Exception):
    """The epoch just evaluated is good enough."""


def epochs_to_target(
    data: Prepared, folder: Path, engine: str, init: Init, seed: int, target: float
) -> list[Epoch]:
    """The epochs up to the first that reached the target, or all of them."""

    def stop_there(epoch: Epoch) -> None:
        if (epoch.hr10 or 0.0) >= target:
            raise Reached

    settings = ENGINES[engine] | {"seed": seed, "epochs": MOST_EPOCHS}
    training = trainer(data, folder, settings, stop_there, init=init)
    with contextlib.suppress(Reached):
        training.train()
    return training.epochs


def seconds(epochs: Sequence[Epoch]) -> float:
    return sum(each.training_s + each.evaluation_s for each in epochs)


def show(data: Prepared, folder: Path, name: str, target: float) -> bool:
    """Print the table of a data set. Returns whether every run reached the target."""
    found: dict[tuple[str, Init], list[list[Epoch]]] = {variant: [] for variant in VARIANTS}
    for seed in SEEDS:
        for variant, runs in found.items():
            runs.append(epochs_to_target(data, folder, *variant, seed, target))
    print(f"### {name}: HR@10 {target}\n")
    print("| engine | `model.init` | epochs | training, s | evaluation, s | both, s | |")
    print("|---|---|---:|---:|---:|---:|---:|")
    slowest = median(map(seconds, found[VARIANTS[0]]))
    for (engine, init), runs in found.items():
        both = [seconds(run) for run in runs]
        cells = [
            *(engine, init, f"{median(map(len, runs)):g}"),
            f"{median(sum(epoch.training_s for epoch in run) for run in runs):.2f}",
            f"{median(sum(epoch.evaluation_s for epoch in run) for run in runs):.2f}",
            f"{median(both):.2f} ({min(both):.2f} to {max(both):.2f})",
            f"{slowest / median(both):.1f}×",
        ]
        print(f"| {' | '.join(cells)} |")
    late = sum((run[-1].hr10 or 0.0) < target for runs in found.values() for run in runs)
    if late:
        print(f"\n{late} runs did not reach {target} in {MOST_EPOCHS} epochs: counted so far.")
    print(flush=True)
    return not late


def main() -> int:
    reached = True
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "frappe"
        if data := real_frappe(folder):
            reached = show(data, folder, data.manifest.title, FRAPPE)
        else:
            print("Frappe: not measured, HPCNCF_DATA does not name the folder of its zip.\n")
        folder = Path(temporary) / "made"
        data = made_movielens(folder)
        name = f"{data.manifest.title}, MovieLens 100K's shape"
        reached = show(data, folder, name, MADE) and reached
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
