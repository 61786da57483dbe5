"""Lint an sbatch script: the resources it requests against the processes it starts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from hpcncf.lint.rules import (
    THREAD_VARIABLES,
    Complaint,
    complain,
    too_many_threads,
    too_many_workers,
)

SHORT_OPTIONS: Final = {"c": "cpus-per-task", "n": "ntasks", "N": "nodes", "a": "array"}
THREADS_PATTERN: Final = rf"(?:{'|'.join(sorted(THREAD_VARIABLES))})=[\"']?(\d+)\b"
WORKERS_PATTERN: Final = r"--(?:num[-_])?workers[= ](\d+)\b"
# With one of these, a task has the cores of a node or of a GPU.
CORES_BY_OTHER_OPTIONS: Final = frozenset({"exclusive", "cpus-per-gpu"})
LAUNCHER_PATTERN: Final = (
    r"\b(?:srun|mpirun|mpiexec|torchrun|torch\.distributed\.(?:run|launch)|accelerate|deepspeed)\b"
)
PYTHON_PATTERN: Final = r"^\s*(?:exec\s+)?(?:python[\d.]*|\S*/python[\d.]*)\s"


@dataclass(frozen=True)
class SbatchOptions:
    """The script's #SBATCH options, without the dashes."""

    values: Mapping[str, str]

    def number(self, option: str) -> int | None:
        found = re.match(r"\d+", self.values.get(option, ""))
        return int(found[0]) if found else None

    @property
    def requested_cores(self) -> int | None:
        """Cores of each task, if the script requests them."""
        return self.number("cpus-per-task")

    @property
    def cores(self) -> int | None:
        """Cores of each task: Slurm's default of one without a request; None if not known."""
        default = None if CORES_BY_OTHER_OPTIONS & set(self.values) else 1
        return self.requested_cores or default

    @property
    def tasks(self) -> int:
        each = self.number("ntasks-per-node")
        if each is not None:
            return each * (self.number("nodes") or 1)
        return self.number("ntasks") or 1


def parse_options(text: str) -> SbatchOptions:
    """The options that Slurm reads: those above the first line that is no comment."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            break
        if line.startswith("#SBATCH"):
            words = line.removeprefix("#SBATCH").partition(" #")[0]
            values |= dict(re.findall(r"--([a-z-]+)(?:[= ]+([^\s-]\S*))?", words))
            for short, value in re.findall(r"(?<!\S)-([a-zA-Z])[= ]*([^\s-]\S*)", words):
                values[SHORT_OPTIONS.get(short, short)] = value
    return SbatchOptions(values)


def is_batch_script(text: str) -> bool:
    return "#SBATCH" in text


def check_batch_script(text: str) -> list[Complaint]:
    """All complaints about the script, in the order of its lines."""
    options = parse_options(text)
    commands = list(_commands(text))
    found = {*_missing_launcher(commands, options), *check_launchers(text)}
    for number, line in commands:
        found |= set(_check_command(number, line, options, text))
    return sorted(found)


def check_launchers(text: str) -> list[Complaint]:
    """Complaints about torch's old launcher in any shell script."""
    return [
        complain(number, "old-launcher")
        for number, line in _commands(text)
        if re.search(r"-m\s+torch\.distributed\.launch\b", line)
    ]


def _commands(text: str) -> Iterator[tuple[int, str]]:
    """Lines that the shell runs; continued lines are joined, with the number of the first."""
    first, joined = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        if not joined and line.lstrip().startswith("#"):
            continue
        first = first if joined else number
        joined += line.removesuffix("\\")
        if not line.endswith("\\"):
            yield first, joined
            joined = ""
    if joined:
        yield first, joined


def _check_command(
    number: int, line: str, options: SbatchOptions, text: str
) -> Iterator[Complaint]:
    """Complaints about one line: its port, cores of srun, threads and workers."""
    fixed = re.search(r"MASTER_PORT=[\"']?(\d+)\b|--master[-_]port[= ](\d+)\b", line)
    if fixed and "array" in options.values:
        yield complain(number, "fixed-port", port=fixed[1] or fixed[2])
    passes_cores = re.search(r"--cpus-per-task|(?<!\S)-c[= ]?[\d$]", line) or re.search(
        r"\bSRUN_CPUS_PER_TASK=", text
    )
    requested = options.requested_cores
    if (requested or 1) > 1 and re.search(r"^\s*srun\b", line) and not passes_cores:
        yield complain(number, "srun-without-cores", cores=requested)
    cores = requested or (options.cores if options.tasks == 1 else None)
    for threads in map(int, re.findall(THREADS_PATTERN, line)):
        yield from too_many_threads(number, threads, cores)
    for workers in map(int, re.findall(WORKERS_PATTERN, line)):
        yield from too_many_workers(number, workers, options.cores)


def _missing_launcher(
    commands: list[tuple[int, str]], options: SbatchOptions
) -> Iterator[Complaint]:
    """Python started without a launcher, although several tasks or nodes are requested."""
    tasks, nodes = options.tasks, options.number("nodes") or 1
    if any(re.search(LAUNCHER_PATTERN, line) for _, line in commands):
        return
    for number, line in commands:
        if not re.match(PYTHON_PATTERN, line):
            continue
        if tasks > 1:
            yield complain(number, "ranks-without-launcher", tasks=tasks)
        elif nodes > 1:
            yield complain(number, "one-task-for-nodes", nodes=nodes)
