"""Runs become tasks and arrays, and all room in the queue is used."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcncf.job.expand import expand_job
from hpcncf.job.plan import Run
from hpcncf.job.spec import Data, JobSpec, Resources
from hpcncf.launch import job_arrays
from hpcncf.launch.job_arrays import NoRoom, Quota, Task


def runs(number: int, runs_per_task: int = 1, cpus: tuple[int, ...] = (1,)) -> list[Run]:
    job = JobSpec(
        name="a",
        data=Data(path="/d"),
        resources=Resources(runs_per_task=runs_per_task),
        grid={"resources.cpus_per_task": list(cpus)},
        repeats=number,
    )
    return expand_job(job).runs


@given(st.integers(1, 40), st.integers(1, 9))
def test_tasks_hold_every_run_once_in_order_and_no_more_than_asked(number: int, each: int) -> None:
    wanted = runs(number, each, (1, 2))
    tasks = job_arrays.build_tasks(wanted)
    assert {len({run.resources for run in task}) for task in tasks} == {1}
    assert max(map(len, tasks)) == min(number, each)
    for shape in job_arrays.group_by_resources(tasks):
        in_order = [run for task in shape for run in task]
        assert in_order == [run for run in wanted if run.resources == in_order[0].resources]


class Slurm:
    """Takes arrays until its room is full."""

    def __init__(self, room: int) -> None:
        self.room, self.calls = room, 0
        self.taken: list[list[Task]] = []

    def give(self, array: list[Task]) -> None:
        self.calls += 1
        if len(array) > self.room:
            raise NoRoom("full")
        self.room -= len(array)
        self.taken.append(array)


@given(st.integers(1, 60), st.integers(0, 150), st.booleans(), st.integers(1, 50))
def test_all_room_is_used_whether_or_not_it_is_reported(
    number: int, room: int, seen: bool, array: int
) -> None:
    slurm, wanted = Slurm(room), job_arrays.build_tasks(runs(number, cpus=(1, 2)))
    said = job_arrays.send_while_room(wanted, Quota(array, room if seen else None), slurm.give)
    assert sum(map(len, slurm.taken)) == min(room, 2 * number)
    assert all(len(each) <= array for each in slurm.taken)
    assert bool(said) == (not seen and room < 2 * number)


def test_an_unknown_room_is_found_in_few_calls() -> None:
    slurm, wanted = Slurm(37), job_arrays.build_tasks(runs(1000))
    job_arrays.send_while_room(wanted, Quota(1001), slurm.give)
    assert sum(map(len, slurm.taken)) == 37
    assert slurm.calls <= 12


@pytest.mark.parametrize(
    ("number", "cpus", "room", "each"),
    [(90, (1,), 10, 9), (91, (1,), 10, 10), (5, (1, 2), 4, 3), (5, (1, 2), 1, None)],
)
def test_so_many_runs_in_a_task_leave_none(
    number: int, cpus: tuple[int, ...], room: int, each: int | None
) -> None:
    assert job_arrays.runs_per_task(runs(number, cpus=cpus), room) == each
