"""A program's standard output on its way to ours: passed on byte for byte, and read meanwhile."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import sys
import threading
from collections.abc import Callable
from typing import Final

CHUNK: Final = 65536


class Output:
    """The pipe, and the thread at its reading end."""

    def __init__(self, seen: Callable[[bytes], None]) -> None:
        self._seen = seen
        self._reading, self.writing = os.pipe()
        self._ended, self._ending = os.pipe()
        self._to = _descriptor()
        self.ended_a_line = True
        self._thread = threading.Thread(target=self._pass_on, name="hpcncf-output", daemon=True)

    def start(self) -> None:
        """Once the program has its end of the pipe."""
        os.close(self.writing)
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        self._thread.start()

    def end(self) -> None:
        """The program has ended: pass on what it left. Its orphans may hold the pipe for ever."""
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
        left = _capacity(self._reading)
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


def _descriptor() -> int:
    try:
        return sys.stdout.fileno()
    except OSError:  # what stands in for it has none
        return 1


def _capacity(pipe: int) -> int:
    """The most that can have been in the pipe when its writer ended."""
    of_linux = getattr(fcntl, "F_GETPIPE_SZ", None)
    return CHUNK if of_linux is None else fcntl.fcntl(pipe, of_linux)
