"""Real submissions to this machine: one queue, its runs one after another, each run once."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from conftest import within

from hpcncf.local import machine
from hpcncf.monitor.cgroup import usable_cpus
from hpcncf.monitor.gpu import visible_gpus
from hpcncf.paths import ResultPaths
from hpcncf.records.active_queue import read_active_queue
from hpcncf.records.plan_file import read_plan
from hpcncf.records.schema import Claim, read_record
from hpcncf.records.submissions import read_submissions
from hpcncf.state import status
from hpcncf.state.status import RunState

JobFile = Callable[[str], Path]
two_cores = pytest.mark.skipif(len(usable_cpus()) < 2, reason="two ranks want a core each")
# Trains until somebody ends it.
ENDLESS = """\
points:
  - {training.max_steps: 100000000, training.epochs: 10000000, training.evaluation: none,
     training.checkpoint_every: 0, resources.tasks_per_node: %d}
"""


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Path]:
    """The user's folder. No queue outlives the test, whatever became of it."""
    yield tmp_path
    for paths in (ResultPaths(plan.parent) for plan in tmp_path.glob("results/*/plan.json")):
        for job in (job for one in read_submissions(paths).submissions for job in one.jobs):
            for process in family(int(job.id)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()


def family(pid: int) -> list[psutil.Process]:
    """What lives of it: who looks may find that it just ended, or that nobody waited for it."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        found = [process, *process.children(recursive=True)]
    return [one for one in found if lives(one)]


def lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def ranks_of(queue: int) -> dict[str, psutil.Process]:
    found = {}
    for process in family(queue):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if "hpcncf.worker" in process.cmdline():
                found[process.environ()["RANK"]] = process
    return found


def hpcncf(here: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "hpcncf", *args]  # as the installed command
    return subprocess.run(
        command, cwd=here, capture_output=True, text=True, timeout=120, check=False
    )


def states(here: Path) -> list[RunState]:
    paths = ResultPaths(here / "results/tiny")
    return status.states(paths, read_plan(paths))


def trains(here: Path, ranks: int = 1) -> bool:
    """Whether a run of so many ranks or more is under way, past its start."""
    running = [one for one in states(here) if one.state == "running"]
    return any(
        one.progress and one.progress.step
        for one in running
        if one.run.resources.tasks_per_node >= ranks
    )


def queue_ends(here: Path) -> bool:
    paths = ResultPaths(here / "results/tiny")
    jobs = [job for one in read_submissions(paths).submissions for job in one.jobs]
    return within(120, lambda: not any(family(int(job.id)) for job in jobs))


@two_cores
def test_two_submits_at_the_same_moment_run_everything_once(here: Path, job_file: JobFile) -> None:
    """And take no code of the folder that submits: it may be another version's checkout."""
    job_file("points: [{resources.tasks_per_node: 2}]\n")
    for name in ("hpcncf.py", "logging.py"):
        (here / name).write_text("raise SystemExit('not the installed one')\n")
    words = ["submit", "job.yaml", "--cluster", "local", "--wait"]
    command = [sys.executable, "-P", "-m", "hpcncf", *words]
    both = [subprocess.Popen(command, cwd=here, stdout=subprocess.PIPE, text=True) for _ in "12"]
    said = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert [(state.state, state.attempt) for state in states(here)] == [("completed", 1)]

    later = hpcncf(here, "submit", "job.yaml", "--cluster", "local", "--wait")
    assert later.returncode == 0
    assert "0 runs submitted" in later.stdout
    assert "1 completed already" in later.stdout
    (pair,) = states(here)
    assert pair.attempt == 1
    assert [record.cores.cpus for record in pair.ranks] == [[cpu] for cpu in usable_cpus()[:2]]
    assert [record.cores.allocated for record in pair.ranks] == [1, 1]
    log = hpcncf(here, "logs", pair.run.id[:6], "--rank", "1", "--json")
    (file,) = json.loads(log.stdout)["files"]
    assert Path(file).name == "rank-1.log"
    assert queue_ends(here)


@two_cores
def test_a_killed_rank_is_reported_by_its_signal_and_retried_alone(
    here: Path, job_file: JobFile
) -> None:
    job_file(ENDLESS % 2 + "  - {resources.tasks_per_node: 1}\n")
    assert hpcncf(here, "submit", "job.yaml", "--cluster", "local").returncode == 0
    assert within(120, lambda: trains(here, ranks=2))
    (running,) = [state for state in states(here) if state.state == "running"]
    (queue,) = {state.job.id for state in states(here) if state.job}
    ranks = ranks_of(int(queue))
    ranks["1"].kill()
    assert queue_ends(here)

    found = {state.run.id: state for state in states(here)}
    failed = found.pop(running.run.id)
    assert (failed.state, failed.reason) == ("failed", "rank 1 was killed by signal 9 (SIGKILL)")
    assert [state.state for state in found.values()] == ["completed"]
    assert not any(lives(one) for one in ranks.values()), "its peer was ended, too"

    retried = hpcncf(here, "retry", "results/tiny", "--cluster", "local", "--json")
    assert json.loads(retried.stdout)["submitted"] == [running.run.id]
    assert within(120, lambda: trains(here, ranks=2))
    cancelled = hpcncf(here, "cancel", running.run.id[:7], "--json")
    assert json.loads(cancelled.stdout)["cancelled"][0]["was"] == "running"
    assert queue_ends(here)
    (again,) = [state for state in states(here) if state.run.id == running.run.id]
    assert (again.state, again.attempt) == ("cancelled", 2)
    assert {record.outcome for record in again.ranks} == {"stopped"}, "a record all the same"


def test_nothing_outlives_a_killed_queue_and_status_says_so(here: Path, job_file: JobFile) -> None:
    job_file(ENDLESS % 1 + "repeats: 2\n")
    assert hpcncf(here, "submit", "job.yaml", "--cluster", "local").returncode == 0
    assert within(120, lambda: trains(here))
    first, waiting = states(here)
    assert (waiting.state, waiting.reason) == ("pending", "next")
    assert first.attempt
    claim = read_record(
        ResultPaths(here / "results/tiny").run(first.run.id).attempt(1).claim, Claim
    )
    os.kill(claim.pid, signal.SIGKILL)
    assert queue_ends(here)
    assert within(120, lambda: states(here)[0].state == "stopped"), states(here)[0]
    assert states(here)[1].state == "lost"
    assert "has exited; it never started" in states(here)[1].reason


def test_a_second_queue_waits_for_its_turn(tmp_path: Path) -> None:
    one, two = ResultPaths(tmp_path / "one"), ResultPaths(tmp_path / "two")
    with machine.taking_turns(one, "a.json", lambda: False) as ours:
        assert ours
        turn = read_active_queue()
        assert (turn.results, turn.pid) == (str(one.folder), os.getpid())
        with machine.taking_turns(two, "b.json", lambda: True) as theirs:
            assert not theirs, "asked to stop before its turn came"
        assert read_active_queue() == turn
    assert read_active_queue() is None
    with machine.taking_turns(two, "b.json", lambda: False) as theirs:
        assert theirs


def test_a_run_gets_the_gpu_that_the_user_named_by_its_uuid(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run has it after the first, and no other, whatever GPUs the machine has."""
    (here / "job.yaml").write_text(
        "name: tiny\nworkload: {shell: 'echo $CUDA_VISIBLE_DEVICES > $PWD/{lr}'}\n"
        "resources: {gpus_per_node: 1, timeout_min: 2}\ngrid: {lr: [1, 2]}\n"
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-aa11,GPU-bb22")
    said = hpcncf(here, "submit", "job.yaml", "--cluster", "local", "--wait")
    assert said.returncode == 0, said.stdout + said.stderr
    seen = [path.read_text().strip() for path in here.rglob("[12]") if path.is_file()]
    assert seen == ["GPU-aa11", "GPU-aa11"], said.stdout
    assert queue_ends(here)


@pytest.mark.parametrize(
    ("named", "names"),
    [
        ("", []),
        ("2,3", ["2", "3"]),
        ("GPU-aa11, MIG-bb22", ["GPU-aa11", "MIG-bb22"]),
        ("1,-1,0", ["1"]),
        ("NoDevFiles", []),
        (None, ["0", "1"]),
    ],
)
def test_the_gpus_are_those_that_the_user_left_visible(
    named: str | None, names: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A container that was given the sixth of eight has its device file, and CUDA's number 0."""
    for name in ("nvidia5", "nvidia7", "nvidiactl", "nvidia-uvm", "nvidia-caps"):
        (tmp_path / name).touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert visible_gpus(tmp_path) == names
    assert named is not None or visible_gpus(tmp_path / "none") == []
