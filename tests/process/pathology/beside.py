"""What is done to a job from outside while it runs, and undone however it ends."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import psutil

from hpcncf.monitor.cgroup import usable_cpus
from hpcncf.monitor.gpu import visible_gpus
from hpcncf.records.schema import Progress, RecordError, read_record
from hpcncf.worker.processes import end_with_parent
from pathology.case import Beside, Need

BUSY: Final = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"
SLICE_S: Final = 0.05
EMPTY_S: Final = 10.0
MOUNT: Final = Path("/sys/fs/cgroup")

Enter = Callable[[], None]
"""Called by the job's first process before its program: it takes it into the control groups."""


def available() -> set[Need]:
    """What this machine allows."""
    found: set[Need] = set()
    if len(usable_cpus()) > 1:
        found.add("two cores")
    if shutil.which("c++") or shutil.which("g++"):
        found.add("compiler")
    if visible_gpus() and importlib.util.find_spec("pynvml"):
        found.add("gpu")
    controllers: dict[str, Need] = {
        "cpu": "cpu cgroup",
        "memory": "memory cgroup",
        "blkio": "blkio cgroup",
    }
    return found | {need for name, need in controllers.items() if _may_make(name)}


def _may_make(controller: str) -> bool:
    parent = _own(controller)
    return parent is not None and os.access(parent, os.W_OK) and os.geteuid() == 0


def _own(controller: str) -> Path | None:
    """This process's control group of version 1: those made below it keep to its limits, too."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            folder = MOUNT / names / path.lstrip("/")
            return folder if folder.is_dir() else None
    return None


@contextmanager
def applied(beside: Beside, cpus: Sequence[int], folder: Path) -> Iterator[Enter]:
    """All that `beside` says, for a job on `cpus` with its files in the folder."""
    with ExitStack() as stack:
        groups = [stack.enter_context(_group(*each)) for each in _limits(beside, folder)]
        for place in beside.neighbour:
            stack.enter_context(_neighbour(cpus[place]))
        if beside.slowed_rank is not None:
            stack.enter_context(_slowed(beside.slowed_rank, folder))

        def enter() -> None:
            for group in groups:
                (group / "cgroup.procs").write_text(str(os.getpid()))

        yield enter


def _limits(beside: Beside, folder: Path) -> Iterator[tuple[str, str, str]]:
    """Controller, file and what is written there."""
    if beside.cpu_quota is not None:
        yield "cpu", "cpu.cfs_quota_us", str(round(beside.cpu_quota * 100_000))
    if beside.memory_mib is not None:
        yield "memory", "memory.limit_in_bytes", str(beside.memory_mib * 2**20)
    if beside.read_mib_per_s is not None:
        device = folder.stat().st_dev
        numbers = f"{os.major(device)}:{os.minor(device)}"
        speed = round(beside.read_mib_per_s * 2**20)
        yield "blkio", "blkio.throttle.read_bps_device", f"{numbers} {speed}"


@contextmanager
def _group(controller: str, file: str, text: str) -> Iterator[Path]:
    parent = _own(controller)
    assert parent is not None, f"no control group of {controller}"
    group = parent / f"hpcncf-pathology-{os.getpid()}"
    group.mkdir()
    try:
        (group / file).write_text(text)
        yield group
    finally:
        _remove(group)


def _remove(group: Path) -> None:
    """End what is left in it; the kernel empties it a moment after the last one's end."""
    until = time.monotonic() + EMPTY_S
    while True:
        for pid in (group / "cgroup.procs").read_text().split():
            _signal(int(pid), signal.SIGKILL)
        try:
            return group.rmdir()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


@contextmanager
def _neighbour(cpu: int) -> Iterator[None]:
    """In a session of its own: one session's processes may get one share of time among them
    (autogroup), and what else runs in ours would leave it a fraction."""
    words = [sys.executable, "-c", BUSY, str(cpu)]
    with subprocess.Popen(words, preexec_fn=end_with_parent, start_new_session=True) as process:
        try:
            yield
        finally:
            process.kill()


@contextmanager
def _slowed(rank: int, folder: Path) -> Iterator[None]:
    over = threading.Event()
    thread = threading.Thread(target=_halt, args=(rank, folder, over))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _halt(rank: int, folder: Path, over: threading.Event) -> None:
    """Stop the rank for two of three slices of time, from its first steps to its end."""
    pid = None
    while pid is None and not over.wait(SLICE_S):
        pid = _rank(rank, folder) if _trains(folder) else None
    while pid is not None and not over.is_set() and psutil.pid_exists(pid):
        _signal(pid, signal.SIGSTOP)
        over.wait(2 * SLICE_S)
        _signal(pid, signal.SIGCONT)
        over.wait(SLICE_S)


def _trains(folder: Path) -> bool:
    """Whether the job is past its start-up, as its progress says."""
    for path in folder.glob("runs/*/attempt-*/progress.json"):
        try:
            return read_record(path, Progress).phase != "startup"
        except RecordError:
            continue
    return False


def _rank(rank: int, folder: Path) -> int | None:
    """The process of this rank of the job whose results lie in the folder."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "hpcncf.worker" not in words or not any(str(folder) in word for word in words):
            continue
        try:
            if process.environ().get("RANK") == str(rank):
                return int(process.pid)
        except psutil.Error:
            continue
    return None
