"""NVIDIA's Multi-Process Service: start and end the daemon that lets runs share a GPU."""

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

# The daemon's pipes and logs lie in a folder that only this user may open and no other job knows,
# so that jobs on one node never meet, and a daemon that a site runs is left alone.
# Source: https://docs.nvidia.com/deploy/mps/

CONTROL: Final = "nvidia-cuda-mps-control"
ANSWER_S: Final = 30.0
ENDED_S: Final = 5.0
OURS: Final = "HPCNCF_MPS"
"""A variable of the daemon and its servers, and of no client."""


@dataclass(frozen=True)
class MpsClientEnv:
    """Environment that the client processes of an MPS daemon need."""

    gpus: list[str]
    """As a client names them: the daemon renumbers the GPUs that it was started with."""
    running: bool = False
    problem: str | None = None
    """Why a requested daemon is missing."""
    variables: Mapping[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def run_mps_daemon(wanted: bool, gpus: Sequence[str]) -> Iterator[MpsClientEnv]:
    """Run the MPS daemon for these GPUs until the block ends.

    If it does not start, a line says so, and the runs share the GPUs without it.
    """
    if not wanted:
        yield MpsClientEnv(list(gpus))
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
            yield MpsClientEnv(named or numbers, True, None, variables)
        finally:
            _end(env)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def uuids(gpus: Sequence[str]) -> list[str]:
    """Return the UUIDs of the GPUs; an empty list if NVML does not know all of them.

    NVML, the MPS daemon and its clients understand UUIDs alike.
    """
    known = {device.identity.index: device.identity for device in gpu.open_gpus()}
    env = os.environ | {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}
    found = [known[index].uuid for index in gpu.allowed(known.values(), env)]
    return found if len(found) == len(gpus) and all(found) else []


def _missed(gpus: Sequence[str], problem: str) -> MpsClientEnv:
    sys.stderr.write(f"hpcncf: mps: {problem}: the runs share the GPU without it\n")
    return MpsClientEnv(list(gpus), problem=problem)


def _start(env: Mapping[str, str]) -> str | None:
    """Start the MPS daemon; return None, or the reason why it does not answer."""
    if shutil.which(CONTROL) is None:
        return f"there is no {CONTROL} on this node"
    return _control(env, "-d") or _control(env, command="get_server_list")


def _undisturbed() -> None:
    """Block SIGUSR2 and SIGTERM in the daemon's process.

    Slurm sends its warning, and the SIGTERM of a preemption or of scancel, to every process of
    the step: the ranks then write their checkpoints with the daemon's help.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2, signal.SIGTERM])


def _end(env: Mapping[str, str]) -> None:
    """Quit the MPS daemon, and kill those of its processes that are left."""
    _control(env, command="quit")
    ours = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # another user's, or gone
            if process.environ().get(OURS) == env[OURS]:
                ours.append(process)
    _, remaining = psutil.wait_procs(ours, timeout=ENDED_S)
    for process in remaining:
        with contextlib.suppress(psutil.Error):
            process.kill()


def _control(env: Mapping[str, str], *options: str, command: str = "") -> str | None:
    """Start the MPS daemon, or send it a command; return None or a description of the problem."""
    # A file, for the daemon may keep what it was given to write to: a pipe would not end. The
    # daemon's own are control.log and server.log.
    log = Path(env["CUDA_MPS_LOG_DIRECTORY"], "answer.log")
    try:
        with log.open("w") as said:
            code = subprocess.run(
                [CONTROL, *options],
                env=env,
                input=f"{command}\n",
                stdout=said,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=ANSWER_S,
                check=False,
                preexec_fn=_undisturbed,
            ).returncode
        last = log.read_text(errors="replace").strip().splitlines()[-1:] or ["it gave no reason"]
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{CONTROL} does not answer: {error}"
    words = " ".join([CONTROL, *options, command]).strip()
    return f"{words} ended with exit code {code}: {last[0]}" if code else None
