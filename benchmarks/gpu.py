"""Engine reference on one GPU with what torch offers for it: the time of a step and of an epoch in
each way, and HR@10 beside the CPU's at the same batch.

Speed is of made data of full size. Quality is of Frappe, where HPCNCF_DATA names the folder of its
zip. Where there is no GPU it ends with exit code 1.
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import chain, count, product
from pathlib import Path
from typing import Any, Final

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks import results
from benchmarks.quality import difference
from benchmarks.training import full_size, real_frappe, trained
from hpcncf.data.prepared import PreparedData
from hpcncf.job.spec import Model, Training
from hpcncf.ncf import model
from hpcncf.ncf.batches import Schedule
from hpcncf.ncf.engines.reference import ReferenceEngine
from hpcncf.ncf.loaders import RankLoader
from hpcncf.ncf.step_clock import StepClock

BATCHES: Final = (256, 65_536)
ON_DEVICE: Final[dict[str, Any]] = {"loader": "device", "adam": "fused"}
WAYS: Final[dict[str, dict[str, Any]]] = {
    "as it is": {},
    "`pin_memory`": {"pin_memory": True},
    "`pin_memory`, `prefetch_to_device`": {"pin_memory": True, "prefetch_to_device": True},
    "`loader: device`": {"loader": "device"},
    "`loader: device`, `adam: fused`": ON_DEVICE,
    "these, `compile: inductor`": ON_DEVICE | {"compile": "inductor"},
    "these, `compile: reduce-overhead`": ON_DEVICE | {"compile": "reduce-overhead"},
    "`cuda_graph`": ON_DEVICE | {"cuda_graph": True},
    "`cuda_graph`, `precision: bfloat16`": ON_DEVICE
    | {"cuda_graph": True, "precision": "bfloat16"},
    "`precision: bfloat16`": ON_DEVICE | {"precision": "bfloat16"},
    "`precision: float16`": ON_DEVICE | {"precision": "float16"},
}
WARM_UP, ROUNDS, WINDOW_POSITIVES, MOST_STEPS = 40, 5, 2**23, 2_000
PROFILED = 5
SEEDS, EPOCHS = (0, 1, 2), 3
NO_GPU: Final = "benchmarks gpu: torch sees no CUDA device here, and nothing else can be measured"


class Steps:
    """Trains full batches in one way, epoch after epoch."""

    def __init__(self, data: PreparedData, batch: int, way: dict[str, Any], device: torch.device):
        self.training = Training.model_validate({"global_batch_size": batch} | way)
        self.schedule, self.device = Schedule(data.manifest.train_rows, batch), device
        start = model.initial_model(data.manifest, Model(), self.training.seed).to(device)
        clock = StepClock(self.schedule.steps, self.schedule.steps)
        self.engine = ReferenceEngine(start, self.training, 1, device, clock)
        self.loader = RankLoader(data, self.training, self.schedule, device)
        whole = range(self.schedule.rows // batch)
        epochs = (self.engine.batches(self.loader, epoch, whole) for epoch in count())
        self._batches = chain.from_iterable(epochs)
        self.take(WARM_UP)

    @property
    def instances(self) -> int:
        """Positives and negatives of a step."""
        return self.schedule.batch * (1 + self.training.negatives)

    def take(self, steps: int) -> None:
        for _ in range(steps):
            self.engine.step(self._batches, self.instances)

    def step_s(self) -> float:
        """Mean over a window."""
        steps = min(MOST_STEPS, WINDOW_POSITIVES // self.schedule.batch)
        return timed(lambda: self.take(steps)) / steps

    def launches(self) -> float:
        """Mean number of a step's kernels, copies and fills on the GPU; NaN if none was seen."""
        activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
        with profile(activities=activities) as seen:
            self.take(PROFILED)
            torch.cuda.synchronize()
        on_gpu = [each for each in seen.events() if each.device_type == DeviceType.CUDA]
        return len(on_gpu) / PROFILED or math.nan


def timed(work: Callable[[], object]) -> float:
    """Seconds until the GPU is done."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def show_steps(data: PreparedData, device: torch.device) -> None:
    """Print a table of each way at each batch."""
    rows = []
    for batch, name in product(BATCHES, WAYS):
        steps = Steps(data, batch, WAYS[name], device)
        step_s = statistics.median(steps.step_s() for _ in range(ROUNDS))
        cells = [f"{batch:,}", name, f"{step_s * 1e6:,.1f}", f"{steps.instances / step_s:,.0f}"]
        rows.append([*cells, f"{steps.launches():,.0f}"])
    columns = ["batch:", "engine reference", "µs a step:", "instances/s:", "launches a step:"]
    print(*results.table(columns, rows), "", sep="\n", flush=True)


def hr10(data: PreparedData, folder: Path, seed: int, **settings: Any) -> float:
    return trained(data, folder, {"seed": seed, "epochs": EPOCHS} | settings).epochs[-1].hr10 or 0.0


def show_quality(folder: Path) -> None:
    """Print HR@10 of each way beside the CPU's, seed by seed."""
    data = real_frappe(folder)
    if data is None:
        print("Quality was not measured: HPCNCF_DATA names no folder of Frappe's zip.\n")
        return
    print(f"{data.manifest.title}, {EPOCHS} epochs, batch 256, seeds {SEEDS}.\n")
    on_cpu = [hr10(data, folder, seed, device="cpu") for seed in SEEDS]
    rows = [["CPU", f"{statistics.mean(on_cpu):.4f}", "–"]]
    for name, way in WAYS.items():
        found = [hr10(data, folder, seed, device="cuda", **way) for seed in SEEDS]
        against = difference(found, on_cpu)
        rows.append([name, f"{statistics.mean(found):.4f}", f"{against}: {against.verdict}"])
    columns = ["engine reference", "HR@10:", "against the CPU"]
    print(*results.table(columns, rows), "", sep="\n", flush=True)


def main() -> int:
    if not torch.cuda.is_available():
        print(NO_GPU, file=sys.stderr)
        return 1
    device = torch.device("cuda", 0)
    data = full_size()
    print(
        f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}. {data.manifest.title}."
    )
    show_steps(data, device)
    with tempfile.TemporaryDirectory() as temporary:
        show_quality(Path(temporary) / "frappe")
    return 0


if __name__ == "__main__":
    sys.exit(main())
