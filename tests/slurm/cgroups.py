"""Control groups, version 1: every node gets one of its own in each hierarchy of the machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import parts

# What Slurm's proctrack/cgroup, task/cgroup and jobacct_gather/cgroup touch.
NEEDED: Final = {"cpuacct", "cpuset", "devices", "freezer", "memory"}


@dataclass(frozen=True)
class Hierarchy:
    """One mounted tree; Linux distributions mount `cpu` and `cpuacct` as one."""

    mount: Path
    controllers: list[str]

    def folder(self, name: str) -> Path:
        return self.mount / name


def hierarchies() -> list[Hierarchy]:
    lines = Path("/proc/cgroups").read_text().splitlines()[1:]
    known = {line.split()[0] for line in lines}
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    found = [
        Hierarchy(Path(where), [option for option in options.split(",") if option in known])
        for _, where, kind, options, *_ in mounts
        if kind == "cgroup"
    ]
    return [hierarchy for hierarchy in found if hierarchy.controllers]


def usable() -> bool:
    """False on machines of cgroup v2 only, and in containers that may not write."""
    found = [each for each in hierarchies() if os.access(each.mount, os.W_OK)]
    return {name for each in found for name in each.controllers} >= NEEDED


def make(name: str) -> None:
    for hierarchy in hierarchies():
        folder = hierarchy.mount
        for part in Path(name).parts:
            folder = folder / part
            folder.mkdir(exist_ok=True)
            if "cpuset" in hierarchy.controllers:
                _inherit_cpus(folder)


def _inherit_cpus(folder: Path) -> None:
    """A new cpuset is empty, and nothing can enter it."""
    for file in ("cpuset.cpus", "cpuset.mems"):
        (folder / file).write_text((folder.parent / file).read_text())


def enter(name: str) -> None:
    for hierarchy in hierarchies():
        (hierarchy.folder(name) / "cgroup.procs").write_text(str(os.getpid()))


def remove(name: str) -> None:
    """Raises ClusterError where some process still lives in it."""
    for hierarchy in hierarchies():
        top = hierarchy.folder(name)
        parts.wait(f"{top} to be empty", lambda top=top: _removed(top))


def _removed(top: Path) -> bool:
    """The kernel empties a group of dead processes a moment after their end."""
    for folder, _, _ in os.walk(top, topdown=False):
        try:
            Path(folder).rmdir()
        except OSError:
            return False
    return True


def mount_own() -> None:
    """Inside a node: the mounted trees begin at the node's own group."""
    found = hierarchies()
    parts.run(["mount", "-t", "tmpfs", "-o", "mode=755", "cgroups", "/sys/fs/cgroup"])
    for hierarchy in found:
        hierarchy.mount.mkdir()
        together = ",".join(hierarchy.controllers)
        parts.run(["mount", "-t", "cgroup", "-o", together, "cgroup", str(hierarchy.mount)])
        for name in hierarchy.controllers:
            if not (alone := Path("/sys/fs/cgroup") / name).exists():
                alone.symlink_to(hierarchy.mount)
