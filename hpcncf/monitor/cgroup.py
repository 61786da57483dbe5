"""Cores and memory that affinity and cgroups allow, throttling, shortage."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

# `root` is where proc and sys are looked for; only tests give another than `/`.

ROOT = Path("/")

# cgroup v1 writes "no limit" as the largest multiple of a page below 2^63.
NO_LIMIT_BYTES = 2**60


class Limit(NamedTuple):
    """A limit and the file that sets it, so that a user can look."""

    value: float
    file: Path


def usable_cpus(pid: int = 0) -> list[int]:
    """Return the CPUs of the process's affinity mask, which the kernel keeps in the cpuset.

    Where a system has no affinity (macOS): all of the node's.
    """
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(pid))
    return list(range(on_node()))


def mask(pid: int) -> list[int]:
    """Return the CPUs that a process may use; an empty list if the process has ended."""
    try:
        return usable_cpus(pid)
    except ProcessLookupError:
        return []


def quota() -> float | None:
    """Return the CPU quota of this process's cgroups in cores; None without a limit."""
    limit = cpu_limit()
    return limit.value if limit else None


def usable() -> float:
    """Return the number of cores that this process can use, by affinity mask and CPU quota."""
    cpus = float(len(usable_cpus()))
    limit = quota()
    return cpus if limit is None else min(cpus, limit)


def on_node() -> int:
    return os.cpu_count() or 1


def threads_per_core(root: Path = ROOT) -> int | None:
    """Return the hardware threads per core; None if the kernel does not report them."""
    text = contents(root / "sys/devices/system/cpu/cpu0/topology/thread_siblings_list")
    return len(parse_cpu_list(text)) if text else None


def cpu_limit(root: Path = ROOT, pid: int | None = None) -> Limit | None:
    """Return the smallest CPU quota, in cores, of a process's cgroup and its ancestors.

    None if there is no quota. `pid` None is this process.
    """
    files = [(folder / "cpu.max", "") for folder in cgroup_and_above(None, root, pid)]
    files += [
        (folder / "cpu.cfs_quota_us", contents(folder / "cpu.cfs_period_us"))
        for folder in cgroup_and_above("cpu", root, pid)
    ]
    limits = []
    for file, period in files:
        words = [*contents(file).split(), period]
        if len(words) > 1 and words[0].isdigit() and words[1]:  # not: max, and -1 of v1
            limits.append(Limit(int(words[0]) / int(words[1]), file))
    return min(limits, key=lambda limit: limit.value, default=None)


def memory_limit(root: Path = ROOT, pid: int | None = None) -> Limit | None:
    """Return the smallest memory limit, in MiB, of a process's cgroup and its ancestors.

    Slurm sets it on the job or the step; the task's own cgroup below has none.
    """
    files = [
        *(folder / "memory.max" for folder in cgroup_and_above(None, root, pid)),
        *(folder / "memory.limit_in_bytes" for folder in cgroup_and_above("memory", root, pid)),
    ]
    found = [(contents(file), file) for file in files]
    limits = [
        Limit(int(text) / 2**20, file)
        for text, file in found
        if text.isdigit() and int(text) < NO_LIMIT_BYTES
    ]
    return min(limits, key=lambda limit: limit.value, default=None)


def available_bytes() -> int:
    """Return the memory that this process may still take: the node's, or its cgroup's limit."""
    import psutil

    available, limit = psutil.virtual_memory().available, memory_limit()
    return min(available, int(limit.value * 2**20)) if limit else available


def cpuset(root: Path = ROOT) -> list[int] | None:
    """Return the CPUs of this process's own cpuset; None if it has none."""
    for controller, names in (
        (None, ["cpuset.cpus.effective"]),
        ("cpuset", ["cpuset.effective_cpus", "cpuset.cpus"]),
    ):
        for folder in cgroup_and_above(controller, root):
            for name in names:
                if text := contents(folder / name):
                    return parse_cpu_list(text)
    return None


def step(root: Path = ROOT) -> Path | None:
    """Return the cgroup of the Slurm step that contains this process; None if there is none."""
    for controller in (None, "cpuset", "memory", "devices", "freezer"):
        for folder in cgroup_and_above(controller, root):
            if folder.name.startswith("step_"):
                return folder
    return None


def processes(cgroup: Path) -> list[int]:
    """Return the ids of the processes in a cgroup and in all cgroups below it."""
    return [int(pid) for file in cgroup.rglob("cgroup.procs") for pid in contents(file).split()]


def cgroup_version(root: Path = ROOT) -> str | None:
    """Return the cgroup version: `v1`, `v2`, or `hybrid` for both; None without cgroups."""
    mounts = list(_mounts(root))
    versions = {kind for kind, *_ in mounts}
    if versions == {"cgroup", "cgroup2"}:
        return "hybrid"
    return {"cgroup": "v1", "cgroup2": "v2"}.get(next(iter(versions), ""))


def parse_cpu_list(text: str) -> list[int]:
    """Parse the kernel's list of CPUs: `0-2,5` becomes `[0, 1, 2, 5]`."""
    cpus: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            cpus += range(int(first), int(last or first) + 1)
    return cpus


def cpu_list(cpus: list[int]) -> str:
    """Format CPUs in the kernel's notation: `[0, 1, 2, 5]` becomes `0-2,5`."""
    spans: list[list[int]] = []
    for cpu in sorted(cpus):
        if spans and spans[-1][1] == cpu - 1:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def cgroup_and_above(controller: str | None, root: Path, pid: int | None = None) -> list[Path]:
    """Return the folders of a process's cgroup and of its ancestors, up to the mount.

    `controller` None selects cgroup v2, `pid` None this process.
    """
    wanted = "cgroup2" if controller is None else "cgroup"
    path = _path_of(controller, root, pid)
    for kind, options, top, mount in _mounts(root):
        if path is None or kind != wanted or not (controller is None or controller in options):
            continue
        # A container sees the host's path while its mount starts at the container's own cgroup.
        below = path.removeprefix(top) if top != "/" else path
        folder = mount / below.strip("/")
        inside = folder if folder.is_dir() else mount
        return [inside, *(above for above in inside.parents if above.is_relative_to(mount))]
    return []


def _path_of(controller: str | None, root: Path, pid: int | None) -> str | None:
    for line in contents(root / f"proc/{pid or 'self'}/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if (not controllers) if controller is None else controller in controllers.split(","):
            return path
    return None


def _mounts(root: Path) -> Iterator[tuple[str, list[str], str, Path]]:
    """Yield kind, options, top cgroup and mount point of every cgroup mount."""
    for line in contents(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = [*after.split(" ", 2), "", ""][:3]
        if kind in ("cgroup", "cgroup2"):
            top, mount = before.split()[3:5]
            yield kind, options.split(","), top, root / mount.lstrip("/")


def contents(path: Path) -> str:
    """Read a file's text; empty if it is missing or cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


# Its counters only grow, from a cgroup's start or the machine's: two readings give what lies
# between.


class Pressure(NamedTuple):
    """Seconds during which threads were held back; None where the kernel does not count."""

    throttled_s: float | None
    """Time the CPU quota held threads back, summed over CPUs, of the cgroup with the most."""
    memory_s: float | None
    """Time in which some thread waited for memory."""
    io_s: float | None
    """Time in which some thread waited for a disk."""


class CgroupCounters(NamedTuple):
    """The counters at one moment, of a process's cgroup and all above it."""

    throttled_s: dict[Path, float]
    memory_s: float | None = None
    io_s: float | None = None


def read_counters(root: Path = ROOT, pid: int | None = None) -> CgroupCounters:
    """Read the counters of a process's cgroup; `pid` None is this process."""
    return CgroupCounters(
        _throttled_s(root, pid), _pressure_s("memory", root, pid), _pressure_s("io", root, pid)
    )


def pressure_between(before: CgroupCounters, after: CgroupCounters) -> Pressure:
    """Subtract two readings of the counters; only cgroups in both of them count."""

    def added(first: float | None, last: float | None) -> float | None:
        return None if first is None or last is None else last - first

    both = before.throttled_s.keys() & after.throttled_s.keys()
    return Pressure(
        max((after.throttled_s[file] - before.throttled_s[file] for file in both), default=None),
        added(before.memory_s, after.memory_s),
        added(before.io_s, after.io_s),
    )


def _throttled_s(root: Path, pid: int | None) -> dict[Path, float]:
    """Read the seconds of CPU throttling: cpu.stat file -> seconds.

    They are `throttled_usec` in v2 and `throttled_time` (ns) in v1.
    """
    found = {}
    for controller, key, unit_s in (
        (None, "throttled_usec", 1e-6),
        ("cpu", "throttled_time", 1e-9),
    ):
        for folder in cgroup_and_above(controller, root, pid):
            for line in contents(folder / "cpu.stat").splitlines():
                name, _, value = line.partition(" ")
                if name == key:
                    found[folder / "cpu.stat"] = int(value) * unit_s
    return found


def _pressure_s(what: str, root: Path, pid: int | None) -> float | None:
    """Read the seconds of pressure from PSI's `some` line; None if the kernel reports none.

    They are those of the process's own cgroup, or else of the node.

    Source: the kernel's Documentation/accounting/psi.rst.
    """
    own = [folder / f"{what}.pressure" for folder in cgroup_and_above(None, root, pid)[:1]]
    for file in (*own, root / "proc/pressure" / what):
        for line in contents(file).splitlines():
            if line.startswith("some "):
                return int(line.rpartition("total=")[2]) * 1e-6
    return None


def describe_shortage(
    allocated: float,
    usable: float,
    cpus: list[int],
    quota: float | None,
    env: Mapping[str, str] = os.environ,
) -> str | None:
    """Explain why fewer cores than allocated are usable, and what to do; None if all are."""
    if usable >= allocated:
        return None
    limit = f"its affinity mask is {cpu_list(cpus)}"
    if quota is not None and quota < len(cpus):
        limit = f"the cgroup's quota is {quota:g} cores"
    task = f"--cpus-per-task={allocated:g}"
    if not in_slurm_step(env):
        cause = f"Under Slurm, start it with srun {task}, which binds each rank to CPUs of its own"
    elif env.get("SLURM_CPUS_ON_NODE") != env.get("SLURM_JOB_CPUS_PER_NODE", "").partition("(")[0]:
        cause = (
            f"The job has more CPUs than srun gave to the ranks: give srun {task} too; it does "
            "not take that from sbatch"
        )
    elif "OMP_PROC_BIND" in env or "KMP_AFFINITY" in env or "GOMP_CPU_AFFINITY" in env:
        cause = "OMP_PROC_BIND or its kin bound it: unset them"
    else:
        cause = (
            f"srun bound each rank to fewer CPUs than its own: give srun {task}, and leave "
            "--cpu-bind and SLURM_CPU_BIND out, or set them to none"
        )
    return f"only {usable:g} of {allocated:g} allocated cores could be used: {limit}. {cause}"


def in_slurm_step(env: Mapping[str, str] = os.environ) -> bool:
    """Return whether srun started this process.

    Since Slurm 23.11 a batch script has a step number, too: -5.
    """
    return not env.get("SLURM_STEP_ID", "-").startswith("-")
