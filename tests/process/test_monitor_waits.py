"""What threads waited for: the sum over all that were ever seen, and real threads on one CPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from hpcncf.monitor import procfs
from hpcncf.monitor.monitor_thread import Monitor
from hpcncf.monitor.thread_waits import Blocked, Growing, Waits

BOUND = """\
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
sys.stdin.readline()
while time.process_time() < float(sys.argv[2]): pass
"""


def test_a_counter_counts_from_its_threads_begin_and_outlives_it() -> None:
    sums = Growing()
    assert sums.total is None
    sums.add({(1, 1): 2.0})
    sums.add({(1, 1): 2.5, (1, 9): 1.0})
    sums.add({(1, 9): 1.25})
    assert sums.total == 3.75


def test_a_number_given_to_a_new_thread_counts_anew() -> None:
    sums = Growing()
    sums.add({(1, 5): 2.0})
    sums.add({(1, 5): 0.5})
    assert sums.total == 2.5


def test_where_there_is_no_thread_nothing_is_known() -> None:
    waits = Waits()
    waits.look_closely([(2**22 + 1, 2**22 + 1)])  # above the largest process id
    assert waits.runqueue_s is None


@pytest.mark.alone
@pytest.mark.skipif(not procfs.LINUX, reason="reads /proc")
def test_two_processes_on_one_cpu_wait_for_it_in_turns() -> None:
    cpu = min(os.sched_getaffinity(0))
    # Much longer than the pause after a look, which is a thousand times what the look cost.
    words = [sys.executable, "-c", BOUND, str(cpu), "1.5"]
    pair = [subprocess.Popen(words, stdin=subprocess.PIPE) for _ in range(2)]
    monitor = Monitor("run", 1, pid=pair[0].pid, interval_s=0.05)
    monitor.start()
    for one in pair:
        one.stdin.write(b"\n")
        one.stdin.close()
    for one in pair:
        os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOWAIT)
    monitor.see_main()  # it has ended, and nobody has waited for it
    for one in pair:
        one.wait()
    cpu_s = monitor.stop().cpu
    assert cpu_s.main_s is not None
    assert cpu_s.children_s is not None
    assert cpu_s.main_s == pytest.approx(cpu_s.children_s, abs=0.1)
    if cpu_s.runqueue_s is not None:
        assert cpu_s.runqueue_s > 0.3
        assert cpu_s.runnable_mean is not None


def test_who_waits_at_a_look_has_waited_since_the_last_one() -> None:
    blocked = Blocked()
    blocked.look(3, 10.0)
    assert blocked.total_s is None, "nothing is known of the time before the first look"
    blocked.look(2, 10.5)
    blocked.look(0, 12.0)
    blocked.look(1, 12.25)
    assert blocked.total_s == 2 * 0.5 + 0.25
