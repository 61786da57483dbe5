"""A monitor beside real work: what it leaves holds together and agrees with the kernel."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcncf.monitor import procfs
from hpcncf.monitor.cgroup import usable, usable_cpus
from hpcncf.monitor.monitor_thread import Measured, Monitor
from hpcncf.monitor.node_cores import NodeSampler, cpu_times, read_counters, shared_out
from hpcncf.monitor.process_tree import Tree, own, waited
from hpcncf.monitor.thread_waits import Blocked, Growing, Waits
from hpcncf.records.schema import NodeRecord, read_record

# Another worker of pytest-xdist has this one's parent and command line, as a rank has.
alone = pytest.mark.alone
SPIN = "import time\nwhile time.process_time() < {seconds}: pass\n"


def spin(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def measured(**settings: Any) -> Measured:
    monitor = Monitor("run", 1, **settings)
    monitor.start()
    return monitor.stop()


@alone
def test_record_and_series_of_a_rank_agree_with_the_kernel(tmp_path: Path) -> None:
    file = tmp_path / "attempt-1" / "node-0.json"
    monitor = Monitor("run", 1, node_file=file, interval_s=0.1)
    before_s = (own() + waited()).cpu_s
    monitor.start()
    threads = [threading.Thread(target=spin, args=(0.2,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    so_far, age_s = monitor.so_far(), procfs.age_s(os.getpid())
    found = monitor.stop()
    account_s = (own() + waited()).cpu_s
    spent_s = found.cpu.user_s + found.cpu.system_s

    assert age_s - 0.02 <= found.elapsed_s <= procfs.age_s(os.getpid()) + 0.02
    length = datetime.fromisoformat(found.ended_at) - datetime.fromisoformat(found.started_at)
    assert length.total_seconds() == pytest.approx(found.elapsed_s, abs=0.002)
    assert spent_s == pytest.approx(account_s, abs=0.05)
    assert found.cpu.efficiency == pytest.approx(spent_s / found.elapsed_s / found.cores.allocated)
    assert 0 < so_far["cpu_efficiency"] < 1.5
    assert (so_far["cores_usable"], so_far["cores_allocated"]) == (usable(), usable())
    assert found.cores.cpus == usable_cpus()
    assert found.cores.allocated == found.cores.usable, "nothing was granted"
    assert found.cpu.threads_peak >= 3, "with the monitor's own"
    assert found.memory.rss_peak_mib > 1

    node = read_record(file, NodeRecord)
    assert node.cpus == usable_cpus()
    assert sum(node.tree_cpu_s) == pytest.approx(spent_s - before_s, abs=0.1)
    assert len(node.busy) == len(node.ours) == len(node.cpus)
    series = [*node.busy, *node.ours, node.length_s, node.steal, node.rss_mib, node.network_mib]
    assert {len(each) for each in series} == {len(node.start_s)}
    for ours, busy in zip(node.ours, node.busy, strict=True):
        assert all(0 <= mine <= all_ <= 1 for mine, all_ in zip(ours, busy, strict=True))


@alone
def test_a_child_is_measured_without_its_parent_and_the_parents_past() -> None:
    subprocess.run([sys.executable, "-c", SPIN.format(seconds=0.3)], check=True)
    with subprocess.Popen([sys.executable, "-c", SPIN.format(seconds=0.4)]) as child:
        monitor = Monitor("run", 1, pid=child.pid, interval_s=0.05)
        monitor.start()
        spin(0.3)
        child.wait()
        found = monitor.stop()
    assert 0.4 <= found.cpu.user_s + found.cpu.system_s < 0.6
    assert found.cpu.processes_peak == 1
    assert found.elapsed_s < 60


GROW = """\
import sys
sys.stdin.readline()
taken = b"x" * (200 << 20)
print("taken", flush=True)
sys.stdin.readline()
del taken
print("given back", flush=True)
sys.stdin.readline()
"""


@alone
def test_memory_that_is_given_back_before_the_next_sample_is_seen() -> None:
    command = [sys.executable, "-c", GROW]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as one:
        monitor = Monitor("run", 1, pid=one.pid, interval_s=60.0)
        monitor.start()
        time.sleep(4.0)  # the samples have grown rare: the next come after 6.35 and 12.75 s
        print(file=one.stdin, flush=True)
        assert one.stdout.readline() == "taken\n"
        time.sleep(1.0)
        print(file=one.stdin, flush=True)
        assert one.stdout.readline() == "given back\n"
        found = monitor.stop()
        print(file=one.stdin, flush=True)
    assert found.memory.rss_peak_mib > 200
    assert found.memory.anonymous_peak_mib > 200


def test_what_was_granted_and_asked_for_is_what_is_reported(tmp_path: Path) -> None:
    last = usable_cpus()[-1]
    found = measured(allocated=1000.0, node_cpus=[last], node_file=tmp_path / "node-0.json")
    assert (found.cores.allocated, found.cores.usable) == (1000, usable())
    assert any("of 1000 allocated cores" in warning for warning in found.warnings)
    assert read_record(tmp_path / "node-0.json", NodeRecord).cpus == [last]


def test_a_series_that_cannot_be_written_is_a_warning_and_not_the_end(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = measured(node_file=tmp_path / "file" / "node-0.json")
    assert any("not written" in warning for warning in found.warnings)


@pytest.mark.skipif(len(usable_cpus()) < 2, reason="a single CPU: no other mask to change to")
def test_a_mask_that_changed_is_reported() -> None:
    """Of this thread: a monitor reads the mask of the process by its first thread."""
    before = os.sched_getaffinity(0)
    monitor = Monitor("run", 1)
    monitor.start()
    os.sched_setaffinity(os.getpid(), {min(before)})
    try:
        assert monitor.stop().cores.affinity_changed
    finally:
        os.sched_setaffinity(os.getpid(), before)


SIBLING = """
import sys, time
from pathlib import Path
from hpcncf.monitor.monitor_thread import Monitor
number = int(sys.stdin.readline())
monitor = Monitor("r", 1, node_file=Path(sys.argv[1]) if number == 0 else None, interval_s=0.1)
monitor.start()
print("up", flush=True)
if number == 1:
    until = time.process_time() + 0.8
    while time.process_time() < until: pass
    print("done", flush=True)
sys.stdin.readline()
print(sum(monitor.node_record().tree_cpu_s), flush=True)
"""


@alone
def test_the_runs_other_ranks_on_the_node_are_ours_too(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SIBLING, str(tmp_path / "node-0.json")]
    ranks = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for number, rank in enumerate(ranks):
        print(number, file=rank.stdin, flush=True)
        assert rank.stdout.readline() == "up\n"
    assert ranks[1].stdout.readline() == "done\n"
    time.sleep(0.3)  # the node is sampled every 0.1 s
    first, _ = ranks[0].communicate("\n")
    ranks[1].communicate("\n")
    assert float(first) > 0.4, "rank 1's seconds are in rank 0's series"


STAT = b"""\
cpu  300 30 60 1000 50 6 9 12 5 0
cpu0 100 10 20 500 25 3 4 5 5 0
cpu7 200 20 40 500 25 3 5 7 0 0
intr 12345 0 0
"""


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


def test_the_nodes_counters_only_grow() -> None:
    first, second = read_counters(), read_counters()
    assert set(usable_cpus()) <= set(first.busy_s)
    assert all(second.busy_s[cpu] >= first.busy_s[cpu] for cpu in first.busy_s)
    assert second.network_mib >= first.network_mib
    assert second.disk_mib >= first.disk_mib
    assert first.memory_used_mib > 0


@alone
def test_a_busy_child_is_seen_on_the_cpu_it_was_bound_to() -> None:
    cpu = usable_cpus()[-1]
    tree = Tree(os.getpid())
    watched = NodeSampler(tree, usable_cpus())
    before = tree.sample().cpu_s
    code = f"import os\nos.sched_setaffinity(0, {{{cpu}}})\n" + SPIN.format(seconds=0.6)
    with subprocess.Popen(
        [sys.executable, "-c", code + "print(flush=True)\ninput()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as child:  # fmt: skip
        child.stdout.readline()
        sample = tree.sample()
        window = watched.sample(sample)
        child.communicate("\n")
    assert window.tree_cpu_s >= 0.55
    assert window.tree_cpu_s == pytest.approx(sample.cpu_s - before, abs=0.05)
    assert window.ours_s[-1] >= 0.5
    assert window.busy_s[-1] >= window.ours_s[-1]


def test_a_counter_counts_from_its_threads_begin_and_outlives_it() -> None:
    sums = Growing()
    assert sums.total is None
    sums.add({(1, 1): 2.0})
    sums.add({(1, 1): 2.5, (1, 9): 1.0})
    sums.add({(1, 9): 1.25})
    assert sums.total == 3.75
    sums.add({(1, 9): 0.5})  # a new thread, which got the number
    assert sums.total == 4.25


def test_where_there_is_no_thread_nothing_is_known() -> None:
    waits = Waits()
    waits.look_closely([(2**22 + 1, 2**22 + 1)])  # above the largest process id
    assert waits.runqueue_s is None


def test_who_waits_at_a_look_has_waited_since_the_last_one() -> None:
    blocked = Blocked()
    blocked.look(3, 10.0)
    assert blocked.total_s is None, "nothing is known of the time before the first look"
    for waiting, at_s in ((2, 10.5), (0, 12.0), (1, 12.25)):
        blocked.look(waiting, at_s)
    assert blocked.total_s == 2 * 0.5 + 0.25


@alone
def test_two_processes_on_one_cpu_wait_for_it_in_turns() -> None:
    bound = f"import os, sys\nos.sched_setaffinity(0, {{{min(usable_cpus())}}})\n"
    # Longer than the pause after a look, which is a thousand times what the look cost.
    words = [sys.executable, "-c", bound + "sys.stdin.readline()\n" + SPIN.format(seconds=1.2)]
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
    cpu = monitor.stop().cpu
    assert cpu.main_s == pytest.approx(cpu.children_s, abs=0.1)
    if cpu.runqueue_s is not None:
        assert cpu.runqueue_s > 0.3
        assert cpu.runnable_mean is not None
