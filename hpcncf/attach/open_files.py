"""Which files processes read and write, by their descriptors in /proc."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from hpcncf.monitor import procfs

# A look reads two links for each descriptor.
MOST_PROCESSES: Final = 64
MOST_DESCRIPTORS: Final = 256
SHOWN: Final = 20
LEAST_MAPPED: Final = 1 << 20
WRITE_ONLY: Final = 1
# Neither data nor the user's: pseudo files, and deleted ones of shared memory.
PSEUDO: Final = ("/dev/", "/proc/", "/sys/", "/memfd:", "/run/", "/SYSV")
CODE: Final = re.compile(
    r"\.(so[.\d]*|py|pyc|mo|cache|nss)$|/(ld|lib)[^/]*\.so|locale-archive|gconv"
)
MAPPING: Final = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \d+ +(/.*)$", re.M)


@dataclass
class FileSeen:
    """Observations of one open file."""

    writes: bool
    moved: int = 0
    """Bytes by which positions in it grew between two looks: at least what was read or written."""
    opened: int = 0
    """How often it was seen newly opened, after the first look."""
    mapped: int = 0
    """Bytes mapped into memory."""


class OpenFiles:
    """The regular files that processes have open, and how far they go on in them."""

    def __init__(self) -> None:
        self._files: dict[str, FileSeen] = {}
        self._positions: dict[tuple[int, str], tuple[str, int]] = {}
        self._looks = 0
        self.is_cut = False
        """Whether there were more processes or descriptors than were looked at."""

    def look(self, pids: Iterable[int]) -> None:
        """Look at all descriptors of these processes."""
        pids = list(pids)
        positions: dict[tuple[int, str], tuple[str, int]] = {}
        for pid in pids[:MOST_PROCESSES]:
            names = _listed(f"/proc/{pid}/fd")
            self.is_cut |= len(names) > MOST_DESCRIPTORS
            for name in names[:MOST_DESCRIPTORS]:
                self._look_at(pid, name, positions)
            if self._looks % 8 == 0:
                self._look_at_maps(pid)
        self.is_cut |= len(pids) > MOST_PROCESSES
        self._positions = positions
        self._looks += 1

    def _look_at(
        self, pid: int, name: str, positions: dict[tuple[int, str], tuple[str, int]]
    ) -> None:
        try:
            path = os.readlink(f"/proc/{pid}/fd/{name}")  # noqa: PTH115
        except OSError:
            return
        if not _is_data(path):
            return
        position, flags = _information(pid, name)
        one = self._files.setdefault(path, FileSeen(flags & 3 == WRITE_ONLY))
        last_path, last = self._positions.get((pid, name), ("", 0))
        if last_path == path:
            one.moved += max(0, position - last)
        elif self._looks:
            one.opened += 1
            one.moved += position
        positions[pid, name] = path, position

    def _look_at_maps(self, pid: int) -> None:
        sizes: dict[str, int] = {}
        for first, last, rights, name in MAPPING.findall(procfs.read_file(f"/proc/{pid}/maps")):
            path = name.decode(errors="replace")
            if b"x" not in rights and _is_data(path):
                sizes[path] = sizes.get(path, 0) + int(last, 16) - int(first, 16)
        for path, size in sizes.items():
            if size >= LEAST_MAPPED:
                one = self._files.setdefault(path, FileSeen(False))
                one.mapped = max(one.mapped, size)

    def summary(self) -> list[dict[str, Any]]:
        """Return the files of which most was read or written, then those that were only open."""
        found = sorted(
            self._files.items(), key=lambda each: (-each[1].moved, -each[1].opened, -each[1].mapped)
        )
        return [
            {
                "path": path,
                "writes": one.writes,
                "moved_bytes": one.moved,
                "opened": one.opened,
                "mapped_bytes": one.mapped,
            }
            for path, one in found[:SHOWN]
        ]


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208
    except OSError:
        return []


def _is_data(path: str) -> bool:
    return (
        path.startswith("/")
        and not path.startswith(PSEUDO)
        and not path.endswith(" (deleted)")
        and not CODE.search(path)
    )


def _information(pid: int, name: str) -> tuple[int, int]:
    """Return the position and the flags of a descriptor; zeros if it was closed meanwhile."""
    values = {}
    for line in procfs.read_file(f"/proc/{pid}/fdinfo/{name}").splitlines():
        key, _, value = line.partition(b":")
        values[key] = value.strip()
    return int(values.get(b"pos", b"0")), int(values.get(b"flags", b"0"), 8)
