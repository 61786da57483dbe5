"""Which runs are worked at side by side: a pack, as many as a node or its GPUs are to hold. Pure.

Repeats of one configuration make a pack where there are enough of them, so that a pack's speed
belongs to settings; what is left over is packed with others that ask for the same resources.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TypeVar

from hpcncf import plan
from hpcncf.plan import Run
from hpcncf.spec import Resources

Pack = list[Run]
T = TypeVar("T")


def packs(runs: Sequence[Run]) -> list[Pack]:
    """Every run once; in the order of the packs' first runs."""
    at = {run.id: number for number, run in enumerate(runs)}
    made = [pack for shape in by_shape(runs) for pack in shape]
    return sorted(made, key=lambda pack: at[pack[0].id])


def by_shape(runs: Sequence[Run]) -> list[list[Pack]]:
    """The packs of runs that ask for the same resources: only the last of them may be short."""
    shapes: dict[Resources, list[Run]] = defaultdict(list)
    for run in runs:
        shapes[run.resources].append(run)
    return [_of_shape(alike) for alike in shapes.values()]


def _of_shape(runs: Sequence[Run]) -> list[Pack]:
    size = runs[0].resources.side_by_side
    if size == 1:
        return [[run] for run in runs]
    alike: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        alike[plan.configuration(run)].append(run)
    full = [pack for each in alike.values() for pack in cut(each, size) if len(pack) == size]
    at = {run.id: number for number, run in enumerate(runs)}
    placed = {run.id for pack in full for run in pack}
    over = [run for run in runs if run.id not in placed]
    return sorted(full, key=lambda pack: at[pack[0].id]) + cut(over, size)


def cut(several: Sequence[T], size: int) -> list[list[T]]:
    return [list(several[at : at + size]) for at in range(0, len(several), size)]
