"""Ranks that end before they train leave their record, or say why they cannot begin."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import within
from make_runs import tiny

from hpcncf.job.load import build_plan, load_job
from hpcncf.paths import ResultPaths, RunPaths
from hpcncf.records.claims import claim_attempt
from hpcncf.records.plan_file import leave_plan
from hpcncf.records.schema import RankRecord, read_record

JOB = """\
name: small
data: {{path: {data}}}
training: {{threads: 1, epochs: {epochs}, global_batch_size: 50}}
resources: {{tasks_per_node: {ranks}}}
"""


def planned(folder: Path, ranks: int, epochs: int = 2) -> tuple[ResultPaths, RunPaths]:
    tiny(folder / "data")
    job = folder / "small.yaml"
    job.write_text(JOB.format(data=folder / "data", ranks=ranks, epochs=epochs))
    paths, made = ResultPaths(folder / "results"), build_plan(load_job(job), job)
    leave_plan(paths, load_job(job), made)
    return paths, paths.run(made.runs[0].id)


def rank(paths: ResultPaths, number: int, ranks: int, job: str = "9") -> subprocess.Popen[bytes]:
    """As a task of a Slurm step."""
    known = {"SLURM_PROCID": str(number), "SLURM_LOCALID": str(number), "SLURM_JOB_ID": job}
    known |= {"SLURM_STEP_NUM_TASKS": str(ranks), "SLURM_STEP_ID": "0", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "hpcncf.worker", str(paths.folder)]
    return subprocess.Popen(command, env=os.environ | known, stderr=subprocess.PIPE)


def hears(process: subprocess.Popen[bytes]) -> bool:
    """Whether it handles SIGTERM by now."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def test_a_rank_that_waits_for_the_first_leaves_its_record_in_the_attempt_of_its_start(
    tmp_path: Path,
) -> None:
    paths, run = planned(tmp_path, ranks=2)
    attempt = claim_attempt(run, "slurm", "9", 0, 0)
    second = rank(paths, 1, 2)
    try:
        assert within(120, lambda: hears(second))
        second.terminate()
        second.communicate(timeout=120)
    finally:
        second.kill()
    left = read_record(attempt.rank(1), RankRecord)
    assert (left.outcome, left.exit_code) == ("stopped", 128 + signal.SIGTERM)


def test_that_another_is_at_work_is_asked_to_every_rank(tmp_path: Path) -> None:
    paths, run = planned(tmp_path, ranks=2)
    attempt = claim_attempt(run, "slurm", "7", 0, 0)
    both = [rank(paths, number, 2) for number in (0, 1)]
    try:
        seen = [each.communicate(timeout=120)[1].decode() for each in both]
    finally:
        for each in both:
            each.kill()
    assert [each.returncode for each in both] == [1, 1]
    assert all(f"process {os.getpid()} on" in each for each in seen)
    assert [path.name for path in attempt.folder.iterdir()] == ["claim.json"]


def test_an_attempt_that_was_taken_for_ended_ends_when_it_sees_that(tmp_path: Path) -> None:
    paths, run = planned(tmp_path, ranks=1, epochs=100_000)
    silent = rank(paths, 0, 1)
    try:
        assert within(120, run.checkpoint.exists)
        run.attempt(2).folder.mkdir()
        silent.communicate(timeout=120)
    finally:
        silent.kill()
    left = read_record(run.attempt(1).rank(0), RankRecord)
    assert left.outcome == "failed"
    assert left.error["message"].endswith("attempt 2 has taken over")


@pytest.mark.parametrize(
    ("second", "recorded", "named"),
    [("time.sleep(60)", "set()", False), ("pass", "set()", True), ("pass", "{1}", False)],
)
def test_a_rank_that_ended_before_the_ranks_met_is_named(
    second: str, recorded: str, named: bool
) -> None:
    """The first rank asks once the second had time to end."""
    first = (
        "import time; time.sleep(1)\n"
        "from hpcncf.worker.environment import Place\n"
        "from hpcncf.worker.recorder import gone_before_meeting\n"
        f"print(gone_before_meeting(Place(0, 0, 2, 2), {recorded}), end='')\n"
    )
    env = [{**os.environ, "RANK": str(rank)} for rank in range(2)]
    words = [sys.executable, "-c", f"import time\n{second}"]
    with subprocess.Popen(words, env=env[1]) as sibling:
        done = subprocess.run(
            [sys.executable, "-c", first], env=env[0], capture_output=True, text=True, check=True
        )
        sibling.kill()
    assert done.stdout.startswith("rank 1 of ") == named
    assert named or not done.stdout
