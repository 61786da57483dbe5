"""From records to diagnoses: new records and old ones, trainings and commands, whole folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import make_results
import pytest

from hpcncf.collect.collect import collect
from hpcncf.paths import ResultPaths
from hpcncf.records.schema import Batches, NodeRecord, RankRecord, read_record
from hpcncf_analysis.diagnosis.diagnose import (
    diagnose,
    diagnose_results,
)
from hpcncf_analysis.diagnosis.from_records import evidence, mean_gpus, running_step


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> ResultPaths:
    found = make_results.demo(tmp_path_factory.mktemp("demo"), repeats=1)
    make_results.complete(found)
    return found


def first(paths: ResultPaths, loader: str, ranks: int = 1) -> RankRecord:
    run = next(
        run
        for run in make_results.plan_of(paths).runs
        if run.training is not None
        and (run.training.loader, run.resources.tasks_per_node) == (loader, ranks)
        and run.resources.cpus_per_task == 1
    )
    return read_record(paths.run(run.id).attempt(1).rank(0), RankRecord)


def test_every_run_of_a_folder_is_diagnosed_but_for_torn_records(tmp_path: Path) -> None:
    paths = make_results.demo(tmp_path, repeats=1)
    make_results.complete(paths)
    rows = collect(paths).runs
    seen = diagnose_results(paths, rows)
    assert set(seen) == {row["run_id"] for row in rows}
    healthy = {row["loader"] for row in rows if seen[row["run_id"]].verdict == "healthy"}
    assert healthy == {"vectorized"}
    torn = rows[0]["run_id"]
    for file in paths.run(torn).attempt(1).rank_records():
        file.write_text("{")
    assert torn not in diagnose_results(paths, collect(paths).runs)


REPORTED: dict[str, Any] = {"input_s": 60.0, "forward_s": 20.0, "backward_s": 10.0, "steps": 500}


@pytest.mark.parametrize(
    ("reported", "input_share", "cause"),
    [
        (REPORTED | {"optimizer_s": 5.0}, 60 / 95, "python_input"),
        ({}, None, "serial_step"),  # 1 of 5 cores, and nothing to say why
        ({"input_s": "long", "sync_s": -3.0, "steps": True}, None, "serial_step"),
    ],
)
def test_a_command_is_judged_by_the_phases_that_it_reports(
    tmp_path: Path, reported: dict[str, Any], input_share: float | None, cause: str
) -> None:
    paths = make_results.command_plan(tmp_path)
    record = make_results.rank_record(make_results.plan_of(paths).runs[0], 0)
    record = record.model_copy(update={"reported": reported})
    seen, judged = evidence([record], []), diagnose([record], [])
    assert seen.phases.get("input") == (input_share and pytest.approx(input_share))
    assert seen.training_s == (95.0 if input_share else None)
    assert judged.primary.cause == cause
    assert any("phases" in each for each in judged.missing) == (input_share is None)
    assert any("the node's series" in each for each in judged.missing)


@pytest.mark.parametrize(
    ("every", "seconds", "steps", "resumed", "share"),
    [
        (1, [0.4, 0.1, 0.1] * 12, 3, None, 0.5),
        (1, [0.1, 0.1, 0.4] * 12, 3, 1, 0.5),  # resumed in mid-epoch
        (2, [0.5, 0.5, 0.2] * 11, 3, None, 0.5),  # two steps reported together
        (1, [0.4] * 40, 1, None, None),  # epochs of one step
    ],
)
def test_an_epochs_first_step_is_separated_from_the_others(
    paths: ResultPaths,
    every: int,
    seconds: list[float],
    steps: int,
    resumed: int | None,
    share: float | None,
) -> None:
    record = first(paths, "vectorized").training
    seen = record.model_copy(
        update={
            "batches": Batches(every=every, seconds=seconds, pauses=[]),
            "epochs": [record.epochs[0].model_copy(update={"steps": steps})],
            "warmup_steps": 3,
            "counted_steps": 30,
            "counted_s": 6.0,  # 0.2 s each
            "resumed_step": resumed,
        }
    )
    assert running_step(seen) == (share and pytest.approx(share))


def node_with_gpu(
    paths: ResultPaths, busy: list[float | None], ours: list[float | None]
) -> NodeRecord:
    run = make_results.plan_of(paths).runs[0]
    node = make_results.node_record(run, windows=len(busy))
    unknown: list[None] = [None] * len(busy)
    gpu = {
        "index": 0,
        "uuid": "GPU-0",
        "name": "Example",
        "memory_total_mib": 80_000.0,
        "busy": busy,
        "ours": ours,
        "memory_mib": unknown,
        "ours_memory_mib": unknown,
        "energy_j": unknown,
        "sm_mhz": unknown,
        "throttled": {},
    }
    return NodeRecord.model_validate(node.model_dump() | {"gpus": [gpu]})


def test_a_gpus_own_kernels_count_where_they_are_distinguished(paths: ResultPaths) -> None:
    apart = mean_gpus([node_with_gpu(paths, busy=[1.0, 1.0], ours=[0.2, 0.4])])
    assert apart.busy == pytest.approx(0.3)
    whole = mean_gpus([node_with_gpu(paths, busy=[0.6, None], ours=[None, None])])
    assert whole.busy == pytest.approx(0.6)
    assert mean_gpus([node_with_gpu(paths, busy=[None, None], ours=[None, None])]) is None


def test_a_gpu_that_idles_while_its_run_starts_is_not_blamed(paths: ResultPaths) -> None:
    known: list[float | None] = [0.0, 0.9, 0.9, 0.6]
    node = node_with_gpu(paths, busy=known, ours=known)
    # Windows of 16 s, of a run that trains from its fourth second on.
    seen = mean_gpus([node], [first(paths, "per_sample")])
    assert seen.training
    assert seen.busy == pytest.approx(0.8)
    whole = mean_gpus([node])
    assert whole.busy == pytest.approx(0.6)
