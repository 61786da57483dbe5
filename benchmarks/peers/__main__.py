"""hpcncf beside RecBole's and cornac's NeuMF: the same data, sizes and batches, one core, in turn.

`python -m benchmarks peers` prints Markdown. README.md says what is the same and what is not.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.peers import environments, export
from benchmarks.peers.contestants import Contestant, Ours, Peer, Window
from benchmarks.training import frappe_or_made, full_size
from hpcncf.job.spec import Model, Training
from hpcncf.ncf.batches import Schedule
from hpcncf.ncf.data.prepared import Prepared
from hpcncf.ncf.evaluate import Quality
from hpcncf.records.host import describe_host

ROOT = Path(__file__).parent.parent.parent
ROUNDS = 3
SEEDS = (0, 1, 2)
EPOCHS = 20
WARMUP_STEPS = 5


@dataclass(frozen=True)
class Entry:
    """A row of the tables."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    """Of hpcncf's training; a peer has none."""
    window: int = 20
    """Steps at full size: about two seconds of them."""
    own: bool = False
    """As hpcncf trains by itself: its own start, and the data as prepared, with context."""

    def training(self, seed: int) -> Training:
        return Training(threads=1, checkpoint_every=0, seed=seed, **self.settings)


ENTRIES = (
    Entry("recbole"),
    Entry("cornac"),
    Entry("hpcncf, naive: one sample at a time", {"loader": "per_sample"}),
    Entry("hpcncf, rowwise", {"engine": "rowwise"}, 600),
    Entry("hpcncf, native", {"engine": "native"}, 3000),
    Entry("hpcncf, rowwise, with context", {"engine": "rowwise"}, 600, own=True),
    Entry("hpcncf, native, with context", {"engine": "native"}, 3000, own=True),
)


class Arena:
    """One data set, exported once, on which contestants are made."""

    def __init__(self, data: Prepared, folder: Path) -> None:
        self.data, self.plain, self._folder = data, export.plain(data), folder
        self.versions: dict[str, dict[str, str]] = {}
        export.write(folder, self.plain)

    def made(self, entry: Entry, seed: int) -> Contestant:
        if entry.name not in environments.PEERS:
            return Ours(self._data_of(entry), entry.training(seed), entry.own)
        peer = Peer(entry.name, self.plain, self._folder, self._settings(entry.training(seed)))
        self.versions[entry.name] = peer.versions
        return peer

    def _data_of(self, entry: Entry) -> Prepared:
        return self.data if entry.own else self.plain

    def epoch(self, entry: Entry) -> int:
        """Steps of one."""
        batch = entry.training(0).batch_over_ranks(1)
        return Schedule(self._data_of(entry).manifest.train_rows, batch).steps

    def _settings(self, training: Training) -> dict[str, Any]:
        counts = {"users": self.plain.manifest.users, "items": self.plain.manifest.items}
        shared = training.model_dump(include={"seed", "lr", "negatives"})
        batch = {"batch": training.batch_over_ranks(1)}
        return Model().model_dump() | shared | batch | counts


def windows(arena: Arena) -> list[list[Window]]:
    """Each entry's windows: all train at once, taking turns."""
    contestants = [arena.made(entry, 0) for entry in ENTRIES]
    for contestant in contestants:
        contestant.window(WARMUP_STEPS)
    found: list[list[Window]] = [[] for _ in ENTRIES]
    for number in range(ROUNDS):
        for at in in_turn(number):
            found[at].append(contestants[at].window(ENTRIES[at].window))
    for contestant in contestants:
        contestant.stop()
    return found


def small(arena: Arena) -> list[list[tuple[Window, Quality]]]:
    """Each entry's trainings, one for each seed."""
    found: list[list[tuple[Window, Quality]]] = [[] for _ in ENTRIES]
    for number, seed in enumerate(SEEDS):
        for at in in_turn(number):
            contestant, steps = arena.made(ENTRIES[at], seed), EPOCHS * arena.epoch(ENTRIES[at])
            contestant.window(WARMUP_STEPS)
            found[at].append((contestant.window(steps - WARMUP_STEPS), contestant.quality()))
            contestant.stop()
    return found


def in_turn(number: int) -> list[int]:
    """The entries' order in this round: every other time reversed."""
    order = list(range(len(ENTRIES)))
    return order if number % 2 == 0 else order[::-1]


def speed_cells(windows: list[list[Window]]) -> list[str]:
    """Each entry's median, range, and ratio to each peer."""
    medians = [statistics.median(each.per_s for each in of) for of in windows]
    cells = []
    for of, median in zip(windows, medians, strict=True):
        least, most = min(each.per_s for each in of), max(each.per_s for each in of)
        ratios = (f"{median / medians[at]:.2f}×" for at in range(len(environments.PEERS)))
        cells.append(f"{rounded(median)} [{rounded(least)}–{rounded(most)}] | {' | '.join(ratios)}")
    return cells


def rounded(per_s: float) -> str:
    """To three digits."""
    return f"{float(f'{per_s:.3g}'):,.0f}"


def quality_cell(found: list[Quality], part: Callable[[Quality], float]) -> str:
    values = [part(each) for each in found]
    return f"{statistics.median(values):.3f} [{min(values):.3f}–{max(values):.3f}]"


def print_full_size(data: Prepared, folder: Path) -> dict[str, dict[str, str]]:
    arena = Arena(data, folder)
    print(f"### Full size\n\n{data.manifest.title}. Medians of {ROUNDS} windows, taken in turn.\n")
    cells = speed_cells(windows(arena))
    print("| one core, 256 positives a step | instances/s | to RecBole | to cornac |")
    print("|---|---:|---:|---:|")
    for entry, cell in zip(ENTRIES, cells, strict=True):
        print(f"| {entry.name} | {cell} |")
    return arena.versions


def print_small(data: Prepared, folder: Path) -> None:
    arena = Arena(data, folder)
    manifest = arena.plain.manifest
    print(
        f"\n### Small\n\n{data.manifest.title}. Without context and repeated pairs "
        f"{manifest.train_rows:,} training pairs. {EPOCHS} epochs, medians of {len(SEEDS)} seeds.\n"
    )
    found = small(arena)
    cells = speed_cells([[window for window, _ in of] for of in found])
    print("| one core | instances/s | to RecBole | to cornac | HR@10 | NDCG@10 |")
    print("|---|---:|---:|---:|---:|---:|")
    for entry, cell, of in zip(ENTRIES, cells, found, strict=True):
        reached = [quality for _, quality in of]
        hr10 = quality_cell(reached, lambda quality: quality.hr10)
        ndcg10 = quality_cell(reached, lambda quality: quality.ndcg10)
        print(f"| {entry.name} | {cell} | {hr10} | {ndcg10} |")


def one_core() -> int:
    """Bind this process and the peers it will start to one core; its number."""
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    return core


def main() -> int:
    for peer in environments.PEERS:
        environments.python_of(peer)
    data = full_size()  # by all cores
    core, about = one_core(), describe_host()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        versions = print_full_size(data, folder / "full")
        print_small(frappe_or_made(folder / "frappe"), folder / "small")
    print(
        f"\n{about['cpu_model']}, core {core}; hpcncf: torch {about['torch']}; peers: "
        + "; ".join(", ".join(f"{k} {v}" for k, v in each.items()) for each in versions.values())
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
