"""Process 1 of a node: gives it a name, mounts and an address of its own, then runs slurmd."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import cgroups
import parts


def main(folder: Path, name: str, address: str) -> None:
    socket.sethostname(name)
    mount(folder)
    start_munged(folder, name)
    join_network(address)
    signal.signal(signal.SIGHUP, lambda *_: start_slurmd(folder, name))  # after one was killed
    start_slurmd(folder, name)
    reap()


def start_slurmd(folder: Path, name: str) -> None:
    command = ["slurmd", "-D", "-N", name, "-f", f"{folder}/etc/slurm.conf"]
    subprocess.Popen(command, start_new_session=True, env={"PATH": parts.PATH, "LANG": "C.UTF-8"})


def start_munged(folder: Path, name: str) -> None:
    """Where the machine's own is for everybody else: slurmds of one munged would take the
    credential of a step for nodes together for one that is replayed."""
    own, socket_ = folder / "nodes" / name / "munge", folder / "munge/socket"
    own.mkdir(mode=0o755, exist_ok=True)
    parts.run(["mount", "--bind", str(own), str(socket_.parent)])
    command = parts.munged(folder)
    subprocess.Popen(command, start_new_session=True, env={"PATH": parts.PATH, "LANG": "C.UTF-8"})
    parts.wait("munged", socket_.exists)


def mount(folder: Path) -> None:
    if cgroups.usable():
        cgroups.mount_own()
    parts.run(["mount", "-t", "tmpfs", "-o", "mode=1777", "shm", "/dev/shm"])
    for name in ("hosts", "passwd", "group"):
        _bind(folder / "etc" / name, Path("/etc", name))
    # A node reaches no name server; asked for one's IPv6 address, gloo waits 20 s for an answer.
    _bind(folder / "etc/resolv.conf", Path("/etc/resolv.conf"))


def _bind(ours: Path, theirs: Path) -> None:
    if theirs.exists():
        parts.run(["mount", "--bind", str(ours), str(theirs.resolve())])


def join_network(address: str) -> None:
    """The cable's end appears when the one who started this node has plugged it in."""
    parts.wait("eth0", lambda: any(name == "eth0" for _, name in socket.if_nameindex()))
    parts.run(["ip", "addr", "add", f"{address}/24", "dev", "eth0"])
    for name in ("lo", "eth0"):
        parts.run(["ip", "link", "set", name, "up"])


def reap() -> None:
    """What loses its parent becomes a child of process 1. The node outlives its slurmd."""
    while True:
        try:
            os.wait()
        except ChildProcessError:
            time.sleep(0.5)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
