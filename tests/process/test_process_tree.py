"""The CPU seconds of real process trees, against what their own processes say they spent."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hpcncf.monitor import procfs
from hpcncf.monitor.process_tree import Spent, Tree, own, waited

# Another worker of pytest-xdist has this one's parent and command line, as a rank has.
pytestmark = pytest.mark.alone

SPIN = "import time\nwhile time.process_time() < {seconds}: pass\n"
# CPU seconds of the whole program, printed when its work is done; then it waits for a line.
PRINTED = """
import resource, sys
usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(sum(usage.ru_utime + usage.ru_stime for usage in usages), flush=True)
sys.stdin.readline()
"""
START = "import subprocess, sys\nrun = [sys.executable, '-c']\n"


@contextmanager
def program(code: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.communicate("\n")


def seen_s(process: subprocess.Popen[str]) -> float:
    return float(process.stdout.readline())


def ticks(count: int) -> float:
    return count * procfs.TICK_S


@pytest.mark.parametrize(
    "work",
    [
        SPIN.format(seconds=0.3),
        START + f"subprocess.run([*run, {SPIN.format(seconds=0.3)!r}])\n",
        START + f"[p.wait() for p in [subprocess.Popen([*run, {SPIN.format(seconds=0.2)!r}])"
        " for _ in range(3)]]\n",
        "import threading\ndef spin():\n    sum(range(10**7))\n"
        "ts = [threading.Thread(target=spin) for _ in range(3)]\n"
        "[t.start() for t in ts]; [t.join() for t in ts]\n",
    ],
    ids=["alone", "a child that ended", "three children", "threads that ended"],
)
def test_a_tree_spent_what_it_says_it_spent(work: str) -> None:
    with program(work + PRINTED) as root:
        said_s = seen_s(root)
        sample = Tree(root.pid).sample()
    # It goes on for a moment after it asked, and each of its two clocks is cut to a tick.
    assert said_s - ticks(4) <= sample.cpu_s <= said_s + ticks(10)


def test_a_child_is_counted_once_while_it_lives_as_a_zombie_and_after() -> None:
    work = START + (
        f"child = subprocess.Popen([*run, {SPIN.format(seconds=0.3)!r}])\n"
        "import os\nos.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)\n"
        "print(0, flush=True); sys.stdin.readline()\nchild.wait()\n"
    )
    with program(work + PRINTED) as root:
        seen_s(root)
        watched = Tree(root.pid)
        zombie = watched.sample()
        root.stdin.write("\n")
        root.stdin.flush()
        said_s = seen_s(root)
        after = watched.sample()
    assert len(zombie.pids) == 2
    assert len(after.pids) == 1
    assert zombie.cpu_s >= 0.3 - ticks(2)  # each of its two clocks is cut to a tick
    assert after.cpu_s == pytest.approx(said_s, abs=ticks(10))


def test_the_time_of_a_child_that_nobody_waited_for_is_kept() -> None:
    work = (
        "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        + START
        + f"child = subprocess.Popen([*run, {(SPIN.format(seconds=0.3) + PRINTED)!r}],"
        " stdin=subprocess.PIPE)\n"
        "sys.stdin.readline(); child.communicate(b'\\n')\n"
    )
    with program(work + PRINTED) as root:
        child_said_s = seen_s(root)
        watched = Tree(root.pid)
        before = watched.sample()
        root.stdin.write("\n")
        root.stdin.flush()
        root_said_s = seen_s(root)  # which does not know of the child
        after = watched.sample()
    assert len(after.pids) == len(before.pids) - 1
    assert after.cpu_s >= before.cpu_s
    assert after.cpu_s == pytest.approx(child_said_s + root_said_s, abs=ticks(15))


def test_an_orphan_that_was_known_stays_in_the_tree() -> None:
    orphan = "import sys, time; print(0, flush=True); time.sleep(30)"
    middle = START + f"subprocess.Popen([*run, {orphan!r}])\nsys.stdin.readline()\n"
    root_code = START + f"subprocess.run([*run, {middle!r}])\n"
    with program(root_code + PRINTED) as root:
        seen_s(root)
        watched = Tree(root.pid)
        before = watched.sample()
        root.stdin.write("\n")
        root.stdin.flush()
        seen_s(root)
        after = watched.sample()
        (left,) = set(after.pids) - {root.pid}
        os.kill(left, signal.SIGKILL)
    assert len(before.pids) == 3
    assert len(after.pids) == 2


def test_a_total_never_falls() -> None:
    work = START + f"[subprocess.run([*run, {SPIN.format(seconds=0.02)!r}]) for _ in range(15)]\n"
    with program(work + PRINTED) as root:
        watched = Tree(root.pid)
        totals = []
        while not select.select([root.stdout], [], [], 0)[0]:
            totals.append(watched.sample().cpu_s)
            time.sleep(0.003)
        said_s = seen_s(root)
        totals.append(watched.sample().cpu_s)
    assert totals == sorted(totals)
    assert totals[-1] == pytest.approx(said_s, abs=ticks(10))


def test_the_root_need_not_be_counted_and_its_past_is_taken_off() -> None:
    subprocess.run([sys.executable, "-c", SPIN.format(seconds=0.2)], check=True)
    watched = Tree(os.getpid(), count_root=False, before=waited())
    assert watched.sample().pids == ()
    subprocess.run([sys.executable, "-c", SPIN.format(seconds=0.3)], check=True)
    assert 0.3 <= watched.sample().cpu_s < 0.5


def test_this_process_is_counted_as_the_kernel_counts_it() -> None:
    spent, sample = Tree(os.getpid()).spent(), Tree(os.getpid()).sample()
    assert sample.cpu_s == pytest.approx((own() + waited()).cpu_s, abs=0.05)
    assert sample.rss_mib >= sample.anonymous_mib > 0
    assert os.getpid() in sample.pids
    assert spent.voluntary > 0
    assert spent.read_bytes >= 0
    assert Spent(1, 2, 3, 4, 5, 6) + Spent(1, 1, 1, 1, 1, 1) == Spent(2, 3, 4, 5, 6, 7)
    assert Spent(1, 2, 3, 4, 5, 6) - Spent(1, 2, 3, 4, 5, 6) == Spent()


def test_a_process_is_read_whatever_its_name_and_found_without_the_kernels_list() -> None:
    code = "open('/proc/self/comm', 'w').write('a) R 1 (b')\n"
    begun_s = time.monotonic()
    with program(code + PRINTED) as root:
        seen_s(root)
        found, age_s = procfs.stat(f"/proc/{root.pid}"), procfs.age_s(root.pid)
        assert 0 < age_s <= time.monotonic() - begun_s + ticks(2)
        assert root.pid in procfs.children_by_scan()(os.getpid(), [])
        assert root.pid in procfs.children(os.getpid(), procfs.thread_ids(os.getpid()))
    assert (found.parent, found.threads) == (os.getpid(), 1)
    assert procfs.stat(f"/proc/{root.pid}") is None, "it has ended"
    assert procfs.memory_mib(root.pid) == (0.0, 0.0)
    assert Tree(root.pid).sample().cpu_s == 0.0
