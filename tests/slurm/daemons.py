"""The cluster's daemons and nodes, and how each is started."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import cgroups
import disk
import network
import parts
import people
from settings import NODES, Settings

HERE = Path(__file__).resolve().parent
# A quality of service with room for few jobs, so that a test can fill it.
FEW, FEW_JOBS = "few", 4


def bring_up(settings: Settings) -> None:
    folder = Path(settings.folder)
    disk.mount(folder)
    network.start(folder, settings.controller)
    start_munge(settings)
    if settings.accounting:
        start_mariadb(settings)
        start_slurmdbd(settings)
        enroll(settings)
    start_slurmctld(settings)
    for node in NODES:
        start_node(settings, node)
    ready = dict.fromkeys(NODES, "idle")
    parts.wait("all nodes to be idle", lambda: states(settings) == ready)


def start_munge(settings: Settings) -> None:
    folder = Path(settings.folder)
    parts.start(folder, "munged", parts.munged(folder))
    socket = settings.path("munge/socket")
    parts.wait("munged", answering(settings, "munge", "-n", "-S", str(socket)))


def start_mariadb(settings: Settings) -> None:
    at, socket = settings.path("mariadb"), settings.path("mariadb.socket")
    # Two that start at once would take each other's temporary tables in /tmp.
    own = f"--tmpdir={settings.folder}"
    given = ["--no-defaults", "--user=root", f"--datadir={at}", own]
    root = ["--auth-root-authentication-method=socket", "--auth-root-socket-user=root"]
    if not at.exists():
        parts.run(["mariadb-install-db", *given, *root, "--skip-test-db", "--skip-name-resolve"])
    pid = f"--pid-file={settings.path('mariadb.pid')}"
    server = ["mariadbd", *given, f"--socket={socket}", "--skip-networking", pid]
    parts.start(at.parent, "mariadbd", server)
    client = ["mariadb", "--no-defaults", f"--socket={socket}", "--execute=select 1"]
    parts.wait("mariadbd", answering(settings, *client))


def start_slurmdbd(settings: Settings) -> None:
    database = {"MYSQL_UNIX_PORT": str(settings.path("mariadb.socket"))}
    folder = Path(settings.folder)
    command = people.known_to(folder, ["slurmdbd", "-D"])
    parts.start(folder, "slurmdbd", command, environment=settings.environment | database)
    parts.wait("slurmdbd", answering(settings, "sacctmgr", "-n", "list", "cluster"))


def enroll(settings: Settings) -> None:
    """Register the cluster with its accounting, and the limits that a user may choose to have."""
    seen = [
        ["add", "cluster", network.bridge(Path(settings.folder))],
        ["add", "qos", FEW, f"MaxSubmitJobsPerUser={FEW_JOBS}"],
        ["modify", "account", "root", "set", f"qos+={FEW}"],
        ["add", "account", people.GROUP[0]],
        ["add", "user", *people.PEOPLE, f"account={people.GROUP[0]}"],
    ]
    for words in seen:
        parts.run(["sacctmgr", "-i", "-Q", *words], os.environ | settings.environment)


def start_slurmctld(settings: Settings) -> None:
    folder = Path(settings.folder)
    command = people.known_to(folder, ["slurmctld", "-D"])
    parts.start(folder, "slurmctld", command, environment=settings.environment)
    parts.wait("slurmctld", answering(settings, "scontrol", "ping"))


def start_node(settings: Settings, node: str) -> None:
    folder, group = Path(settings.folder), f"{settings.group}/{node}"
    kinds = ["--mount", "--uts", "--ipc", "--net", "--cgroup"]
    if settings.cgroups:
        cgroups.make(group)
    init = [sys.executable, str(HERE / "node.py"), str(folder), node, settings.address(node)]
    before = (lambda: cgroups.enter(group)) if settings.cgroups else None
    outer = parts.start(folder, node, init, kinds, before=before)
    parts.wait(f"{node}'s namespaces", lambda: bool(parts.children(outer)))
    network.connect(folder, NODES.index(node) + 1, parts.children(outer)[0])


def answering(settings: Settings, *command: str) -> Callable[[], bool]:
    environment = os.environ | settings.environment
    return lambda: parts.answers(command, environment) is not None


def states(settings: Settings) -> dict[str, str]:
    """Node -> what Slurm says of it; nothing where the controller is mute."""
    asked = ["sinfo", "--noheader", "--Node", "--format=%N %t"]
    rows = (parts.answers(asked, os.environ | settings.environment) or "").splitlines()
    return dict(row.split()[:2] for row in rows)


def named(settings: Settings) -> list[str]:
    """In the order of their starts."""
    return [name for name in START if settings.accounting or name not in ACCOUNTING]


ACCOUNTING: Final = ("mariadbd", "slurmdbd")
START: Final[dict[str, Callable[[Settings], None]]] = {
    "munged": start_munge,
    "mariadbd": start_mariadb,
    "slurmdbd": start_slurmdbd,
    "slurmctld": start_slurmctld,
}
