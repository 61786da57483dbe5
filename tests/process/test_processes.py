"""The ranks of a run as processes: bound, watched, and ended by every means there is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from conftest import alive, within

from hpcncf.monitor.cgroup import usable_cpus
from hpcncf.records.schema import EndReason
from hpcncf.worker import processes
from hpcncf.worker.processes import Ranks, RankWatch

SLEEPS = "import time; time.sleep(60)"
# Says when its handler stands; then SIGTERM is not enough.
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "print('ready', flush=True); time.sleep(60)"
)


def start(*codes: str) -> Ranks:
    return [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, process_group=0)
        for code in codes
    ]


def watch(*args: Any, **spans: Any) -> EndReason:
    watched = RankWatch(*args, **spans)
    while (reason := watched.look()) is None:
        time.sleep(0.05)
    return reason


def codes(ranks: Ranks) -> list[int | None]:
    for rank in ranks:
        rank.stdout.close()
    return [rank.returncode for rank in ranks]


@pytest.mark.parametrize(
    ("programs", "expected"),
    [
        # One that ended well does not end the others; one that failed does.
        (["pass", "import time; time.sleep(0.8)"], [0, 0]),
        ([SLEEPS, "raise SystemExit(3)"], [-signal.SIGTERM, 3]),
    ],
)
def test_ranks_are_waited_for_until_one_fails(programs: list[str], expected: list[int]) -> None:
    ranks = start(*programs)
    assert watch(ranks, 30, lambda: False, leave_s=0.3) == "exited"
    assert codes(ranks) == expected


def test_the_time_limit_ends_a_run_that_ignores_sigterm() -> None:
    ranks = start(STUBBORN)
    assert ranks[0].stdout is not None
    assert ranks[0].stdout.readline() == b"ready\n"
    assert watch(ranks, 0.1, lambda: False, grace_s=0.5) == "timeout"
    assert codes(ranks) == [-signal.SIGKILL]


def test_asked_to_stop_it_ends_them_all() -> None:
    ranks = start(SLEEPS, SLEEPS)
    asked = iter([False, True])
    assert watch(ranks, 30, lambda: next(asked)) == "cancelled"
    assert codes(ranks) == [-signal.SIGTERM, -signal.SIGTERM]


def test_what_is_started_while_bound_stays_on_those_cores() -> None:
    cpu = usable_cpus()[-1]
    with processes.bound_to([cpu]):
        said = subprocess.run(
            [sys.executable, "-c", "import os; print(*os.sched_getaffinity(0))"],
            capture_output=True,
            text=True,
            check=True,
        )
    assert said.stdout.split() == [str(cpu)]
    assert len(usable_cpus()) == len(os.sched_getaffinity(0)), "and this process is free again"


def test_no_rank_outlives_the_process_that_started_it() -> None:
    starter = (
        "import subprocess, sys, time; from hpcncf.worker import processes;"
        f"p = subprocess.Popen([sys.executable, '-c', {SLEEPS!r}],"
        " preexec_fn=processes.end_with_parent);"
        "print(p.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", starter], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    parent.stdout.close()
    parent.kill()
    parent.wait()
    assert within(120, lambda: not alive(child))
