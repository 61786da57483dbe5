"""End this process without Python's own shutdown."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from typing import NoReturn

# Threads of this process (gloo's, say) may still hold a tensor when Python ends. Up to Python
# 3.13 a thread that then asks for the interpreter is made to leave, in the midst of C++ code that
# allows no such thing: "terminate called without an active exception", SIGABRT, and a run that is
# complete counts as failed (2 of 100 ends of two ranks with DDP here). Visiting every object of
# torch's would also take most of a second of CPU time, which Slurm counts and no record has.


def exit_now(code: int) -> NoReturn:
    """Run the registered exit functions, and end this process with the exit code."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def exit_after_main(code: int) -> None:
    """End the process with the exit code when the main program is done.

    If that ends in an error of its own, the exit code is 1.
    """

    def end() -> NoReturn:
        atexit.unregister(end)  # what was registered before is left to run
        exit_now(1 if code == 0 and hasattr(sys, "last_value") else code)

    atexit.register(end)
