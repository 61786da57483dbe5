"""A monitor beside real work: what it leaves holds together and agrees with the kernel."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from datetime import datetime
from pathlib import Path

import pytest

from hpcncf.monitor import procfs
from hpcncf.monitor.cgroup import usable_cpus
from hpcncf.monitor.monitor_thread import Monitor
from hpcncf.monitor.process_tree import own, waited
from hpcncf.records.schema import NodeRecord, read_record

# Alone: another worker of pytest-xdist has this one's parent and command line, as a rank has.
pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(not procfs.LINUX, reason="reads /proc"),
]

SPIN = "import time\nwhile time.process_time() < {seconds}: pass\n"


def spin(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_a_rank_is_measured_from_its_own_start() -> None:
    monitor = Monitor("run", 1, interval_s=0.05)
    monitor.start()
    spin(0.3)
    efficiency = monitor.efficiency()
    age_s = procfs.age_s(os.getpid())
    found = monitor.stop()
    account_s = (own() + waited()).cpu_s

    assert age_s - 0.02 <= found.elapsed_s <= procfs.age_s(os.getpid()) + 0.02
    assert found.cpu.user_s + found.cpu.system_s == pytest.approx(account_s, abs=0.05)
    assert found.cpu.efficiency == pytest.approx(
        (found.cpu.user_s + found.cpu.system_s) / found.elapsed_s / found.cores.allocated
    )
    assert efficiency is not None
    assert 0 < efficiency < 1.5
    length = datetime.fromisoformat(found.ended_at) - datetime.fromisoformat(found.started_at)
    assert length.total_seconds() == pytest.approx(found.elapsed_s, abs=0.002)
    assert found.cores.cpus == usable_cpus()
    assert found.cpu.threads_peak >= 2, "the monitor's own thread at least"
    assert found.memory.rss_peak_mib > 1


def test_a_child_is_measured_without_its_parent_and_the_parents_past() -> None:
    subprocess.run([sys.executable, "-c", SPIN.format(seconds=0.3)], check=True)
    with subprocess.Popen([sys.executable, "-c", SPIN.format(seconds=0.4)]) as child:
        monitor = Monitor("run", 1, pid=child.pid, interval_s=0.05)
        monitor.start()
        spin(0.3)
        child.wait()
        found = monitor.stop()
    spent_s = found.cpu.user_s + found.cpu.system_s
    assert 0.4 <= spent_s < 0.6
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


def test_memory_that_is_given_back_before_the_next_sample_is_seen() -> None:
    command = [sys.executable, "-c", GROW]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as one:
        assert one.stdin is not None
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
    assert found.memory.anonymous_peak_mib is None or found.memory.anonymous_peak_mib > 200


def test_the_node_file_says_the_same_seconds_as_the_record(tmp_path: Path) -> None:
    file = tmp_path / "attempt-1" / "node-0.json"
    monitor = Monitor("run", 1, node_file=file, interval_s=0.1)
    before_s = (own() + waited()).cpu_s
    monitor.start()
    threads = [threading.Thread(target=spin, args=(0.3,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = monitor.stop()
    node = read_record(file, NodeRecord)
    grown_s = found.cpu.user_s + found.cpu.system_s - before_s

    assert node.cpus == usable_cpus()
    assert sum(node.tree_cpu_s) == pytest.approx(grown_s, abs=0.1)
    assert len(node.busy) == len(node.ours) == len(node.cpus)
    windows = len(node.start_s)
    series = [*node.busy, *node.ours, node.length_s, node.steal, node.rss_mib, node.network_mib]
    assert all(len(each) == windows for each in series)
    assert all(0 <= share <= 1 for cpu in (*node.busy, *node.ours) for share in cpu)
    assert all(
        ours <= busy
        for mine, all_busy in zip(node.ours, node.busy, strict=True)
        for ours, busy in zip(mine, all_busy, strict=True)
    )


def test_only_the_cpus_asked_for_are_reported(tmp_path: Path) -> None:
    last = usable_cpus()[-1]
    monitor = Monitor("run", 1, node_file=tmp_path / "node-0.json", node_cpus=[last])
    monitor.start()
    monitor.stop()
    assert read_record(tmp_path / "node-0.json", NodeRecord).cpus == [last]


def test_a_series_that_cannot_be_written_is_a_warning_and_not_the_end(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monitor = Monitor("run", 1, node_file=tmp_path / "file" / "node-0.json")
    monitor.start()
    assert any("not written" in warning for warning in monitor.stop().warnings)


def test_more_allocated_than_usable_is_warned_of() -> None:
    monitor = Monitor("run", 1, allocated=1000.0)
    monitor.start()
    found = monitor.stop()
    assert found.cores.allocated == 1000
    assert found.cores.usable <= len(usable_cpus())
    assert any("of 1000 allocated cores" in warning for warning in found.warnings)


def test_without_a_grant_what_can_be_used_is_what_was_allocated() -> None:
    monitor = Monitor("run", 1)
    monitor.start()
    cores = monitor.stop().cores
    assert cores.allocated == cores.usable


def test_a_mask_that_changed_is_reported() -> None:
    if len(usable_cpus()) < 2:
        pytest.skip("a single CPU: no other mask to change to")
    code = (
        "import os, time\nfrom hpcncf.monitor.monitor_thread import Monitor\n"
        "m = Monitor('r', 1)\nm.start()\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "print(m.stop().cores.affinity_changed)\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "True\n"


SIBLING = """
import sys, time
from pathlib import Path
from hpcncf.monitor.monitor_thread import Monitor
number = int(sys.stdin.readline())
monitor = Monitor("r", 1, node_file=Path(sys.argv[1]) if number == 0 else None, interval_s=0.1)
monitor.start()
print("up", flush=True)
if number == 1:
    until = time.process_time() + 1.0
    while time.process_time() < until: pass
    print("done", flush=True)
sys.stdin.readline()
print(sum(monitor.node_record().tree_cpu_s), flush=True)
"""


def test_the_runs_other_ranks_on_the_node_are_ours_too(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SIBLING, str(tmp_path / "node-0.json")]
    ranks = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outs = []
    for number, rank in enumerate(ranks):
        rank.stdin.write(f"{number}\n")
        rank.stdin.flush()
        assert rank.stdout.readline() == "up\n"
        outs.append(rank.stdout)
    assert outs[1].readline() == "done\n"
    time.sleep(0.3)  # the node is sampled every 0.1 s
    first, _ = ranks[0].communicate("\n")
    ranks[1].communicate("\n")
    assert float(first) > 0.5, "rank 1's seconds are in rank 0's series"
