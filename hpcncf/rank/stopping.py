"""A signal that asks a rank to end is heard, wherever it lands.

Raising from the handler is not enough. Python drops what is raised in a `__del__` or in a weakref's
callback, so it is raised again until the rank is on its way out. And a main thread that waits in
C++ for other ranks runs no handler at all: another thread hears the signal and ends the rank.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Collection
from types import CodeType, FrameType
from typing import Final

# SIGUSR2 is what jobs for Slurm ask to be warned by (submitit's handler would end the rank as
# failed, and take every warning for a timeout).
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)
MEANING: Final = {signal.SIGUSR2: ", Slurm's warning of the time limit or of preemption"}
AGAIN_S: Final = 0.5
# Less than the grace before SIGKILL: ours is 15 s, Slurm's (KillWait) 30 s.
DEAF_S: Final = 5.0
_ENDED: Final = 0  # no signal has this number

# A DataLoader worker inherits the pipe: what is sent to it is not for its rank.
os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))


class Stopped(BaseException):
    """A signal asked this rank to end. No Exception, so that nothing in between handles it."""

    def __init__(self, signum: int) -> None:
        meant = MEANING.get(signal.Signals(signum), "")
        super().__init__(f"stopped by {signal.Signals(signum).name}{meant}")
        self.exit_code = 128 + signum


class StopSignals:
    """From `begin` to `end`, a stop signal raises Stopped in the main thread until it works.

    It is not raised below the functions `quiet`, where it would cut off what it must not. `deaf` is
    called in another thread when the main one did not come to `end` within five seconds.
    """

    def __init__(self, quiet: Collection[CodeType], deaf: Callable[[Stopped], None]) -> None:
        self._quiet, self._deaf = quiet, deaf
        self._pid = os.getpid()
        self._signum: int | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="hpcncf-stop", daemon=True)

    def begin(self) -> None:
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        self._thread.start()
        # Written by the signal itself, not by its handler, for which C++ may leave no time.
        self._fd_before = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        self._before = {each: signal.getsignal(each) for each in (*SIGNALS, signal.SIGCHLD)}
        for each in SIGNALS:
            signal.signal(each, self._stop)

    def end(self) -> None:
        """Ignore them from now on: the record is short work, and nothing is to cut it off."""
        for each in SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        _forget_workers()
        signal.set_wakeup_fd(self._fd_before)
        self._ended.set()
        os.write(self._writing, bytes([_ENDED]))
        self._thread.join()  # for ever, where it has begun to end this process
        os.close(self._reading)
        os.close(self._writing)

    def restore(self) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def cause(self, error: BaseException | None) -> BaseException | None:
        """What broke after a stop signal (peers and workers got it, too) broke because of it."""
        if self._signum is None or not isinstance(error, Exception):
            return error
        stopped = Stopped(self._signum)
        stopped.__cause__ = error
        return stopped

    def _stop(self, signum: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:  # a forked worker, which its rank will end
            return
        self._signum = self._signum or signum
        _forget_workers()
        while frame is not None:
            if frame.f_code in self._quiet:
                return
            frame = frame.f_back
        raise Stopped(self._signum)

    def _listen(self) -> None:
        signum = os.read(self._reading, 1)[0]
        while signum not in (*SIGNALS, _ENDED):
            signum = os.read(self._reading, 1)[0]
        main = threading.main_thread().ident
        assert main is not None
        for _ in range(round(DEAF_S / AGAIN_S)):
            if self._ended.wait(AGAIN_S):
                return
            signal.pthread_kill(main, signum)
        stopped = Stopped(signum)
        waiting = traceback.format_stack(sys._current_frames()[main])
        stopped.add_note("the main thread runs no Python, it waits here:\n" + "".join(waiting))
        self._deaf(stopped)


def _forget_workers() -> None:
    """DataLoader raises from its SIGCHLD handler: a signal to the whole group, workers included,
    would be told as a worker's death, or cut off the record."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
