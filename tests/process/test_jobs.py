"""Every job file that we ship loads, plans and opens with its question."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from make_runs import trainer

from hpcncf.job.load import build_plan, load_job
from hpcncf.job.plan import Run
from hpcncf.job.spec import Training
from hpcncf.paths import ResultPaths
from hpcncf.records.schema import RankRecord, read_record

ANY = "any_program"
GPU = "remedies_gpu"
JOBS = sorted((Path(__file__).parents[2] / "jobs").glob("*.yaml"))


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """The job files away from the data that lies beside them, if `make demo` ran here."""
    shutil.copytree(JOBS[0].parent, tmp_path / "jobs")
    return tmp_path / "jobs"


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_a_job_file_opens_with_its_question_and_plans(path: Path, jobs: Path) -> None:
    first = path.read_text().splitlines()[0]
    assert first.startswith("# ")
    assert first.endswith("?")
    path = jobs / path.name
    assert build_plan(load_job(path), path).active()


def test_job_names_are_distinct() -> None:
    names = [load_job(path).name for path in JOBS]
    assert len(names) == len(set(names))


# What a run is asked to do, and how closely it is looked at: nothing that makes it faster.
NO_REMEDY = {
    *("device", "backend", "epochs", "max_steps", "max_s", "negatives", "lr", "seed"),
    *("weight_decay", "batch_size_per_rank", "evaluation", "checkpoint_every"),
    *("checkpoint_every_min", "log_every", "profile", "profile_steps", "profile_ranks"),
    *("profile_rate", "profile_native", "profile_subprocesses"),
}


def test_every_setting_that_is_a_remedy_is_tried() -> None:
    files = [path for path in JOBS if path.stem in ("remedies", GPU)]
    points = [point for path in files for point in load_job(path).points]
    tried = {key.removeprefix("training.") for point in points for key in point}
    assert set(Training.model_fields) - NO_REMEDY <= tried
    assert {"resources.cpus_per_task", "resources.tasks_per_node"} <= tried
    assert not tried & NO_REMEDY


def test_the_ladder_is_compared_with_its_naive_rung_one_remedy_at_a_time(jobs: Path) -> None:
    path = jobs / "engines.yaml"
    runs = build_plan(load_job(path), path).active()
    (naive,) = {run.training.loader for run in runs if run.baseline and run.training}
    assert naive == "per_sample"
    rungs = {
        (run.training.loader, run.training.adam, run.training.sparse, run.training.engine)
        for run in runs
        if run.training
    }
    assert rungs == {
        ("per_sample", "default", False, "reference"),
        ("vectorized", "default", False, "reference"),
        ("vectorized", "foreach", False, "reference"),
        ("vectorized", "fused", False, "reference"),
        ("vectorized", "default", True, "reference"),
        ("vectorized", "default", False, "rowwise"),
        ("vectorized", "default", False, "native"),
    }


def smallest(path: Path, overrides: list[str]) -> Run:
    """The run of one rank with the fewest cores and threads, the baseline if it is one of them."""
    runs = build_plan(load_job(path, overrides), path).active()
    alone = [run for run in runs if run.resources.world_size == 1]
    return min(alone, key=lambda run: (run.resources.cores, not run.baseline, str(run.varied)))


@pytest.mark.parametrize(
    "path", [path for path in JOBS if path.stem not in (ANY, GPU)], ids=lambda path: path.stem
)
def test_a_job_files_smallest_run_trains_on_tiny_data(
    path: Path, tiny_data: Path, tmp_path: Path
) -> None:
    """Every question can be asked: what its file says, but the data and how long it trains."""
    overrides = [f"data={{path: '{tiny_data}'}}", "training.epochs=1", "training.max_steps=20"]
    rank = trainer(smallest(path, overrides), tmp_path)
    rank.train()
    assert 0 < rank.record().steps <= 20


def test_the_example_of_any_program_runs_and_reports(tmp_path: Path) -> None:
    (path,) = (path for path in JOBS if path.stem == ANY)
    run = smallest(path, ["throws=20000"])
    worker = [sys.executable, "-m", "hpcncf.worker", path, "--run", run.id, "-s", "throws=20000"]
    subprocess.run([*worker, "--results", tmp_path], check=True, timeout=120)
    record = read_record(ResultPaths(tmp_path).run(run.id).attempt(1).rank(0), RankRecord)
    assert record.outcome == "completed"
    assert record.reported["epoch"] == record.reported["epochs"] == 10
    assert record.reported["hands"] == 1
    assert 3 < float(record.reported["pi"]) < 3.3
