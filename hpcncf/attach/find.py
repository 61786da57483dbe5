"""Find the processes to watch on this node: those of a Slurm job, or one and its children."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from hpcncf.monitor import procfs
from hpcncf.monitor.cgroup import ROOT, cgroup_and_above, processes

# slurmd's helper of each step, and what a container's shim or a login leaves between.
HELPERS: Final = frozenset({b"slurmstepd", b"slurmd", b"srun"})
PYTHON: Final = re.compile(r"python(3\.\d+)\w*(?: \(deleted\))?")


class CannotWatch(Exception):
    """There is nothing to watch; the message says why, and what is possible."""


def job_processes(job: str) -> list[int]:
    """Return a Slurm job's processes on this node, except Slurm's own and those of this step.

    They are those of the job's cgroup; without one, those whose environment names the job.
    """
    step = os.environ.get("SLURM_STEP_ID", "")
    mine = set(ancestry(os.getpid()))
    cgroup = _job_cgroup(job)
    pids = processes(cgroup) if cgroup else list(all_processes())
    found = []
    for pid in pids:
        if pid in mine or comm(pid) in HELPERS or _is_external(pid):
            continue
        variables = environment(pid)
        if not cgroup and job not in (variables.get("SLURM_JOB_ID"), variables.get("SLURM_JOBID")):
            continue
        if step and variables.get("SLURM_STEP_ID") == step and _of_attach(variables):
            continue
        found.append(pid)
    return found


def _is_external(pid: int) -> bool:
    """Return whether a process is of Slurm's external step, which only sleeps."""
    return b"/step_extern" in procfs.read_file(f"/proc/{pid}/cgroup")


def _of_attach(variables: dict[str, str]) -> bool:
    """Return whether a process belongs to this step, which `hpcncf attach` has started."""
    return variables.get("SLURM_JOB_ID") == os.environ.get("SLURM_JOB_ID")


def _job_cgroup(job: str) -> Path | None:
    """Return the cgroup of the job that this process is a step of; None if there is none."""
    for controller in (None, "cpuset", "memory", "freezer", "devices"):
        for folder in cgroup_and_above(controller, ROOT):
            if folder.name == f"job_{job}":
                return folder
    return None


def all_processes() -> Iterator[int]:
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            yield int(name)


def roots(pids: Iterable[int]) -> list[int]:
    """Return the processes whose parents are not among the given ones."""
    known = set(pids)
    found = []
    for pid in sorted(known):
        stat = procfs.stat(f"/proc/{pid}")
        if stat is not None and stat.parent not in known:
            found.append(pid)
    return found


def ancestry(pid: int) -> Iterator[int]:
    """Yield a process and its ancestors."""
    seen = set[int]()
    while pid > 0 and pid not in seen:
        seen.add(pid)
        yield pid
        stat = procfs.stat(f"/proc/{pid}")
        pid = stat.parent if stat else 0


def comm(pid: int) -> bytes:
    """Return a process's name of at most 15 bytes, which a zombie has, too."""
    return procfs.read_file(f"/proc/{pid}/comm").strip()


def environment(pid: int) -> dict[str, str]:
    """Return the environment that a process began with; empty if it may not be read."""
    text = procfs.read_file(f"/proc/{pid}/environ").decode(errors="replace")
    return dict(each.split("=", 1) for each in text.split("\0") if "=" in each)


def is_alive(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    stat = procfs.stat(f"/proc/{pid}")
    return stat is not None and stat.state not in "ZX"


def owner(pid: int) -> int | None:
    """Return the user id of a process; None if it has ended."""
    return _field(pid, b"Uid", 1)


def _field(pid: int, name: bytes, at: int = 0) -> int | None:
    """Return a number of a process's status file, such as its effective user id."""
    for line in procfs.read_file(f"/proc/{pid}/status").splitlines():
        key, _, values = line.partition(b":")
        if key == name:
            return int(values.split()[at])
    return None


def check(pid: int) -> None:
    """Raise CannotWatch if there is no such process, or if watching it makes no sense."""
    stat = procfs.stat(f"/proc/{pid}")
    if stat is None:
        raise CannotWatch(f"no process {pid} on {os.uname().nodename} that this user can see")
    process = _field(pid, b"Tgid")
    if process not in (None, pid):  # /proc has threads, too, though it does not list them
        raise CannotWatch(f"{pid} is a thread of process {process}; expected a process's id")
    if pid == os.getpid():
        raise CannotWatch(f"{pid} is this command itself")
    if stat.state in "ZX":
        raise CannotWatch(
            f"process {pid} has ended (a zombie): its parent, process {stat.parent}, has not "
            "waited for it yet"
        )
    runs = procfs.command(pid) or procfs.read_file(f"/proc/{pid}/maps")
    if not runs and os.geteuid() in (0, owner(pid)):  # to others both files are empty
        raise CannotWatch(f"process {pid} is a thread of the kernel, which runs no program")


def thread_name(pid: int, thread: int) -> str:
    return procfs.read_file(f"/proc/{pid}/task/{thread}/comm").strip().decode(errors="replace")


def user_name(user: int) -> str:
    """Return a user's name; the number if nobody has it."""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"


def python_version(pid: int) -> str | None:
    """Return `3.11` for a process that runs Python, by its program's name or its libraries.

    An empty text if only its command line may be read, and that names Python without a version;
    None for other programs.
    """
    try:
        path = os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115
    except OSError:
        path = procfs.command(pid).partition(b"\0")[0].decode(errors="replace")
        if re.fullmatch(r"python3?", os.path.basename(path)):  # noqa: PTH119
            return ""
    name = os.path.basename(path)  # noqa: PTH119
    if match := PYTHON.fullmatch(name):
        return match[1]
    maps = procfs.read_file(f"/proc/{pid}/maps")
    library = re.search(rb"/libpython(3\.\d+)", maps)
    return library[1].decode() if library else None
