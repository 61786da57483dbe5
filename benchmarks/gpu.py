"""Engine rowwise on one GPU: a step's time as it is, captured, compiled and in halves, beside its
floor; an epoch's; and HR@10 beside the CPU's at the same batch. Which goals they meet stands
at the end.

Speed is of made data of full size, all of it on the GPU. Quality is of Frappe, where HPCNCF_DATA
names the folder of its zip. Where there is no GPU it ends with exit code 1.
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from itertools import chain, count, product
from pathlib import Path
from typing import Any, Final

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks import results
from benchmarks.quality import difference
from benchmarks.training import full_size, real_frappe, trained
from hpcncf.data.prepared import Prepared
from hpcncf.job.spec import Model, Training
from hpcncf.ncf import model
from hpcncf.ncf.batches import Schedule
from hpcncf.ncf.engines.precision import tf32_allowed
from hpcncf.ncf.engines.rowwise import Rowwise
from hpcncf.ncf.loaders import Loader
from hpcncf.ncf.step_clock import StepClock
from hpcncf.ncf.trainer import mean_rows_per_step

BATCHES: Final = (256, 65_536)
WAYS: Final[dict[str, dict[str, Any]]] = {
    "eager": {},
    "`cuda_graph`": {"cuda_graph": True},
    "`compile: inductor`": {"compile": "inductor"},
    "`cuda_graph`, `compile: inductor`": {"cuda_graph": True, "compile": "inductor"},
    "`cuda_graph`, `tf32`": {"cuda_graph": True, "tf32": True},
    "`cuda_graph`, `precision: bfloat16`": {"cuda_graph": True, "precision": "bfloat16"},
    "`cuda_graph`, `precision: float16`": {"cuda_graph": True, "precision": "float16"},
}
WARM_UP, ROUNDS, WINDOW_POSITIVES, MOST_STEPS = 40, 5, 2**23, 2_000
PROFILED, COPIED_MIB, TINY = 5, 1_024, 2_000
SEEDS, EPOCHS = (0, 1, 2), 3
SMALL, LARGE = BATCHES
MOST_STEP_S, MOST_EPOCH_S, LEAST_INSTANCES_PER_S = 100e-6, 1.5, 100e6
EQUAL: Final = "not distinguishable"
NO_GPU: Final = "benchmarks gpu: torch sees no CUDA device here, and nothing else can be measured"


Seconds = dict[tuple[int, str], float]
"""By batch and way."""


def moved_bytes(rows: float, sizes: Model, positives: int, negatives: int, context: int) -> float:
    """Of a step that keeps the rest on the chip: each distinct row with both moments read and
    written once, float32; each positive's user, items (int64) and context read once."""
    row = 3 * 4 * (sizes.gmf_width + sizes.mlp_width)
    return 2 * rows * row + positives * (8 * (2 + negatives) + 4 * context)


class Steps:
    """Trains full batches in one way, epoch after epoch."""

    def __init__(self, data: Prepared, batch: int, way: dict[str, Any], device: torch.device):
        settings = {"engine": "rowwise", "loader": "device", "global_batch_size": batch} | way
        self.training = Training.model_validate(settings)
        self.schedule, self.device = Schedule(data.manifest.train_rows, batch), device
        start = model.initial_model(data.manifest, Model(), self.training.seed).to(device)
        clock = StepClock(self.schedule.steps, self.schedule.steps)
        self.engine = Rowwise(start, self.training, device, clock)
        self.loader = Loader(data, self.training, self.schedule, device)
        whole = range(self.schedule.rows // batch)
        epochs = (self.engine.batches(self.loader, epoch, whole) for epoch in count())
        self._batches = chain.from_iterable(epochs)
        self.take(WARM_UP)

    @property
    def instances(self) -> int:
        """Of a step."""
        return self.schedule.batch * (1 + self.training.negatives)

    def least_bytes(self, data: Prepared) -> float:
        rows = mean_rows_per_step(data, self.training, self.schedule)
        assert rows is not None
        context = len(data.manifest.context_columns)
        return moved_bytes(rows, Model(), self.schedule.batch, self.training.negatives, context)

    def take(self, steps: int) -> None:
        with tf32_allowed(self.training, self.device):
            for _ in range(steps):
                self.engine.step(self._batches, self.instances)

    def step_s(self) -> float:
        """Mean over a window."""
        steps = min(MOST_STEPS, WINDOW_POSITIVES // self.schedule.batch)
        return timed(lambda: self.take(steps)) / steps

    def launches(self) -> float:
        """Of a step: kernels, copies and fills on the GPU; mean. No number where none was seen."""
        activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
        with profile(activities=activities) as seen:
            self.take(PROFILED)
            torch.cuda.synchronize()
        on_gpu = [each for each in seen.events() if each.device_type == DeviceType.CUDA]
        return len(on_gpu) / PROFILED or math.nan

    def epoch_s(self) -> float:
        """Of a whole one: its order, its smaller last step, and all rows caught up."""
        return timed(self._epoch)

    def _epoch(self) -> None:
        steps, each = self.schedule.steps, 1 + self.training.negatives
        batches = self.engine.batches(self.loader, 0, range(steps))
        for step in range(steps):
            self.engine.step(batches, self.schedule.positives(step) * each)
        self.engine.settle()


def timed(work: Callable[[], object]) -> float:
    """Seconds until the GPU is done."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def copied(device: torch.device) -> float:
    """Bytes a second, read and written, of memory far larger than any cache."""
    source = torch.zeros(COPIED_MIB << 18, device=device)
    target = torch.empty_like(source)
    seconds = [timed(lambda: target.copy_(source)) for _ in range(ROUNDS + 1)][1:]
    return 2 * source.nbytes / statistics.median(seconds)


def launch_s(device: torch.device) -> tuple[float, float]:
    """Of one addition to one number: as the host queues it, and in a graph of many."""
    number = torch.zeros(1, device=device)

    def many() -> None:
        for _ in range(TINY):
            number.add_(1)

    many()
    queued = statistics.median(timed(many) for _ in range(ROUNDS))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        many()
    graph.replay()
    replayed = statistics.median(timed(graph.replay) for _ in range(ROUNDS))
    return queued / TINY, replayed / TINY


def show_steps(data: Prepared, device: torch.device) -> Seconds:
    """Each way at each batch, beside its floor: its bytes, and its launches as a graph has them."""
    found: Seconds = {}
    bytes_per_s, (queued_s, replayed_s) = copied(device), launch_s(device)
    print(
        f"Memory moves {bytes_per_s / 1e9:,.0f} GB/s. An operation on one number takes "
        f"{queued_s * 1e6:.2f} µs queued by the host, {replayed_s * 1e6:.2f} µs in a graph.\n"
    )
    rows = []
    for batch, name in product(BATCHES, WAYS):
        steps = Steps(data, batch, WAYS[name], device)
        step_s = statistics.median(steps.step_s() for _ in range(ROUNDS))
        launches = steps.launches()
        instances, least_s = steps.instances / step_s, steps.least_bytes(data) / bytes_per_s
        cells = [f"{batch:,}", name, f"{step_s * 1e6:,.1f}", f"{instances:,.0f}"]
        floor_us = (1e6 * each for each in (least_s, launches * replayed_s))
        rows.append([*cells, f"{launches:,.0f}", *(f"{each:,.1f}" for each in floor_us)])
        found[batch, name] = step_s
    columns = ["batch:", "engine rowwise", "µs a step:", "instances/s:", "launches a step:"]
    columns += ["floor: bytes, µs:", "floor: launches in a graph, µs:"]
    print(*results.table(columns, rows), "", sep="\n", flush=True)
    return found


def show_epochs(data: Prepared, device: torch.device) -> Seconds:
    found: Seconds = {}
    rows = []
    for batch, name in product(BATCHES, list(WAYS)[:4]):
        steps = Steps(data, batch, WAYS[name], device)
        seconds = min(steps.epoch_s() for _ in range(2))
        instances = steps.schedule.rows * (1 + steps.training.negatives)
        rows.append([f"{batch:,}", name, f"{seconds:.2f}", f"{instances / seconds:,.0f}"])
        found[batch, name] = seconds
    columns = ["batch:", "engine rowwise", "s an epoch:", "instances/s:"]
    print(*results.table(columns, rows), "", sep="\n", flush=True)
    return found


def hr10(data: Prepared, folder: Path, seed: int, **settings: Any) -> float:
    plain = {"engine": "rowwise", "loader": "device", "seed": seed, "epochs": EPOCHS}
    return trained(data, folder, plain | settings).epochs[-1].hr10 or 0.0


def show_quality(folder: Path) -> dict[str, str]:
    """The same instances in the same order on both, so seed by seed; returns each way's verdict."""
    data = real_frappe(folder)
    if data is None:
        print("Quality was not measured: HPCNCF_DATA names no folder of Frappe's zip.\n")
        return {}
    print(f"{data.manifest.title}, {EPOCHS} epochs, batch 256, seeds {SEEDS}.\n")
    on_cpu = [hr10(data, folder, seed, device="cpu") for seed in SEEDS]
    rows, verdicts = [["CPU", f"{statistics.mean(on_cpu):.4f}", "–"]], {}
    for name, way in WAYS.items():
        found = [hr10(data, folder, seed, device="cuda", **way) for seed in SEEDS]
        against = difference(found, on_cpu)
        rows.append([name, f"{statistics.mean(found):.4f}", f"{against}: {against.verdict}"])
        verdicts[name] = against.verdict
    columns = ["engine rowwise", "HR@10:", "against the CPU"]
    print(*results.table(columns, rows), "", sep="\n", flush=True)
    return verdicts


def goals(steps: Seconds, epochs: Seconds, verdicts: Mapping[str, str]) -> list[list[str]]:
    """What a GPU is to reach, what it did, and whether that is it."""

    def fastest(found: Seconds, batch: int) -> tuple[float, str]:
        return min((seconds, way) for (of, way), seconds in found.items() if of == batch)

    (step_s, by), (epoch_s, epoch_by) = fastest(steps, SMALL), fastest(epochs, SMALL)
    large_s, large_by = fastest(steps, LARGE)
    speed = LARGE * (1 + Training().negatives) / large_s
    other = [name for name, verdict in verdicts.items() if verdict != EQUAL]
    of_quality = f"{', '.join(other)} differ" if other else EQUAL
    rows = [
        (
            f"a step of batch {SMALL:,} in {MOST_STEP_S * 1e6:.0f} µs at most",
            f"{step_s * 1e6:,.1f} µs, {by}",
            step_s <= MOST_STEP_S,
        ),
        (
            f"an epoch of batch {SMALL:,} in less than {MOST_EPOCH_S} s",
            f"{epoch_s:.2f} s, {epoch_by}",
            epoch_s < MOST_EPOCH_S,
        ),
        (
            f"more than {LEAST_INSTANCES_PER_S / 1e6:.0f} M instances/s at batch {LARGE:,}",
            f"{speed / 1e6:,.1f} M, {large_by}",
            speed > LEAST_INSTANCES_PER_S,
        ),
        (
            f"HR@10 over {len(SEEDS)} seeds as the CPU's at the same batch",
            of_quality if verdicts else "not measured",
            bool(verdicts) and not other,
        ),
    ]
    return [[wanted, seen, "yes" if met else "**no**"] for wanted, seen, met in rows]


def main() -> int:
    if not torch.cuda.is_available():
        print(NO_GPU, file=sys.stderr)
        return 1
    device = torch.device("cuda", 0)
    data = full_size()
    print(
        f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}. {data.manifest.title}."
    )
    steps, epochs = show_steps(data, device), show_epochs(data, device)
    with tempfile.TemporaryDirectory() as temporary:
        verdicts = show_quality(Path(temporary) / "frappe")
    table = results.table(["goal", "found", "met"], goals(steps, epochs, verdicts))
    print(*table, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
