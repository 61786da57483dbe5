"""Engine native against the same step in Numba: why it is C++.

Both train with `optimizer: lazy_adam` from the same parameters, on the same instances, which each
draws itself, on one core, and take turns. Numba's versions run in an environment of their own,
which the first run makes. Raises Unlike where the losses of one are not those of the others.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from benchmarks.engines import WARMUP_STEPS, Climber, Rung
from benchmarks.peers import environments
from benchmarks.training import FULL_SIZE, full_size
from hpcncf.job.spec import Model, Training
from hpcncf.ncf import model, sampling
from hpcncf.ncf.data.manifest import read_manifest
from hpcncf.ncf.data.prepared import Prepared
from hpcncf.ncf.engines.native.library import cpu_flags, installed_builds, select_build

HERE: Final = Path(__file__).parent
ROUNDS: Final = 5
STEPS: Final = 1500
"""Of a window, one to two seconds."""
COMPARED: Final = 20
"""Steps whose losses are compared one by one, behind a climber's first ones."""
TOLERANCE: Final = 2e-4
LAZY: Final = {"optimizer": "lazy_adam"}
REFERENCE: Final = Rung("reference", LAZY | {"sparse": True}, COMPARED)
NATIVE: Final = Rung("engine native, C++", LAZY | {"engine": "native"}, STEPS)
PRODUCTS: Final = {"blas": "Numba, products by BLAS", "loops": "Numba, products by loops"}
OTHER_CPU: Final = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma"}
"""For which a node with another CPU would compile."""


class Unlike(Exception):
    """Two that should train the same model have different losses."""


@dataclass(frozen=True)
class Begun:
    """Seconds before a process's first step."""

    imported_s: float
    compiled_s: float


class Numba:
    """A process of Numba's, which trains while a window asks it to."""

    def __init__(self, products: str, folder: Path, cache: Path, **variables: str) -> None:
        """`folder` holds the start."""
        settings = Training().model_dump(include={"lr", "seed"})
        settings["batch"] = Training().batch_over_ranks(1)
        settings["rows_per_block"] = sampling.rows_per_block(read_manifest(FULL_SIZE).train_rows)
        told = {"PRODUCTS": products, "NUMBA_CACHE_DIR": str(cache / products)}
        script, start = HERE / "numba_step/train.py", folder / "start.npz"
        self._process = subprocess.Popen(
            [python(), script, FULL_SIZE, start, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | told | variables,
        )
        self.told = self._heard()
        self.begun = Begun(self.told["imported_s"], self.told["compiled_s"])
        self.each = settings["batch"] * (1 + Training().negatives)

    def _heard(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        message: dict[str, Any] = json.loads(self._process.stdout.readline())
        return message

    def taken(self, steps: int) -> tuple[float, list[float]]:
        """Seconds of the next steps, and the mean loss of each."""
        assert self._process.stdin is not None
        print(json.dumps({"steps": steps}), file=self._process.stdin, flush=True)
        answer = self._heard()
        return answer["seconds"], answer["losses"]

    def window(self, steps: int) -> float:
        return steps * self.each / self.taken(steps)[0]

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def python() -> Path:
    return environments.made(HERE / ".venv", HERE / "requirements.txt")


def begun_anew(products: str, folder: Path, cache: Path, **variables: str) -> Begun:
    process = Numba(products, folder, cache, **variables)
    process.stop()
    return process.begun


def losses_of(climber: Climber) -> list[float]:
    """The mean loss of its first steps, taken already, then of each of the next."""
    each = Training().batch_over_ranks(1) * climber.each
    sums = [0.0, float(climber.engine.loss)]
    for _ in range(COMPARED):
        climber.window(1)
        sums.append(float(climber.engine.loss))
    return as_compared(np.diff(sums) / each)


def as_compared(losses: Any) -> list[float]:
    return [float(losses[0]) / WARMUP_STEPS, *(float(each) for each in losses[1:])]


def checked(found: dict[str, list[float]]) -> float:
    """How far any loss is from the first entry's, relative; raises Unlike where it is too far."""
    (name, expected), *others = found.items()
    furthest = 0.0
    for other, losses in others:
        off = float(np.max(np.abs(np.subtract(losses, expected)) / np.abs(expected)))
        if not off <= TOLERANCE:
            raise Unlike(f"losses of {other} are {off:.1e} from those of {name}")
        furthest = max(furthest, off)
    return furthest


def save_start(data: Prepared, folder: Path) -> None:
    start = model.initial_model(data.manifest, Model(), Training().seed).state_dict()
    np.savez(folder / "start.npz", **{name: each.numpy() for name, each in start.items()})


def show_speeds(speeds: dict[str, list[float]]) -> None:
    ours = statistics.median(speeds[NATIVE.name])
    print("| one core, 256 positives, lazy Adam | instances/s | C++ is |\n|---|---:|---:|")
    for name, found in speeds.items():
        median, ratio = statistics.median(found), ours / statistics.median(found)
        print(f"| {name} | {median:,.0f} [{min(found):,.0f}–{max(found):,.0f}] | {ratio:.2f}× |")


def show_costs(begun: dict[str, Begun], mib: dict[str, float]) -> None:
    print("\n| before a process's first step | importing, s | compiling, s |\n|---|---:|---:|")
    for name, each in begun.items():
        print(f"| {name} | {each.imported_s:.1f} | {each.compiled_s:.1f} |")
    builds = [path.stat().st_size for path in installed_builds().values()]
    wanted = [f"{name} {mib[name]:.0f}" for name in ("numba", "llvmlite", "scipy")]
    print(
        f"\nOn disk, MiB: C++ {sum(builds) / 2**20:.1f} in {len(builds)} builds, which need a "
        f"compiler once, at installation; Numba's packages {', '.join(wanted)}, on every node."
    )


def starts(folder: Path, cache: Path) -> dict[str, Begun]:
    """Of processes that find nothing in the cache, and, of the first, one of another CPU."""
    found = {
        f"{name}, nothing cached": begun_anew(products, folder, cache)
        for products, name in PRODUCTS.items()
    }
    products, name = next(iter(PRODUCTS.items()))
    elsewhere = begun_anew(products, folder, cache, **OTHER_CPU)
    return found | {f"{name}, cached for another CPU": elsewhere}


def trained_alike(native: Climber, data: Prepared, processes: dict[str, Numba]) -> dict[str, float]:
    """Each process's loss in its first steps; tells how alike all losses are."""
    found = {
        "engine reference": losses_of(Climber(REFERENCE, data)),
        NATIVE.name: losses_of(native),
    }
    for name, each in processes.items():
        losses = each.taken(WARMUP_STEPS + COMPARED)[1]
        found[name] = as_compared([sum(losses[:WARMUP_STEPS]), *losses[WARMUP_STEPS:]])
    print(
        f"Losses of the first {WARMUP_STEPS + COMPARED} steps are within {checked(found):.0e} of "
        f"engine reference's.\n",
        flush=True,
    )
    return {name: found[name][0] for name in processes}


def in_turn(climbers: dict[str, Climber | Numba]) -> dict[str, list[float]]:
    """Instances a second of each one's windows."""
    speeds: dict[str, list[float]] = {name: [] for name in climbers}
    for number in range(ROUNDS):
        for name in list(climbers) if number % 2 == 0 else reversed(climbers):
            speeds[name].append(climbers[name].window(STEPS))
    return speeds


def fallen(processes: dict[str, Numba], first: dict[str, float]) -> None:
    """Tells how far; raises Unlike where one's loss has not."""
    for name, each in processes.items():
        loss = statistics.mean(each.taken(100)[1])
        if not loss < first[name]:
            raise Unlike(f"the loss of {name} was {first[name]:.4f} and is {loss:.4f}")
        print(f"\n{name}: the loss fell from {first[name]:.3f} to {loss:.3f}.")


def measured(data: Prepared, folder: Path) -> None:
    cache = folder / "cache"
    begun = starts(folder, cache)
    processes = {name: Numba(products, folder, cache) for products, name in PRODUCTS.items()}
    begun |= {f"{name}, cached": each.begun for name, each in processes.items()}
    native = Climber(NATIVE, data)
    first = trained_alike(native, data, processes)
    show_speeds(in_turn({NATIVE.name: native, **processes}))
    fallen(processes, first)
    told = next(iter(processes.values())).told
    show_costs(begun, told["mib"])
    build = select_build(installed_builds(), cpu_flags())
    versions = ", ".join(f"{name} {version}" for name, version in told["versions"].items())
    print(f"\nBuild {build} of engine native; {versions}.")
    for each in processes.values():
        each.stop()


def main() -> int:
    python()
    data = full_size()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        save_start(data, Path(temporary))
        measured(data, Path(temporary))
    return 0


if __name__ == "__main__":
    sys.exit(main())
