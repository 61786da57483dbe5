"""Lint an sbatch script: the resources it requests against the processes it starts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from hpcncf.errors import plural

# In the order of docs/lint.md.
RULES: Final = {
    "set-difference": "`list(a - b)` of sets builds a whole list to use a few of its items",
    "pandas-per-sample": "`.iloc`, `.loc`, `.iat`, `.at` in `__getitem__` go through pandas for "
    "one row",
    "tensor-per-sample": "`__getitem__` creates a tensor for each sample",
    "no-shuffle": "a training DataLoader gives the same order in every epoch",
    "no-set-epoch": "DistributedSampler without `set_epoch` repeats one shuffle in every epoch",
    "kept-graph": "keeping a loss keeps its graph, and memory grows",
    "synchronised-step": "`.item()` in every step waits for the GPU",
    "checkpoint-each-step": "`torch.save` in every step writes the whole model each time",
    "dense-embedding": "Adam updates all rows of a large nn.Embedding in every step",
    "data-parallel": "nn.DataParallel drives all GPUs from one process",
    "anomaly-detection": "a search for errors was left on and slows every step",
    "layer-size": "sizes that are no multiple of 8 slow tensor cores in mixed precision",
    "too-many-workers": "DataLoader workers and their rank are more processes than cores",
    "fixed-port": "tasks of an array on one node share a fixed MASTER_PORT",
    "srun-without-cores": "srun of Slurm 22.05 to 23.02 does not pass on --cpus-per-task",
    "too-many-threads": "more threads than requested cores",
    "old-launcher": "torch.distributed.launch is deprecated",
    "ranks-without-launcher": "several tasks are requested, but one process is started",
    "one-task-for-nodes": "several nodes are requested, but processes start on the first only",
}

SHORT_OPTIONS: Final = {"c": "cpus-per-task", "n": "ntasks", "N": "nodes", "a": "array"}
THREAD_VARIABLES: Final = frozenset({"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"})
THREADS_PATTERN: Final = rf"(?:{'|'.join(sorted(THREAD_VARIABLES))})=[\"']?(\d+)\b"
WORKERS_PATTERN: Final = r"--(?:num[-_])?workers[= ](\d+)\b"
# With one of these, a task has the cores of a node or of a GPU.
CORES_BY_OTHER_OPTIONS: Final = frozenset({"exclusive", "cpus-per-gpu"})
LAUNCHER_PATTERN: Final = (
    r"\b(?:srun|mpirun|mpiexec|torchrun|torch\.distributed\.(?:run|launch)|accelerate|deepspeed)\b"
)
PYTHON_PATTERN: Final = r"^\s*(?:exec\s+)?(?:python[\d.]*|\S*/python[\d.]*)\s"


@dataclass(frozen=True, order=True)
class Complaint:
    """A line that costs speed, memory or correctness, and what to do instead."""

    line: int
    """From 1."""
    rule: str
    message: str


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


def is_array_script(text: str) -> bool:
    return is_batch_script(text) and "array" in parse_options(text).values


def check_batch_script(text: str) -> list[Complaint]:
    """All complaints about the script, in the order of its lines."""
    options = parse_options(text)
    commands = list(_commands(text))
    found = set(_missing_launcher(commands, options))
    found |= set(check_launchers(text))
    for number, line in commands:
        found |= {*_fixed_ports(number, line, options), *_sruns(number, line, options, text)}
        found |= {*_threads(number, line, options), *_workers(number, line, options)}
    return sorted(found)


def check_launchers(text: str) -> list[Complaint]:
    """Complaints about torch's old launcher in any shell script."""
    return [
        Complaint(
            number,
            "old-launcher",
            "torch.distributed.launch is deprecated. Use torchrun with the same options, and read "
            "the local rank from the environment variable LOCAL_RANK instead of --local-rank",
        )
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


def _fixed_ports(number: int, line: str, options: SbatchOptions) -> Iterator[Complaint]:
    fixed = re.search(r"MASTER_PORT=[\"']?(\d+)\b|--master[-_]port[= ](\d+)\b", line)
    if fixed and "array" in options.values:
        yield fixed_port(number, fixed[1] or fixed[2])


def fixed_port(number: int, port: str) -> Complaint:
    return Complaint(
        number,
        "fixed-port",
        f"every task of the array uses port {port}, so two tasks on one node fail or mix up their "
        "ranks. Derive the port from the job: MASTER_PORT=$((12000 + SLURM_JOB_ID % 20000))",
    )


def _sruns(number: int, line: str, options: SbatchOptions, text: str) -> Iterator[Complaint]:
    has_cores = re.search(r"--cpus-per-task|(?<!\S)-c[= ]?[\d$]", line)
    passed_on = re.search(r"\bSRUN_CPUS_PER_TASK=", text)
    cores = options.requested_cores or 1
    if cores > 1 and re.search(r"^\s*srun\b", line) and not has_cores and not passed_on:
        yield Complaint(
            number,
            "srun-without-cores",
            f"srun of Slurm 22.05 to 23.02 may give each task 1 of its {cores} cores. Use srun "
            "--cpus-per-task=$SLURM_CPUS_PER_TASK",
        )


def _threads(number: int, line: str, options: SbatchOptions) -> Iterator[Complaint]:
    cores = options.requested_cores or (options.cores if options.tasks == 1 else None)
    for threads in map(int, re.findall(THREADS_PATTERN, line)):
        if cores is not None and threads > cores:
            yield too_many_threads(number, threads, cores)


def too_many_threads(line: int, threads: int, cores: int) -> Complaint:
    return Complaint(
        line,
        "too-many-threads",
        f"{threads} threads oversubscribe the {plural(cores, 'core')} of each task. Set "
        "the number to SLURM_CPUS_PER_TASK",
    )


def _workers(number: int, line: str, options: SbatchOptions) -> Iterator[Complaint]:
    cores = options.cores
    for workers in map(int, re.findall(WORKERS_PATTERN, line)):
        if cores is not None and workers + 1 > cores:
            yield Complaint(
                number,
                "too-many-workers",
                f"{workers} workers and the rank itself are {workers + 1} processes on the {cores} "
                f"core{'s' * (cores != 1)} of each task. Request --cpus-per-task={workers + 1}, or "
                f"use {f'at most {cores - 1}' if cores > 1 else 'no'} workers",
            )


def _missing_launcher(
    commands: list[tuple[int, str]], options: SbatchOptions
) -> Iterator[Complaint]:
    """Python started without a launcher, although several tasks or nodes are requested."""
    nodes = options.number("nodes") or 1
    if (options.tasks < 2 and nodes < 2) or any(
        re.search(LAUNCHER_PATTERN, line) for _, line in commands
    ):
        return
    for number, line in commands:
        if re.match(PYTHON_PATTERN, line) and options.tasks > 1:
            yield Complaint(
                number,
                "ranks-without-launcher",
                f"starts one process, but {options.tasks} tasks are requested. Start it with srun "
                "or torchrun",
            )
        elif re.match(PYTHON_PATTERN, line):
            yield Complaint(
                number,
                "one-task-for-nodes",
                f"starts one process on the first of {nodes} nodes. Start it with srun, or request "
                "one node",
            )
