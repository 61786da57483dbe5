"""What is done to a job from outside takes effect, and is undone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from conftest import within

from hpcncf.monitor.cgroup import usable_cpus
from hpcncf.records.schema import Progress, utc_now, write_record
from pathology.beside import applied, available
from pathology.case import Beside

LIMITS = "from hpcncf.monitor import cgroup; print(cgroup.quota(), cgroup.memory_limit().value)"


def children() -> list[psutil.Process]:
    return psutil.Process().children()


def test_a_neighbour_is_busy_on_its_cpu_and_gone_afterwards(tmp_path: Path) -> None:
    before = set(children())
    cpu = usable_cpus()[-1]
    with applied(Beside(neighbour=(0,)), [cpu], tmp_path):
        [neighbour] = set(children()) - before
        assert within(20, lambda: neighbour.cpu_affinity() == [cpu])
        assert within(20, lambda: neighbour.cpu_times().user > 0)
    assert not neighbour.is_running()


def test_a_slowed_rank_is_stopped_again_and_again_and_runs_on_afterwards(tmp_path: Path) -> None:
    """The process looks like one of a rank's: these words, this variable, a run that trains."""
    progress = Progress(
        run_id="r", attempt=1, updated_at=utc_now(), elapsed_s=3.0, phase="training", epoch=0,
        epochs=1, step=1, steps_per_epoch=9, instances_per_s=None, cpu_efficiency=None,
    )  # fmt: skip
    attempt = tmp_path / "runs/r/attempt-1"
    attempt.mkdir(parents=True)
    write_record(attempt / "progress.json", progress)
    words = [sys.executable, "-c", "while True: pass", "hpcncf.worker", str(tmp_path)]
    with subprocess.Popen(words, env=os.environ | {"RANK": "1"}) as rank:
        process = psutil.Process(rank.pid)
        with applied(Beside(slowed_rank=1), [], tmp_path):
            for _ in range(2):
                assert within(20, lambda: process.status() == psutil.STATUS_STOPPED)
                assert within(20, lambda: process.status() != psutil.STATUS_STOPPED)
        assert process.status() != psutil.STATUS_STOPPED
        rank.kill()


@pytest.mark.skipif(
    not {"cpu cgroup", "memory cgroup"} <= available(), reason="control groups cannot be made here"
)
def test_limits_hold_for_what_enters_and_are_gone_afterwards(tmp_path: Path) -> None:
    with applied(Beside(cpu_quota=0.5, memory_mib=300), [], tmp_path) as enter:
        words = [sys.executable, "-c", LIMITS]
        seen = subprocess.run(words, preexec_fn=enter, capture_output=True, text=True, check=True)
    assert seen.stdout.split() == ["0.5", "300.0"]
    assert not list(Path("/sys/fs/cgroup").glob(f"*/hpcncf-pathology-{os.getpid()}"))
