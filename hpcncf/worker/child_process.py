"""A command as a child: its output, its signals, the figures it reports."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shutil import which
from typing import Any, Final

from hpcncf.errors import HpcncfError
from hpcncf.records.plain import (
    LARGEST_METRIC,
    LONGEST_REPORTED,
    MOST_REPORTED,
    RecordError,
    Reported,
    read_regular,
)
from hpcncf.worker.terminal import (
    JOB_CONTROL,
    Terminal,
    inherited_as_ignored,
    is_stopped,
    let_go_on,
    restore_dispositions,
    stop_as,
)

CHUNK: Final = 65536


class Output:
    """Passes on a program's output, through a pipe and a thread that reads it."""

    def __init__(self) -> None:
        self._reading, self.writing = os.pipe()
        self._ended, self._ending = os.pipe()
        self._to = 1
        with contextlib.suppress(OSError):  # what stands in for it has none
            self._to = sys.stdout.fileno()
        self.ended_a_line = True
        self._thread = threading.Thread(target=self._pass_on, name="hpcncf-output", daemon=True)

    def start(self, seen: Callable[[bytes], None]) -> None:
        """Start to pass on the program's output; `seen` is called with every chunk of it.

        The program must have inherited its end of the pipe before.
        """
        self._seen = seen
        os.close(self.writing)
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        self._thread.start()

    def end(self) -> None:
        """Pass on the output that is left after the program's end, and stop.

        The program's orphans may hold the pipe open forever, so its end is not awaited.
        """
        os.close(self._ending)
        self._thread.join()
        for descriptor in (self._reading, self._ended):
            os.close(descriptor)

    def _pass_on(self) -> None:
        poll = select.poll()
        poll.register(self._reading, select.POLLIN)
        poll.register(self._ended, select.POLLIN)
        while self._ended not in {descriptor for descriptor, _ in poll.poll()}:
            if not self._one_chunk():
                return
        left = fcntl.fcntl(self._reading, fcntl.F_GETPIPE_SZ)  # no more can have been left there
        poll.unregister(self._ended)
        while left > 0 and poll.poll(0):
            passed = self._one_chunk()
            left = left - passed if passed else 0

    def _one_chunk(self) -> int:
        chunk = os.read(self._reading, CHUNK)
        rest = memoryview(chunk)
        # A full disk must not end the program; what it reports is read all the same.
        with contextlib.suppress(OSError):
            while rest:
                rest = rest[os.write(self._to, rest) :]
        self._seen(chunk)
        self.ended_a_line = chunk.endswith(b"\n") if chunk else self.ended_a_line
        return len(chunk)


MARK: Final = b"hpcncf: "
FILE: Final = "metrics.json"
LONGEST_LINE: Final = 4096
LARGEST_FILE: Final = 64 * 1024

KEY: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,39}")
WHOLE_NUMBER: Final = re.compile(r"[-+]?[0-9]{1,15}")


class ReportedValues:
    """The last value of each key that was reported so far."""

    def __init__(self) -> None:
        self.values: Reported = {}
        self.problems: list[str] = []
        self._rest = b""
        self._in_long_line = False

    def read(self, output: bytes) -> None:
        """Parse the next chunk of the program's output, which may be cut anywhere."""
        *lines, rest = (self._rest + output).replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            if self._in_long_line:
                self._in_long_line = False
            elif line.startswith(MARK):
                self._line(line[:LONGEST_LINE].decode("utf-8", "replace"))
        self._in_long_line |= len(rest) > LONGEST_LINE
        self._rest = b"" if self._in_long_line else rest

    def end(self) -> None:
        """Parse the last line of the output even if it lacks a line break."""
        self.read(b"\n")

    def read_file(self, path: Path) -> None:
        """Read reported values from a flat JSON file; they replace values from the output."""
        try:
            text = read_regular(path, LARGEST_FILE)
            plain = json.loads(text.decode())
        except FileNotFoundError:
            return
        except RecordError as error:
            self._problem(str(error))
            return
        except (OSError, ValueError, RecursionError) as error:
            self._problem(f"{path}: not readable as JSON: {error}")
            return
        if isinstance(plain, dict):
            self._mapping(plain, path)
        else:
            self._problem(f"{path}: expected a mapping, came {type(plain).__name__}")

    def _mapping(self, plain: Mapping[str, Any], path: Path) -> None:
        for key, value in plain.items():
            if isinstance(value, bool | int | float | str):
                self._put(key, value)
            elif value is not None:
                self._problem(f"{path}: {key}: expected a number or text, came {value!r:.50}")

    def _line(self, line: str) -> None:
        for word in line.removeprefix("hpcncf:").split():
            key, equals, value = word.partition("=")
            if equals:
                self._put(key, _parse_value(value))
            else:
                self._problem(f"hpcncf: {word}: expected key=value, without blanks")

    def _put(self, key: str, value: bool | int | float | str) -> None:
        if not KEY.fullmatch(key):
            self._problem(f"hpcncf: {key[:50]}: a key is of letters, digits and underscores")
        elif key not in self.values and len(self.values) == MOST_REPORTED:
            self._problem(f"hpcncf: {key}: more than {MOST_REPORTED} keys were reported: left out")
        else:
            self.values[key] = _kept(value)

    def _problem(self, text: str) -> None:
        if text not in self.problems and len(self.problems) < 5:
            self.problems.append(text)


def _parse_value(text: str) -> int | float | str:
    if WHOLE_NUMBER.fullmatch(text):
        return int(text)
    try:
        return float(text)
    except ValueError:
        return text


def _kept(value: bool | int | float | str) -> bool | int | float | str:
    """Convert a value to one that a JSON record can hold: infinities, for example, to text.

    Huge integers become text as well, and long text is cut.
    """
    if isinstance(value, float) and not abs(value) <= LARGEST_METRIC:
        return str(value)
    if isinstance(value, int) and abs(value) >= 2**53:
        return str(value)[:LONGEST_REPORTED]
    return value[:LONGEST_REPORTED] if isinstance(value, str) else value


# The signals that end a command unless it minds.
ENDING: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
# A rank holds these until there is a command to pass them on to.
_HELD_BY_RANK: Final = ENDING | {signal.SIGUSR1, signal.SIGUSR2}
# A program that makes a process group of its own does so at its start.
_FIRST_LOOK_S: Final = 0.02
# One that shells and the kernel send to a whole group is given this long to arrive at the child.
_ARRIVES_WITHIN_S: Final = 0.02

# As a shell has it.
NOT_FOUND: Final = 127
NOT_EXECUTABLE: Final = 126

_PR_SET_CHILD_SUBREAPER = 36
# siginfo's si_code of a key pressed at the terminal, which signals the whole foreground group.
_SI_KERNEL = 0x80
# The greatest si_code of a signal that a process sent.
_SI_USER = 0


class CannotStart(HpcncfError):
    """The command itself is wrong; `exit_code` as a shell would give."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def check(command: Sequence[str]) -> None:
    """Raise CannotStart if the command's program does not exist or is not executable."""
    program, hint = command[0], ""
    if which(program):
        return
    if set(program) & set(" |&;<>$"):  # a whole line of shell in quotes
        hint = f"; a pipeline or other line of a shell needs one: bash -c {shlex.quote(program)}"
    if "/" not in program:
        raise CannotStart(f"{program}: command not found in PATH{hint}", NOT_FOUND)
    if not Path(program).exists():
        raise CannotStart(f"{program}: no such file{hint}", NOT_FOUND)
    reason = "is a folder" if Path(program).is_dir() else "is not executable (chmod +x?)"
    raise CannotStart(f"{program}: {reason}", NOT_EXECUTABLE)


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
        """Start the command. Raises CannotStart if it cannot be executed."""
        # Orphaned descendants become children of this process, so that their time is counted.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        if output is not None:
            from hpcncf.worker.processes import end_with_parent  # here: no import after a fork
        ignored = inherited_as_ignored()
        # Inherited as ignored, the kernel would wait for children itself and keep no account.
        if signal.signal(signal.SIGCHLD, signal.SIG_DFL) == signal.SIG_IGN:
            ignored |= {signal.SIGCHLD}
        # All of them: none of them ends or stops this process before it does the program.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        if output is not None:
            mask -= _HELD_BY_RANK

        def become_command() -> None:
            restore_dispositions(ignored)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            if output is not None:  # a rank that is killed takes its program along
                end_with_parent(signal.SIGKILL)

        try:
            # Only this thread runs yet: code between fork and exec is safe, and no thread lets
            # through what is blocked here, the timer's signal that would end us among it.
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env=env,
                stdout=output,
                preexec_fn=become_command,
                restore_signals=False,
            )
        except OSError as error:  # a script without #!, a binary of another machine
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            raise CannotStart(
                f"{command[0]}: cannot be executed: {error.strerror}", NOT_EXECUTABLE
            ) from None
        self.pid = self._process.pid
        self._is_shell = is_shell
        self._terminal = Terminal(self.pid)
        self.signals = set[int]()
        """What it was passed, or got from the terminal as we did."""
        self.ended = threading.Event()
        self.ended_s: float | None = None
        """When it ended, by `time.monotonic`."""
        # What is loaded after its start may take longer than the command.
        threading.Thread(target=self._await_end, name="hpcncf-end", daemon=True).start()

    @property
    def asked_to_end(self) -> bool:
        return bool(self.signals & ENDING)

    def wait(
        self,
        meanwhile: Callable[[], None],
        look: Callable[[], None] = lambda: None,
        every_s: float = 2.0,
    ) -> int:
        """Wait for the command's end; return its exit code, or minus the signal that ended it.

        `meanwhile` is called about every `every_s` seconds.

        Signals that reach us go to the child, and where one stops it, we stop. `look` is called
        before an end is taken note of: until then the kernel keeps the account of who ended.
        """
        within_s, looked_at = _FIRST_LOOK_S, time.monotonic()
        while (code := self._reap(look)) is None:
            number = self._next_signal(within_s)
            if number:
                self._forward(number)
            elif number is None:
                self._terminal.give()
                within_s = min(2 * within_s, every_s)
                if time.monotonic() - looked_at >= every_s:
                    meanwhile()
                    looked_at = time.monotonic()
        self._terminal.take_back()
        self._process.returncode = code
        self.ended_s = self.ended_s or time.monotonic()
        return code

    def _await_end(self) -> None:
        """Take note of when the command ends. It stays for `wait` to reap."""
        with contextlib.suppress(ChildProcessError):  # `wait` was faster
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        self.ended_s = self.ended_s or time.monotonic()
        self.ended.set()

    def _next_signal(self, within_s: float) -> int | None:
        """Wait for a signal to pass on to the child; None after `within_s` seconds without one.

        It returns 0 if the signal needs no passing on, for example when a child ended.
        """
        # Not sigtimedwait: where we are stopped (Ctrl-Z, a job that Slurm suspends) and go on after
        # its time, Python's (seen in 3.11) reports a signal that never came.
        signal.setitimer(signal.ITIMER_REAL, within_s)
        info = signal.sigwaitinfo(signal.valid_signals())
        signal.setitimer(signal.ITIMER_REAL, 0)
        number = info.si_signo
        if number == signal.SIGALRM and info.si_code == _SI_KERNEL:
            return None  # our timer; another process's SIGALRM is for the child
        if number == signal.SIGCHLD and info.si_code > _SI_USER:
            return 0
        if info.si_code <= _SI_USER and info.si_pid == os.getpid():
            return 0  # SIGPIPE: nobody reads our standard error any more
        if info.si_code > _SI_USER:  # from the terminal: the child got it as we did
            self.signals.add(number)
            if self._terminal.has_left() and (group := self._terminal.group()):
                os.killpg(group, number)
            return 0
        return number

    def _forward(self, number: int) -> None:
        import psutil

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
        """Reap every process that has ended; return the command's exit code, None while it runs.

        Orphaned descendants of the command are reaped as well.
        """
        while True:
            look()
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                raise AssertionError("the command was reaped by somebody else") from None
            if pid == self.pid and os.WIFSTOPPED(status):
                self._follow_stop(os.WSTOPSIG(status))
            elif pid == self.pid:
                return os.waitstatus_to_exitcode(status)
            elif pid == 0:
                return None

    def _follow_stop(self, number: int) -> None:
        """Stop this process as the child was stopped, so that the terminal or shell sees it."""
        if number not in JOB_CONTROL:
            return  # whoever sends SIGSTOP to a process lets the same one go on
        if number != signal.SIGTSTP and self._terminal.give():
            return
        self._terminal.take_back()
        stop_as(number)
        # The shell lets our whole group go on: the child, too, unless it has left the group.
        if not self._terminal.give() and not self._goes_on():
            let_go_on(self.pid, os.getpgid(self.pid))
        while signal.SIGCONT in signal.sigpending():
            signal.sigwait([signal.SIGCONT])

    def _goes_on(self) -> bool:
        until = time.monotonic() + _ARRIVES_WITHIN_S
        while is_stopped(self.pid) and time.monotonic() < until:
            time.sleep(0.001)
        return not is_stopped(self.pid)


def shell_code(code: int) -> int:
    """Convert a return code to a shell's exit code: death by signal n becomes 128 + n."""
    return code if code >= 0 else 128 - code
