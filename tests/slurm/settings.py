"""What a cluster was started with, and the configuration files that Slurm gets from it."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass
from ipaddress import IPv4Network
from pathlib import Path
from string import Template
from typing import Final

import cgroups
import network
import people
from parts import ClusterError

TEMPLATES: Final = Path(__file__).parent / "templates"
NODES: Final = ("node1", "node2", "node3", "node4")
GPU_NODE: Final = NODES[-1]
CPUS: Final = 2


@dataclass(frozen=True)
class Settings:
    folder: str
    accounting: bool
    cgroups: bool
    """Whether cores and memory are limited by cgroup v1; else by affinity alone."""
    subnet: str
    slurmctld_port: int
    slurmdbd_port: int
    cpus: int
    """Of each node. Above what the machine has, Slurm counts them but binds nothing to them."""
    max_array_size: int

    @property
    def bound(self) -> bool:
        return self.cpus <= (os.cpu_count() or 1)

    @property
    def controller(self) -> str:
        return str(IPv4Network(self.subnet)[1])

    def address(self, node: str) -> str:
        return str(IPv4Network(self.subnet)[10 + NODES.index(node)])

    @property
    def group(self) -> str:
        """The cgroup that holds those of the nodes."""
        return group(Path(self.folder))

    def path(self, name: str) -> Path:
        return Path(self.folder) / name

    @property
    def environment(self) -> dict[str, str]:
        """What Slurm's commands need to talk to this cluster."""
        return {"SLURM_CONF": str(self.path("etc/slurm.conf"))}


def group(folder: Path) -> str:
    return f"hpcncf-{network.tag(folder)}"


def chosen(
    folder: Path, accounting: bool = True, cpus: int = CPUS, max_array_size: int = 1001
) -> Settings:
    """Ports and a subnet that nobody uses here."""
    slurmctld_port, slurmdbd_port = network.free_ports(folder, 2)
    return Settings(
        folder=str(folder),
        accounting=accounting,
        cgroups=cgroups.usable(),
        subnet=str(network.free_subnet(folder)),
        slurmctld_port=slurmctld_port,
        slurmdbd_port=slurmdbd_port,
        cpus=cpus,
        max_array_size=max_array_size,
    )


def file(folder: Path) -> Path:
    """Its presence says that the folder is a cluster's, to be removed with it."""
    return folder / "cluster.json"


def load(folder: Path) -> Settings:
    """Raises ClusterError where the folder is no cluster's."""
    if not file(folder).exists():
        raise ClusterError(f"{folder}: holds no cluster")
    return Settings(**json.loads(file(folder).read_text()))


def write(settings: Settings) -> None:
    """Fill the cluster's folder."""
    folder = Path(settings.folder)
    folder.chmod(0o755)
    file(folder).write_text(json.dumps(asdict(settings), indent=1) + "\n")
    for name in ("etc", "log", "state", "munge", "dev", *(f"nodes/{node}" for node in NODES)):
        (folder / name).mkdir(parents=True, mode=0o755)
    os.mknod(folder / "dev/gpu0", 0o20666, os.makedev(1, 3))  # a /dev/null that passes for a GPU
    people.write(folder)
    _write_key(folder / "etc/munge.key")
    (folder / "etc/hosts").write_text(_hosts(settings))
    (folder / "etc/resolv.conf").write_text("# empty on purpose\n")
    values = _values(settings)
    for template in TEMPLATES.glob("*.conf"):
        text = Template(template.read_text()).substitute(values)
        (folder / "etc" / template.name).write_text(text)
    (folder / "etc/slurmdbd.conf").chmod(0o600)  # slurmdbd insists


def _write_key(path: Path) -> None:
    path.touch(mode=0o600)
    path.write_bytes(os.urandom(128))


def _hosts(settings: Settings) -> str:
    named = {settings.controller: hostname()} | {settings.address(node): node for node in NODES}
    lines = [f"{address} {name}" for address, name in named.items()]
    return "\n".join(["127.0.0.1 localhost", *lines]) + "\n"


def hostname() -> str:
    return socket.gethostname().split(".")[0]


def _values(settings: Settings) -> dict[str, object]:
    held = settings.cgroups
    return {
        **asdict(settings),
        "controller": settings.controller,
        "hostname": hostname(),
        "name": f"hpc{network.tag(Path(settings.folder))}",
        "proctrack": "proctrack/cgroup" if held else "proctrack/linuxproc",
        "task_plugin": _task_plugin(settings),
        "overrides": "" if settings.bound else "SlurmdParameters=config_overrides",
        "gather": "jobacct_gather/cgroup" if held else "jobacct_gather/linux",
        # A step of Slurm's own holds the job's cgroup, as on most sites.
        "prolog": "PrologFlags=Contain" if held else "",
        "accounting": _accounting(settings),
        "nodes": "\n".join(_node(settings, node) for node in NODES),
        "gpu_node": GPU_NODE,
    }


def _task_plugin(settings: Settings) -> str:
    affinity = ["task/affinity"] if settings.bound else []
    return ",".join([*(["task/cgroup"] if settings.cgroups else []), *affinity]) or "task/none"


def _accounting(settings: Settings) -> str:
    if not settings.accounting:
        return "AccountingStorageType=accounting_storage/none"
    lines = {
        "Type": "accounting_storage/slurmdbd",
        "Host": settings.controller,
        "Port": settings.slurmdbd_port,
        "Pass": settings.path("munge/socket"),  # slurmdbd's clients do not read AuthInfo
        "Enforce": "associations,limits,qos",
        "TRES": "gres/gpu",
    }
    return "\n".join(f"AccountingStorage{key}={value}" for key, value in lines.items())


def _node(settings: Settings, node: str) -> str:
    cpus = settings.cpus
    shape = f"CPUs={cpus} Boards=1 SocketsPerBoard=1 CoresPerSocket={cpus} ThreadsPerCore=1"
    gpu = " Gres=gpu:1" if node == GPU_NODE else ""
    address = settings.address(node)
    return f"NodeName={node} NodeHostname={node} NodeAddr={address} {shape} RealMemory=4000{gpu}"
