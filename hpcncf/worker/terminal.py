"""The terminal in front of `hpcncf run`, and the inherited dispositions of signals."""

from __future__ import annotations

import os
import re
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

# A process that reads from or writes to a terminal whose foreground group is another gets the last
# two; the first is Ctrl-Z.
JOB_CONTROL: Final = frozenset({signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})
# Python ignores these in every process of its own: what it inherited is not to be seen any more.
_IGNORED_BY_PYTHON: Final = (signal.SIGPIPE, signal.SIGXFSZ)


class Terminal:
    """The controlling terminal, if there is one, and whose keys it takes.

    A program that makes a process group of its own, as `timeout` does, leads its group already if
    a shell at a terminal starts it, and keeps the terminal. As our child it leaves the group to
    which the terminal belongs: it gets the terminal, too.
    """

    def __init__(self, child: int) -> None:
        self._child = child

    def has_left(self) -> bool:
        """Return whether the child is in another process group than this process."""
        return self.group() not in (os.getpgrp(), None)

    def group(self) -> int | None:
        try:
            return os.getpgid(self._child)
        except ProcessLookupError:
            return None

    def give(self) -> bool:
        """Give the terminal to the child's group if ours has it; return whether it was given."""
        group = self.group()
        if group is None or group == os.getpgrp() or os.getpgrp() != os.getpid():
            return False  # in a script, it would not have the terminal either
        if not self._hand_over(os.getpgrp(), group):
            return False
        let_go_on(self._child, group)
        return True

    def take_back(self) -> bool:
        """Give the terminal back to our group if the child's has it; return whether it did."""
        group = self.group()
        return group is not None and self._hand_over(group, os.getpgrp())

    @staticmethod
    def _hand_over(holder: int, to: int) -> bool:
        try:
            terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            return False  # there is none
        try:
            if os.tcgetpgrp(terminal) != holder:
                return False
            os.tcsetpgrp(terminal, to)  # SIGTTOU is blocked here
            return True
        except OSError:
            return False
        finally:
            os.close(terminal)


def is_stopped(pid: int) -> bool:
    """Return whether a signal has stopped (suspended) this process."""
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False


def let_go_on(child: int, group: int) -> None:
    """Continue the stopped processes of this group: the child and its descendants."""
    import psutil

    with suppress(psutil.NoSuchProcess):
        for process in (psutil.Process(child), *psutil.Process(child).children(recursive=True)):
            with suppress(OSError):
                if os.getpgid(process.pid) == group and is_stopped(process.pid):
                    os.kill(process.pid, signal.SIGCONT)


def stop_as(number: int) -> None:
    """Stop this process with the signal that stopped its child; return when it continues.

    In a group without a shell that could let it go on, the kernel does not stop it.
    """
    # Blocked still, so that it is one with the terminal's own, which may wait to be delivered: in
    # the other order each would stop this process, and after `fg` it would stop once more.
    os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    signal.pthread_sigmask(signal.SIG_BLOCK, [number])


def die_of(number: int) -> None:
    """End this process with this signal, so that a shell sees what ended the command.

    After Ctrl-C, for example, the shell leaves its loop. It returns if the signal does not end
    the process, as for the first process of a container.
    """
    import resource

    with suppress(OSError, ValueError):  # the program's core file is enough
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with suppress(OSError):  # SIGKILL has no other disposition
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)


def inherited_as_ignored() -> frozenset[int]:
    """Return the signals that this process ignored already before Python started.

    Only signals that Python itself ignores are considered. The process that started this one passes
    on what it ignores; a Python does not: it ignores them itself, and starts others with the
    default.
    """
    try:
        parent = Path(f"/proc/{os.getppid()}")
        if re.match(r"python|pypy", os.readlink(parent / "exe").rpartition("/")[2]):  # noqa: PTH115
            return frozenset()
        status = (parent / "status").read_text()
        ignored = int(re.findall(r"^SigIgn:\s*([0-9a-f]+)$", status, re.MULTILINE)[0], 16)
    except (OSError, IndexError, ValueError):
        return frozenset()
    return frozenset(each for each in _IGNORED_BY_PYTHON if ignored >> (each - 1) & 1)


def restore_dispositions(ignored: frozenset[int]) -> None:
    """Reset signals that Python ignores, in the child before it becomes the command.

    Signals in `ignored` stay ignored.
    """
    for number in (*_IGNORED_BY_PYTHON, *ignored):
        signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
