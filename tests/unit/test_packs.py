"""Runs that are worked at side by side: every run once, repeats of one configuration together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hpcncf.job import plan
from hpcncf.job.plan import Run, expand_job
from hpcncf.job.spec import Data, JobSpec, Resources
from hpcncf.local import machine
from hpcncf.submit import arrays


def runs(repeats: int, size: int, rates: int, in_turn: int = 1) -> list[Run]:
    job = JobSpec(
        name="a",
        data=Data(path="/d"),
        resources=Resources(runs_per_node=size, runs_per_task=in_turn),
        grid={"training.lr": [0.1 * (rate + 1) for rate in range(rates)]},
        repeats=repeats,
    )
    return expand_job(job).runs


@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 3), st.integers(1, 3))
def test_a_task_cut_into_packs_has_every_run_once_and_a_short_pack_last(
    repeats: int, size: int, rates: int, in_turn: int
) -> None:
    wanted = runs(repeats, size, rates, in_turn)
    tasks = arrays.tasks(wanted)
    assert sorted(run.id for task in tasks for run in task) == sorted(run.id for run in wanted)
    assert all(len(task) <= size * in_turn for task in tasks)
    cut = [pack for task in tasks for pack in plan.batched(task, size)]
    assert sum(len(pack) < size for pack in cut) <= 1
    assert sorted(map(_ids, cut)) == sorted(map(_ids, plan.pack_runs(wanted)))


def _ids(pack: list[Run]) -> list[str]:
    return [run.id for run in pack]


def test_repeats_share_a_pack_and_what_is_left_over_is_packed_with_others() -> None:
    made = plan.pack_runs(runs(repeats=3, size=2, rates=2))
    rates = [sorted(run.training.lr for run in pack if run.training) for pack in made]
    assert sorted(rates) == [[0.1, 0.1], [0.1, 0.2], [0.2, 0.2]]


def test_this_machine_refuses_a_pack_with_fewer_cores_than_its_runs_need_together() -> None:
    (one,) = runs(repeats=1, size=10_000, rates=1)
    assert "10000 cores for 10000 runs side by side" in (machine.refusal(one) or "")
