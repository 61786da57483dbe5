"""Cgroups as the kernel shows them, v1 and v2, inside containers and not: limits and counters."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcncf.monitor import cgroup
from hpcncf.monitor.cgroup import (
    CgroupCounters,
    Pressure,
    describe_shortage,
    pressure_between,
    read_counters,
)

V2 = "30 23 0:26 {top} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "32 31 0:29 {top} /sys/fs/cgroup/{name} rw,relatime - cgroup cgroup rw,{name}\n"
CONTROLLERS = ("cpu", "memory", "cpuset")
UNLIMITED = str(2**63 - 4096)


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def tree(root: Path, version: str, path: str, files: dict[str, str], top: str = "/") -> Path:
    """A root whose /proc and /sys/fs/cgroup show this process in the cgroup `path`."""
    if version == "v2":
        groups, mounts = f"0::{path}\n", V2.format(top=top)
    else:
        groups = "".join(f"{at}:{name},other:{path}\n" for at, name in enumerate(CONTROLLERS, 1))
        mounts = "".join(V1.format(top=top, name=name) for name in CONTROLLERS)
    found = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    return write(root, {"proc/self/cgroup": groups, "proc/self/mountinfo": mounts} | found)


@pytest.mark.parametrize(
    ("version", "path", "files", "top", "cores", "file"),
    [
        (
            "v2",
            "/slurm/job/step",
            {
                "slurm/cpu.max": "800000 100000",
                "slurm/job/cpu.max": "150000 100000",
                "slurm/job/step/cpu.max": "max 100000",
            },
            "/",
            1.5,
            "slurm/job/cpu.max",
        ),
        ("v2", "/a", {"a/cpu.max": "max 100000"}, "/", None, ""),
        # The process has left the container's tree, as the kernel writes it.
        ("v2", "/../../elsewhere", {"cpu.max": "50000 100000"}, "/", 0.5, "cpu.max"),
        (
            "v1",
            "/a/b",
            {
                "cpu/a/b/cpu.cfs_quota_us": "-1",
                "cpu/a/b/cpu.cfs_period_us": "100000",
                "cpu/a/cpu.cfs_quota_us": "250000",
                "cpu/a/cpu.cfs_period_us": "50000",
            },
            "/",
            5,
            "cpu/a/cpu.cfs_quota_us",
        ),
        # A container sees its own cgroup at the top of the mount.
        (
            "v1",
            "/docker/abc",
            {"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"},
            "/docker/abc",
            2,
            "cpu/cpu.cfs_quota_us",
        ),
    ],
)
def test_the_smallest_quota_above_the_process_counts(
    tmp_path: Path,
    version: str,
    path: str,
    files: dict[str, str],
    top: str,
    cores: float | None,
    file: str,
) -> None:
    limit = cgroup.cpu_limit(tree(tmp_path, version, path, files, top))
    if cores is None:
        assert limit is None
    else:
        assert (limit.value, limit.file) == (cores, tmp_path / "sys/fs/cgroup" / file)


@pytest.mark.parametrize(
    ("version", "files", "mib"),
    [
        ("v2", {"job/task/memory.max": "max", "job/memory.max": "max"}, None),
        (
            "v1",
            {
                "memory/job/task/memory.limit_in_bytes": UNLIMITED,
                "memory/job/memory.limit_in_bytes": str(2**30),
                "memory/memory.limit_in_bytes": str(2**31),
            },
            1024,
        ),
    ],
)
def test_the_memory_limit_of_the_job_holds_where_the_task_has_none(
    tmp_path: Path, version: str, files: dict[str, str], mib: float | None
) -> None:
    limit = cgroup.memory_limit(tree(tmp_path, version, "/job/task", files))
    assert (limit and limit.value) == mib


@pytest.mark.parametrize("name", ["cpuset.cpus", "cpuset.effective_cpus"])
def test_a_v1_cpuset_is_read(tmp_path: Path, name: str) -> None:
    assert cgroup.cpuset(tree(tmp_path, "v1", "/job", {f"cpuset/job/{name}": "0-1,8\n"})) == [
        0,
        1,
        8,
    ]


def test_the_processes_of_a_slurm_step_are_those_of_its_tasks(tmp_path: Path) -> None:
    tasks = {f"job_1/step_0/user/task_{n}/cgroup.procs": f"{n}1\n{n}2\n" for n in (0, 1)}
    files = tasks | {"job_1/cgroup.procs": "9\n"}
    step = cgroup.step(tree(tmp_path, "v2", "/job_1/step_0/user/task_0", files))
    assert step == tmp_path / "sys/fs/cgroup/job_1/step_0"
    assert sorted(cgroup.processes(step)) == [1, 2, 11, 12]


def test_without_cgroups_nothing_is_known(tmp_path: Path) -> None:
    found = [
        cgroup.cpu_limit(tmp_path),
        cgroup.memory_limit(tmp_path),
        cgroup.cpuset(tmp_path),
        cgroup.step(tmp_path),
        cgroup.cgroup_version(tmp_path),
        cgroup.threads_per_core(tmp_path),
    ]
    assert found == [None] * 6
    nothing = read_counters(tmp_path)
    assert pressure_between(nothing, nothing) == Pressure(None, None, None), (
        "not measured, and never zero"
    )


def test_the_version_distinguishes_hybrid_from_pure(tmp_path: Path) -> None:
    assert cgroup.cgroup_version(tree(tmp_path / "2", "v2", "/a", {})) == "v2"
    only_v1 = tree(tmp_path / "1", "v1", "/a", {})
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
    assert cgroup.cpu_list([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"


STAT = "usage_usec 900\nnr_periods 40\nnr_throttled 7\n{}\n"
PRESSURE = "some avg10=0.00 avg60=1.25 avg300=0.00 total={}\nfull avg10=0.00 total=1\n"


@pytest.mark.parametrize(
    ("version", "folder", "key", "unit"),
    [("v2", "", "throttled_usec", 10**6), ("v1", "cpu/", "throttled_time", 10**9)],
)
def test_throttling_is_of_the_cgroup_with_the_most(
    tmp_path: Path, version: str, folder: str, key: str, unit: int
) -> None:
    """A job's quota; its task below has none of its own."""
    job, task = f"{folder}job_7/cpu.stat", f"{folder}job_7/task_0/cpu.stat"
    before, after = (STAT.format(f"{key} {seconds * unit:.0f}") for seconds in (2.5, 6.0))
    files = {job: before, task: STAT.format(f"{key} 0")}
    root = tree(tmp_path, version, "/job_7/task_0", files)
    first = read_counters(root)
    write(root, {f"sys/fs/cgroup/{job}": after})
    assert pressure_between(first, read_counters(root)).throttled_s == pytest.approx(3.5)


def test_pressure_is_the_own_cgroups_and_the_nodes_where_that_keeps_none(tmp_path: Path) -> None:
    files = {"job/memory.pressure": PRESSURE.format(1_500_000)}
    root = tree(tmp_path, "v2", "/job", files)
    for name, total in {"memory": 9_000_000, "io": 4_000_000}.items():
        write(root, {f"proc/pressure/{name}": PRESSURE.format(total)})
    before = read_counters(root)
    assert (before.memory_s, before.io_s) == (1.5, 4.0)
    write(root, {"proc/pressure/io": PRESSURE.format(4_250_000)})
    after = pressure_between(before, read_counters(root))
    assert (after.memory_s, after.io_s) == (0.0, 0.25)


def test_a_counter_that_is_reported_at_one_end_only_is_not_measured() -> None:
    one = CgroupCounters({Path("a"): 1.0}, 1.0, None)
    other = CgroupCounters({Path("b"): 5.0}, None, 2.0)
    assert pressure_between(one, other) == Pressure(None, None, None)


STEP = {"SLURM_STEP_ID": "0", "SLURM_CPUS_ON_NODE": "4", "SLURM_JOB_CPUS_PER_NODE": "4(x2)"}


@pytest.mark.parametrize(
    ("usable", "quota", "env", "cause"),
    [
        (1, None, {}, "mask is 3. Under Slurm, start it with srun --cpus-per-task=4"),
        (1, None, STEP, "srun bound each rank to fewer CPUs than its own: give srun --cpus-per"),
        (1, None, STEP | {"SLURM_CPUS_ON_NODE": "1"}, "The job has more CPUs than srun gave to"),
        (1, None, STEP | {"OMP_PROC_BIND": "true"}, "OMP_PROC_BIND or its kin bound it"),
        (0.5, 0.5, {}, "used: the cgroup's quota is 0.5 cores"),
        (4, None, STEP, None),
    ],
)
def test_why_cores_cannot_be_used_is_described_as_far_as_it_shows(
    usable: float, quota: float | None, env: dict[str, str], cause: str | None
) -> None:
    said = describe_shortage(4, usable, [3], quota, env)
    assert (said is None) == (cause is None)
    if said is not None:
        assert said.startswith(f"only {usable:g} of 4 allocated cores could be used: ")
        assert cause in said
