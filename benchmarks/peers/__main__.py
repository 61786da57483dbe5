"""hpcncf beside RecBole's and cornac's NeuMF: the same pairs, sizes and batches, one core each.

README.md says what is the same and what is not.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import results
from benchmarks.training import Stepper, frappe_or_made, full_size, per_s, trained
from benchmarks.verbs import environment, measured
from hpcncf.data.arrays import pack_rows
from hpcncf.data.prepared import PreparedData
from hpcncf.job.spec import Model, Training
from hpcncf.monitor.cgroup import usable_cpus
from hpcncf.ncf.batches import Schedule

HERE: Final = Path(__file__).parent
ROUNDS: Final = 3
SEEDS: Final = (0, 1, 2)
EPOCHS: Final = 20
# As small as the peers' first embeddings.
MODEL: Final = Model(init="paper")
BATCH: Final = 256
INSTANCES: Final = BATCH * (1 + Training().negatives)
"""Of a step."""
OURS: Final[dict[str, tuple[dict[str, Any], int]]] = {
    "naive: one sample at a time": ({"loader": "per_sample"}, 20),
    "rowwise": ({"engine": "rowwise"}, 600),
    "native": ({"engine": "native"}, 3000),
}
"""Settings, and steps of a window."""
PEERS: Final = ("recbole", "cornac")
STEPS: Final = 20
"""Of a peer at full size: about two seconds of them."""

# Instances per second, HR@10, NDCG@10.
Trained = tuple[float, float, float]


def python_of(peer: str) -> Path:
    """Its interpreter: RecBole needs an older numpy than cornac takes."""
    lines = (HERE / f"requirements-{peer}.txt").read_text().splitlines()
    packages = [line for line in lines if not line.startswith("#")]
    # The file lists everything: what a package asks for besides is not wanted.
    return environment(HERE / ".venv" / peer, packages, "--no-deps")


def plain(data: PreparedData) -> PreparedData:
    """The same without what the peers cannot take: no context, and each training pair once, as
    cornac has it. Test rows and their negatives stay as they are."""
    manifest, pairs = data.manifest, data.manifest.train_pairs
    changes = {"train_rows": pairs, "rows": pairs + manifest.test_rows}
    nothing = {"context_columns": [], "small_columns": 0}
    owners = np.repeat(np.arange(manifest.users), np.diff(data.positives_indptr))
    anywhere = np.random.default_rng(0).permutation(pairs)  # neighbours may share a block
    return replace(
        data,
        manifest=manifest.model_copy(update=changes | nothing),
        train_rows=pack_rows(owners[anywhere], data.positives[anywhere], np.empty((pairs, 0)), 0),
        test_context=np.empty((manifest.test_rows, 0), dtype=np.float32),
    )


def write_pairs(path: Path, users: NDArray[Any], items: NDArray[Any]) -> None:
    """As an atomic file of RecBole's."""
    rows = zip(users.tolist(), items.tolist(), strict=True)
    with path.open("w") as file:
        file.write("user_id:token\titem_id:token\n")
        file.writelines(f"{user}\t{item}\n" for user, item in rows)


def write_data(folder: Path, data: PreparedData, scored: bool) -> None:
    """RecBole's atomic files, and the array `train` [pairs, 2]; if a peer is to score them,
    `test_users` [test rows] and `candidates` [test rows, 1 + negatives], the held-out item
    first."""
    (folder / "data").mkdir(parents=True)
    write_pairs(folder / "data/data.train.inter", data.train_users, data.train_items)
    for part in ("valid", "test"):  # RecBole insists on validation data, and does nothing with it
        write_pairs(folder / f"data/data.{part}.inter", data.test_users, data.test_items)
    np.save(folder / "train.npy", np.column_stack([data.train_users, data.train_items]))
    if scored:
        np.save(folder / "test_users.npy", data.test_users)
        np.save(folder / "candidates.npy", np.column_stack([data.test_items, data.test_negatives]))


def quality(scores: NDArray[np.float32]) -> tuple[float, float]:
    """HR@10 and NDCG@10, ranked as hpcncf ranks: what does not score less is ahead."""
    ranks = (~(scores[:, 1:] < scores[:, :1])).sum(axis=1)
    hits = ranks < 10
    return float(hits.mean()), float((hits / np.log2(ranks + 2)).mean())


def settings_of(peer: str, data: PreparedData, seed: int) -> dict[str, Any]:
    """Its own names for hpcncf's settings."""
    negatives, lr = Training().negatives, Training().lr
    if peer == "cornac":
        layers = [2 * MODEL.mlp_width, *MODEL.layers]
        counts = {"users": data.manifest.users, "items": data.manifest.items}
        sizes = {"num_factors": MODEL.gmf_width, "layers": layers, "batch_size": BATCH}
        return counts | sizes | {"num_neg": negatives, "lr": lr, "seed": seed}
    return {
        "benchmark_filename": ["train", "valid", "test"],
        "seed": seed,
        "mf_embedding_size": MODEL.gmf_width,
        "mlp_embedding_size": MODEL.mlp_width,
        "mlp_hidden_size": list(MODEL.layers),
        "dropout_prob": 0.0,
        "learner": "adam",
        "learning_rate": lr,
        "train_batch_size": INSTANCES,  # it counts instances, not positives
        "train_neg_sample_args": {
            "distribution": "uniform",
            "sample_num": negatives,
            "alpha": 1.0,
            "dynamic": False,
            "candidate_num": 0,
        },
    }


def trained_peer(peer: str, data: PreparedData, folder: Path, steps: int, seed: int) -> Trained:
    """A peer, trained on the data that was written to the folder."""
    script = [str(python_of(peer)), str(HERE / f"train_{peer}.py"), "NeuMF", str(folder)]
    settings = json.dumps(settings_of(peer, data, seed))
    step_ms = measured([*script, str(steps), settings], str(folder))[0]
    scores = folder / "scores.npy"
    return (1e3 * INSTANCES / step_ms, *(quality(np.load(scores)) if scores.exists() else (0, 0)))


def ours(
    data: PreparedData, folder: Path, settings: dict[str, Any], seed: int, model: Model
) -> Trained:
    record = trained(data, folder, settings | {"epochs": EPOCHS, "seed": seed}, model=model)
    last = record.epochs[-1]
    return per_s(record), last.hr10 or 0.0, last.ndcg10 or 0.0


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    return min(values), median(values), max(values)


def speed_cells(name: str, speeds: Sequence[float], peers: Sequence[float]) -> list[str]:
    """The median and its range, and the ratio to each peer."""
    low, middle, high = (f"{float(f'{each:.3g}'):,.0f}" for each in spread(speeds))
    return [name, f"{middle} [{low}–{high}]", *(f"{median(speeds) / x:.2f}×" for x in peers)]


COLUMNS: Final = ("one core, 256 positives a step", "instances/s:", "to RecBole:", "to cornac:")


def show_full_size(folder: Path) -> None:
    data = full_size()
    same = plain(data)
    write_data(folder, same, scored=False)
    peers = [trained_peer(peer, same, folder, STEPS, 0)[0] for peer in PEERS]
    rows = [speed_cells(name, [speed], peers) for name, speed in zip(PEERS, peers, strict=True)]
    for name, (settings, steps) in OURS.items():
        stepper = Stepper(same, settings)
        times = [stepper.window(steps) for _ in range(ROUNDS)]
        speeds = [stepper.instances(steps) / seconds for seconds in times]
        rows.append(speed_cells(f"hpcncf, {name}", speeds, peers))
    print(f"**{data.manifest.title}.** Medians of {ROUNDS} windows; a peer's: one.\n")
    print(*results.table(COLUMNS, rows), "", sep="\n", flush=True)


def show_quality(folder: Path) -> None:
    data = frappe_or_made(folder / "prepared")
    same = plain(data)
    write_data(folder / "peers", same, scored=True)
    steps = EPOCHS * Schedule(same.manifest.train_rows, BATCH).steps
    found = {
        peer: [trained_peer(peer, same, folder / "peers", steps, seed) for seed in SEEDS]
        for peer in PEERS
    }
    peers = [median(each[0] for each in runs) for runs in found.values()]
    for name, (settings, _) in OURS.items():
        found[f"hpcncf, {name}"] = [ours(same, folder, settings, seed, MODEL) for seed in SEEDS]
    for name, (settings, _) in list(OURS.items())[1:]:
        runs = [ours(data, folder, settings, seed, Model()) for seed in SEEDS]
        found[f"hpcncf, {name}, with context"] = runs
    rows = []
    for name, runs in found.items():
        speeds, *qualities = zip(*runs, strict=True)
        parts = [spread(each) for each in qualities]
        cells = [f"{middle:.3f} [{low:.3f}–{high:.3f}]" for low, middle, high in parts]
        rows.append([*speed_cells(name, speeds, peers), *cells])
    print(
        f"**{data.manifest.title}**, without context and repeated pairs "
        f"{same.manifest.train_rows:,} training pairs. {EPOCHS} epochs, medians of {len(SEEDS)} "
        "seeds.\n"
    )
    print(*results.table([*COLUMNS, "HR@10:", "NDCG@10:"], rows), sep="\n")


def main() -> int:
    for peer in PEERS:
        python_of(peer)
    full_size()  # by all cores
    os.sched_setaffinity(0, {max(usable_cpus())})
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        show_full_size(Path(temporary) / "full")
        show_quality(Path(temporary))
    return 0


if __name__ == "__main__":
    sys.exit(main())
