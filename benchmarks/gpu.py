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
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any, Final

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.quality import difference
from benchmarks.training import full_size, real_frappe, trainer
from hpcncf.job.spec import Model, Training
from hpcncf.ncf import model
from hpcncf.ncf.batches import Schedule
from hpcncf.ncf.data.prepared import Prepared
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


@dataclass(frozen=True)
class Floor:
    """What a step cannot do without, and what the GPU needs for it."""

    moved_bytes: float
    bytes_per_s: float
    launches: float
    launch_s: float
    """Of one operation in a graph that does next to nothing."""

    @property
    def of_bytes_s(self) -> float:
        return self.moved_bytes / self.bytes_per_s

    @property
    def of_launches_s(self) -> float:
        return self.launches * self.launch_s


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

    def take(self, steps: int) -> None:
        instances = self.schedule.batch * (1 + self.training.negatives)
        with tf32_allowed(self.training, self.device):
            for _ in range(steps):
                self.engine.step(self._batches, instances)

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
    """Each way at each batch, beside its floor."""
    found: Seconds = {}
    bytes_per_s, (queued_s, replayed_s) = copied(device), launch_s(device)
    print(
        f"Memory moves {bytes_per_s / 1e9:,.0f} GB/s. An operation on one number takes "
        f"{queued_s * 1e6:.2f} µs queued by the host, {replayed_s * 1e6:.2f} µs in a graph.\n"
    )
    print(
        "| batch | engine rowwise | µs a step | instances/s | launches a step | "
        "floor: bytes, µs | floor: launches in a graph, µs |\n|---:|---|---:|---:|---:|---:|---:|"
    )
    for batch in BATCHES:
        for name, way in WAYS.items():
            steps = Steps(data, batch, way, device)
            step_s = statistics.median(steps.step_s() for _ in range(ROUNDS))
            floor = Floor(_bytes_of(data, steps), bytes_per_s, steps.launches(), replayed_s)
            print(row(batch, name, step_s, 1 + steps.training.negatives, floor), flush=True)
            found[batch, name] = step_s
    return found


def row(batch: int, name: str, step_s: float, each: int, floor: Floor) -> str:
    return (
        f"| {batch:,} | {name} | {step_s * 1e6:,.1f} | {batch * each / step_s:,.0f} | "
        f"{floor.launches:,.0f} | {floor.of_bytes_s * 1e6:,.1f} | "
        f"{floor.of_launches_s * 1e6:,.1f} |"
    )


def _bytes_of(data: Prepared, steps: Steps) -> float:
    rows = mean_rows_per_step(data, steps.training, steps.schedule)
    assert rows is not None
    batch, negatives = steps.schedule.batch, steps.training.negatives
    return moved_bytes(rows, Model(), batch, negatives, len(data.manifest.context_columns))


def show_epochs(data: Prepared, device: torch.device) -> Seconds:
    found: Seconds = {}
    print("\n| batch | engine rowwise | s an epoch | instances/s |\n|---:|---|---:|---:|")
    for batch in BATCHES:
        for name in list(WAYS)[:4]:
            steps = Steps(data, batch, WAYS[name], device)
            seconds = min(steps.epoch_s() for _ in range(2))
            instances = steps.schedule.rows * (1 + steps.training.negatives)
            print(
                f"| {batch:,} | {name} | {seconds:.2f} | {instances / seconds:,.0f} |", flush=True
            )
            found[batch, name] = seconds
    return found


def hr10(data: Prepared, folder: Path, seed: int, **settings: Any) -> float:
    plain = {"engine": "rowwise", "loader": "device", "seed": seed, "epochs": EPOCHS}
    training = trainer(data, folder, plain | settings)
    training.train()
    return training.record().epochs[-1].hr10 or 0.0


def show_quality(folder: Path) -> dict[str, str]:
    """The same instances in the same order on both, so seed by seed; returns each way's verdict."""
    data = real_frappe(folder)
    if data is None:
        print("\nQuality was not measured: HPCNCF_DATA names no folder of Frappe's zip.")
        return {}
    print(f"\n{data.manifest.title}, {EPOCHS} epochs, batch 256, seeds {SEEDS}.\n")
    on_cpu = [hr10(data, folder, seed, device="cpu") for seed in SEEDS]
    print("| engine rowwise | HR@10 | against the CPU |\n|---|---:|---|")
    print(f"| CPU | {statistics.mean(on_cpu):.4f} | – |")
    verdicts = {}
    for name, way in WAYS.items():
        found = [hr10(data, folder, seed, device="cuda", **way) for seed in SEEDS]
        against = difference(found, on_cpu)
        print(
            f"| {name} | {statistics.mean(found):.4f} | {against}: {against.verdict} |", flush=True
        )
        verdicts[name] = against.verdict
    return verdicts


def goals(steps: Seconds, epochs: Seconds, verdicts: Mapping[str, str]) -> list[str]:
    """What a GPU is to reach, what it did, and whether that is it."""
    step_s, by = fastest(steps, SMALL)
    epoch_s, epoch_by = fastest(epochs, SMALL)
    large_s, large_by = fastest(steps, LARGE)
    speed = LARGE * (1 + Training().negatives) / large_s
    other = [name for name, verdict in verdicts.items() if verdict != EQUAL]
    of_quality = f"{', '.join(other)} differ" if other else f"{EQUAL}, in all {len(verdicts)} ways"
    return [
        _goal(
            f"a step of batch {SMALL:,} in {MOST_STEP_S * 1e6:.0f} µs at most",
            f"{step_s * 1e6:,.1f} µs, {by}",
            step_s <= MOST_STEP_S,
        ),
        _goal(
            f"an epoch of batch {SMALL:,} in less than {MOST_EPOCH_S} s",
            f"{epoch_s:.2f} s, {epoch_by}",
            epoch_s < MOST_EPOCH_S,
        ),
        _goal(
            f"more than {LEAST_INSTANCES_PER_S / 1e6:.0f} M instances/s at batch {LARGE:,}",
            f"{speed / 1e6:,.1f} M, {large_by}",
            speed > LEAST_INSTANCES_PER_S,
        ),
        _goal(
            f"HR@10 over {len(SEEDS)} seeds as the CPU's at the same batch",
            of_quality if verdicts else "not measured",
            bool(verdicts) and not other,
        ),
    ]


def fastest(found: Seconds, batch: int) -> tuple[float, str]:
    return min((seconds, way) for (of, way), seconds in found.items() if of == batch)


def _goal(wanted: str, found: str, met: bool) -> str:
    return f"- Goal: {wanted}. Found: {found}. {'Met' if met else 'Not met'}."


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
    print("", *goals(steps, epochs, verdicts), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
