"""The code at a submission is recorded, and a later edit is noticed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcncf.job import load
from hpcncf.launch.submit import save_code_version
from hpcncf.paths import ResultPaths
from hpcncf.records import code_version, git
from hpcncf.records.plan_file import record_plan
from hpcncf.records.schema import read_record, write_record
from hpcncf.records.submissions import Submission, begin
from hpcncf.state import status
from hpcncf.worker.rank import work

PACKAGE = Path(code_version.__file__).parents[1]


def run_git(folder: Path, *arguments: str) -> None:
    person = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "-C", str(folder), *person, *arguments], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's repository with one commit, and the user in it."""
    folder = tmp_path / "mine"
    folder.mkdir()
    run_git(folder, "init", "-q")
    (folder / "train.py").write_text("lr = 1\n")
    run_git(folder, "add", "train.py")
    run_git(folder, "commit", "-q", "-m", "first")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(git, "TIMEOUT_S", 120)
    return folder


def test_a_checkout_says_whether_tracked_files_differ(tmp_path: Path, checkout: Path) -> None:
    (checkout / ".gitignore").write_text("ignored/\n")
    (checkout / "ignored").mkdir()
    assert git.checkout(checkout).dirty is False, "what git does not track is not the code"
    (checkout / "train.py").write_text("lr = 2\n")
    assert git.checkout(checkout).dirty is True
    for none in (checkout / "ignored", tmp_path / "absent"):
        assert git.checkout(none).commit is None


@pytest.mark.parametrize(
    ("edit", "noticed"),
    [
        (lambda folder: (folder / "train.py").write_text("lr = 3\n"), True),
        (lambda folder: (folder / "new.py").write_text("untracked code"), True),
        (lambda folder: run_git(folder, "rm", "-q", "train.py"), True),
        (lambda folder: run_git(folder, "commit", "-q", "--allow-empty", "-m", "second"), False),
        (lambda folder: (folder / "result.json").write_text("no code"), False),
        (lambda folder: os.utime(folder / "train.py"), False),
    ],
)
def test_an_edit_of_the_checkout_is_noticed_where_the_run_uses_it(
    checkout: Path, edit: Callable[[Path], None], noticed: bool
) -> None:
    then = code_version.record_code(checkout)
    assert (then[-1].of, then[-1].folder, then[-1].dirty) == ("folder", str(checkout), False)
    assert then[-1].commit == git.git_text(checkout, "rev-parse", "HEAD")
    assert code_version.changed(then, checkouts=True) == []
    edit(checkout)
    seen = code_version.changed(then, checkouts=True)
    assert bool(seen) is noticed
    assert all(f"({checkout}, commit " in line for line in seen)
    assert code_version.changed(then, checkouts=False) == []


def test_our_own_source_is_compared_by_content(tmp_path: Path) -> None:
    copy = shutil.copytree(PACKAGE / "slurm", tmp_path / "slurm")
    assert code_version.hash_sources(copy) == code_version.hash_sources(PACKAGE / "slurm")
    with (copy / "site.py").open("a") as source:
        source.write("\n")
    assert code_version.hash_sources(copy) != code_version.hash_sources(PACKAGE / "slurm")
    (ours,) = code_version.record_code(tmp_path)  # outside of a checkout
    assert (ours.of, code_version.changed([ours], checkouts=False)) == ("hpcncf", [])
    edited = ours.model_copy(update={"sha256": "0" * 64})
    (seen,) = code_version.changed([edited], checkouts=False)
    assert seen.startswith("the code changed after this run was submitted: hpcncf (")
    there = edited.model_copy(update={"folder": "/login/hpcncf"})
    (seen,) = code_version.changed([there], checkouts=False)
    assert seen.startswith(
        f"ranks imported hpcncf from {PACKAGE}, and were submitted by hpcncf (/log"
    )
    assert code_version.changed([there.model_copy(update={"sha256": ours.sha256})], False) == []


def test_without_git_the_commit_is_unknown_and_the_source_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (ours,) = code_version.record_code(Path.cwd())
    assert (ours.commit, ours.dirty) == (None, None)
    assert ours.sha256 == code_version.hash_sources(PACKAGE)


def test_changes_too_large_for_code_are_not_compared(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_version, "MOST_DIFF", 50)
    (checkout / "train.py").write_text("lr = 2\n" * 100)
    code = code_version.record_code(checkout)[-1]
    assert (code.dirty, code.sha256) == (True, None)
    assert code_version.changed([code], checkouts=True) == []


def test_a_repository_cannot_make_us_start_a_program(tmp_path: Path, checkout: Path) -> None:
    """Each of these is run by a plain `git status` or `git diff` there."""
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\n")
    trap.chmod(0o755)
    (checkout / ".gitattributes").write_text("*.py diff=mine\n")
    for key in ("core.fsmonitor", "diff.external", "diff.mine.command", "diff.mine.textconv"):
        run_git(checkout, "config", key, str(trap))
    (checkout / ".git/hooks/post-index-change").write_text(trap.read_text())
    (checkout / ".git/hooks/post-index-change").chmod(0o755)
    (checkout / "train.py").write_text("lr = 2\n")
    assert code_version.record_code(checkout)[-1].dirty
    assert not (tmp_path / "sprung").exists()
    subprocess.run(["git", "diff", "HEAD"], cwd=checkout, check=False, capture_output=True)
    assert (tmp_path / "sprung").exists(), "the trap works"


def test_a_git_that_hangs_is_given_up_and_its_variables_are_ignored(
    tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert git.git_text(checkout, "rev-parse", "--show-toplevel") == str(checkout)
    slow = tmp_path / "bin/git"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(git, "TIMEOUT_S", 0.2)
    assert git.git_text(checkout, "status") is None


def test_a_submission_keeps_the_code_and_a_run_of_other_code_says_so(
    job_file: Callable[[str], Path], checkout: Path
) -> None:
    path = job_file("repeats: 1\n")
    job = load.load_job(path)
    paths = ResultPaths(path.parent / "results")
    plan = record_plan(paths, job, load.build_plan(job, path))
    file = begin(paths, "local", [plan.runs[0].id], again=False)
    save_code_version(file, plan.runs)
    written = read_record(file, Submission)
    assert {code.of: code.folder for code in written.code}["folder"] == str(checkout)
    other = [code.model_copy(update={"sha256": "0" * 64}) for code in written.code]
    write_record(file, written.model_copy(update={"code": other}))
    assert work(paths.folder, plan.runs[0].id, again=False) == 0
    (rank,) = status.states(paths, plan)[0].ranks
    assert [
        text for text in rank.warnings if "changed after this run was submitted: hpcncf" in text
    ]
    assert not [text for text in rank.warnings if "checkout" in text], "it runs none of it"
