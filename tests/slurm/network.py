"""A bridge for the cluster, and a cable from it to each node."""

from __future__ import annotations

import hashlib
import itertools
import socket
from ipaddress import IPv4Network, ip_network
from pathlib import Path
from typing import Literal

import parts


def tag(folder: Path) -> str:
    """Names bridge and groups after the folder, so that stopping needs no notes."""
    return hashlib.sha256(str(folder).encode()).hexdigest()[:6]


def bridge(folder: Path) -> str:
    return f"hpc{tag(folder)}"  # the kernel takes 15 characters


def cable(folder: Path, number: int) -> str:
    return f"{bridge(folder)}n{number}"


def free_subnet(folder: Path) -> IPv4Network:
    """A /24 of 10.128.0.0/9 that no route of this machine leads to, begun at by the folder."""
    taken = _routed()
    first = int(tag(folder), 16)
    for step in range(2**15):
        number = (first + step) % 2**15
        subnet = IPv4Network((0x0A800000 + number * 256, 24))
        if not any(subnet.overlaps(other) for other in taken):
            return subnet
    raise parts.ClusterError("10.128.0.0/9: every subnet is routed elsewhere")


def _routed() -> list[IPv4Network]:
    targets = [line.split()[0] for line in parts.run(["ip", "-4", "route"]).splitlines()]
    return [ip_network(target) for target in targets if target[0].isdigit()]


def free_ports(folder: Path, number: int) -> list[int]:
    """Below those that the kernel gives to whoever connects: none is taken before its daemon."""
    first = int(tag(folder), 16)
    around = (20000 + (first + step) % 10000 for step in range(10000))
    found = list(itertools.islice(filter(_free, around), number))
    if len(found) < number:
        raise parts.ClusterError("no ports are free between 20000 and 30000")
    return found


def _free(port: int) -> bool:
    with socket.socket() as listening:
        try:
            listening.bind(("", port))
        except OSError:
            return False
        return True


def start(folder: Path, address: str) -> None:
    parts.run(["ip", "link", "add", bridge(folder), "type", "bridge"])
    parts.run(["ip", "addr", "add", f"{address}/24", "dev", bridge(folder)])
    parts.run(["ip", "link", "set", bridge(folder), "up"])


def connect(folder: Path, number: int, pid: int) -> None:
    """Give the process's network namespace an `eth0`."""
    ours = cable(folder, number)
    end = ["peer", "name", "eth0", "netns", str(pid)]
    parts.run(["ip", "link", "add", ours, "type", "veth", *end])
    parts.run(["ip", "link", "set", ours, "master", bridge(folder), "up"])


def disconnect(folder: Path, number: int) -> None:
    """A cable goes with its node's namespace, but not at once."""
    parts.answers(["ip", "link", "delete", cable(folder, number)])


def switch(folder: Path, number: int, state: Literal["up", "down"]) -> None:
    parts.run(["ip", "link", "set", cable(folder, number), state])


def stop(folder: Path) -> None:
    """Cables go with their node's namespace; those whose node never came up go here."""
    ours = [name for _, name in socket.if_nameindex() if name.startswith(bridge(folder))]
    for name in ours:
        parts.answers(["ip", "link", "delete", name])
