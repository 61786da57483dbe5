"""What a node's network and disks carried, from /proc, and what its link could carry."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from hpcncf.monitor import procfs

SECTOR_MIB = 512 / 2**20


def network_mib() -> tuple[float, float]:
    """Return the MiB sent and received over all interfaces but loopback, and over loopback.

    Over loopback, only what was received counts.
    """
    network = loopback = 0
    for line in procfs.read_file("/proc/net/dev").splitlines()[2:]:
        name, _, counts = line.partition(b":")
        words = counts.split()
        if name.strip() == b"lo":  # what is sent there is received there
            loopback += int(words[0])
        else:
            network += int(words[0]) + int(words[8])
    return network / 2**20, loopback / 2**20


def network_link_mib_s(interfaces: Path = Path("/sys/class/net")) -> float | None:
    """Return the speed of the fastest physical interface, in one direction, in MiB/s.

    None if no driver reports a speed.

    Virtual interfaces (veth, bridges) report a speed that no hardware backs: they are left out.
    """
    speeds = []
    for device in interfaces.glob("*/device"):
        with suppress(OSError, ValueError):  # EINVAL of an interface that is down
            speeds.append(int((device.parent / "speed").read_text()))
    megabits = max(speeds, default=0)
    return megabits * 1e6 / 8 / 2**20 if megabits > 0 else None


def disk_mib() -> float:
    """Return the MiB read and written by whole disks since boot.

    Partitions would count the same bytes twice.
    """
    sectors = 0
    for line in procfs.read_file("/proc/diskstats").splitlines():
        words = line.split()
        if words[2].decode() in _DISKS:
            sectors += int(words[5]) + int(words[9])
    return sectors * SECTOR_MIB


def _disks() -> frozenset[str]:
    virtual = ("loop", "ram", "zram", "dm-", "md", "sr", "fd")
    folder = Path("/sys/block")
    names = os.listdir(folder) if folder.is_dir() else []  # noqa: PTH208
    return frozenset(name for name in names if not name.startswith(virtual))


_DISKS = _disks()
