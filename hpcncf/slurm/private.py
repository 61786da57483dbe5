"""submitit's folder: what lies there is unpickled, that is executed, so only its user may write."""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path

from hpcncf.errors import HpcncfError

OTHERS = 0o077


def make(folder: Path) -> None:
    """The folder, of mode 0700 and ours. Raises HpcncfError where it may be somebody else's."""
    folder.mkdir(mode=0o700, exist_ok=True)
    problem = danger(folder)
    if problem is not None:
        raise HpcncfError(
            f"{problem}; jobs would execute what others put into {folder}: nothing is "
            "submitted. Remove it (its logs go with it), or use another folder with --results"
        )


def danger(folder: Path) -> str | None:
    """How others could write there, in words; None where they cannot.

    The group may write above it, since people share results: see `guard`.
    """
    status = folder.lstat()
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISDIR(status.st_mode):
        return f"{folder}: a link or a file, where a folder of yours was expected"
    if status.st_uid != os.geteuid():
        return f"{folder}: belongs to another user (id {status.st_uid})"
    if mode & OTHERS:
        return f"{folder}: others may use it (mode {mode:04o}, expected 0700)"
    for parent in folder.resolve().parents:
        mode = stat.S_IMODE(parent.stat().st_mode)
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return f"{parent}: everybody may rename what is in it (mode {mode:04o})"
    return None


def guard(folder: Path) -> str:
    """A line of bash for the job's start: end it where the folder is no longer ours.

    Whoever may write to the results folder could have put another in its place while the job
    waited; a folder that this user owns they cannot make.
    """
    name = shlex.quote(str(folder))
    told = shlex.quote(f"hpcncf: {folder}: is not this user's own folder any more: not started")
    return f"if [ ! -O {name} ] || [ -L {name} ]; then echo {told} >&2; exit 1; fi"
