"""A rank's process ends without Python's own clearing up.

Its threads (gloo's, say) may still hold a tensor when Python ends. Up to Python 3.13 a thread that
then asks for the interpreter is made to leave, in the midst of C++ code that allows no such thing:
"terminate called without an active exception", SIGABRT, and a run that is complete counts as failed
(2 of 100 ends of two ranks with DDP here). Visiting every object of torch's would also take most of
a second of CPU time, which Slurm counts and no record can tell.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from typing import NoReturn


def at_once(code: int) -> NoReturn:
    """End this process with that exit code, after what was registered for its end."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def in_the_end(code: int) -> None:
    """End it so when its main program is done; 1 where that ends in an error of its own."""

    def end() -> NoReturn:
        atexit.unregister(end)  # what was registered before is left to run
        at_once(1 if code == 0 and hasattr(sys, "last_value") else code)

    atexit.register(end)
