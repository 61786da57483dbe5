"""Create folders and files: complete or not at all, and with a group's permissions.

In a folder that its group may write to, every new file and folder is writable for the group as
well, whoever creates it.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from tempfile import NamedTemporaryFile
from threading import Lock
from typing import Final

UMASK_LOCK: Final = Lock()


def write_text(path: Path, text: str) -> None:
    """Write the file completely or not at all: others may read or write it at the same time."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))  # a file's name may not be UTF-8


def write_bytes(path: Path, content: bytes) -> None:
    """Write the file completely or not at all, as `write_text` does."""
    make_folder(path.parent)
    partial = NamedTemporaryFile(  # noqa: SIM115
        "wb", dir=path.parent, prefix=f".{path.name}.", delete=False
    )
    try:
        with partial:
            partial.write(content)
            set_shared_mode(partial.fileno(), path.parent)  # a temporary file is 0600
        Path(partial.name).replace(path)
    except BaseException:
        Path(partial.name).unlink(missing_ok=True)
        raise


def make_folder(folder: Path) -> None:
    """Create the folder and its missing parents."""
    if folder.is_dir():
        return
    if folder.exists() and not folder.is_dir():  # asked again: another may just have made it
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    parent = folder.parent
    make_folder(parent)
    found = parent.stat()
    group = found.st_gid if found.st_mode & stat.S_ISGID else os.getegid()
    if not is_shared(parent, group):
        folder.mkdir(exist_ok=True)
        return
    # With its mode from the first moment: another user's process may be about to write there.
    made = folder.with_name(f".{os.urandom(16).hex()}")
    made.mkdir()
    made.chmod(stat.S_IMODE(made.stat().st_mode) | stat.S_IRWXG)
    try:
        made.rename(folder)
    except OSError:  # another process was faster, and already uses it
        made.rmdir()
        if not folder.is_dir():
            raise


def is_shared(folder: Path, group: int) -> bool:
    """Whether this group may write to the folder, and not everybody, as in /tmp."""
    found = folder.stat()
    group_only = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) == stat.S_IWGRP
    return group_only and found.st_gid == group


def set_shared_mode(descriptor: int, folder: Path) -> None:
    """Set a new file's mode by the umask, and for the group, too, in a shared folder."""
    mode = 0o666 & ~current_umask()
    if is_shared(folder, os.fstat(descriptor).st_gid):
        mode |= stat.S_IRGRP | stat.S_IWGRP
    os.fchmod(descriptor, mode)


def open_lock(path: Path) -> int:
    """Open a file for locking; read access suffices for another user's file, except on NFS."""
    try:
        return os.open(path, os.O_RDWR)
    except FileNotFoundError:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        if os.fstat(descriptor).st_uid == os.geteuid():  # two may create it at once
            set_shared_mode(descriptor, path.parent)
        return descriptor
    except PermissionError:
        return os.open(path, os.O_RDONLY)


def current_umask() -> int:
    """The process's umask, which can only be read by setting it: guarded against other threads."""
    with UMASK_LOCK:
        mask = os.umask(0o022)
        os.umask(mask)
    return mask
