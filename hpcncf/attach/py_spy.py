"""Lines of Python programs, sampled from outside by py-spy where it is installed and allowed.

py-spy reads the program's memory and does not pause it (`--nonblocking`): a sample that the program
changes meanwhile is lost.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from hpcncf.attach import find
from hpcncf.monitor import procfs

# Two samplers at this rate take about 2 % of a core for each process.
RATE: Final = 20
MOST_PROCESSES: Final = 4
MOST_STACKS: Final = 2000
MOST_FRAMES: Final = 60
ENDS_WITHIN_S: Final = 10.0
PTRACE_SCOPE: Final = "/proc/sys/kernel/yama/ptrace_scope"
THREAD: Final = re.compile(r"thread \((0[xX][0-9a-fA-F]+|\d+)\)(?:: (.*))?")
FRAME: Final = re.compile(r"(.*) \((.*):(\d+)\)")

FORBIDDEN: Final = (
    "reading its memory is forbidden{} (ptrace): in a container it takes --cap-add=SYS_PTRACE; "
    "root of the machine may"
)

Stack = tuple[int, tuple[tuple[str, str, int], ...]]
"""A thread's number, and (function, file, line), the outermost first."""


class Sampler:
    """Two runs of py-spy beside one process: of all its threads, and of those that compute."""

    def __init__(self, program: str, pid: int, seconds: float) -> None:
        self.pid = pid
        self._all = _PySpy(program, pid, seconds, ["--idle"])
        self._computing = _PySpy(program, pid, seconds, [])

    def end(self) -> tuple[dict[str, Any] | None, str | None]:
        """End the runs; return the samples and, if there are none, why."""
        stacks, why = self._all.end()
        computing, _ = self._computing.end()
        if not stacks:
            return None, why or "no sample was taken"
        return {
            "pid": self.pid,
            "ranks": _ranks(self.pid),
            "stacks": _listed(stacks),
            "computing": _listed(computing),
        }, None


class _PySpy:
    def __init__(self, program: str, pid: int, seconds: float, options: list[str]) -> None:
        self._read, write = os.pipe()
        words = [program, "record", "--nonblocking", "--threads", "--full-filenames", *options]
        words += ["-f", "raw", "-r", str(RATE), "-d", str(int(seconds) + 5)]
        words += ["-o", f"/dev/fd/{write}", "-p", str(pid)]
        try:
            self._process = subprocess.Popen(
                words,
                pass_fds=[write],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C ends it by `end`, as everything else
            )
        finally:
            os.close(write)

    def end(self) -> tuple[Counter[Stack], str | None]:
        """Have py-spy write what it has; return the stacks with their samples, or its error."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)
        try:
            with os.fdopen(self._read, "rb") as file:
                text = file.read()
            _, errors = self._process.communicate(timeout=ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            _, errors = self._process.communicate()
        if self._process.returncode != 0:
            said = errors.decode(errors="replace").strip().splitlines()
            named = [line for line in said if line.startswith("Error")] or said
            return Counter(), named[0].removeprefix("Error: ") if named else "py-spy failed"
        return read_raw(text.decode(errors="replace")), None


def read_raw(text: str) -> Counter[Stack]:
    """Parse py-spy's raw format: `thread (5): MainThread;main (/a/b.py:7);... 12` on each line."""
    found: Counter[Stack] = Counter()
    for line in text.splitlines():
        words, _, samples = line.rpartition(" ")
        thread, number, frames = "", 0, []
        for word in words.split(";"):
            if match := FRAME.fullmatch(word):
                frames.append((match[1], match[2], int(match[3])))
            elif not frames and (match := THREAD.match(word)):
                thread = match[1]
                number = int(thread, 0)
        if frames and samples.isdecimal():
            found[number, tuple(frames[-MOST_FRAMES:])] += int(samples)
    return found


def _listed(stacks: Counter[Stack]) -> list[list[Any]]:
    return [
        [samples, thread, [list(frame) for frame in frames]]
        for (thread, frames), samples in stacks.most_common(MOST_STACKS)
    ]


def _ranks(pid: int) -> list[int] | None:
    """Return the rank and number of ranks that a launcher gave the process; None without one."""
    variables = find.environment(pid)
    pairs = [("RANK", "WORLD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")]
    if not variables.get("SLURM_STEP_ID", "-").startswith("-"):
        pairs.append(("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"))
    for rank, ranks in pairs:
        numbers = [variables.get(rank, ""), variables.get(ranks, "")]
        if all(each.isdecimal() for each in numbers):
            return [int(each) for each in numbers]
    return None


def find_program() -> str | None:
    """Return py-spy's path: beside this Python, or on PATH; None if it is not installed."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.is_file() else shutil.which("py-spy")


def why_forbidden(pid: int, program: str | None) -> str | None:
    """Return why the lines of a process cannot be seen, and what would allow it; else None."""
    node = os.uname().nodename
    if program is None:
        return f"py-spy is not installed on {node}: pip install py-spy"
    owner = find.owner(pid)
    if os.geteuid() == 0 or owner is None:
        return _why_unreadable(pid)
    if owner != os.geteuid():
        return f"the program belongs to {find.user_name(owner)}; that user, or root, can see them"
    scope = procfs.read_file(PTRACE_SCOPE).strip()
    if scope not in (b"", b"0"):
        return (
            f"kernel.yama.ptrace_scope is {scope.decode()} on {node}; root can set it to 0, or "
            "start the program by `hpcncf run`, which needs no such right"
        )
    return _why_unreadable(pid)


def _why_unreadable(pid: int) -> str | None:
    try:
        os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115
    except PermissionError:
        return FORBIDDEN.format(_from_outside(pid))
    except OSError:
        pass  # it has ended
    return None


def explain(error: str, pid: int) -> str:
    """Return py-spy's error as a reason with what is possible."""
    lower = error.lower()
    if "permission denied" in lower or "operation not permitted" in lower or "os error 1)" in lower:
        return FORBIDDEN.format(_from_outside(pid))
    return f"py-spy: {error}"


def _from_outside(pid: int) -> str:
    own, its = _namespace("self"), _namespace(str(pid))
    return " from outside its container" if own and its and own != its else ""


def _namespace(pid: str) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")  # noqa: PTH115
    except OSError:
        return None
