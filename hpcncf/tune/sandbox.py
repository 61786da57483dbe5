"""Where the trials of `hpcncf run --auto` run: a copy of the working folder, fenced by the kernel.

What a trial writes must not be what the real run reads. So its working folder mirrors the program's
own, with copies of small files and links to everything else. Where the kernel has Landlock (Linux
5.13), a trial can write nowhere but in folders of its own, whichever program or library writes.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from hpcncf.errors import HpcncfError

COPIED_BYTES: Final = 1 << 20
"""Files of so many bytes and more are linked."""
COPIED_IN_ALL: Final = 64 << 20
MOST_ENTRIES: Final = 2_000
"""Of all folders that are made; others are linked."""
CACHES: Final = (
    *("XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "NUMBA_CACHE_DIR"),
    "CUDA_CACHE_PATH",
)
"""Variables that name folders of compiled code, which is no result."""
# System calls and constants of linux/landlock.h; equal on all architectures.
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
VERSION: Final = 1
BENEATH: Final = 1
NO_NEW_PRIVS: Final = 38
# WRITE_FILE, REMOVE_DIR, REMOVE_FILE and the seven MAKE_*; then REFER (version 2), TRUNCATE (3).
WRITING: Final = 1 << 1 | 0b1_1111_1111 << 4
REFER: Final = 1 << 13
TRUNCATE: Final = 1 << 14


@dataclass(frozen=True)
class Sandbox:
    """Folders of the trials, on this node."""

    folder: Path
    source: Path
    """The program's own working folder."""

    @property
    def work(self) -> Path:
        return self.folder / "work"

    @property
    def temporary(self) -> Path:
        return self.folder / "tmp"

    @property
    def variables(self) -> dict[str, str]:
        """Variables of a trial's environment that keep what it writes in the sandbox."""
        missing = [name for name in CACHES if name in os.environ and not _cache(name).is_dir()]
        return {
            **dict.fromkeys(("TMPDIR", "MPLCONFIGDIR", *missing), str(self.temporary)),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def renew(self) -> None:
        """Make the working folder as the program's own is now; raises HpcncfError if it cannot."""
        for each in (self.work, self.temporary):
            shutil.rmtree(each, ignore_errors=True)
            each.mkdir()
        room, entries = COPIED_IN_ALL, MOST_ENTRIES
        folders = [(self.source, self.work)]
        while folders:
            source, target = folders.pop(0)  # those near the top first
            found = _list(source, entries)
            if found is None and target == self.work:
                raise HpcncfError(f"{source} has more than {MOST_ENTRIES:,} entries")
            if found is None:  # data, most likely, which a trial only reads
                target.rmdir()
                target.symlink_to(source)
                continue
            entries -= len(found)
            for entry in found:
                place, size = target / entry.name, COPIED_BYTES
                if entry.path == str(self.folder):
                    continue
                if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                    place.mkdir()
                    folders.append((Path(entry.path), place))
                    continue
                if entry.is_file():
                    size = entry.stat().st_size
                if size >= min(COPIED_BYTES, room) or not os.access(entry.path, os.R_OK):
                    place.symlink_to(entry.path)
                else:
                    shutil.copy2(entry.path, place)
                    room -= size


def _list(folder: Path, most: int) -> list[os.DirEntry[str]] | None:
    """Entries of a folder; None if there are too many, or if it cannot be read."""
    with suppress(PermissionError), os.scandir(folder) as entries:
        found = list(islice(entries, most + 1))
        return found if len(found) <= most else None
    return None


@contextmanager
def open_sandbox(source: Path) -> Iterator[Sandbox]:
    """Make a sandbox for programs that run in `source`, and remove it at the end."""
    folder = Path(tempfile.mkdtemp(prefix="hpcncf-")).resolve()
    try:
        yield Sandbox(folder, source)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def writable(sandbox: Sandbox, *more: Path) -> list[Path]:
    """List what a trial may write: its own folders, devices, and caches, which hold no results."""
    caches = [Path.home() / name for name in (".cache", ".triton", ".nv")]
    caches += [_cache(name) for name in CACHES if os.environ.get(name)]
    found = [sandbox.work, sandbox.folder, *more, Path("/dev"), Path("/proc"), *caches]
    return [each.resolve() for each in found if each.is_dir()]


def _cache(name: str) -> Path:
    return Path(os.environ[name])


def kernel_version() -> int:
    """Return the version of Landlock that the kernel has; 0 if it has none."""
    with suppress(OSError):
        return _call(CREATE_RULESET, None, 0, VERSION)
    return 0


def restrict_thread(folders: Sequence[Path]) -> None:
    """Let this thread, and processes that it starts, write below `folders` only, for good.

    Raises OSError if the kernel cannot.
    """
    version = kernel_version()
    rights = WRITING | (REFER if version > 1 else 0) | (TRUNCATE if version > 2 else 0)
    attributes = struct.pack("=Q", rights)
    rules = _call(CREATE_RULESET, attributes, len(attributes), 0)
    try:
        for folder in folders:
            descriptor = os.open(folder, os.O_PATH | os.O_CLOEXEC)
            try:
                _call(ADD_RULE, rules, BENEATH, struct.pack("=Qi", rights, descriptor), 0)
            finally:
                os.close(descriptor)
        if ctypes.CDLL(None, use_errno=True).prctl(NO_NEW_PRIVS, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")
        _call(RESTRICT_SELF, rules, 0)
    finally:
        os.close(rules)


def _call(number: int, *arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result = int(libc.syscall(ctypes.c_long(number), *words))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
