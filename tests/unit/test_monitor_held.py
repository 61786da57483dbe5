"""Quotas and pressure: the kernel's counters of cgroup v1 and v2, and of the whole node."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcncf.monitor.cgroup import Counters, Held, between, read_counters

V2 = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
V1 = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
STAT = "usage_usec 900\nnr_periods 40\nnr_throttled 7\nthrottled_usec {}\n"
PRESSURE = "some avg10=0.00 avg60=1.25 avg300=0.00 total={}\nfull avg10=0.00 total=1\n"


def written(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture
def v2(tmp_path: Path) -> Path:
    """A job's quota, held back for 2.5 s of CPU time; its task below has none of its own."""
    return written(
        tmp_path,
        {
            "proc/self/cgroup": "0::/job_7/task_0\n",
            "proc/self/mountinfo": V2,
            "sys/fs/cgroup/job_7/cpu.stat": STAT.format(2_500_000),
            "sys/fs/cgroup/job_7/task_0/cpu.stat": STAT.format(0),
            "sys/fs/cgroup/job_7/task_0/memory.pressure": PRESSURE.format(1_500_000),
            "proc/pressure/memory": PRESSURE.format(9_000_000),
            "proc/pressure/io": PRESSURE.format(4_000_000),
        },
    )


def test_v2_says_microseconds_of_the_cgroup_with_the_most(v2: Path) -> None:
    before = read_counters(v2)
    written(v2, {"sys/fs/cgroup/job_7/cpu.stat": STAT.format(6_000_000)})
    assert between(before, read_counters(v2)).throttled_s == 3.5


def test_v1_says_nanoseconds(tmp_path: Path) -> None:
    file = "sys/fs/cgroup/cpu/job_7/cpu.stat"
    root = written(
        tmp_path,
        {
            "proc/self/cgroup": "3:cpu,cpuacct:/job_7\n0::/\n",
            "proc/self/mountinfo": V1,
            file: "nr_periods 4\nnr_throttled 1\nthrottled_time 500000000\n",
        },
    )
    before = read_counters(root)
    written(root, {file: "nr_periods 9\nnr_throttled 3\nthrottled_time 2500000000\n"})
    assert between(before, read_counters(root)).throttled_s == pytest.approx(2.0)


def test_pressure_is_the_own_cgroups_and_the_nodes_where_that_keeps_none(v2: Path) -> None:
    before = read_counters(v2)
    assert (before.memory_s, before.io_s) == (1.5, 4.0)
    (v2 / "proc/pressure/io").write_text(PRESSURE.format(4_250_000))
    after = between(before, read_counters(v2))
    assert (after.memory_s, after.io_s) == (0.0, 0.25)


def test_what_nobody_counts_is_none_and_never_zero(tmp_path: Path) -> None:
    nothing = read_counters(tmp_path)
    assert between(nothing, nothing) == Held(None, None, None)


def test_a_counter_that_is_reported_at_one_end_only_says_nothing() -> None:
    one = Counters({Path("a"): 1.0}, 1.0, None)
    other = Counters({Path("b"): 5.0}, None, 2.0)
    assert between(one, other) == Held(None, None, None)
