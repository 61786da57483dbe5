"""How much of the machine's arithmetic the engines use: their products against its sgemm.

What counts are the matrix products that NeuMF's forward and backward need, at the least: those of
the user and the context once for each positive. All else an engine does (drawing negatives, reading
and moving rows, activations, the loss) is no arithmetic of this account, and so lowers its share.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import torch

from benchmarks.engines import Climber, Rung
from benchmarks.training import full_size
from hpcncf.job.spec import Model, Training
from hpcncf.ncf.data import synthetic
from hpcncf.ncf.data.manifest import Manifest
from hpcncf.ncf.data.prepared import Prepared, load_prepared

ROUNDS: Final = 3
WINDOW_S: Final = 0.2
LARGE: Final = 2048
COPIED_MIB: Final = 256
ROW: Final = 128
"""Numbers in a row of the native engine's table at the model's default widths: three times 40
and the step, filled up to a cache line."""
RUNGS: Final = (
    Rung("rowwise", {"engine": "rowwise"}, 200),
    Rung("native", {"engine": "native"}, 1000),
    Rung("native, two threads", {"engine": "native", "threads": 2}, 2000),
)


@dataclass(frozen=True)
class Product:
    """Of matrices [rows, inner] and [inner, columns]."""

    rows: int
    inner: int
    columns: int

    @property
    def flop(self) -> int:
        """A multiplication and an addition for each pair."""
        return 2 * self.rows * self.inner * self.columns


def products(sizes: Model, context: int, positives: int, negatives: int) -> list[Product]:
    """Of a step: forward, the weights' gradients, the inputs' gradients; the last layer too.

    The first layer's half of user and context is one row for each positive. The context needs no
    gradient. The element-wise product of the GMF part is left out.
    """
    mlp, first, instances = sizes.mlp_width, sizes.layers[0], positives * (1 + negatives)
    of_positives = Product(positives, mlp + context, first)
    rest = [
        Product(instances, mlp, first),
        *(Product(instances, *each) for each in pairwise(sizes.layers)),
        Product(instances, sizes.gmf_width + sizes.layers[-1], 1),
    ]
    forward = [of_positives, *rest]
    to_weights = [Product(each.inner, each.rows, each.columns) for each in forward]
    without_context = Product(positives, mlp, first)
    to_inputs = [Product(each.rows, each.columns, each.inner) for each in (without_context, *rest)]
    return [*forward, *to_weights, *to_inputs]


def flop_per_instance(sizes: Model, context: int, negatives: int) -> float:
    return sum(each.flop for each in products(sizes, context, 1, negatives)) / (1 + negatives)


def repeated(work: Callable[[], object]) -> float:
    """Seconds that it takes, the mean over a window."""
    times, began = 0, time.perf_counter()
    while (passed := time.perf_counter() - began) < WINDOW_S:
        work()
        times += 1
    return passed / times


def multiplied(product: Product) -> float:
    """Seconds of torch's mm in float32."""
    left = torch.rand(product.rows, product.inner)
    right = torch.rand(product.inner, product.columns)
    result = torch.empty(product.rows, product.columns)
    torch.mm(left, right, out=result)
    return repeated(lambda: torch.mm(left, right, out=result))


def copied() -> float:
    """Bytes a second, read and written."""
    source = torch.rand(COPIED_MIB << 18)
    target = source.clone()  # its pages are there before the clock runs
    return 2 * source.nbytes / repeated(lambda: target.copy_(source))


def gathered(manifest: Manifest, rows: int) -> float:
    """Rows a second, read at random from a table of all users and items."""
    table = torch.rand(manifest.users + manifest.items, ROW)
    asked = [torch.randint(len(table), (rows,)) for _ in range(64)]
    result = torch.empty(rows, ROW)
    turn = iter(asked * 10_000)
    return rows / repeated(lambda: torch.index_select(table, 0, next(turn), out=result))


class Machine:
    """What it can do, measured again in each round."""

    def __init__(self, manifest: Manifest, threads: int) -> None:
        self.manifest, self.threads = manifest, threads
        self.of_step = products(Model(), len(manifest.context_columns), 256, 4)
        self.rounds: list[dict[str, float]] = []

    def measure(self) -> None:
        torch.set_num_threads(self.threads)
        large = Product(LARGE, LARGE, LARGE)
        found = {
            "sgemm": large.flop / multiplied(large),
            "copied": copied(),
            "gathered": gathered(self.manifest, 256 * 6),
        }
        if self.threads == 1:  # torch's threads wait for one another longer than these take
            step_s = sum(multiplied(each) for each in self.of_step)
            found["step"] = sum(each.flop for each in self.of_step) / step_s
        self.rounds.append(found)
        torch.set_num_threads(1)

    def median(self, name: str) -> float | None:
        known = [each[name] for each in self.rounds if name in each]
        return statistics.median(known) if known else None


def measured(data: dict[str, Prepared]) -> tuple[list[Machine], dict[tuple[str, str], float]]:
    """The machine on one thread and on two, and each rung's instances a second by data: medians,
    all in turn. The first data's rows are those gathered."""
    machines = [Machine(next(iter(data.values())).manifest, threads) for threads in (1, 2)]
    climbers = {
        (rung.name, name): (Climber(rung, of), rung.steps)
        for name, of in data.items()
        for rung in RUNGS
    }
    found: dict[tuple[str, str], list[float]] = {name: [] for name in climbers}
    for _ in range(ROUNDS):
        for machine in machines:
            machine.measure()
        for name, (climber, steps) in climbers.items():
            found[name].append(climber.window(steps))
    return machines, {name: statistics.median(each) for name, each in found.items()}


def show_machine(machines: list[Machine]) -> None:
    print("| float32 | one thread | two threads |\n|---|---:|---:|")
    for name, what, unit, size in (
        ("sgemm", f"mm of {LARGE} x {LARGE} matrices, torch", "GFLOP/s", 1e9),
        ("step", "mm of a step's own shapes, torch", "GFLOP/s", 1e9),
        ("copied", f"copying {COPIED_MIB} MiB, read and written", "GB/s", 1e9),
        ("gathered", f"rows of {4 * ROW} bytes read at random, torch", "million/s", 1e6),
    ):
        found = [each.median(name) for each in machines]
        cells = [f"{each / size:.1f} {unit}" if each else "–" for each in found]
        print(f"| {what} | {' | '.join(cells)} |")


def show_engines(machines: list[Machine], speeds: dict[tuple[str, str], float]) -> None:
    context, negatives = len(machines[0].manifest.context_columns), Training().negatives
    flop, rows = flop_per_instance(Model(), context, negatives), 1 + 1 / (1 + negatives)
    print(f"\nAn instance needs {flop:,.0f} FLOP, and {rows:g} rows where none comes twice.\n")
    print("| | data | instances/s | GFLOP/s | of sgemm | of the step's own shapes | of the rows |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for (name, data), per_s in speeds.items():
        machine = machines[1 if "two" in name else 0]
        used = {"sgemm": per_s * flop, "step": per_s * flop, "gathered": per_s * rows}
        shares = [(each, machine.median(roof)) for roof, each in used.items()]
        told = " | ".join(f"{each / most:.0%}" if most else "–" for each, most in shares)
        print(f"| {name} | {data} | {per_s:,.0f} | {per_s * flop / 1e9:.1f} | {told} |")


def main() -> int:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "small"
        synthetic.prepare_synthetic_like(folder, "frappe")
        data = {"full size": full_size(), "Frappe's shape": load_prepared(folder)}
        machines, speeds = measured(data)
    show_machine(machines)
    show_engines(machines, speeds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
