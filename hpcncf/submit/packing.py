"""Runs are packed into tasks, tasks into arrays, and arrays cut to what Slurm has room for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import chain

from hpcncf import packs
from hpcncf.errors import HpcncfError
from hpcncf.plan import Run
from hpcncf.slurm.quotas import Quota
from hpcncf.spec import Resources

Task = list[Run]


class NoRoom(HpcncfError):
    """Slurm takes no (or not so many) more jobs of this user now."""


def tasks(runs: Sequence[Run]) -> list[Task]:
    """Runs of equal resources share tasks, `runs_per_task` packs each; order is kept."""
    at = {run.id: number for number, run in enumerate(runs)}
    made = [
        list(chain.from_iterable(some))
        for shape in packs.by_shape(runs)
        for some in packs.cut(shape, shape[0][0].resources.runs_per_task)
    ]
    return sorted(made, key=lambda task: at[task[0].id])


def shapes(tasks: Sequence[Task]) -> list[list[Task]]:
    """Tasks that may share an array: Slurm gives all of its elements the same resources."""
    grouped: dict[Resources, list[Task]] = defaultdict(list)
    for task in tasks:
        grouped[task[0].resources].append(task)
    return list(grouped.values())


def fit(wanted: Sequence[Task], quota: Quota, give: Callable[[list[Task]], None]) -> str:
    """Give arrays until all is given or no room is left; returns what Slurm last said of room.

    `give` raises NoRoom. That is answered by half as many: where nobody tells how much room there
    is, all of it is found in as many calls as the number has binary digits.
    """
    room, said = len(wanted) if quota.left is None else min(quota.left, len(wanted)), ""
    for rest in shapes(wanted[:room]):
        while rest and room:
            most = (room + 1) // 2 if said else room
            some = min(len(rest), quota.array, most)
            try:
                give(rest[:some])
            except NoRoom as full:
                room, said = some - 1, str(full)
            else:
                rest, room = rest[some:], room - some
    return said


def runs_per_task(left: Sequence[Run], room: int) -> int | None:
    """The fewest packs in a task with which those left fit into `room` tasks; None: none does."""
    sizes = [len(each) for each in packs.by_shape(left)]
    if len(sizes) > room:
        return None
    return next(n for n in range(1, len(left) + 1) if sum(-(-size // n) for size in sizes) <= room)
