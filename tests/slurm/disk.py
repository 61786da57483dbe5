"""A shared folder of few bytes, on a file system of its own, for tests that fill it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

import parts
from settings import Settings

MIB: Final = 128
HOG: Final = "hog"


def small(folder: Path) -> Path:
    return folder / "small"


def mount(folder: Path) -> None:
    """Before the nodes start: they take over the mounts that are there."""
    small(folder).mkdir()
    parts.run(["mount", "-t", "tmpfs", "-o", f"mode=1777,size={MIB}m", "small", str(small(folder))])


def unmount(folder: Path) -> None:
    if small(folder).is_mount():
        parts.run(["umount", "--lazy", str(small(folder))])


def fill(settings: Settings) -> None:
    """Not one byte is left."""
    at = small(Path(settings.folder))
    with (at / HOG).open("ab") as hog:
        while room := os.statvfs(at).f_bavail * os.statvfs(at).f_frsize:
            with contextlib.suppress(OSError):  # somebody was faster to take the last of it
                os.posix_fallocate(hog.fileno(), hog.tell(), room)
            hog.seek(0, os.SEEK_END)


def free(settings: Settings) -> None:
    (small(Path(settings.folder)) / HOG).unlink(missing_ok=True)
