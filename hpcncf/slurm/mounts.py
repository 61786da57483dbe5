"""Which file system a folder lies on, and whether compute nodes can be expected to see it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

# In this machine's memory or image: no other machine sees them. Whether a disk (ext4, xfs) is
# exported to the nodes cannot be seen from here; --check-node does.
OF_ONE_MACHINE: Final = ("tmpfs", "ramfs", "devtmpfs", "overlay", "squashfs", "rootfs")
TEMPORARY: Final = ("/tmp", "/var/tmp", "/dev/shm", "/run")
SHARED: Final = re.compile(
    r"nfs4?|lustre|gpfs|beegfs.*|ceph|wekafs|panfs|orangefs|pvfs2|glusterfs|afs|cifs|smb3|9p|"
    r"virtiofs|daos|fuse(\..*)?|autofs"
)


def doubt(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str | None:
    """Why compute nodes may not see the folder; None where nothing speaks against it."""
    try:
        kind, at = of(folder.resolve(), mounts.read_text(errors="replace"))
    except OSError:
        return None
    if SHARED.fullmatch(kind):
        return None
    temporary = any(folder.resolve().is_relative_to(name) for name in TEMPORARY)
    if not temporary and kind not in OF_ONE_MACHINE:
        return None
    return (
        f"{folder} lies on {at} ({kind}) of this machine: if compute nodes do not see it, jobs "
        "fail and leave no log; --check-node finds out, --results DIR chooses another folder"
    )


def of(folder: Path, mountinfo: str) -> tuple[str, str]:
    """The type of the file system that holds the folder, and where that is mounted.

    `36 35 98:0 /root /mount/point rw - ext3 /dev/root rw`: proc(5). Spaces are `\\040` there, and
    of two on one point the later hides the other.
    """
    found = ("unknown", "/")
    for line in mountinfo.splitlines():
        before, separator, after = line.partition(" - ")
        words, kinds = before.split(" "), after.split(" ")
        if separator and len(words) > 4:
            at = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), words[4])
            if folder.is_relative_to(at) and len(at) >= len(found[1]):
                found = (kinds[0], at)
    return found
