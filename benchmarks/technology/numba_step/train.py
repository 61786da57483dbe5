"""What runs in Numba's process: `python train.py FOLDER START SETTINGS`, then lines of JSON.

FOLDER is prepared data, START the model's parameters before the first step, as .npz. A line asks
for steps, the answer tells their seconds and losses. Imports nothing of hpcncf.
"""

from __future__ import annotations

import json
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

BEGAN = time.perf_counter()

import drawing  # noqa: E402  how long importing takes is told
import memory  # noqa: E402
import numpy as np  # noqa: E402
import step  # noqa: E402

IMPORTED_S = time.perf_counter() - BEGAN
PACKAGES = "numba", "llvmlite", "scipy", "numpy"


class Trained:
    def __init__(self, folder: Path, start: Path, settings: dict[str, Any]) -> None:
        names = ("train_rows", "positives_indptr", "positives")
        arrays = [np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r")) for name in names]
        self.model = memory.model_from(dict(np.load(start)))
        batch, each = settings["batch"], settings["rows_per_block"]
        self._data = drawing.opened(*arrays, len(self.model.items), each)
        self._rooms = drawing.room(batch), memory.room(batch)
        self._seed, self._lr, self._done = np.uint64(settings["seed"]), settings["lr"], 0

    def take(self, steps: int) -> dict[str, Any]:
        batch, scratch = self._rooms
        losses, began = np.zeros(steps), time.perf_counter()
        step.train(self._data, batch, self.model, scratch, self._seed, self._lr, self._done, losses)
        seconds = time.perf_counter() - began
        self._done += steps
        return {"seconds": seconds, "losses": losses.tolist()}


def mib(package: str) -> float:
    """Of its files."""
    files = metadata.files(package) or []
    return sum(each.locate().stat().st_size for each in files if each.locate().exists()) / 2**20


def main() -> None:
    trained = Trained(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]))
    compiled_s = trained.take(0)["seconds"]
    told = {
        "imported_s": IMPORTED_S,
        "compiled_s": compiled_s,
        "versions": {name: metadata.version(name) for name in PACKAGES},
        "mib": {name: mib(name) for name in PACKAGES},
    }
    print(json.dumps(told), flush=True)
    for line in sys.stdin:
        print(json.dumps(trained.take(json.loads(line)["steps"])), flush=True)


if __name__ == "__main__":
    main()
