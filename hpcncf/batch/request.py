"""What a script's directives ask of the scheduler: nodes, tasks, cores, GPUs, memory, time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from hpcncf.batch.directives import Directive
from hpcncf.batch.options import Option, Scheduler

MEMORY_UNITS: Final = {"": 1.0, "k": 1 / 1024, "m": 1.0, "g": 1024.0, "t": 1024.0**2}
GPU_OPTIONS: Final = ("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket")
MEMORY_OPTIONS: Final = ("mem", "mem-per-cpu", "mem-per-gpu")
COUNTED: Final = frozenset(
    {"ntasks", "ntasks-per-node", "cpus-per-task", "ntasks-per-gpu", "mincpus", *MEMORY_OPTIONS}
)


@dataclass(frozen=True)
class EffectiveOptions:
    """The options that count, the last of each name, and what follows from them."""

    scheduler: Scheduler
    options: Mapping[str, Option] = field(default_factory=dict)
    """Slurm's by their long names, bsub's and qsub's by their letters."""
    resources: Mapping[str, str] = field(default_factory=dict)
    """Of `-l name=value` and `select=1:name=value`."""

    def value(self, name: str) -> str | None:
        option = self.options.get(name)
        return option.value if option else None

    def number(self, name: str) -> int | None:
        """Return the whole number at the beginning of an option's value: 2 of `2-4`; else None."""
        found = re.match(r"\d{1,7}", self.value(name) or "")
        return int(found[0]) if found else None

    def _resource(self, name: str) -> int | None:
        found = re.match(r"\d{1,7}", self.resources.get(name, ""))
        return int(found[0]) if found else None

    @property
    def is_exclusive(self) -> bool:
        if self.scheduler == "slurm":
            return "exclusive" in self.options or self.value("mem") == "0"
        if self.scheduler == "pbs":
            return "excl" in (self.resources.get("place") or "")
        return "x" in self.options

    @property
    def nodes(self) -> int | None:
        """Number of nodes, or of chunks in PBS; None if the script does not say."""
        if self.scheduler == "slurm":
            per_node, tasks = self.number("ntasks-per-node"), self.number("ntasks")
            if "nodes" not in self.options and per_node and tasks:
                return -(-tasks // per_node)
            return self.number("nodes")
        if self.scheduler == "pbs":
            return self._resource("chunks")
        if self.scheduler == "lsf":
            return self._resource("nodes") or self.number("nnodes")
        return None

    @property
    def tasks(self) -> int | None:
        """Total number of tasks, slots or MPI ranks; None if the script does not say."""
        if self.scheduler == "slurm":
            per_node, nodes = self.number("ntasks-per-node"), self.nodes
            given = self.number("ntasks")
            if given is not None:
                return given
            return per_node * (nodes or 1) if per_node is not None else None
        if self.scheduler == "lsf":
            return self.number("n")
        if self.scheduler == "sge":
            return self._resource("slots")
        ranks = self._resource("mpiprocs")
        return ranks * (self.nodes or 1) if ranks else None

    @property
    def task_count(self) -> int:
        """Total number of tasks, by default one, or in Slurm one on each node."""
        if self.tasks is not None:
            return self.tasks
        return (self.nodes or 1) if self.scheduler == "slurm" else 1

    @property
    def tasks_on_node(self) -> int | None:
        """Number of tasks on each node in Slurm; None if it cannot be known."""
        if self.scheduler != "slurm":
            return None
        per_node = self.number("ntasks-per-node")
        given, nodes = self.number("ntasks"), self.nodes
        if given is not None and nodes is not None:
            return max(given // max(nodes, 1), 1)
        if per_node is not None:
            return min(per_node, given) if given is not None else per_node
        return 1 if given is None else (given if given == 1 else None)

    @property
    def cores_per_task(self) -> int | None:
        """Number of cores of each task; None if the script does not say."""
        if self.scheduler == "slurm":
            return self.number("cpus-per-task")
        if self.scheduler == "pbs":
            return self._resource("ncpus") or self._resource("ppn")
        if self.scheduler == "lsf":
            return self._resource("affinity")
        return None

    @property
    def cores(self) -> int | None:
        """Number of cores that one process on the first node may use; None if unknown."""
        if self.scheduler == "slurm":
            if self.is_exclusive and self.cores_per_task is None:
                return None
            if "cpus-per-gpu" in self.options and self.cores_per_task is None:
                return None
            if self.cores_per_task is None and not self.asks_for_cores:
                return None
            return self.cores_per_task or 1
        if self.scheduler == "pbs":
            ranks, cores = self._resource("mpiprocs") or 1, self.cores_per_task
            if cores:
                return max(cores // ranks, 1)
            # Where PBS gives whole nodes, a chunk says nothing of its cores.
            return None if self.is_exclusive or "chunks" in self.resources else 1
        if self.scheduler == "lsf":
            if self.is_exclusive:
                return None
            return self.number("n") or 1
        return self._resource("slots") or 1

    @property
    def asks_for_cores(self) -> bool:
        """Whether the script determines the number of cores.

        At sites that allocate whole nodes, it may state only the number of nodes.
        """
        return bool(COUNTED & set(self.options)) or "nodes" not in self.options

    @property
    def gpus_on_node(self) -> int | None:
        """Number of GPUs on each node; None if none are requested or the number is unknown."""
        if self.scheduler == "slurm":
            return _slurm_gpus(self)
        if self.scheduler == "lsf":
            found = re.search(r"num=(\d+)", self.value("gpu") or "")
            return int(found[1]) if found else 1 if "gpu" in self.options else None
        if self.scheduler == "pbs":
            return self._resource("ngpus") or self._resource("gpus")
        for name in ("gpu", "gpus", "ngpus", "cuda"):
            if name in self.resources:
                return self._resource(name) or 1
        return None

    @property
    def has_gpus(self) -> bool:
        if self.scheduler == "slurm":
            gres = f"{self.value('gres') or ''},{self.value('tres-per-task') or ''}"
            is_gres = re.search(r"(?:^|[,/:])gpu", gres) is not None
            return is_gres or any(
                name in self.options and self.value(name) != "0" for name in GPU_OPTIONS
            )
        return self.gpus_on_node is not None

    @property
    def array(self) -> str | None:
        name = {"slurm": "array", "pbs": "J", "sge": "t"}.get(self.scheduler, "")
        if self.scheduler == "lsf":
            found = re.search(r"\[([^\]]+)\]", self.value("J") or "")
            return found[1] if found else None
        if self.scheduler == "pbs" and "J" not in self.options:
            name = "t"
        return self.value(name)

    @property
    def has_time(self) -> bool:
        if self.scheduler == "slurm":
            return "time" in self.options
        if self.scheduler == "lsf":
            return bool({"W", "We"} & set(self.options))
        return bool({"walltime", "h_rt", "s_rt"} & set(self.resources))

    @property
    def has_memory(self) -> bool:
        if self.scheduler == "slurm":
            return bool(set(MEMORY_OPTIONS) & set(self.options))
        if self.scheduler == "lsf":
            return "M" in self.options or "mem=" in (self.value("R") or "")
        wanted = ("mem", "vmem", "pmem", "pvmem", "h_vmem", "mem_free", "s_vmem", "tmem")
        return any(name in self.resources for name in wanted) or any(
            "mem" in name for name in self.resources
        )


def _slurm_gpus(request: EffectiveOptions) -> int | None:
    for name in ("gpus-per-node", "gres"):
        value = request.value(name) or ""
        if name == "gres" and "gpu" not in value:
            continue
        parts = [each for each in value.split(",") if name != "gres" or each.startswith("gpu")]
        if value and parts:
            counts = [re.search(r"(?:^|:|=)(\d+)(?:\(.*)?$", part) for part in parts]
            return sum(int(count[1]) if count else 1 for count in counts)
    per_task = re.search(r"(\d+)$", request.value("gpus-per-task") or "")
    if per_task and request.tasks_on_node:
        return int(per_task[1]) * request.tasks_on_node
    in_all = re.search(r"(\d+)$", request.value("gpus") or "")
    if in_all:
        return int(in_all[1]) // max(request.nodes or 1, 1)
    return None


def build_request(directives: Sequence[Directive], scheduler: Scheduler) -> EffectiveOptions:
    """Collect the options of these directives into a request; a later option wins."""
    options: dict[str, Option] = {}
    resources: dict[str, str] = {}
    for directive in directives:
        if directive.scheduler != scheduler:
            continue
        for option in directive.options:
            options[option.name] = option
            if scheduler in ("pbs", "sge") and option.name == "l":
                _add_resources(option.value or "", resources)
            if scheduler == "pbs" and option.name == "l" and "place=" in (option.value or ""):
                resources["place"] = (option.value or "").partition("place=")[2]
            if scheduler == "sge" and option.name == "pe":
                name, _, slots = (option.value or "").partition(" ")
                resources["pe"], resources["slots"] = name, slots.partition("-")[0]
            if scheduler == "lsf" and option.name == "R":
                _add_lsf(option.value or "", resources)
    if scheduler == "lsf" and "ptile" in resources and options.get("n"):
        number = re.match(r"\d+", options["n"].value or "")
        if number and int(resources["ptile"]):
            resources["nodes"] = str(-(-int(number[0]) // int(resources["ptile"])))
    return EffectiveOptions(scheduler, options, resources)


def _add_resources(value: str, resources: dict[str, str]) -> None:
    """Add the resources of a `-l` option, such as `nodes=1:ppn=8,mem=4gb`, to a dictionary."""
    for part in value.split(","):
        name, _, given = part.strip().partition("=")
        if name in ("select", "nodes"):
            for group in given.split("+")[:1]:
                count, *further = group.split(":")
                resources["chunks"] = count if count.isdigit() else "1"
                resources["chunks_by"] = name
                for each in further:
                    inner, _, inner_value = each.partition("=")
                    resources[inner] = inner_value or "1"
        elif name:
            resources[name] = given


def _add_lsf(value: str, resources: dict[str, str]) -> None:
    if ptile := re.search(r"ptile=(\d{1,5})", value):
        resources["ptile"] = ptile[1]
    if re.search(r"hosts=1\b", value):
        resources["nodes"] = "1"
    if cores := re.search(r"affinity\[(?:core|thread)\((\d{1,4})", value):
        resources["affinity"] = cores[1]


def parse_array(value: str) -> tuple[int, int] | None:
    """Parse an array, such as `0-9:3` or `1,5,7`: number of tasks and largest index, or None."""
    count = largest = 0
    for part in value.partition("%")[0].split(","):
        found = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?(?::(\d{1,9}))?\s*", part)
        if not found:
            return None
        first = int(found[1])
        last = int(found[2] or first)
        step = int(found[3] or 1)
        if last < first or not step:
            return None
        count += (last - first) // step + 1
        largest = max(largest, last)
    return count, largest


def memory_mib(value: str) -> float | None:
    """Parse an amount of memory in MiB, such as `4G`, `4GB` or `4096` (MiB); None if invalid."""
    found = re.fullmatch(r"(\d{1,12}(?:\.\d+)?)\s*([kmgt]?)i?b?", value.strip().lower())
    return float(found[1]) * MEMORY_UNITS[found[2]] if found else None
