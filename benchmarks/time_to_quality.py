"""Seconds of training and evaluation until HR@10 reaches its target, the median over five seeds.

One thread each, one run after another, the engines in turn for each seed. Every epoch is evaluated,
by the engine that trains; loading the data and making the engine are not counted.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.training import ENGINES, SEEDS, made_movielens, real_frappe, trainer
from hpcncf.ncf.data.prepared import Prepared
from hpcncf.records.schema import Epoch

FRAPPE, MADE = 0.85, 0.65
MOST_EPOCHS: Final = 30
TIMED: Final = [name for name in ENGINES if name.endswith(", adam")]


class Reached(Exception):
    """The epoch just evaluated is good enough."""


@dataclass(frozen=True)
class Way:
    """The epochs to the target, the last of which reached it, or none did."""

    epochs: list[Epoch]
    target: float

    @property
    def arrived(self) -> bool:
        return (self.epochs[-1].hr10 or 0.0) >= self.target

    @property
    def training_s(self) -> float:
        return sum(each.training_s for each in self.epochs)

    @property
    def evaluation_s(self) -> float:
        return sum(each.evaluation_s for each in self.epochs)

    @property
    def seconds(self) -> float:
        return self.training_s + self.evaluation_s


def way(data: Prepared, folder: Path, engine: str, seed: int, target: float) -> Way:
    def stop_there(epoch: Epoch) -> None:
        if (epoch.hr10 or 0.0) >= target:
            raise Reached

    settings = ENGINES[engine] | {"seed": seed, "epochs": MOST_EPOCHS}
    training = trainer(data, folder, settings, stop_there)
    with contextlib.suppress(Reached):
        training.train()
    return Way(training.epochs, target)


def show(data: Prepared, folder: Path, name: str, target: float) -> bool:
    """Print the table of a data set; whether every run came to the target."""
    ways: dict[str, list[Way]] = {engine: [] for engine in TIMED}
    for seed in SEEDS:
        for engine, found in ways.items():
            found.append(way(data, folder, engine, seed, target))
    print(f"### {name}: HR@10 {target}\n")
    print("| | epochs | training, s | evaluation, s | both, s | |")
    print("|---|---:|---:|---:|---:|---:|")
    slowest = statistics.median(each.seconds for each in ways["reference, adam"])
    for engine, found in ways.items():
        print(f"| {engine} | {row(found, slowest)} |")
    arrived = all(each.arrived for found in ways.values() for each in found)
    if not arrived:
        print(f"\nSome runs did not come to {target} in {MOST_EPOCHS} epochs: counted so far.")
    print(flush=True)
    return arrived


def row(found: list[Way], reference_s: float) -> str:
    """Medians of each column, and the range of all seconds."""
    seconds = [each.seconds for each in found]
    median = statistics.median(seconds)
    return " | ".join(
        [
            f"{statistics.median(len(each.epochs) for each in found):g}",
            f"{statistics.median(each.training_s for each in found):.2f}",
            f"{statistics.median(each.evaluation_s for each in found):.2f}",
            f"{median:.2f} ({min(seconds):.2f} to {max(seconds):.2f})",
            f"{reference_s / median:.1f}×",
        ]
    )


def main() -> int:
    arrived = True
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "frappe"
        data = real_frappe(folder)
        if data is None:
            print("Frappe: not measured, HPCNCF_DATA does not name the folder of its zip.\n")
        else:
            arrived = show(data, folder, data.manifest.title, FRAPPE)
        folder = Path(temporary) / "made"
        data = made_movielens(folder)
        name = f"{data.manifest.title}, MovieLens 100K's shape"
        arrived = show(data, folder, name, MADE) and arrived
    return 0 if arrived else 1


if __name__ == "__main__":
    sys.exit(main())
