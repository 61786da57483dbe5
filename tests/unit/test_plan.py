"""A job becomes a plan: identity, grid, rounds, packs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from hpcncf.errors import UsageError
from hpcncf.job import packs
from hpcncf.job.expand import expand_job, unused_excludes
from hpcncf.job.plan import Plan, Run, max_core_hours, merge_plans
from hpcncf.job.spec import Data, JobSpec, Model, Resources, Training
from hpcncf.launch import job_arrays
from hpcncf.local import machine


def job(**settings: Any) -> JobSpec:
    return JobSpec.model_validate({"name": "a", "data": {"path": "/d"}} | settings)


def only(**settings: Any) -> Run:
    (run,) = expand_job(job(**settings), {"/d": "key"}).runs
    return run


GRIDS = st.dictionaries(
    st.sampled_from(["resources.cpus_per_task", "training.seed", "training.epochs"]),
    st.lists(st.integers(1, 9), min_size=1, max_size=4, unique=True),
    max_size=3,
)


@given(grid=GRIDS, repeats=st.integers(1, 3))
def test_a_plan_holds_every_combination_once_per_repeat(
    grid: dict[str, list[int]], repeats: int
) -> None:
    plan = expand_job(job(grid=grid, repeats=repeats))
    combinations = 1
    for values in grid.values():
        combinations *= len(values)
    assert len({run.id for run in plan.runs}) == len(plan.runs) == combinations * repeats
    assert [run.repeat for run in plan.runs] == sorted(run.repeat for run in plan.runs)


def test_ids_never_change_between_versions() -> None:
    """Results on disk are found by these: a changed id orphans every finished run."""
    assert only().id == "b89ff08bd4e7"
    assert only(training={"seed": 7, "loader": "per_sample"}).id == "d821b019537a"


def test_defaults_never_change() -> None:
    """An id leaves out what is at its default: with another default, two computations share it.

    Settings may be added here, none may change.
    """
    training = Training().model_dump(mode="json")
    known = {
        "device": "auto",
        "backend": "auto",
        "threads": "auto",
        "epochs": 3,
        "max_steps": None,
        "global_batch_size": None,
        "batch_size_per_rank": None,
        "negatives": 4,
        "optimizer": "adam",
        "lr": 0.001,
        "engine": "reference",
        "loader": "vectorized",
        "num_workers": 0,
        "sync": "dense",
        "evaluation": "sampled",
        "checkpoint_every": 1,
        "seed": 1,
    }
    assert {key: training[key] for key in known} == known
    assert Model().model_dump(mode="json") == {
        "gmf_width": 8,
        "mlp_width": 32,
        "layers": [32, 16, 8],
        "dropout": 0.0,
        "init": "auto",
        "embedding_std": 0.01,
    }
    assert Training().batch_over_ranks(1) == 256


@pytest.mark.parametrize(
    ("settings", "same"),
    [
        ({"resources": {"mem_gb": 64, "timeout_min": 600}}, True),
        ({"site": "gpu"}, True),
        ({"training": {"global_batch_size": 256}}, True),
        ({"training": {"batch_size_per_rank": 256}}, True),
        ({"training": {"device": "cpu", "backend": "gloo"}}, True),
        ({"data": {"path": "/d", "dataset": "frappe"}}, True),
        ({"model": {"init": "torch"}}, True),
        ({"resources": {"cpus_per_task": 2}}, False),
        ({"resources": {"tasks_per_node": 2}}, False),
        ({"training": {"seed": 2}}, False),
        ({"training": {"epochs": 4}}, False),
        ({"training": {"loader": "batched"}}, False),
        ({"training": {"threads": 1}}, False),
        ({"model": {"layers": [16, 8]}}, False),
    ],
)
def test_only_settings_that_change_the_computation_change_the_id(settings: Any, same: bool) -> None:
    assert (only(**settings).id == only().id) is same


@pytest.mark.parametrize(
    ("model", "dataset", "init"),
    [
        ({}, "ncf", "paper"),
        ({}, "movielens", "paper"),
        ({}, "frappe", "auto"),
        ({}, None, "auto"),
        ({"init": "torch"}, "ncf", "torch"),
        ({"init": 0.5}, "ncf", 0.5),
        ({"embedding_std": 0.1}, "ncf", "auto"),
    ],
)
def test_the_tables_start_as_in_the_paper_on_its_data(
    model: Any, dataset: str | None, init: Any
) -> None:
    (run,) = expand_job(job(model=model), {"/d": "key"}, {"/d": dataset}).runs
    assert (run.model.init, run.data.dataset) == (init, dataset)
    assert (run.id == only(model=model).id) == (init != "paper")


def test_equal_computations_have_one_id() -> None:
    paper = only(model={"init": "paper"})
    assert paper.id == only(model={"init": 0.01}).id != only(model={"init": 0.02}).id
    assert expand_job(job(), {"/d": "key"}, {"/d": "ncf"}).runs[0].id == paper.id
    # Data are known by their content, not by their place.
    there = expand_job(job(data={"path": "/e"}), {"/e": "key"}).runs[0]
    other = expand_job(job(), {"/d": "other"}).runs[0]
    assert only().id == there.id != other.id


def test_points_and_exclusions_change_the_grid() -> None:
    point = {"training.seed": 9}
    beside = expand_job(job(grid={"training.seed": [1, 2]}, points=[point, {"training.seed": 2}]))
    assert Counter(run.varied["training.seed"] for run in beside.runs) == {1: 1, 2: 1, 9: 1}
    alone = expand_job(job(points=[point]))
    assert [run.varied for run in alone.runs] == [point], "without a grid"
    grid = {"training.loader": ["batched", "vectorized"], "training.num_workers": [0, 1]}
    excluded = [{"training.loader": "vectorized", "training.num_workers": 1}]
    assert len(expand_job(job(grid=grid, exclude=excluded)).runs) == 3
    one_rank = {"training": {"global_batch_size": 256}, "resources": {"tasks_per_node": 2}}
    (run,) = expand_job(job(**one_rank, points=[{"training.batch_size_per_rank": 64}])).runs
    assert run.training.batch_over_ranks(2) == 128, "one batch size replaces the other"


def test_an_exclusion_that_leaves_nothing_out_is_reported() -> None:
    grid = {"training.loader": ["vectorized", "batched"], "training.seed": [1, 2]}
    excluded = [
        {"training.loader": "batched", "training.seed": 2},
        {"training.loader": "vectorised"},
        {"training.sed": 1},
    ]
    assert unused_excludes(job(grid=grid, exclude=excluded[:1])) == []
    given = job(grid=grid).model_copy(update={"exclude": excluded})
    assert unused_excludes(given) == [
        "exclude: training.loader=vectorised matches nothing; the grid has vectorized, batched",
        "exclude: training.sed=1 matches nothing; the grid has no training.sed. "
        "Did you mean 'training.seed'?",
    ]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"grid": {"training.lr": [0.1, "x"]}}, ["training.lr=x", "lr"]),
        ({"grid": {"training.seed": [1]}, "exclude": [{}]}, ["exclude", "no run"]),
        ({"grid": {"training.threads": [1, 2]}}, ["training.threads=2", "cpus_per_task"]),
        (
            {"training": {"engine": "native"}, "grid": {"model.dropout": [0.0, 0.1]}},
            ["model.dropout=0.1", "engine native"],
        ),
        ({"grid": {"resources.mem_gb": [2, 4]}}, ["resources.mem_gb", "compute the same"]),
    ],
)
def test_a_grid_point_that_cannot_be_is_named(settings: Any, words: list[str]) -> None:
    with pytest.raises(UsageError) as refused:
        expand_job(job(**settings))
    assert all(word in str(refused.value) for word in words)


def test_core_hours_count_every_run_to_its_limit() -> None:
    resources = {"cpus_per_task": 5, "tasks_per_node": 2, "timeout_min": 90}
    assert max_core_hours(expand_job(job(resources=resources, repeats=2)).runs) == 30


def test_a_grid_that_shrinks_retires_runs_and_keeps_them() -> None:
    old = expand_job(job(grid={"training.seed": [1, 2]}))
    new = expand_job(job(grid={"training.seed": [2, 3]}))
    both = merge_plans(old, new)
    assert {run.varied["training.seed"]: run.retired for run in both.runs} == {
        1: True,
        2: False,
        3: False,
    }
    back = merge_plans(both, old)
    assert {run.varied["training.seed"] for run in back.active()} == {1, 2}


def test_a_run_is_found_by_the_beginning_of_its_id() -> None:
    plan = expand_job(job(grid={"training.seed": list(range(12))}))
    assert plan.run(plan.runs[1].id[:8]) == plan.runs[1]
    with pytest.raises(UsageError, match="matches several runs"):
        plan.run("")
    missing = r"is not in the plan, which has: [0-9a-f]{12}(, [0-9a-f]{12}){9} and 2 more$"
    with pytest.raises(UsageError, match=missing):
        plan.run("zz")


@pytest.mark.parametrize("run_id", ["../../etc", "", "a/b", "."])
def test_an_id_that_would_lead_out_of_the_results_is_refused(run_id: str) -> None:
    plain = expand_job(job()).model_dump(mode="json")
    plain["runs"][0]["id"] = run_id
    with pytest.raises(ValidationError, match="expected a run id"):
        Plan.model_validate(plain)


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
    tasks = job_arrays.build_tasks(wanted)
    assert sorted(run.id for task in tasks for run in task) == sorted(run.id for run in wanted)
    assert all(len(task) <= size * in_turn for task in tasks)
    cut = [pack for task in tasks for pack in packs.batched(task, size)]
    assert sum(len(pack) < size for pack in cut) <= 1
    assert sorted(map(_ids, cut)) == sorted(map(_ids, packs.pack_runs(wanted)))


def _ids(pack: list[Run]) -> list[str]:
    return [run.id for run in pack]


def test_repeats_share_a_pack_and_what_is_left_over_is_packed_with_others() -> None:
    made = packs.pack_runs(runs(repeats=3, size=2, rates=2))
    rates = [sorted(run.training.lr for run in pack if run.training) for pack in made]
    assert sorted(rates) == [[0.1, 0.1], [0.1, 0.2], [0.2, 0.2]]


def test_this_machine_refuses_a_pack_with_fewer_cores_than_its_runs_need_together() -> None:
    (one,) = runs(repeats=1, size=10_000, rates=1)
    assert "10000 cores for 10000 runs side by side" in (machine.refusal(one) or "")
