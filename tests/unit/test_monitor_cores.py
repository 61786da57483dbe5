"""Cgroup trees as the kernel shows them, v1 and v2, inside containers and not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcncf.monitor import cgroup

V2 = "30 23 0:26 {top} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "32 31 0:29 {top} /sys/fs/cgroup/{name} rw,relatime - cgroup cgroup rw,{name}\n"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def v2(root: Path, path: str, files: dict[str, str], top: str = "/") -> Path:
    (root / "sys/fs/cgroup" / path.strip("/")).mkdir(parents=True)
    proc = {"proc/self/cgroup": f"0::{path}\n", "proc/self/mountinfo": V2.format(top=top)}
    return write(root, proc | {f"sys/fs/cgroup/{name}": text for name, text in files.items()})


def v1(root: Path, path: str, files: dict[str, str], top: str = "/") -> Path:
    names = ("cpu", "memory", "cpuset")
    for name in names:
        (root / "sys/fs/cgroup" / name / path.removeprefix(top).strip("/")).mkdir(parents=True)
    proc = {
        "proc/self/cgroup": "".join(f"{n}:{name}:{path}\n" for n, name in enumerate(names, 1)),
        "proc/self/mountinfo": "".join(V1.format(top=top, name=name) for name in names),
    }
    return write(root, proc | {f"sys/fs/cgroup/{name}": text for name, text in files.items()})


def test_the_smallest_v2_quota_above_the_process_counts(tmp_path: Path) -> None:
    root = v2(
        tmp_path,
        "/slurm/job_1/step_0",
        {
            "slurm/cpu.max": "800000 100000\n",
            "slurm/job_1/cpu.max": "150000 100000\n",
            "slurm/job_1/step_0/cpu.max": "max 100000\n",
        },
    )
    limit = cgroup.cpu_limit(root)
    assert limit.value == 1.5
    assert limit.file == root / "sys/fs/cgroup/slurm/job_1/cpu.max"


def test_v2_max_is_no_limit(tmp_path: Path) -> None:
    root = v2(tmp_path, "/a", {"a/cpu.max": "max 100000\n", "a/memory.max": "max\n"})
    assert cgroup.cpu_limit(root) is None
    assert cgroup.memory_limit(root) is None


def test_the_memory_limit_of_the_job_holds_where_the_task_has_none(tmp_path: Path) -> None:
    root = v1(
        tmp_path,
        "/slurm/uid_0/job_7/step_0/task_0",
        {
            "memory/slurm/uid_0/job_7/step_0/task_0/memory.limit_in_bytes": str(2**63 - 4096),
            "memory/slurm/uid_0/job_7/step_0/memory.limit_in_bytes": str(2**30),
            "memory/slurm/uid_0/job_7/memory.limit_in_bytes": str(2**31),
        },
    )
    limit = cgroup.memory_limit(root)
    assert limit.value == 1024


def test_v1_quota_is_quota_over_period_and_minus_one_is_none(tmp_path: Path) -> None:
    root = v1(
        tmp_path,
        "/a/b",
        {
            "cpu/a/b/cpu.cfs_quota_us": "-1",
            "cpu/a/b/cpu.cfs_period_us": "100000",
            "cpu/a/cpu.cfs_quota_us": "250000",
            "cpu/a/cpu.cfs_period_us": "50000",
        },
    )
    limit = cgroup.cpu_limit(root)
    assert limit.value == 5


def test_a_container_sees_its_own_cgroup_at_the_top_of_the_mount(tmp_path: Path) -> None:
    root = v1(
        tmp_path,
        "/docker/abc",
        {"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"},
        top="/docker/abc",
    )
    limit = cgroup.cpu_limit(root)
    assert limit.value == 2


def test_a_path_outside_the_mount_falls_back_to_the_mount(tmp_path: Path) -> None:
    root = v2(tmp_path, "/", {"cpu.max": "50000 100000"})
    write(root, {"proc/self/cgroup": "0::/../../elsewhere\n"})
    limit = cgroup.cpu_limit(root)
    assert limit.value == 0.5


@pytest.mark.parametrize("name", ["cpuset.cpus", "cpuset.effective_cpus"])
def test_a_v1_cpuset_is_read(tmp_path: Path, name: str) -> None:
    root = v1(tmp_path, "/job", {f"cpuset/job/{name}": "0-1,8\n"})
    assert cgroup.cpuset(root) == [0, 1, 8]


def test_the_processes_of_a_slurm_step_are_those_of_its_tasks(tmp_path: Path) -> None:
    tasks = {f"job_1/step_0/user/task_{n}/cgroup.procs": f"{n}1\n{n}2\n" for n in (0, 1)}
    root = v2(tmp_path, "/job_1/step_0/user/task_0", tasks | {"job_1/cgroup.procs": "9\n"})
    step = cgroup.step(root)
    assert step == root / "sys/fs/cgroup/job_1/step_0"
    assert sorted(cgroup.processes(step)) == [1, 2, 11, 12]


def test_outside_of_a_slurm_step_there_is_none(tmp_path: Path) -> None:
    assert cgroup.step(v1(tmp_path, "/user", {})) is None


def test_without_cgroups_nothing_limits(tmp_path: Path) -> None:
    assert cgroup.cpu_limit(tmp_path) is None
    assert cgroup.memory_limit(tmp_path) is None
    assert cgroup.cpuset(tmp_path) is None
    assert cgroup.cgroup_version(tmp_path) is None
    assert cgroup.threads_per_core(tmp_path) is None


def test_the_version_says_hybrid_from_pure(tmp_path: Path) -> None:
    assert cgroup.cgroup_version(v2(tmp_path / "2", "/a", {})) == "v2"
    only_v1 = v1(tmp_path / "1", "/a", {})
    assert cgroup.cgroup_version(only_v1) == "v1"
    mounts = only_v1 / "proc/self/mountinfo"
    mounts.write_text(mounts.read_text() + V2.format(top="/"))
    assert cgroup.cgroup_version(only_v1) == "hybrid"


def test_hardware_threads_of_a_core(tmp_path: Path) -> None:
    name = "sys/devices/system/cpu/cpu0/topology/thread_siblings_list"
    assert cgroup.threads_per_core(write(tmp_path, {name: "0,64\n"})) == 2


@given(st.sets(st.integers(0, 300)))
def test_a_cpu_list_reads_back_what_it_writes(cpus: set[int]) -> None:
    assert cgroup.parse_cpu_list(cgroup.cpu_list(sorted(cpus))) == sorted(cpus)


def test_runs_of_cpus_are_written_short() -> None:
    assert cgroup.cpu_list([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system has no affinity")
def test_usable_is_what_the_mask_and_quota_leave() -> None:
    assert cgroup.usable_cpus() == sorted(os.sched_getaffinity(0))
    assert 0 < cgroup.usable() <= len(cgroup.usable_cpus())
