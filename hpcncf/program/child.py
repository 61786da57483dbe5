"""A command as our child: nothing between it and its terminal, its signals and end passed on."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shutil import which
from typing import Final

import psutil

from hpcncf.errors import HpcncfError

FORWARDED: Final = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
# The signals that end a command unless it minds.
ENDING: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
_WAITED_FOR: Final = {*FORWARDED, signal.SIGCHLD, signal.SIGALRM}

# As a shell has it.
NOT_FOUND: Final = 127
NOT_EXECUTABLE: Final = 126

_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_PDEATHSIG = 1
# siginfo's si_code of a key pressed at the terminal, which signals the whole foreground group.
_SI_KERNEL = 0x80


class CannotStart(HpcncfError):
    """The command itself is wrong; `exit_code` as a shell would give."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def check(command: Sequence[str]) -> None:
    """Raise CannotStart where the command's program is not there or not executable."""
    program = command[0]
    if which(program):
        return
    if "/" not in program:
        raise CannotStart(f"{program}: command not found in PATH{_hint(program)}", NOT_FOUND)
    if not Path(program).exists():
        raise CannotStart(f"{program}: no such file{_hint(program)}", NOT_FOUND)
    reason = "is a folder" if Path(program).is_dir() else "is not executable (chmod +x?)"
    raise CannotStart(f"{program}: {reason}", NOT_EXECUTABLE)


def _hint(program: str) -> str:
    """A whole line of shell in quotes, where one program is expected."""
    if not set(program) & set(" |&;<>$"):
        return ""
    return f"; a pipeline or other line of a shell needs one: bash -c {shlex.quote(program)}"


class Child:
    """The running command. From its start on this process waits for signals in `wait` only.

    With an `output`, it is a rank's: its standard output goes there, and it ends when we are
    killed. A shell is passed signals as a terminal would: to what it started, too.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        folder: Path | None = None,
        env: Mapping[str, str] | None = None,
        output: int | None = None,
        is_shell: bool = False,
    ) -> None:
        """Raises CannotStart."""
        _adopt_orphans()
        # Inherited as ignored, the kernel would wait for children itself and keep no account.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)
        try:
            # Only this thread runs yet: code between fork and exec is safe, and no thread lets
            # through what is blocked here, the timer's signal that would end us among it.
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env=env,
                stdout=output,
                preexec_fn=_unblock if output is None else _end_with_parent,
            )
        except OSError as error:  # a script without #!, a binary of another machine
            _unblock()
            raise CannotStart(
                f"{command[0]}: cannot be executed: {error.strerror}", NOT_EXECUTABLE
            ) from None
        self.pid = self._process.pid
        self._is_shell = is_shell
        self.signals = set[int]()
        """What it was passed, or got from the terminal as we did."""

    @property
    def told_to_end(self) -> bool:
        return bool(self.signals & ENDING)

    def wait(
        self,
        meanwhile: Callable[[], None],
        look: Callable[[], None] = lambda: None,
        every_s: float = 2.0,
    ) -> int:
        """Wait for its end, calling `meanwhile` now and then: its exit code, or minus the signal.

        Signals that reach us go to the child. `look` is called before an end is taken note of:
        until then the kernel keeps the account of who ended.
        """
        while (code := self._reap(look)) is None:
            number = self._next_signal(every_s)
            if number is None:
                meanwhile()
            elif number != signal.SIGCHLD:
                self._forward(number)
        self._process.returncode = code
        return code

    def _next_signal(self, within_s: float) -> int | None:
        """The signal that came and is to be handled; None after `within_s`."""
        if sys.platform == "darwin":  # which has no sigwaitinfo: no sender's code
            pending = signal.sigpending() & _WAITED_FOR - {signal.SIGINT}
            if pending:
                return signal.sigwait(pending)
            time.sleep(0.1)
            return signal.SIGCHLD
        # Not sigtimedwait: where we are stopped (Ctrl-Z, a job that Slurm suspends) and go on after
        # its time, Python's (seen in 3.11) tells a signal that never came.
        signal.setitimer(signal.ITIMER_REAL, within_s)
        info = signal.sigwaitinfo(_WAITED_FOR)
        signal.setitimer(signal.ITIMER_REAL, 0)
        if info.si_signo == signal.SIGALRM:
            return None
        if info.si_code == _SI_KERNEL and info.si_signo != signal.SIGCHLD:
            self.signals.add(info.si_signo)
            return signal.SIGCHLD  # the child got it from the terminal as we did
        return info.si_signo

    def _forward(self, number: int) -> None:
        self.signals.add(number)
        # Only what it runs knows what to do with a warning; of others it dies once that has.
        below = psutil.Process(self.pid).children() if self._is_shell else []
        for process in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        if not below or number in ENDING:
            # Not reaped yet, so the number is still its own.
            os.kill(self.pid, number)

    def _reap(self, look: Callable[[], None]) -> int | None:
        """Wait for whoever ended, orphans too; the command's exit code when it did."""
        while True:
            look()
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                raise AssertionError("the command was reaped by somebody else") from None
            if pid == self.pid:
                return os.waitstatus_to_exitcode(status)
            if pid == 0:
                return None


def shell_code(code: int) -> int:
    """The exit code to pass on: a shell tells death by signal n as 128 + n."""
    return code if code >= 0 else 128 - code


def _adopt_orphans() -> None:
    """Become the parent of orphaned descendants, so that their time is counted (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end_with_parent() -> None:
    """A rank that is killed takes its program along (Linux only)."""
    _unblock()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _WAITED_FOR)
