"""The next job's file and #SBATCH lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcncf.job.load import load_job
from hpcncf.job.plan import Run, expand_job
from hpcncf.job.spec import JobSpec, Resources
from hpcncf.slurm.site import Site
from hpcncf_analysis.advice.next_job import (
    build_next_job,
    format_sbatch_lines,
    job_as_yaml,
    next_job_name,
)

DATA = {"path": "/data/frappe"}


def run_of(**settings: Any) -> tuple[Run, JobSpec]:
    job = JobSpec.model_validate({"name": "demo", **settings})
    return expand_job(job).runs[0], job


@pytest.mark.parametrize(
    ("name", "following_it"),
    [
        ("demo", "demo-next"),
        ("demo-next", "demo-next2"),
        ("demo-next2", "demo-next3"),
        ("demo-fastest", "demo-next2"),
        ("my runs/2026", "my-runs-2026-next"),
        ("", "command-next"),
        ("a" * 64, "a" * 50 + "-next"),
    ],
)
def test_the_next_job_has_a_results_folder_of_its_own(name: str, following_it: str) -> None:
    assert next_job_name(name, "knee") == following_it
    assert JobSpec(name=following_it, workload="ncf", data=DATA)  # type: ignore[arg-type]


def test_the_job_file_is_read_back_as_the_same_job(tmp_path: Path) -> None:
    run, base = run_of(
        data=DATA,
        site="gpu",
        exclusive=True,
        model={"layers": [64, 8]},
        training={"epochs": 7, "lr": 0.002, "batch_size_per_rank": 64, "loader": "batched"},
        grid={"resources.cpus_per_task": [3], "training.seed": [9]},
    )
    asked = Resources(nodes=2, tasks_per_node=2, cpus_per_task=3, mem_gb=1.5, timeout_min=12)
    job = build_next_job(run, asked, "demo-next", base)
    path = tmp_path / "next.yaml"
    path.write_text(job_as_yaml(job, ["for a reader: 50 % of it"]))
    assert load_job(path) == job
    (again,) = expand_job(job).runs
    assert (again.model, again.training) == (run.model, run.training)
    assert again.resources == asked
    assert (job.site, job.exclusive, job.grid) == ("gpu", True, {})


def test_what_a_reader_looks_for_stands_there_even_at_its_default() -> None:
    run, base = run_of(data=DATA)
    text = job_as_yaml(build_next_job(run, run.resources, "demo-next", base), ["one", "two"])
    assert text.startswith("# one\n# two\nname: demo-next\nsite: cpu\n")
    for line in ("nodes: 1", "mem_gb: 4.0", "timeout_min: 30", "epochs: 3", "engine: reference"):
        assert f"\n  {line}\n" in text
    assert "dropout" not in text


def test_epochs_that_were_cut_short_are_asked_for_whole() -> None:
    run, base = run_of(data=DATA, training={"max_steps": 10})
    job = build_next_job(run, run.resources, "demo-next", base)
    assert job.training.max_steps is None


def test_a_command_keeps_its_words_parameters_and_folder(tmp_path: Path) -> None:
    run, base = run_of(
        workload={"command": ["python", "train.py", "--lr", "{lr}"], "folder": "/code"},
        parameters={"lr": 0.1},
        grid={"parameters.lr": [0.5]},
    )
    path = tmp_path / "next.yaml"
    job = build_next_job(run, run.resources, "demo-next", base)
    path.write_text(job_as_yaml(job, []))
    (again,) = expand_job(load_job(path)).runs
    assert (again.words, again.workload) == (run.words, run.workload)
    assert "training" not in path.read_text()


def test_the_braces_of_a_command_that_was_typed_stay_braces() -> None:
    run, _ = run_of(workload={"command": ["awk", "PLACE"]})
    typed = run.workload.model_copy(update={"command": ["awk", "{print $1}"]})  # type: ignore[union-attr]
    run = run.model_copy(update={"by_hand": True, "workload": typed})
    job = build_next_job(run, run.resources, "run-next", None)
    assert expand_job(job).runs[0].words == ["awk", "{print $1}"]


@pytest.mark.parametrize(
    ("site", "line"),
    [
        ({}, "#SBATCH --mem=8192M"),
        ({"memory": "mem_per_cpu"}, "#SBATCH --mem-per-cpu=2048MB"),
        ({"memory": "mem_per_gpu"}, "#SBATCH --mem-per-gpu=4096MB"),
        ({"memory": "none"}, ""),
    ],
)
def test_memory_is_asked_for_as_the_site_wants_it(site: dict[str, Any], line: str) -> None:
    asked = Resources(
        tasks_per_node=2, cpus_per_task=2, gpus_per_node=2, mem_gb=8.0, timeout_min=90
    )
    run, base = run_of(data=DATA)
    job = build_next_job(run, asked, "demo-next", base)
    lines = format_sbatch_lines(job, Site(partition="long", account="me", **site)).splitlines()
    assert [each for each in lines if "--mem" in each] == ([line] if line else [])
    assert {
        "#SBATCH --account=me",
        "#SBATCH --cpus-per-task=2",
        "#SBATCH --gpus-per-node=2",
        "#SBATCH --nodes=1",
        "#SBATCH --ntasks-per-node=2",
        "#SBATCH --partition=long",
        "#SBATCH --time=90",
    } <= set(lines)
    assert lines[-1] == "# and in the script: srun --cpus-per-task=2 ..."
