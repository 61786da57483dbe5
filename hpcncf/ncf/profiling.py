"""Profile a rank with torch's profiler or py-spy."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from hpcncf.errors import HpcncfError
from hpcncf.job.spec import Training
from hpcncf.launcher.environment import Place
from hpcncf.paths import AttemptPaths

# Steps before the profiled ones: those that `phases` does not count either, and its own first.
SKIPPED_STEPS: Final = 20
WARMUP_STEPS: Final = 3
LARGEST_MIB: Final = 64
"""Viewers of traces choke on more."""
EXIT_TIMEOUT_S: Final = 60.0
# prctl(2): lets other processes than its ancestors trace this one, which Yama refuses.
PR_SET_PTRACER: Final = 0x59616D61
PR_SET_PTRACER_ANY: Final = ctypes.c_ulong(-1)

Warn = Callable[[str], None]
AfterStep = Callable[[], None]


def is_profiled(training: Training, place: Place) -> bool:
    return training.profile != "none" and (training.profile_ranks == "all" or place.rank == 0)


@contextmanager
def profiled(
    training: Training, place: Place, attempt: AttemptPaths, warn: Warn
) -> Iterator[AfterStep]:
    """Profile the rank while the context lasts; yields a function to call after each step.

    The profile is written on exit, with a warning about its influence on the run's figures, or
    about why there is none.

    Raises HpcncfError if py-spy is asked for and is not installed.
    """
    if not is_profiled(training, place):
        yield lambda: None
    elif training.profile == "torch":
        with _traced(training.profile_steps, attempt.trace(place.rank), warn) as step:
            yield step
    else:
        with _sampled(training, attempt.flame_graph(place.rank), warn):
            yield lambda: None


@contextmanager
def _traced(steps: int, path: Path, warn: Warn) -> Iterator[AfterStep]:
    """Trace `steps` training steps with torch's profiler; yields its step function.

    The file is in Chrome's trace format, gzipped: for chrome://tracing or ui.perfetto.dev.
    """
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    phases = schedule(skip_first=SKIPPED_STEPS, wait=0, warmup=WARMUP_STEPS, active=steps, repeat=1)
    written: list[Path] = []

    def write(found: profile) -> None:
        found.export_chrome_trace(str(path))
        written.append(path)

    with profile(activities=activities, schedule=phases, on_trace_ready=write) as watched:
        yield watched.step
    if not written:
        warn(
            f"training.profile torch: the run had no more than {SKIPPED_STEPS + WARMUP_STEPS} steps"
        )
        return
    warn(f"torch's profiler watched {steps} steps, which it makes slower: {path.name}")
    if path.stat().st_size > LARGEST_MIB * 2**20:
        path.unlink()
        warn(f"{path.name} had more than {LARGEST_MIB} MiB and was removed: fewer profile_steps")


@contextmanager
def _sampled(training: Training, path: Path, warn: Warn) -> Iterator[None]:
    """Run py-spy next to the rank while the context lasts, and write its flame graph.

    The rank permits to be traced, so that py-spy needs no privileges.
    """
    _permit_tracing()
    command = [find_py_spy(), "record", "--pid", str(os.getpid()), "--format", "flamegraph"]
    command += ["--output", str(path), "--rate", str(training.profile_rate), "--threads"]
    # py-spy reads frames of C from a process that is paused only.
    command.append("--native" if training.profile_native else "--nonblocking")
    if training.profile_subprocesses:
        os.register_at_fork(after_in_child=_permit_tracing)  # no permission is inherited
        command.append("--subprocesses")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as sampler:
        try:
            yield
        finally:
            sampler.send_signal(signal.SIGINT)  # it writes what it has
            output = _ended(sampler)
    if path.is_file():
        rate = training.profile_rate
        paused = ", each time pausing the rank" * training.profile_native
        warn(f"py-spy looked {rate} times a second{paused}, and its CPU time counts: {path.name}")
    else:
        last = output.strip().splitlines()[-1:] or "it printed nothing"
        warn(f"py-spy left no flame graph: {last}")


def _permit_tracing() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0)


def _ended(sampler: subprocess.Popen[bytes]) -> str:
    try:
        return sampler.communicate(timeout=EXIT_TIMEOUT_S)[0].decode(errors="replace")
    except subprocess.TimeoutExpired:
        sampler.kill()
        return sampler.communicate()[0].decode(errors="replace")


def find_py_spy() -> str:
    """Return the path of py-spy beside this Python or on PATH. Raises HpcncfError if missing."""
    places = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
    found = shutil.which("py-spy", path=places)
    if found is None:
        raise HpcncfError(
            f"training.profile py-spy: py-spy is not installed beside {sys.executable}: "
            "pip install 'hpcncf[profile]'"
        )
    return found
