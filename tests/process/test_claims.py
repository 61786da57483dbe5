"""One task at a time works at a run."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from hpcncf import files
from hpcncf.paths import RunPaths
from hpcncf.records import plain, schema
from hpcncf.records.claims import (
    HEARTBEAT_TIMEOUT_S,
    AlreadyRunning,
    attempt_of_start,
    claim_attempt,
    current_claim,
    is_same_process,
    later_attempt,
    process_start,
)
from hpcncf.records.schema import Claim, End

TAKE = """\
import os, sys, time
from pathlib import Path
from hpcncf import paths
from hpcncf.records import claims
sys.stdin.read()  # all begin at once, when the test closes this
try:
    print(claims.claim_attempt(paths.RunPaths(Path(sys.argv[1])), "local").number, flush=True)
except claims.AlreadyRunning as taken:
    print("taken:", taken, flush=True)
os.close(1)  # the test need not wait for our end to read what we said
time.sleep(60)
"""


def ended(run: RunPaths, number: int) -> None:
    end = End(
        run_id=run.folder.name,
        attempt=number,
        reason="exited",
        exit_codes=[0],
        ended_at=schema.utc_now(),
    )
    schema.write_record(run.attempt(number).end, end)


def test_of_many_who_claim_at_once_one_gets_the_run(tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "0123456789ab")
    many = [
        subprocess.Popen(
            [sys.executable, "-c", TAKE, str(run.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(6)
    ]
    for process in many:
        process.stdin.close()
    said = [process.stdout.read() for process in many if process.stdout]
    for process in many:
        process.kill()
        process.wait()
    assert sorted(said)[0] == "1\n"
    assert all(each.startswith("taken:") for each in sorted(said)[1:])
    assert [attempt.number for attempt in run.attempts()] == [1]
    assert run.attempts()[0].claim.exists()
    assert len(list(run.folder.iterdir())) == 1, "those who lost leave nothing"


def test_a_living_process_holds_its_run_until_the_attempt_ended(tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "0123456789ab")
    assert claim_attempt(run, "local").number == 1
    assert current_claim(run).attempt == 1
    with pytest.raises(AlreadyRunning, match=r"already running as process .* \(attempt 1\)"):
        claim_attempt(run, "local")
    assert claim_attempt(run, "local", over=1).number == 2  # the first is known to have ended
    ended(run, 2)
    assert current_claim(run) is None
    assert claim_attempt(run, "local").number == 3


def changed_claim(run: RunPaths, **changes: object) -> Path:
    """This process's claim of the run as if it were another's."""
    path = claim_attempt(run, "slurm", "123_4").claim
    schema.write_record(path, schema.read_record(path, Claim).model_copy(update=changes))
    return path


def test_a_process_that_ended_holds_nothing(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        pass
    dead, later = (RunPaths(tmp_path / name) for name in ("0123456789ab", "123456789abc"))
    changed_claim(dead, pid=child.pid)
    assert current_claim(dead) is None
    # A later process has its number.
    changed_claim(later, process_started=process_start(os.getpid()) - 3600)
    assert current_claim(later) is None


@pytest.mark.parametrize("ahead_s", [-600, 0, 600])
def test_another_nodes_claim_holds_while_it_gives_signs_of_life_whatever_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead_s: int
) -> None:
    run = RunPaths(tmp_path / "0123456789ab")
    path = changed_claim(run, node="another-node")
    ours = time.time
    monkeypatch.setattr(time, "time", lambda: ours() + ahead_s)
    assert current_claim(run) is not None
    old = path.stat().st_mtime - HEARTBEAT_TIMEOUT_S - 1
    os.utime(path, (old, old))
    assert current_claim(run) is None


def test_a_zombie_is_not_alive() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    started = process_start(child.pid)
    while psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE:
        pass
    assert not is_same_process(child.pid, started)
    child.wait()
    assert not is_same_process(child.pid, started)


def test_a_step_of_the_clock_ends_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    started, wall = process_start(os.getpid()), psutil.Process().create_time()
    assert is_same_process(os.getpid(), wall), "as records of 0.1.0 have it"
    monkeypatch.setattr(psutil.Process, "create_time", lambda _self: wall + 5 * 3600)
    assert is_same_process(os.getpid(), started)
    assert not is_same_process(os.getpid(), started + 5)


def test_the_attempt_of_one_start_of_a_job_is_not_another_starts(tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "0123456789ab")
    first = claim_attempt(run, "slurm", "7_2", 0, 0)
    assert attempt_of_start(run, "7_2", 0) == first
    for job, start in (("7_2", 1), ("7_3", 0), (None, None)):
        assert attempt_of_start(run, job, start) is None
    assert later_attempt(run, first) is None
    claim_attempt(run, "slurm", "7_2", 1, 1)
    assert later_attempt(run, first) == 2


def test_on_a_full_disk_no_half_of_a_claim_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "NamedTemporaryFile", full)
    monkeypatch.setattr(plain, "RETRY_S", 0.0)
    with pytest.raises(OSError, match="No space left"):
        claim_attempt(RunPaths(tmp_path), "shell")
    assert list(tmp_path.iterdir()) == []
