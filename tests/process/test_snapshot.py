"""`code: snapshot`: queued and retried runs keep the code that they were submitted with."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from test_code_version import run_git

from hpcncf.cli import main
from hpcncf.errors import UsageError
from hpcncf.job.load import build_plan, load_job
from hpcncf.launch import snapshot
from hpcncf.launch.submit import submit
from hpcncf.paths import ResultPaths
from hpcncf.records.plan_file import read_plan, record_plan

JOB = """\
name: copied
workload: {{command: ["{python}", train.py]}}
code: snapshot
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's repository: a program, data that git ignores, and a cache."""
    folder = tmp_path / "mine"
    folder.mkdir()
    run_git(folder, "init", "-q")
    (folder / ".gitignore").write_text("data/\nresults/\n__pycache__/\n")
    (folder / "train.py").write_text("import helper\nprint(open('data/x').read(), helper.NAME)\n")
    (folder / "helper.py").write_text("NAME = 'first'\n")
    (folder / "job.yaml").write_text(JOB.format(python=sys.executable))
    for name in ("data/x", "__pycache__/helper.pyc", "results/old"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("the data")
    run_git(folder, "add", ".")
    run_git(folder, "commit", "-q", "-m", "first")
    return folder


def test_a_run_reads_the_code_of_its_submission(project: Path) -> None:
    job = load_job(project / "job.yaml")
    plan = build_plan(job, project / "job.yaml")
    paths = ResultPaths(project / "results/copied")
    plan = record_plan(paths, job, plan)
    # As if queued: the copy is there, and nothing has started yet.
    runs = snapshot.snapshot_code(paths, job, plan.runs, retry=False)
    (project / "helper.py").write_text("NAME = 'second'\n")
    folder = Path(runs[0].workload.folder)  # type: ignore[union-attr]
    words = [sys.executable, "train.py"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout == "the data first\n"
    assert (folder / "data").is_symlink()
    assert not (folder / "results").exists()
    assert not (folder / ".git").exists()


def test_submit_copies_again_and_retry_does_not(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    results = project / "results/copied"
    (project / "train.py").write_text("import helper\nprint(helper.NAME)\nraise SystemExit(1)\n")
    submit = ["submit", "job.yaml", "--cluster", "local", "--wait"]
    assert main(submit) == 3
    (project / "helper.py").write_text("NAME = 'second'\n")
    assert main(["retry", str(results), "--wait"]) == 3
    assert main(submit) == 3
    paths = ResultPaths(results)
    (run,) = read_plan(paths).runs
    shown = [attempt.log(0).read_text() for attempt in paths.run(run.id).attempts()]
    assert [text.split()[0] for text in shown] == ["first", "first", "second"]
    (kept,) = (each for each in paths.snapshots.iterdir() if each.is_dir())
    assert Path(run.workload.folder) == kept, "the first copy is not used any more"
    record = json.loads(paths.run(run.id).attempt(1).rank(0).read_text())
    assert not [text for text in record["warnings"] if "changed" in text]


def test_without_git_small_files_are_copied_and_large_ones_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "LARGEST_CODE", 100)
    folder = tmp_path / "plain"
    (folder / "sub").mkdir(parents=True)
    (folder / "train.py").write_text("print(1)")
    (folder / "sub/model.py").write_text("pass")
    (folder / "sub/table.csv").write_text("0" * 200)
    job_file = folder / "job.yaml"
    job_file.write_text(JOB.format(python="python"))
    job = load_job(job_file)
    paths = ResultPaths(tmp_path / "results")
    runs = build_plan(job, job_file).runs
    (run,) = snapshot.snapshot_code(paths, job, runs, retry=False)
    copy = Path(run.workload.folder)  # type: ignore[union-attr]
    assert (copy / "sub/model.py").read_text() == "pass"
    assert not (copy / "sub/model.py").is_symlink()
    assert (copy / "sub/table.csv").readlink() == folder / "sub/table.csv"


def test_a_folder_too_large_to_copy_is_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "MOST_FILES", 2)
    job = load_job(project / "job.yaml")
    plan = build_plan(job, project / "job.yaml")
    paths = ResultPaths(project / "results/copied")
    record_plan(paths, job, plan)
    with pytest.raises(UsageError, match=r"at most 2 files.*\.gitignore"):
        submit(paths, job, plan, "local")
    assert not paths.snapshots.exists()


def test_our_own_workload_has_no_code_to_copy(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(
        "{name: a, code: snapshot, data: {dataset: frappe, path: d}}"
    )
    with pytest.raises(UsageError, match="code: snapshot"):
        load_job(tmp_path / "job.yaml")
