"""The node's counters, and whose seconds they were."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcncf.monitor import procfs
from hpcncf.monitor.cgroup import usable_cpus
from hpcncf.monitor.node import Node, cpu_times, read_counters, shared_out
from hpcncf.monitor.process_tree import Tree

STAT = b"""\
cpu  300 30 60 1000 50 6 9 12 5 0
cpu0 100 10 20 500 25 3 4 5 5 0
cpu7 200 20 40 500 25 3 5 7 0 0
intr 12345 0 0
"""

linux = pytest.mark.skipif(not procfs.LINUX, reason="reads /proc")


def test_busy_is_neither_idle_nor_waiting_for_disks_nor_stolen() -> None:
    busy_s, steal_s = cpu_times(STAT)
    ticks = {cpu: round(seconds / procfs.TICK_S) for cpu, seconds in busy_s.items()}
    assert ticks == {0: 100 + 10 + 20 + 3 + 4, 7: 200 + 20 + 40 + 3 + 5}
    assert {cpu: round(s / procfs.TICK_S) for cpu, s in steal_s.items()} == {0: 5, 7: 7}


SECONDS = st.floats(0, 2)


@given(
    cpus=st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=8), tree_cpu_s=st.floats(0, 20)
)
def test_our_share_is_what_was_seen_and_what_was_not_and_fits_the_busy_time(
    cpus: list[tuple[float, float]], tree_cpu_s: float
) -> None:
    ran_s, busy_s = zip(*cpus, strict=True)
    ours = shared_out(ran_s, busy_s, tree_cpu_s)
    for mine, ran, busy in zip(ours, ran_s, busy_s, strict=True):
        assert min(ran, busy) - 1e-9 <= mine <= busy + 1e-9
    seen = sum(map(min, ran_s, busy_s))
    assert sum(ours) == pytest.approx(max(seen, min(tree_cpu_s, sum(busy_s))))


@linux
def test_counters_only_grow() -> None:
    first, second = read_counters(), read_counters()
    assert set(usable_cpus()) <= set(first.busy_s)
    assert all(second.busy_s[cpu] >= first.busy_s[cpu] for cpu in first.busy_s)
    assert second.network_mib >= first.network_mib
    assert second.disk_mib >= first.disk_mib
    assert first.memory_used_mib > 0


@linux
@pytest.mark.alone  # another worker of pytest-xdist has this one's parent and command
def test_a_busy_child_is_seen_on_the_cpu_it_was_bound_to() -> None:
    cpu = usable_cpus()[-1]
    tree = Tree(os.getpid())
    watched = Node(tree, usable_cpus())
    before = tree.sample().cpu_s
    code = (
        f"import os, time\nos.sched_setaffinity(0, {{{cpu}}})\n"
        "until = time.process_time() + 0.6\n"
        "while time.process_time() < until: pass\nprint(flush=True)\ninput()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        child.stdout.readline()
        sample = tree.sample()
        window = watched.sample(sample)
        child.communicate("\n")
    assert window.tree_cpu_s >= 0.55
    assert window.tree_cpu_s == pytest.approx(sample.cpu_s - before, abs=0.05)
    assert window.ours_s[-1] >= 0.5
    assert window.busy_s[-1] >= window.ours_s[-1]
