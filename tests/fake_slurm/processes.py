"""The processes of jobs: started in sessions of their own, found again by their environment."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(eq=False)
class Process:
    popen: subprocess.Popen[bytes]
    status: int | None = None
    """What wait4 gave."""
    cpu_s: float = 0.0
    max_rss_kib: int = 0

    def ended(self) -> bool:
        if self.status is not None:
            return True
        pid, status, used = os.wait4(self.popen.pid, os.WNOHANG)
        if pid == 0:
            return False
        self.popen.returncode = self.status = status  # so that Popen does not wait for it, too
        self.cpu_s, self.max_rss_kib = used.ru_utime + used.ru_stime, used.ru_maxrss
        return True

    def send(self, number: int) -> None:
        """Slurm signals the tasks that it started itself, not their children; SIGKILL apart."""
        if not self.ended():
            os.kill(self.popen.pid, number)

    @property
    def exit_code(self) -> tuple[int, int]:
        """Code and signal."""
        assert self.status is not None
        return self.status >> 8, self.status & 127


def start(
    command: list[str],
    environment: Mapping[str, str],
    folder: str,
    stdin: int | None,
    stdout: int,
    stderr: int,
) -> Process:
    return Process(
        subprocess.Popen(
            command,
            env=dict(environment),
            cwd=folder,
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
    )


def opened(path: str, folder: str, mode: str | None) -> int:
    how = os.O_APPEND if mode == "append" else os.O_TRUNC
    return os.open(Path(folder, path), os.O_WRONLY | os.O_CREAT | how, 0o666)


def kill(marks: Mapping[str, str]) -> None:
    """All processes whose environment has these; until none is left: one may start another."""
    while pids := list(found(marks)):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def found(marks: Mapping[str, str]) -> Iterator[int]:
    for file in Path("/proc").glob("[0-9]*/environ"):
        try:
            words = file.read_bytes().split(b"\0")
        except OSError:  # gone, or not ours
            continue
        known = dict(os.fsdecode(word).partition("=")[::2] for word in words)
        if all(known.get(name) == value for name, value in marks.items()):
            yield int(file.parent.name)
