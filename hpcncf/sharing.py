"""A results folder that its group may write to stays so all the way down, whoever makes a part."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from threading import Lock
from typing import Final
from uuid import uuid4

ASKING: Final = Lock()


def make(folder: Path) -> None:
    """The folder and those above it that are missing."""
    if folder.is_dir():
        return
    if folder.exists() and not folder.is_dir():  # asked again: another may just have made it
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    make(folder.parent)
    if not shared(folder.parent, _group_in(folder.parent)):
        folder.mkdir(exist_ok=True)
        return
    # With its mode from the first moment: another's process may be about to write there.
    made = folder.with_name(f".{uuid4().hex}")
    made.mkdir()
    made.chmod(stat.S_IMODE(made.stat().st_mode) | stat.S_IRWXG)
    try:
        made.rename(folder)
    except OSError:  # somebody was faster, and uses it already
        made.rmdir()
        if not folder.is_dir():
            raise


def _group_in(folder: Path) -> int:
    """Of what this process makes there."""
    found = folder.stat()
    return found.st_gid if found.st_mode & stat.S_ISGID else os.getegid()


def shared(folder: Path, group: int) -> bool:
    """Whether the folder is for this group to write to, and not for everybody, as /tmp is."""
    found = folder.stat()
    group_only = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) == stat.S_IWGRP
    return group_only and found.st_gid == group


def share(descriptor: int, folder: Path) -> None:
    """A new file's mode: as the umask says, and for the group of a shared folder."""
    mode = 0o666 & ~umask()
    if shared(folder, os.fstat(descriptor).st_gid):
        mode |= stat.S_IRGRP | stat.S_IWGRP
    os.fchmod(descriptor, mode)


def open_lock(path: Path) -> int:
    """A descriptor to lock; to read another's is enough for that, but not on NFS."""
    try:
        return os.open(path, os.O_RDWR)
    except FileNotFoundError:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        if os.fstat(descriptor).st_uid == os.geteuid():  # two may make it at once
            share(descriptor, path.parent)
        return descriptor
    except PermissionError:
        return os.open(path, os.O_RDONLY)


def umask() -> int:
    """To ask for it is to set it: two threads at once (the monitor writes, too) would mix it up."""
    with ASKING:
        mask = os.umask(0o022)
        os.umask(mask)
    return mask
