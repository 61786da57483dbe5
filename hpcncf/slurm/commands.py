"""Asking Slurm, and telling it: one squeue, at most one sacct, one scancel, for any number."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from hpcncf.errors import HpcncfError
from hpcncf.slurm import states
from hpcncf.slurm.states import JobState

# A busy controller answers late; `status` says `unknown` rather than hang.
TIMEOUT_S: Final = 30


def job_states(ids: Sequence[str], problems: list[str]) -> dict[str, JobState]:
    """Job or array element -> what Slurm says of it; those it does not know are left out.

    Whatever cannot be asked is told in `problems`.
    """
    masters = ",".join(sorted({job_id.split("_")[0] for job_id in ids}))
    if not masters:
        return {}
    queue = ["squeue", "--array", "--noheader", f"--format={states.SQUEUE_FORMAT}", "-j", masters]
    found = states.read_squeue(said(queue, problems))
    if set(ids) <= set(found):
        return found
    account = [
        "sacct",
        "--noheader",
        "--parsable2",
        f"--format={states.SACCT_FIELDS}",
        "-j",
        masters,
    ]
    return states.read_sacct(said(account, problems)) | found


def said(
    command: list[str], problems: list[str], variables: Mapping[str, str] = MappingProxyType({})
) -> str:
    """What the command prints, with these variables set; what goes wrong is told in `problems`."""
    if shutil.which(command[0]) is None:
        problems.append(f"{command[0]}: not found on this machine, so Slurm cannot be asked")
        return ""
    try:
        done = subprocess.run(
            command,
            env=os.environ | variables,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        problems.append(f"{command[0]}: no answer within {TIMEOUT_S} s")
        return ""
    # squeue calls a job that has ended and left its memory an invalid id.
    if done.returncode != 0 and "Invalid job id" not in done.stderr:
        problems.append(f"{command[0]}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout


def cancel(ids: Sequence[str]) -> None:
    """Raises HpcncfError with what scancel said."""
    if shutil.which("scancel") is None:
        raise HpcncfError("scancel: not found on this machine: cancel where Slurm is")
    done = subprocess.run(["scancel", *ids], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise HpcncfError(f"scancel: {done.stderr.strip() or f'exit code {done.returncode}'}")
