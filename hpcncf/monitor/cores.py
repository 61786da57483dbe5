"""What the kernel lets this process use: CPU affinity, and the limits of cgroup v1 and v2.

`root` is where proc and sys are looked for; only tests give another than `/`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")

# cgroup v1 writes "no limit" as the largest multiple of a page below 2^63.
NO_LIMIT_BYTES = 2**60


@dataclass(frozen=True)
class Limit:
    """A limit and the file that sets it, so that a user can look."""

    value: float
    file: Path


def usable_cpus(pid: int = 0) -> list[int]:
    """The CPUs that the process's affinity mask allows; the kernel keeps it within the cpuset.

    Where a system has no affinity (macOS): all of the node's.
    """
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(pid))
    return list(range(on_node()))


def mask(pid: int) -> list[int]:
    """The CPUs a process may use; empty when it is gone."""
    try:
        return usable_cpus(pid)
    except ProcessLookupError:
        return []


def quota() -> float | None:
    """Cores' worth of time that the cgroups above this process allow; None: no limit."""
    limit = cpu_limit()
    return limit.value if limit else None


def usable() -> float:
    """Cores that this process can keep busy: by its affinity mask, and not above its quota."""
    cpus = float(len(usable_cpus()))
    limit = quota()
    return cpus if limit is None else min(cpus, limit)


def on_node() -> int:
    return os.cpu_count() or 1


def threads_per_core(root: Path = ROOT) -> int | None:
    """Hardware threads of one core; None where the kernel does not tell."""
    text = contents(root / "sys/devices/system/cpu/cpu0/topology/thread_siblings_list")
    return len(parse_cpu_list(text)) if text else None


def cpu_limit(root: Path = ROOT) -> Limit | None:
    """The smallest CPU quota, in cores, of this process's cgroup and all above it."""
    limits = [*_quotas_v2(root), *_quotas_v1(root)]
    return min(limits, key=lambda limit: limit.value, default=None)


def memory_limit(root: Path = ROOT) -> Limit | None:
    """The smallest memory limit, in MiB, of this process's cgroup and all above it.

    Slurm sets it on the job or the step; the task's own cgroup below has none.
    """
    files = [
        *(folder / "memory.max" for folder in cgroup_and_above(None, root)),
        *(folder / "memory.limit_in_bytes" for folder in cgroup_and_above("memory", root)),
    ]
    found = [(contents(file), file) for file in files]
    limits = [
        Limit(int(text) / 2**20, file)
        for text, file in found
        if text.isdigit() and int(text) < NO_LIMIT_BYTES
    ]
    return min(limits, key=lambda limit: limit.value, default=None)


def cpuset(root: Path = ROOT) -> list[int] | None:
    """The CPUs of this process's own cpuset; None where none is set."""
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
    """The cgroup of the Slurm step that this process belongs to; None where Slurm keeps none."""
    for controller in (None, "cpuset", "memory", "devices", "freezer"):
        for folder in cgroup_and_above(controller, root):
            if folder.name.startswith("step_"):
                return folder
    return None


def processes(cgroup: Path) -> list[int]:
    """Those of the cgroup and of all below it."""
    return [int(pid) for file in cgroup.rglob("cgroup.procs") for pid in contents(file).split()]


def cgroup_version(root: Path = ROOT) -> str | None:
    """`v1`, `v2`, or `hybrid` where v1 controllers stand beside a v2 tree; None without any."""
    mounts = list(_mounts(root))
    versions = {kind for kind, *_ in mounts}
    if versions == {"cgroup", "cgroup2"}:
        return "hybrid"
    return {"cgroup": "v1", "cgroup2": "v2"}.get(next(iter(versions), ""))


def parse_cpu_list(text: str) -> list[int]:
    """The kernel's `0-2,5` as `[0, 1, 2, 5]`."""
    cpus: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            cpus += range(int(first), int(last or first) + 1)
    return cpus


def cpu_list(cpus: list[int]) -> str:
    """`[0, 1, 2, 5]` as `0-2,5`."""
    spans: list[list[int]] = []
    for cpu in sorted(cpus):
        if spans and spans[-1][1] == cpu - 1:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def _quotas_v2(root: Path) -> Iterator[Limit]:
    for folder in cgroup_and_above(None, root):
        words = contents(folder / "cpu.max").split()
        if len(words) == 2 and words[0] != "max":
            yield Limit(int(words[0]) / int(words[1]), folder / "cpu.max")


def _quotas_v1(root: Path) -> Iterator[Limit]:
    for folder in cgroup_and_above("cpu", root):
        share = contents(folder / "cpu.cfs_quota_us")
        period = contents(folder / "cpu.cfs_period_us")
        if share and period and int(share) > 0:  # -1: no limit
            yield Limit(int(share) / int(period), folder / "cpu.cfs_quota_us")


def cgroup_and_above(controller: str | None, root: Path) -> list[Path]:
    """This process's cgroup folder and its ancestors up to the mount; `controller` None: v2."""
    wanted = "cgroup2" if controller is None else "cgroup"
    path = _own_path(controller, root)
    for kind, options, top, mount in _mounts(root):
        if path is None or kind != wanted or not (controller is None or controller in options):
            continue
        # A container sees the host's path while its mount starts at the container's own cgroup.
        below = path.removeprefix(top) if top != "/" else path
        folder = mount / below.strip("/")
        inside = folder if folder.is_dir() else mount
        return [inside, *(above for above in inside.parents if above.is_relative_to(mount))]
    return []


def _own_path(controller: str | None, root: Path) -> str | None:
    for line in contents(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if (not controllers) if controller is None else controller in controllers.split(","):
            return path
    return None


def _mounts(root: Path) -> Iterator[tuple[str, list[str], str, Path]]:
    """Each cgroup mount's kind, options, the cgroup at its top and where it is mounted."""
    for line in contents(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = [*after.split(" ", 2), "", ""][:3]
        if kind in ("cgroup", "cgroup2"):
            top, mount = before.split()[3:5]
            yield kind, options.split(","), top, root / mount.lstrip("/")


def contents(path: Path) -> str:
    """The file's text; empty where there is none or it may not be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
