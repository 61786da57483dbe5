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

CONTROL: Final = "nvidia-cuda-mps-control"
ANSWER_S: Final = 30.0


@dataclass(frozen=True)
class Served:
    """What its clients are to know."""

    gpus: list[str]
    """As a client names them: the daemon numbers those that it was started with anew."""
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
    env = os.environ | variables | {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}
    try:
        problem = _start(env)
        if problem:
            _tell("quit", env)  # it may only have been slow to answer
            yield _missed(gpus, problem)
            return
        try:
            yield Served([str(number) for number in range(len(gpus))], True, None, variables)
        finally:
            _tell("quit", env)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
    """Slurm may send its warning to every process of the step, and the ranks then write their
    checkpoints with the daemon's help."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])


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
