"""One task at a time works at a run."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from hpcncf import claims, records
from hpcncf.records import Claim, End, RunPaths


def test_attempts_are_numbered_from_one(tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "0123456789ab")
    assert [claims.take(run, "local").number for _ in range(3)] == [1, 2, 3]


def test_two_who_claim_at_once_get_different_attempts(tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "0123456789ab")
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda _: claims.take(run, "local").number, range(40)))
    assert sorted(taken) == list(range(1, 41))


def test_a_living_process_holds_its_run_until_the_attempt_ended(tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "0123456789ab")
    attempt = claims.take(run, "local")
    held = claims.holder(run)
    assert held is not None
    assert held.attempt == 1
    end = End(
        run_id="0123456789ab",
        attempt=1,
        reason="exited",
        exit_codes=[0],
        ended_at=records.now(),
    )
    records.write(attempt.end, end)
    assert claims.holder(run) is None


def test_a_dead_process_holds_nothing(tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "0123456789ab")
    code = (
        "import sys; from pathlib import Path; from hpcncf import claims, records;"
        "claims.take(records.RunPaths(Path(sys.argv[1])), 'local')"
    )
    subprocess.run([sys.executable, "-c", code, str(run.folder)], check=True)
    assert run.attempts()[0].claim.exists()
    assert claims.holder(run) is None


def test_a_later_process_of_the_same_number_is_not_the_holder(tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "0123456789ab")
    attempt = claims.take(run, "local")
    claim = records.read(attempt.claim, Claim)
    earlier = claim.model_copy(update={"process_started": claim.process_started - 3600})
    records.write(attempt.claim, earlier)
    assert claims.holder(run) is None


def test_another_nodes_claim_holds_while_it_gives_signs_of_life(tmp_path: Path) -> None:
    import os

    run = RunPaths(tmp_path / "0123456789ab")
    attempt = claims.take(run, "slurm", "123_4")
    claim = records.read(attempt.claim, Claim)
    records.write(attempt.claim, claim.model_copy(update={"node": "another-node"}))
    assert claims.holder(run) is not None
    old = attempt.claim.stat().st_mtime - claims.SILENT_S - 1
    os.utime(attempt.claim, (old, old))
    assert claims.holder(run) is None


def test_a_zombie_is_not_alive() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    started = psutil.Process(child.pid).create_time()
    while psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE:
        pass
    assert not claims.same_process(child.pid, started)
    child.wait()
    assert not claims.same_process(child.pid, started)
