"""NVIDIA's Multi-Process Service for the runs of one job: a daemon of their own, ended with them.

Its pipes and logs lie in a folder that only this user may open and no other job knows, so that
jobs on one node never meet, and a daemon that a site runs is left alone.
Source: https://docs.nvidia.com/deploy/mps/
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from hpcncf.monitor import gpu

CONTROL: Final = "nvidia-cuda-mps-control"
ANSWER_S: Final = 30.0
ENDED_S: Final = 5.0
OURS: Final = "HPCNCF_MPS"
"""The variable by which the daemon and its servers are known: no client has it."""


@dataclass(frozen=True)
class Served:
    """What its clients are to know."""

    gpus: list[str]
    """As a client names them: by number, the daemon counts anew those that it was started with."""
    running: bool = False
    problem: str | None = None
    """Why there is none, where one was asked for."""
    variables: Mapping[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def started(wanted: bool, gpus: Sequence[str]) -> Iterator[Served]:
    """The daemon for these GPUs; where it does not start, one line says so and the runs share them
    without it."""
    if not wanted:
        yield Served(list(gpus))
        return
    try:
        folder = Path(tempfile.mkdtemp(prefix="hpcncf-mps-"))  # a socket's path must be short
    except OSError as error:
        yield _missed(gpus, f"no folder for its pipes: {error}")
        return
    variables = {"CUDA_MPS_PIPE_DIRECTORY": str(folder), "CUDA_MPS_LOG_DIRECTORY": str(folder)}
    named = uuids(gpus)
    own = {"CUDA_VISIBLE_DEVICES": ",".join(named or gpus), OURS: str(folder)}
    env = os.environ | variables | own
    try:
        problem = _start(env)
        if problem:
            _end(env)  # it may only have been slow to answer
            yield _missed(gpus, problem)
            return
        try:
            numbers = [str(number) for number in range(len(gpus))]
            yield Served(named or numbers, True, None, variables)
        finally:
            _end(env)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def uuids(gpus: Sequence[str]) -> list[str]:
    """The same GPUs by UUID, which NVML, the daemon and its clients understand alike; empty where
    NVML does not tell all of them."""
    found = gpu.found()
    by_index = {one.index: one.uuid for one in found.identities} if found else {}
    env = os.environ | {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}
    indices = gpu.allowed(found.identities, env) if found else []
    told = [by_index[index] for index in indices]
    return told if len(told) == len(gpus) and all(told) else []


def _missed(gpus: Sequence[str], problem: str) -> Served:
    sys.stderr.write(f"hpcncf: mps: {problem}: the runs share the GPU without it\n")
    return Served(list(gpus), problem=problem)


def _start(env: Mapping[str, str]) -> str | None:
    """Why it did not; None where it answers."""
    if shutil.which(CONTROL) is None:
        return f"there is no {CONTROL} on this node"
    # A file, for the daemon may keep what it was given to write to: a pipe would not end.
    log = Path(env["CUDA_MPS_LOG_DIRECTORY"], "start.log")
    try:
        with log.open("w") as said:
            started = subprocess.run(
                [CONTROL, "-d"],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                timeout=ANSWER_S,
                check=False,
                preexec_fn=_undisturbed,
            )
        last = log.read_text(errors="replace").strip().splitlines()[-1:] or ["it gave no reason"]
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{CONTROL} did not start: {error}"
    if started.returncode:
        return f"{CONTROL} ended with exit code {started.returncode}: {last[0]}"
    return _tell("get_server_list", env)


def _undisturbed() -> None:
    """Slurm sends its warning, and the SIGTERM of a preemption or of scancel, to every process of
    the step: the ranks then write their checkpoints with the daemon's help."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2, signal.SIGTERM])


def _end(env: Mapping[str, str]) -> None:
    """By its own command; by force where it, or a server of its, stays."""
    _tell("quit", env)
    _, left = psutil.wait_procs(_processes(env), timeout=ENDED_S)
    for each in left:
        with contextlib.suppress(psutil.Error):
            each.kill()


def _processes(env: Mapping[str, str]) -> list[psutil.Process]:
    return [each for each in psutil.process_iter() if _mark(each) == env[OURS]]


def _mark(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(OURS)
    except (psutil.Error, OSError):  # another user's, or gone
        return None


def _tell(command: str, env: Mapping[str, str]) -> str | None:
    """What went wrong, if anything did."""
    try:
        said = subprocess.run(
            [CONTROL],
            env=env,
            input=f"{command}\n",
            capture_output=True,
            text=True,
            timeout=ANSWER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{CONTROL} does not answer: {error}"
    if said.returncode == 0:
        return None
    last = (said.stdout + said.stderr).strip().splitlines()[-1:] or ["it gave no reason"]
    return f"{CONTROL}: {command}: {last[0]}"
