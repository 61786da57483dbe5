"""Two people use one results folder: what one makes the other may use, and nothing tears."""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcncf.files import make_folder, open_lock, write_text
from hpcncf.paths import ResultPaths, RunPaths
from hpcncf.records.claims import claim_attempt
from hpcncf.records.plan_file import read_plan
from hpcncf.records.submissions import read_submissions, user

GROUP, FIRST, SECOND = 4242, 4243, 4244
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="being two users needs root")
ADD = """\
import os, sys
from pathlib import Path
from hpcncf.job.expand import expand_job
from hpcncf.records import plan_file as results, submissions
from hpcncf.paths import ResultPaths
from hpcncf.job.spec import JobSpec
# Only then: the interpreter may lie where the others may not read.
os.setgroups([{group}]); os.setgid({user}); os.setuid({user}); os.umask(0o022)
paths = ResultPaths(Path(sys.argv[1]))
for number in range(8):
    job = JobSpec.model_validate(
        dict(name="shared", data=dict(path="/data"), training=dict(seed={user} * 100 + number))
    )
    plan_now = results.record_plan(paths, job, expand_job(job))
    with results.locked(paths):
        submissions.begin(paths, "slurm", [plan_now.active()[0].id], again=False)
"""

COLLECT = """\
import os, sys
from pathlib import Path
from hpcncf.collect import collect
from hpcncf.paths import ResultPaths
os.setgroups([{group}]); os.setgid({user}); os.setuid({user}); os.umask(0o022)
paths = ResultPaths(Path(sys.argv[1]))
for number in range(20):
    of = {user} % 2 * 20 + 40 + number
    table = {{name: [dict.fromkeys(collect.COLUMNS[name], of)] * of for name in collect.COLUMNS}}
    collect.write(collect.Collected("shared", **table, skipped=[], unaccounted=[]), paths)
"""


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def group_folder(tmp_path: Path) -> Path:
    """As an administrator makes it for a group; its members see the way to it."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == 0 and str(folder) != folder.anchor:
            folder.chmod(folder.stat().st_mode | 0o011)
    shared = tmp_path / "shared"
    shared.mkdir()
    os.chown(shared, 0, GROUP)
    shared.chmod(0o2770)
    return shared


def at_once(program: str, results: Path) -> None:
    """Two users of the group."""
    users = [
        subprocess.Popen(
            [sys.executable, "-c", program.format(group=GROUP, user=user), results],
            env=os.environ | {"LOGNAME": f"user{user}"},
            stderr=subprocess.PIPE,
        )
        for user in (FIRST, SECOND)
    ]
    for process in users:
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said.decode()[-2000:]


def test_the_user_is_the_one_that_slurm_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "somebody-else")
    assert user() == pwd.getpwuid(os.getuid()).pw_name


@needs_root
def test_two_users_collect_at_once_and_all_tables_are_of_one_of_them(group_folder: Path) -> None:
    """Each collects another number of runs, as at another moment."""
    at_once(COLLECT, group_folder / "results")
    tables = group_folder / "results/tables"
    lines = {path.name: path.read_text().count("\n") for path in tables.iterdir()}
    assert lines["runs.csv"] == lines["ranks.csv"] == lines["epochs.csv"] > 40, lines
    assert {path.stat().st_mode & stat.S_IWGRP for path in tables.iterdir()} == {stat.S_IWGRP}


@needs_root
def test_two_users_submit_into_one_folder_at_once_and_nothing_is_lost(group_folder: Path) -> None:
    results = group_folder / "results"
    at_once(ADD, results)
    known = read_submissions(ResultPaths(results))
    assert len(read_plan(ResultPaths(results)).runs) == 16
    assert (len(known.submissions), known.problems) == (16, [])
    assert {path.stat().st_mode & stat.S_IWGRP for path in results.rglob("*")} == {stat.S_IWGRP}


@needs_root
def test_a_lock_that_only_its_owner_may_write_is_locked_all_the_same(tmp_path: Path) -> None:
    lock = tmp_path / ".lock"
    lock.touch(mode=0o644)
    os.chown(lock, FIRST, FIRST)
    tmp_path.chmod(0o755)
    child = os.fork()
    if child == 0:
        os.setgid(SECOND)
        os.setuid(SECOND)
        os._exit(0 if os.read(open_lock(lock), 1) == b"" else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(
    ("mode", "folders", "file"),
    [(0o755, 0o755, 0o644), (0o770, 0o775, 0o664), (0o777, 0o755, 0o644), (0o1777, 0o755, 0o644)],
)
def test_new_folders_and_files_are_for_the_group_if_the_one_above_is(
    tmp_path: Path, mode: int, folders: int, file: int
) -> None:
    above = tmp_path / "above"
    above.mkdir()
    above.chmod(mode)
    make_folder(above / "a/b")
    write_text(above / "file", "")
    modes = [stat.S_IMODE((above / name).stat().st_mode) for name in ("a", "a/b", "file")]
    assert modes == [folders, folders, file]


@needs_root
def test_the_files_of_an_attempt_are_for_the_group_whatever_the_umask(group_folder: Path) -> None:
    os.umask(0o077)
    attempt = claim_attempt(RunPaths(group_folder / "runs/0123456789ab"), "slurm", "7")
    left = [attempt.folder, attempt.claim]
    assert {path.stat().st_gid for path in left} == {GROUP}
    assert [stat.S_IMODE(path.stat().st_mode) for path in left] == [0o2770, 0o660]
