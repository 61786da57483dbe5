"""Signals that stop a rank: they wait, raise, or end a rank that hangs."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Final, Literal

from hpcncf.launcher.requeue import in_slurm_job


def graceful(env: Mapping[str, str] = os.environ) -> frozenset[int]:
    """Return the signals at which all ranks agree on a step to stop, and write a checkpoint.

    Outside of Slurm SIGTERM means at once: whoever sends it waits in front of a terminal.
    """
    return frozenset({signal.SIGUSR2, signal.SIGTERM} if in_slurm_job(env) else {signal.SIGUSR2})


# Training stops at a step that all ranks agree on: there the signal only leaves a `StopRequest`.
# Anywhere else it raises, and raising from the handler is not enough. Python drops what is raised
# in a `__del__` or in a weakref's callback, so it is raised again until the rank is on its way out.
# And a main thread that waits in C++ for other ranks runs no handler at all: another thread hears
# the signal and ends the rank.

# SIGUSR2 is what jobs for Slurm ask to be warned by (submitit's handler would end the rank as
# failed, and take every warning for a timeout).
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)


MEANING: Final = {signal.SIGUSR2: ", Slurm's warning of the time limit or of preemption"}


AGAIN_S: Final = 0.5


Mode = Literal["at_once", "deferred", "undisturbed"]


# How long after a signal the rank may still be at work; then another thread ends it. All but the
# last are less than the grace before SIGKILL: ours is 15 s, Slurm's (KillWait) 30 s. A checkpoint
# of a large model on a slow disk takes longer, and a kill leaves the one before.
PATIENCE_S: Final[dict[Mode, float]] = {"at_once": 5.0, "deferred": 10.0, "undisturbed": 120.0}


_ENDED: Final = 0  # no signal has this number


# A DataLoader worker inherits the pipe: what is sent to it is not for its rank.
os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))


class Stopped(BaseException):
    """A signal asked this rank to end. No Exception, so that nothing in between handles it."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum
        self.exit_code = 128 + signum
        self.fate = ""
        """What becomes of the run, once that is known."""

    def __str__(self) -> str:
        meant = MEANING.get(signal.Signals(self.signum), "")
        return f"stopped by {signal.Signals(self.signum).name}{meant}{self.fate}"


class StopRequest:
    """A request that this rank stop, and how its current work is to be treated.

    The work chooses the moment (`deferred`), must not be disturbed (a checkpoint being written), or
    is cut off `at_once`.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self.mode: Mode = "at_once"
        self.came_in: Mode | None = None
        """The mode when the signal came."""

    def note(self, signum: int) -> bool:
        """Store the first stop signal; return whether the current work decides when to stop.

        It returns False where the work is to be cut off at once.
        """
        if self.signum is None:
            self.signum, self.came_in = signum, self.mode
        return self.mode != "at_once"

    @contextmanager
    def doing(self, mode: Mode) -> Iterator[None]:
        """Set the mode in which a stop signal is handled while the block runs.

        Raises Stopped at once if the mode is `at_once` and a signal was deferred before.
        """
        before, self.mode = self.mode, mode
        try:
            if mode == "at_once" and self.came_in is not None and self.signum is not None:
                raise Stopped(self.signum)
            yield
        finally:
            self.mode = before


class PendingSignal:
    """Handles a signal that comes before there is anything to stop: it is passed on later."""

    def __init__(self) -> None:
        self.came = False

    def __call__(self, _signum: int, _frame: FrameType | None) -> None:
        self.came = True


class FirstSignal:
    """Keeps the first SIGTERM or SIGUSR2 sent to a task of several runs, and passes on each.

    A signal that was held back counts, too.
    """

    def __init__(self, pass_on: Callable[[int], None]) -> None:
        self.signum: int | None = None
        self._pass_on = pass_on
        for each in (signal.SIGTERM, signal.SIGUSR2):
            held = signal.getsignal(each)
            signal.signal(each, self._handle)
            if isinstance(held, PendingSignal) and held.came:
                self.signum = each

    def _handle(self, signum: int, _frame: FrameType | None) -> None:
        self.signum = self.signum or signum
        self._pass_on(signum)


def hold(signals: Collection[signal.Signals] = SIGNALS) -> None:
    """Hold back these signals, whoever handled them before, until `StopSignals.begin`."""
    for each in signals:
        signal.signal(each, PendingSignal())


def ignore() -> None:
    """Ignore stop signals from now on, because the work is done and recorded.

    Otherwise a signal during Python's shutdown, which restores default handlers, would turn a
    complete run into a failure.
    """
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)


class StopSignals:
    """From `begin` to `end`, a stop signal raises Stopped in the main thread until it works.

    Those of `graceful` leave a `request` instead, where the work defers. Nothing is raised below
    the functions `quiet`, where it would cut off what it must not. `deaf` is called in another
    thread when the main one did not come to `end` in time.
    """

    def __init__(
        self,
        quiet: Collection[CodeType],
        deaf: Callable[[Stopped], None],
        graceful: Collection[int] = (),
    ) -> None:
        self._quiet, self._deaf, self._graceful = quiet, deaf, graceful
        self._pid = os.getpid()
        self._signum: int | None = None
        self.request = StopRequest()
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
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # see rank.torchrun
        for each, handler in self._before.items():
            if isinstance(handler, PendingSignal) and handler.came:
                os.kill(os.getpid(), each)

    def end(self) -> None:
        """Stop listening and ignore stop signals, so that nothing interrupts writing the record."""
        ignore()
        _forget_workers()
        signal.set_wakeup_fd(self._fd_before)
        self._ended.set()
        os.write(self._writing, bytes([_ENDED]))
        self._thread.join()  # forever, where it has begun to end this process
        os.close(self._reading)
        os.close(self._writing)

    def restore(self) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def cause(self, error: BaseException | None) -> BaseException | None:
        """Return the stop signal as the cause of an error that followed it, or the error itself.

        The signal reaches peers and workers as well, so that errors after it are its
        consequence.
        """
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
        if signum in self._graceful and self.request.note(signum):
            return
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
        waited_s = 0.0
        while waited_s < PATIENCE_S[self.request.mode]:
            if self._ended.wait(AGAIN_S):
                return
            waited_s += AGAIN_S
            signal.pthread_kill(main, signum)
        stopped = Stopped(signum)
        waiting = traceback.format_stack(sys._current_frames()[main])
        stopped.add_note("the main thread did not stop, it is here:\n" + "".join(waiting))
        self._deaf(stopped)


def _forget_workers() -> None:
    """Reset SIGCHLD to its default, so that DataLoader does not raise from its handler.

    A signal to the whole process group ends the workers, too: the handler would report the
    death of a worker, or interrupt the record.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
