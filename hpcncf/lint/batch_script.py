"""Lint rules for batch scripts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, order=True)
class Complaint:
    line: int
    """From 1."""
    rule: str
    message: str


# What is found, in the order of docs/lint.md.
RULES: Final = {
    "set-difference": "`list(a - b)` of sets makes all of it to use a part of it",
    "pandas-per-sample": "`.iloc`, `.loc`, `.iat`, `.at` in `__getitem__` walk pandas for one row",
    "tensor-per-sample": "a tensor is made for each sample in `__getitem__`",
    "no-shuffle": "a training DataLoader that gives every epoch in the same order",
    "no-set-epoch": "DistributedSampler without `set_epoch` shuffles every epoch alike",
    "kept-graph": "a loss that is kept keeps its graph, and memory grows",
    "synchronised-step": "`.item()` of every step waits for the GPU",
    "too-many-workers": "DataLoader workers and their rank have fewer cores than processes",
    "fixed-port": "a fixed MASTER_PORT meets that of another task of the array on the same node",
    "srun-without-cores": "srun of Slurm 22.05 to 23.02 does not pass on --cpus-per-task",
    "too-many-threads": "more threads than the cores that are asked for",
    "ranks-without-launcher": "several tasks are asked for and one process is started",
    "one-task-for-nodes": "several nodes are asked for and nothing starts a process on the others",
}


SHORT_OPTIONS: Final = {"c": "cpus-per-task", "n": "ntasks", "N": "nodes", "a": "array"}
THREADS_PATTERN: Final = r"(?:OMP|MKL|OPENBLAS)_NUM_THREADS=[\"']?(\d+)\b"
WORKERS_PATTERN: Final = r"--(?:num[-_])?workers[= ](\d+)\b"
CORES_BY_OTHER_OPTIONS: Final = frozenset({"exclusive", "cpus-per-gpu"})
LAUNCHER_PATTERN: Final = (
    r"\b(?:srun|mpirun|mpiexec|torchrun|torch\.distributed\.(?:run|launch)|accelerate|deepspeed)\b"
)
PYTHON_PATTERN: Final = r"^\s*(?:exec\s+)?(?:python[\d.]*|\S*/python[\d.]*)\s"


@dataclass(frozen=True)
class SbatchOptions:
    """The script's #SBATCH options, and the line that each stands in."""

    values: Mapping[str, str]
    lines: Mapping[str, int]

    def number(self, option: str) -> int | None:
        found = re.match(r"\d+", self.values.get(option, ""))
        return int(found[0]) if found else None

    @property
    def cores(self) -> int | None:
        """Of each task, where the script says it."""
        return self.number("cpus-per-task")

    @property
    def has(self) -> int | None:
        """Cores that each task has: Slurm's one where it says none; not known where it has a
        node's or a GPU's."""
        return self.cores or (None if CORES_BY_OTHER_OPTIONS & set(self.values) else 1)

    @property
    def tasks(self) -> int:
        each = self.number("ntasks-per-node")
        if each is not None:
            return each * (self.number("nodes") or 1)
        return self.number("ntasks") or 1


def parse_options(text: str) -> SbatchOptions:
    """Slurm reads the options up to the first line that is neither a comment nor empty."""
    values: dict[str, str] = {}
    lines: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            break
        for name, value in _options(line):
            values[name], lines[name] = value, number
    return SbatchOptions(values, lines)


def _options(line: str) -> Iterator[tuple[str, str]]:
    if not line.startswith("#SBATCH"):
        return
    words = line.removeprefix("#SBATCH").partition(" #")[0]
    for long, value in re.findall(r"--([a-z-]+)(?:[= ]+([^\s-]\S*))?", words):
        yield long, value
    for short, value in re.findall(r"(?<!\S)-([a-zA-Z])[= ]*([^\s-]\S*)", words):
        yield SHORT_OPTIONS.get(short, short), value


def is_array_script(text: str) -> bool:
    return is_batch_script(text) and "array" in parse_options(text).values


def is_batch_script(text: str) -> bool:
    return "#SBATCH" in text


def check_batch_script(text: str) -> list[Complaint]:
    options = parse_options(text)
    found = []
    for number, line in _commands(text):
        found += [*_ports(number, line, options), *_sruns(number, line, options, text)]
        found += [*_threads(number, line, options), *_workers(number, line, options)]
    return sorted({*found, *_alone(text, options)})


def _commands(text: str) -> Iterator[tuple[int, str]]:
    """Lines that the shell runs; one that is continued is joined, with its first line as number."""
    began, joined = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        if not joined and line.lstrip().startswith("#"):
            continue
        began = began if joined else number
        joined += line.removesuffix("\\")
        if not line.endswith("\\"):
            yield began, joined
            joined = ""
    if joined:
        yield began, joined


def _ports(number: int, line: str, options: SbatchOptions) -> Iterator[Complaint]:
    fixed = re.search(r"MASTER_PORT=[\"']?(\d+)\b|--master[-_]port[= ](\d+)\b", line)
    if fixed and "array" in options.values:
        yield fixed_port(number, fixed[1] or fixed[2])


def fixed_port(number: int, port: str) -> Complaint:
    return Complaint(
        number,
        "fixed-port",
        f"port {port} for every task of the array: two on one node take each other's ranks or "
        "fail; derive it from the job: MASTER_PORT=$((12000 + SLURM_JOB_ID % 20000))",
    )


def _sruns(number: int, line: str, options: SbatchOptions, text: str) -> Iterator[Complaint]:
    has_cores = re.search(r"--cpus-per-task|(?<!\S)-c[= ]?[\d$]", line)
    passed_on = re.search(r"\bSRUN_CPUS_PER_TASK=", text)
    if (options.cores or 1) < 2 or has_cores or passed_on or not re.search(r"^\s*srun\b", line):
        return
    yield Complaint(
        number,
        "srun-without-cores",
        f"srun of Slurm 22.05 to 23.02 may give each task 1 of its {options.cores} cores: srun "
        "--cpus-per-task=$SLURM_CPUS_PER_TASK",
    )


def _threads(number: int, line: str, options: SbatchOptions) -> Iterator[Complaint]:
    cores = options.cores or (options.has if options.tasks == 1 else None)
    for threads in map(int, re.findall(THREADS_PATTERN, line)):
        if cores is not None and threads > cores:
            yield Complaint(
                number,
                "too-many-threads",
                f"{threads} threads on the {cores} core{'s' * (cores != 1)} of each task take "
                "turns: set it to $SLURM_CPUS_PER_TASK",
            )


def _workers(number: int, line: str, options: SbatchOptions) -> Iterator[Complaint]:
    cores = options.has
    for workers in map(int, re.findall(WORKERS_PATTERN, line)):
        if cores is not None and workers + 1 > cores:
            yield Complaint(
                number,
                "too-many-workers",
                f"{workers} workers and the rank itself are {workers + 1} processes on the {cores} "
                f"core{'s' * (cores != 1)} of each task: ask for --cpus-per-task={workers + 1}, or "
                f"use {f'at most {cores - 1}' if cores > 1 else 'no'} workers",
            )


def _alone(text: str, options: SbatchOptions) -> Iterator[Complaint]:
    """Python started without a launcher, where more than one task is asked for."""
    commands = list(_commands(text))
    nodes = options.number("nodes") or 1
    if (options.tasks < 2 and nodes < 2) or any(re.search(LAUNCHER_PATTERN, line) for _, line in commands):
        return
    for number, line in commands:
        if re.match(PYTHON_PATTERN, line) and options.tasks > 1:
            yield Complaint(
                number,
                "ranks-without-launcher",
                f"one process, while {options.tasks} tasks are asked for: start it by srun or "
                "torchrun",
            )
        elif re.match(PYTHON_PATTERN, line):
            yield Complaint(
                number,
                "one-task-for-nodes",
                f"one process on the first of {nodes} nodes: start it by srun, or ask for one node",
            )
