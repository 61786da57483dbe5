"""What breaks on a cluster, done on purpose, and mended: nodes, their network, the daemons."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

import cgroups
import daemons
import disk
import network
import parts
from parts import ClusterError
from settings import NODES, Settings


def crash(settings: Settings, node: str) -> None:
    """As if its power went: every process of the node dies at once."""
    folder = Path(settings.folder)
    parts.kill(folder, node)
    network.disconnect(folder, NODES.index(node) + 1)
    if settings.cgroups:
        cgroups.remove(f"{settings.group}/{node}")


def boot(settings: Settings, node: str) -> None:
    if any(part.name == node for part in parts.running(Path(settings.folder))):
        raise ClusterError(f"{node} is up already")
    daemons.start_node(settings, node)


def kill_slurmd(settings: Settings, node: str) -> None:
    """Its jobs run on, without anybody to say of them."""
    os.kill(_slurmd(settings, node) or _missing(f"{node}'s slurmd"), signal.SIGKILL)
    parts.wait(f"the end of {node}'s slurmd", lambda: _slurmd(settings, node) is None)


def start_slurmd(settings: Settings, node: str) -> None:
    if _slurmd(settings, node):
        raise ClusterError(f"{node}'s slurmd runs already")
    # At this signal, process 1 of the node starts it, inside its namespaces and cgroup.
    os.kill(parts.first(Path(settings.folder), node), signal.SIGHUP)
    parts.wait(f"{node}'s slurmd", lambda: _slurmd(settings, node) is not None)


def _slurmd(settings: Settings, node: str) -> int | None:
    started = parts.children(parts.first(Path(settings.folder), node))
    return next((pid for pid in started if parts.command(pid) == "slurmd"), None)


def _missing(what: str) -> int:
    raise ClusterError(f"{what} does not run")


def net_down(settings: Settings, node: str) -> None:
    """Its cable is pulled; the node goes on alone."""
    network.switch(Path(settings.folder), NODES.index(node) + 1, "down")


def net_up(settings: Settings, node: str) -> None:
    network.switch(Path(settings.folder), NODES.index(node) + 1, "up")


def stop(settings: Settings, daemon: str) -> None:
    """End a daemon as an administrator does: it writes down what it knows."""
    folder = Path(settings.folder)
    os.kill(parts.first(folder, daemon), signal.SIGTERM)
    parts.wait(f"the end of {daemon}", lambda: not _runs(folder, daemon))


def _runs(folder: Path, name: str) -> bool:
    return any(part.name == name for part in parts.running(folder))


def start(settings: Settings, daemon: str) -> None:
    if _runs(Path(settings.folder), daemon):
        raise ClusterError(f"{daemon} runs already")
    daemons.START[daemon](settings)


def restart(settings: Settings, daemon: str) -> None:
    stop(settings, daemon)
    start(settings, daemon)


def mend(settings: Settings) -> None:
    """Start what is gone, plug in what is pulled, and wait until every node takes jobs again."""
    disk.free(settings)
    folder = Path(settings.folder)
    for daemon in daemons.named(settings):
        if not _runs(folder, daemon):
            start(settings, daemon)
    for node in NODES:
        if not _runs(folder, node):
            boot(settings, node)
        elif _slurmd(settings, node) is None:
            start_slurmd(settings, node)
        net_up(settings, node)
    parts.wait("all nodes to answer", lambda: _resumed(settings))


def _resumed(settings: Settings) -> bool:
    """A node that was taken for dead stays so until its boot or an administrator says otherwise."""
    states = daemons.states(settings)
    lost = [node for node, state in states.items() if state.startswith(("down", "drain"))]
    if lost:
        update = ["scontrol", "update", f"nodename={','.join(lost)}", "state=resume"]
        parts.answers(update, os.environ | settings.environment)
    return set(states.values()) <= {"idle", "mix", "alloc", "comp", "plnd"}


NODE: Final[dict[str, Callable[[Settings, str], None]]] = {
    "crash": crash,
    "boot": boot,
    "kill-slurmd": kill_slurmd,
    "start-slurmd": start_slurmd,
    "net-down": net_down,
    "net-up": net_up,
}
DISK: Final[dict[str, Callable[[Settings], None]]] = {"fill": disk.fill, "free": disk.free}
DAEMON: Final[dict[str, Callable[[Settings, str], None]]] = {
    "stop": stop,
    "start": start,
    "restart": restart,
}
