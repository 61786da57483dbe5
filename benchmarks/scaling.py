"""Whether fitted laws of scaling are right: on generated speeds of a known law, and on threads.

Generated: speeds of a law that is known, with noise; how many of the 95 % intervals hold what made
them. Measured: one training at full size on more and more threads, beyond the cores there are, so
that a law with enough sizes can be fitted here. What oversubscribed threads lose is no measure of a
machine with so many cores.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch

from benchmarks.engines import Climber, Rung
from benchmarks.training import full_size
from hpcncf.monitor.cgroup import usable_cpus
from hpcncf_analysis.usl import Law, Refusal, fit_law, peak_size, relative_speed

SIGMA, KAPPA, STUDIES = 0.05, 0.005, 300
SIZES: Final = (1.0, 2.0, 4.0, 8.0)
THREADS: Final = (1, 2, 3, 4, 6, 8)
ROUNDS: Final = 5
RUNG: Final = Rung("dense Adam", {}, 20)


def generated(repeats: int, noise: float, random: np.random.Generator) -> list[list[float]]:
    """A study's speeds at SIZES, made of the law."""
    return [
        (
            1000
            * relative_speed(size, SIGMA, KAPPA)
            * np.exp(noise * random.standard_normal(repeats))
        ).tolist()
        for size in SIZES
    ]


def held(studies: Sequence[Law]) -> list[str]:
    """Shares of the intervals that hold sigma, kappa, and N* where one is told."""
    knees = [law.knee for law in studies if law.knee]
    true = peak_size(SIGMA, KAPPA)
    told = [(knee.low or 0.0) <= true <= (knee.high or 0.0) for knee in knees]
    return [
        _share([_within(law.sigma_interval(), SIGMA) for law in studies]),
        _share([_within(law.kappa_interval(), KAPPA) for law in studies]),
        f"{_share(told)} of {len(told)}",
    ]


def _within(ends: tuple[float, float] | None, value: float) -> bool:
    return ends is not None and ends[0] <= value <= ends[1]


def _share(held_it: Sequence[bool]) -> str:
    return f"{statistics.mean(held_it):.0%}" if held_it else "–"


def show_generated() -> None:
    print(
        f"Generated, not measured: {STUDIES} studies each of the law with σ = {SIGMA}, "
        f"κ = {KAPPA}, N* = {peak_size(SIGMA, KAPPA):.1f}, at the sizes "
        f"{', '.join(f'{size:g}' for size in SIZES)}; how many 95 % intervals hold them.\n"
    )
    print("| repeats of a size | noise | σ | κ | N*, where told | refused |")
    print("|---:|---:|---:|---:|---:|---:|")
    random = np.random.default_rng(0)
    for repeats in (2, 3, 5):
        for noise in (0.01, 0.05):
            found = [fit_law(SIZES, generated(repeats, noise, random)) for _ in range(STUDIES)]
            laws = [law for law in found if isinstance(law, Law)]
            cells = [f"{repeats}", f"{noise:.0%}", *held(laws), f"{len(found) - len(laws)}"]
            print(f"| {' | '.join(cells)} |")


def measured() -> list[list[float]]:
    """Instances per second of each number of threads, all of them in turn in every round."""
    climber = Climber(RUNG, full_size())
    speeds: list[list[float]] = [[] for _ in THREADS]
    for number in range(ROUNDS):
        order = list(enumerate(THREADS))
        for at, threads in order if number % 2 == 0 else reversed(order):
            torch.set_num_threads(threads)
            climber.window(2)  # the pool of another size starts its threads
            speeds[at].append(climber.window(RUNG.steps))
    return speeds


def show_measured(speeds: Sequence[Sequence[float]]) -> None:
    law = fit_law(THREADS, speeds)
    print(
        f"\nMeasured: threads of {RUNG.name} at full size on {len(usable_cpus())} cores, "
        f"oversubscribed beyond; medians of {ROUNDS} rounds [range].\n"
    )
    print("| threads | instances/s | by the law |")
    print("|---:|---:|---:|")
    for threads, repeats in zip(THREADS, speeds, strict=True):
        ends = f"[{min(repeats):,.0f}–{max(repeats):,.0f}]"
        print(f"| {threads} | {statistics.median(repeats):,.0f} {ends} | {by(law, threads)} |")
    print(f"\n{said(law)}")


def by(law: Law | Refusal, size: float) -> str:
    if isinstance(law, Refusal):
        return "–"
    low, high = law.interval(size) or (law.rate(size), law.rate(size))
    return f"{law.rate(size):,.0f} [{low:,.0f}–{high:,.0f}]"


def said(law: Law | Refusal) -> str:
    if isinstance(law, Refusal):
        return f"No law: {law.reason}."
    knee = f"N* = {law.knee.size:.1f}" if law.knee else "no N* within reach"
    return (
        f"USL: σ = {law.sigma:.3f}, κ = {law.kappa:.4f}, {knee}; up to {law.misfit:.0%} from the "
        "medians."
    )


def main() -> int:
    """Print both tables."""
    show_generated()
    show_measured(measured())
    return 0


if __name__ == "__main__":
    sys.exit(main())
