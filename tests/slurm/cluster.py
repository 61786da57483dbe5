"""A real Slurm on this machine: four nodes, accounting, three partitions; for tests and tries.

Needs root. docs/contributing-slurm.md tells how to use it and what it does to the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import cgroups
import network
import packages
import parts
import settings as configuration
from parts import ClusterError
from settings import NODES, Settings

HERE = Path(__file__).resolve().parent
# A Unix socket's whole path has room for 107 characters.
LONGEST = 60
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def start(folder: Path | None, accounting: bool) -> int:
    began = time.monotonic()
    folder = _new_folder(folder)
    try:
        check_machine()
        for package in packages.install(accounting):
            print(f"installed {package}")
        settings = configuration.chosen(folder, accounting)
        configuration.write(settings)
        bring_up(settings)
    except BaseException as error:  # Ctrl-C and SIGTERM, too
        for each in SIGNALS:  # an impatient second one would leave half of it behind
            signal.signal(each, signal.SIG_IGN)
        if isinstance(error, ClusterError):
            _tell_logs(folder)
        take_down(folder)
        raise
    held = "cgroup v1" if settings.cgroups else "affinity alone: memory is not limited"
    print(f"{len(NODES)} nodes up after {time.monotonic() - began:.1f} s, held by {held}")
    print(f'talk to it:  eval "$({_typed("env", folder)})"; sinfo')
    print(f"end it:      {_typed('stop', folder)}")
    return 0


def _typed(verb: str, folder: Path) -> str:
    return shlex.join(["python3", str(HERE / "cluster.py"), verb, "--dir", str(folder)])


def _new_folder(folder: Path | None) -> Path:
    if folder is None:
        return Path(tempfile.mkdtemp(prefix="hpcncf-slurm-", dir="/tmp"))
    if len(str(folder)) > LONGEST:
        raise ClusterError(f"{folder}: too long for the sockets in it ({LONGEST} characters)")
    if parts.running(folder):
        raise ClusterError(f"{folder}: a cluster runs there already")
    if folder.exists() and any(folder.iterdir()):
        raise ClusterError(f"{folder}: is not empty (`stop` removes what is left of a cluster)")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def check_machine() -> None:
    number = os.cpu_count() or 1
    if number < configuration.CPUS:
        raise ClusterError(f"nodes have {configuration.CPUS} CPUs, this machine has {number}")


def bring_up(settings: Settings) -> None:
    folder = Path(settings.folder)
    network.start(folder, settings.controller)
    start_munge(settings)
    if settings.accounting:
        start_mariadb(settings)
        start_slurmdbd(settings)
    start_slurmctld(settings)
    for node in NODES:
        start_node(settings, node)
    parts.wait(40, "all nodes to be idle", lambda: idle(settings) == set(NODES))


def start_munge(settings: Settings) -> None:
    at = settings.path("munge")
    files = {"socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    given = [f"--{option}={at / name}" for option, name in files.items()]
    key = f"--key-file={settings.path('etc/munge.key')}"
    parts.start(at.parent, "munged", ["munged", "--foreground", key, *given])
    parts.wait(10, "munged", answering(settings, "munge", "-n", "-S", str(at / "socket")))


def start_mariadb(settings: Settings) -> None:
    at, socket = settings.path("mariadb"), settings.path("mariadb.socket")
    given = ["--no-defaults", "--user=root", f"--datadir={at}"]
    root = ["--auth-root-authentication-method=socket", "--auth-root-socket-user=root"]
    parts.run(["mariadb-install-db", *given, *root, "--skip-test-db", "--skip-name-resolve"])
    pid = f"--pid-file={settings.path('mariadb.pid')}"
    server = ["mariadbd", *given, f"--socket={socket}", "--skip-networking", pid]
    parts.start(at.parent, "mariadbd", server)
    client = ["mariadb", "--no-defaults", f"--socket={socket}", "--execute=select 1"]
    parts.wait(30, "mariadbd", answering(settings, *client))


def start_slurmdbd(settings: Settings) -> None:
    database = {"MYSQL_UNIX_PORT": str(settings.path("mariadb.socket"))}
    parts.start(
        Path(settings.folder),
        "slurmdbd",
        ["slurmdbd", "-D"],
        environment=settings.environment | database,
    )
    parts.wait(60, "slurmdbd", answering(settings, "sacctmgr", "-n", "list", "cluster"))
    name = network.bridge(Path(settings.folder))
    environment = os.environ | settings.environment
    parts.run(["sacctmgr", "-i", "-Q", "add", "cluster", name], environment)


def start_slurmctld(settings: Settings) -> None:
    parts.start(
        Path(settings.folder), "slurmctld", ["slurmctld", "-D"], environment=settings.environment
    )
    parts.wait(30, "slurmctld", answering(settings, "scontrol", "ping"))


def start_node(settings: Settings, node: str) -> None:
    folder, group = Path(settings.folder), f"{settings.group}/{node}"
    kinds = ["--mount", "--uts", "--ipc", "--net", "--cgroup"]
    if settings.cgroups:
        cgroups.make(group)
    init = [sys.executable, str(HERE / "node.py"), str(folder), node, settings.address(node)]
    before = (lambda: cgroups.enter(group)) if settings.cgroups else None
    outer = parts.start(folder, node, init, kinds, before=before)
    children = Path(f"/proc/{outer}/task/{outer}/children")
    parts.wait(5, f"{node}'s namespaces", lambda: bool(children.read_text().split()))
    network.connect(folder, NODES.index(node) + 1, int(children.read_text().split()[0]))


def answering(settings: Settings, *command: str) -> Callable[[], bool]:
    environment = os.environ | settings.environment
    return lambda: parts.answers(command, environment) is not None


def idle(settings: Settings) -> set[str]:
    asked = ["sinfo", "--noheader", "--Node", "--format=%N %t"]
    rows = (parts.answers(asked, os.environ | settings.environment) or "").splitlines()
    return {row.split()[0] for row in rows if row.split()[1] == "idle"}


def take_down(folder: Path) -> None:
    """End what runs and remove what it left; does so as well after a part of it was done before."""
    parts.kill(folder)
    network.stop(folder)
    cgroups.remove(configuration.group(folder))
    if configuration.file(folder).exists():
        shutil.rmtree(folder)
    elif folder.exists():
        with contextlib.suppress(OSError):  # not empty, so not ours
            folder.rmdir()


def _tell_logs(folder: Path) -> None:
    for log in sorted(folder.glob("log/*.log")):
        lines = log.read_text(errors="replace").splitlines()[-5:]
        sys.stderr.write(f"--- {log.name}\n" + "".join(f"{line}\n" for line in lines))


def stop(folder: Path) -> int:
    take_down(folder)
    print(f"{folder}: nothing of it is left")
    return 0


def status(folder: Path) -> int:
    """Exit code 0 when every part runs and every node answers."""
    settings = configuration.load(folder)
    alive = {part.name for part in parts.running(folder)}
    daemons = ["munged", *(["mariadbd", "slurmdbd"] if settings.accounting else []), "slurmctld"]
    gone = [name for name in (*daemons, *NODES) if name not in alive]
    for name in (*daemons, *NODES):
        print(f"{name}: {'gone' if name in gone else 'runs'}")
    environment = os.environ | settings.environment
    said = parts.answers(["sinfo", "-N", "-o", "%N %P %t %C %m %G %E"], environment)
    print(said or "slurmctld does not answer")
    silent = [row for row in (said or "").splitlines()[1:] if row.split()[2].endswith("*")]
    return 0 if said and not gone and not silent else 1


def env(folder: Path) -> int:
    for name, value in configuration.load(folder).environment.items():
        print(f"export {name}={shlex.quote(value)}")
    return 0


def the_folder(asked: Path | None) -> Path:
    """The one asked for, else that of the only cluster here."""
    if asked:
        return asked.resolve()
    found = sorted({part.folder for part in parts.running()})
    if len(found) != 1:
        which = f"several run: {', '.join(map(str, found))}" if found else "none runs here"
        raise ClusterError(f"which cluster? {which}; give --dir")
    return found[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", choices=["start", "stop", "status", "env"])
    parser.add_argument("--dir", type=Path, help="the cluster's own")
    parser.add_argument("--no-accounting", action="store_true", help="no slurmdbd: sacct is mute")
    args = parser.parse_args()
    for each in SIGNALS:
        signal.signal(each, _interrupted)
    try:
        if os.geteuid() != 0:
            raise ClusterError("a cluster needs root")
        if args.verb == "start":
            return start(args.dir and args.dir.resolve(), not args.no_accounting)
        verbs = {"stop": stop, "status": status, "env": env}
        return verbs[args.verb](the_folder(args.dir))
    except (ClusterError, OSError) as error:
        sys.stderr.write(f"cluster.py: {error}\n")
        return 1


def _interrupted(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
