"""The cluster's processes: each part is one `unshare`, marked with the cluster's folder."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# Found again in /proc/PID/environ: no file can be stale, and no number can be another process's.
FOLDER: Final = "HPCNCF_TEST_SLURM_FOLDER"
NAME: Final = "HPCNCF_TEST_SLURM_PART"
# Of a daemon on a busy machine.
PATIENCE_S: Final = 120.0
# A Slurm that was built here, instead of Debian's: where `make install` put it.
PREFIX: Final = os.environ.get("SLURM_PREFIX", "")
_FIRST: Final = f"{PREFIX}/sbin:{PREFIX}/bin:" if PREFIX else ""
PATH: Final = f"{_FIRST}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class ClusterError(Exception):
    """What the one who starts a cluster needs to know."""


@dataclass(frozen=True)
class Part:
    pid: int
    folder: Path
    name: str


def start(
    folder: Path,
    name: str,
    command: Sequence[str],
    namespaces: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    before: Callable[[], None] | None = None,
) -> int:
    """Start the command as process 1 of its own; returns the pid of its `unshare`.

    Whoever kills that, kills everything inside. `before` runs in the new process. A starter that
    is interrupted is so before the part begins, or once `running` finds it.
    """

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if before:
            before()

    marked = {"PATH": PATH, "LANG": "C.UTF-8", FOLDER: str(folder), NAME: name}
    marked |= {"SLURM_PREFIX": PREFIX} if PREFIX else {}
    with (folder / "log" / f"{name}.log").open("ab") as log, _uninterrupted() as mask:
        process = subprocess.Popen(
            ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *namespaces, *command],
            env=marked | dict(environment or {}),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
            preexec_fn=prepare,
        )
        environ = Path(f"/proc/{process.pid}/environ")
        wait(f"{name} to begin", lambda: bool(_part(environ)) or process.poll() is not None)
    return process.pid


@contextlib.contextmanager
def _uninterrupted() -> Iterator[Iterable[int]]:
    """Ctrl-C and SIGTERM come afterwards; yields the signals that were held back before."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield mask
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def use_prefix() -> None:
    """Have this process and its children find the Slurm of SLURM_PREFIX before any other."""
    if PREFIX and not os.environ["PATH"].startswith(_FIRST):
        os.environ["PATH"] = _FIRST + os.environ["PATH"]


def munged(folder: Path) -> list[str]:
    """Each node has one of its own, at the same path."""
    files = {"socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    given = [f"--{option}={folder / 'munge' / name}" for option, name in files.items()]
    return ["munged", "--foreground", f"--key-file={folder / 'etc/munge.key'}", *given]


def running(folder: Path | None = None) -> list[Part]:
    """The processes of this cluster, or of all."""
    found = [_part(file) for file in Path("/proc").glob("[0-9]*/environ")]
    return [part for part in found if part and folder in (None, part.folder)]


def _part(environ: Path) -> Part | None:
    try:
        lines = environ.read_bytes().split(b"\0")
    except OSError:  # gone, or not ours to read
        return None
    variables = dict(os.fsdecode(line).partition("=")[::2] for line in lines)
    if FOLDER not in variables or NAME not in variables:
        return None
    return Part(int(environ.parent.name), Path(variables[FOLDER]), variables[NAME])


def first(folder: Path, name: str) -> int:
    """The part's process 1, by its number on the machine. Raises ClusterError where none runs."""
    for part in running(folder):
        if part.name == name and _numbers(part.pid)[1:] == [1]:
            return part.pid
    raise ClusterError(f"{name} does not run in {folder}")


def _numbers(pid: int) -> list[int]:
    """What the process is called here and in each namespace within."""
    lines = _read(Path(f"/proc/{pid}/status")).splitlines()
    found = [line.split()[1:] for line in lines if line.startswith("NSpid:")]
    return [int(number) for number in (found[0] if found else [])]


def children(pid: int) -> list[int]:
    return [int(child) for child in _read(Path(f"/proc/{pid}/task/{pid}/children")).split()]


def command(pid: int) -> str:
    return _read(Path(f"/proc/{pid}/comm")).strip()


def _read(file: Path) -> str:
    """Nothing of a process that is gone."""
    try:
        return file.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def kill(folder: Path, name: str | None = None) -> None:
    """As if the power went, for the cluster or one part. ClusterError where some process stays."""

    def gone() -> bool:
        left = [part for part in running(folder) if name in (None, part.name)]
        for part in left:
            _kill(part.pid)
        return not left

    wait(f"the end of {name or 'the processes'} of {folder}", gone)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, 9)
    except ProcessLookupError:
        return


def wait(what: str, happened: Callable[[], bool]) -> None:
    """Raises ClusterError where it has not happened within `PATIENCE_S`."""
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        if time.monotonic() > deadline:
            raise ClusterError(f"waited {PATIENCE_S:g} s in vain for {what}")
        time.sleep(0.05)


def answers(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str | None:
    """What the command prints; None where it fails."""
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    return done.stdout if done.returncode == 0 else None


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """What the command prints. Raises ClusterError with what it said where it fails."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise ClusterError(f"{' '.join(command)}: {said or f'exit code {done.returncode}'}")
    return done.stdout
