"""A real Slurm on this machine: four nodes, accounting, three partitions; for tests and tries.

Needs root. docs/test-slurm.md shows how to use it and what it does to the machine.
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
from pathlib import Path
from types import FrameType

import cgroups
import daemons
import disk
import faults
import network
import packages
import parts
import people
import settings as configuration
from parts import ClusterError
from settings import NODES, Settings

HERE = Path(__file__).resolve().parent
# A Unix socket's whole path has room for 107 characters.
LONGEST = 60
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def start(asked: argparse.Namespace) -> int:
    began = time.monotonic()
    folder = _new_folder(asked.dir and asked.dir.resolve())
    accounting = not asked.no_accounting
    try:
        check_machine(asked.cpus)
        for package in packages.install(accounting):
            print(f"installed {package}")
        cpus = asked.cpus or configuration.CPUS
        settings = configuration.chosen(folder, accounting, cpus, asked.max_array_size)
        configuration.write(settings)
        daemons.bring_up(settings)
    except BaseException as error:  # Ctrl-C and SIGTERM, too
        for each in SIGNALS:  # an impatient second one would leave half of it behind
            signal.signal(each, signal.SIG_IGN)
        if isinstance(error, ClusterError):
            _print_logs(folder)
        take_down(folder)
        raise
    print(f"{len(NODES)} nodes up after {time.monotonic() - began:.1f} s, {_held(settings)}")
    print(f'talk to it:  eval "$({_typed("env", folder)})"; sinfo')
    print(f"end it:      {_typed('stop', folder)}")
    return 0


def _held(settings: Settings) -> str:
    if not settings.bound:
        return "jobs bound to no cores: there are fewer than Slurm counts"
    return "held by " + ("cgroup v1" if settings.cgroups else "affinity: memory is not limited")


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


def check_machine(cpus: int | None) -> None:
    number = os.cpu_count() or 1
    if cpus is None and number < configuration.CPUS:
        raise ClusterError(
            f"nodes have {configuration.CPUS} CPUs, this machine has {number}; "
            f"--cpus {configuration.CPUS} counts as many all the same, and binds no job to them"
        )


def take_down(folder: Path) -> None:
    """End what runs and remove what it left; does so as well after a part of it was done before."""
    parts.kill(folder)
    disk.unmount(folder)
    network.stop(folder)
    cgroups.remove(configuration.group(folder))
    if configuration.file(folder).exists():
        shutil.rmtree(folder)
    elif folder.exists():
        with contextlib.suppress(OSError):  # not empty, so not ours
            folder.rmdir()


def _print_logs(folder: Path) -> None:
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
    wanted = [*daemons.named(settings), *NODES]
    gone = [name for name in wanted if name not in alive]
    for name in wanted:
        print(f"{name}: {'gone' if name in gone else 'runs'}")
    environment = os.environ | settings.environment
    said = parts.answers(["sinfo", "-N", "-o", "%N %P %t %C %m %G %E"], environment)
    print(said or "slurmctld does not answer")
    silent = [row for row in (said or "").splitlines()[1:] if row.split()[2].endswith("*")]
    return 0 if said and not gone and not silent else 1


def mend(folder: Path) -> int:
    faults.mend(configuration.load(folder))
    return 0


def env(folder: Path) -> int:
    shown = configuration.load(folder).environment
    if parts.PREFIX:
        shown = shown | {"PATH": os.environ["PATH"]}
    for name, value in shown.items():
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


def act(asked: argparse.Namespace) -> int:
    if asked.verb == "start":
        return start(asked)
    folder = the_folder(asked.dir)
    if asked.verb in VERBS:
        return VERBS[asked.verb][0](folder)
    settings = configuration.load(folder)
    if asked.verb == "as":
        os.environ |= settings.environment
        os.execvp("unshare", people.acting(folder, asked.name, asked.command))
    if asked.verb == "node":
        faults.NODE[asked.fault](settings, asked.name)
    elif asked.verb == "disk":
        faults.DISK[asked.fault](settings)
    else:
        faults.DAEMON[asked.fault](settings, DAEMONS[asked.verb])
    return 0


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    where = argparse.ArgumentParser(add_help=False)
    where.add_argument("--dir", type=Path, help="the cluster's own")
    verbs = parser.add_subparsers(dest="verb", required=True)
    start = verbs.add_parser("start", parents=[where], help="start one, or leave nothing behind")
    start.add_argument("--no-accounting", action="store_true", help="no slurmdbd: sacct is mute")
    start.add_argument("--cpus", type=int, help="of each node; more than there are bind no job")
    start.add_argument("--max-array-size", type=int, default=1001, help="Slurm's own is 1001")
    for verb, (_, seen) in VERBS.items():
        verbs.add_parser(verb, parents=[where], help=seen)
    acting = verbs.add_parser("as", parents=[where], help="type a command as one of two people")
    acting.add_argument("name", choices=people.PEOPLE)
    acting.add_argument("command", nargs="+")
    node = verbs.add_parser("node", parents=[where], help="break a node, and mend it")
    node.add_argument("name", choices=NODES)
    node.add_argument("fault", choices=faults.NODE)
    disks = verbs.add_parser("disk", parents=[where], help="fill the folder small/, and free it")
    disks.add_argument("fault", choices=faults.DISK)
    for short, name in DAEMONS.items():
        daemon = verbs.add_parser(short, parents=[where], help=f"stop and start {name}")
        daemon.add_argument("fault", choices=faults.DAEMON)
    return parser


VERBS = {
    "stop": (stop, "end it and remove what is left of it"),
    "status": (status, "which parts run; exit code 1 when one is gone"),
    "env": (env, "what a shell needs to talk to it"),
    "mend": (mend, "start whatever was broken, and wait until every node takes jobs"),
}
DAEMONS = {"slurmctld": "slurmctld", "dbd": "slurmdbd"}


def main() -> int:
    asked = arguments().parse_args()
    parts.use_prefix()
    for each in SIGNALS:
        signal.signal(each, _interrupted)
    try:
        if os.geteuid() != 0:
            raise ClusterError("a cluster needs root")
        return act(asked)
    except (ClusterError, OSError) as error:
        sys.stderr.write(f"cluster.py: {error}\n")
        return 1


def _interrupted(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
