"""Group runs into packs, which run side by side on one node."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TypeVar

from hpcncf.job.identity import configuration_id
from hpcncf.job.plan import Run
from hpcncf.job.spec import Resources

Pack = list["Run"]


T = TypeVar("T")


def pack_runs(runs: Sequence[Run]) -> list[Pack]:
    """Group runs into packs that run side by side, ordered by their first runs."""
    at = {run.id: number for number, run in enumerate(runs)}
    packs = [pack for alike in packs_by_resources(runs) for pack in alike]
    return sorted(packs, key=lambda pack: at[pack[0].id])


def packs_by_resources(runs: Sequence[Run]) -> list[list[Pack]]:
    """Group runs into packs, one list of packs for each set of equal resources.

    Only the last pack of a list may be incomplete.

    Repeats of one configuration share a pack if they fill it, so that a pack's speed belongs to
    one configuration. Packs of the remaining runs are mixed.
    """
    alike: dict[Resources, list[Run]] = defaultdict(list)
    for run in runs:
        alike[run.resources].append(run)
    return [_packs_of_equals(each) for each in alike.values()]


def _packs_of_equals(runs: Sequence[Run]) -> list[Pack]:
    size = runs[0].resources.side_by_side
    if size == 1:
        return [[run] for run in runs]
    repeats: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        repeats[configuration_id(run)].append(run)
    full = [pack for each in repeats.values() for pack in batched(each, size) if len(pack) == size]
    at = {run.id: number for number, run in enumerate(runs)}
    packed = {run.id for pack in full for run in pack}
    remaining = [run for run in runs if run.id not in packed]
    return sorted(full, key=lambda pack: at[pack[0].id]) + batched(remaining, size)


def batched(items: Sequence[T], size: int) -> list[list[T]]:
    return [list(items[at : at + size]) for at in range(0, len(items), size)]
