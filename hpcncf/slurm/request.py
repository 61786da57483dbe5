"""What Slurm is asked for: a site's settings and a run's resources as submitit's parameters."""

from __future__ import annotations

import math
import sys
from typing import Any, Literal, Self

from pydantic import PositiveInt, model_validator

from hpcncf.slurm import shell
from hpcncf.slurm.checks import (
    Command,
    FolderPath,
    Interface,
    Line,
    SbatchKey,
    SrunArgument,
    Text,
    VariableName,
    Word,
)
from hpcncf.spec import Resources, Settings

MailType = Literal[
    "NONE",
    "BEGIN",
    "END",
    "FAIL",
    "REQUEUE",
    "ALL",
    "INVALID_DEPEND",
    "STAGE_OUT",
    "TIME_LIMIT",
    "TIME_LIMIT_90",
    "TIME_LIMIT_80",
    "TIME_LIMIT_50",
    "ARRAY_TASKS",
]


class Site(Settings):
    """What differs between clusters: a file of slurm_templates/, or a user's own."""

    partition: Line | None = None
    """Slurm's `--partition`, one or several with commas; left out, the cluster's default."""
    account: Line | None = None
    """Who is charged, where the cluster asks (`--account`)."""
    qos: Line | None = None
    """Quality of service (`--qos`)."""
    constraint: Line | None = None
    """Features that the nodes must have, as `a100` or `intel&avx512` (`--constraint`)."""
    reservation: Line | None = None
    """A reservation to run in (`--reservation`)."""
    memory: Literal["mem", "mem_per_cpu", "mem_per_gpu", "none"] = "mem"
    """How `resources.mem_gb`, the memory per node, is asked for: per node, divided by the CPUs or
    by the GPUs asked for on each node (without GPUs, not), or not at all. Whole MB, rounded up."""
    modules: list[Word] = []  # noqa: RUF012  pydantic copies it
    """`module load` of each, after `module purge`; one that cannot be loaded ends the job."""
    conda: Line | None = None
    """Name or path of a conda environment to activate; its Python starts the ranks."""
    venv: FolderPath | None = None
    """Folder of a virtual environment to activate; its Python starts the ranks."""
    container: Command | None = None
    """A command that Python is started with, as `apptainer exec --nv image.sif`. The image's
    `python3` starts the ranks (with `venv`, that one's)."""
    setup: list[Text] = []  # noqa: RUF012
    """Lines of bash before the ranks start, after modules and environments; taken as they are."""
    teardown: list[Text] = []  # noqa: RUF012
    """Lines of bash after the ranks ended; not reached when Slurm ends the job."""
    environment: dict[VariableName, Text] = {}  # noqa: RUF012
    """Variables that every rank gets, taken literally: `$HOME` stays those five characters."""
    srun_args: list[SrunArgument] = []  # noqa: RUF012
    """Further arguments of the srun that starts the ranks, as `--cpu-bind=cores`."""
    additional_parameters: dict[SbatchKey, Line | int | bool] = {}  # noqa: RUF012
    """Further `#SBATCH --key=value` lines, as `{no-requeue: true}`."""
    array_parallelism: PositiveInt = 256
    """At most this many tasks of an array run at a time."""
    signal_delay_s: PositiveInt = 30
    """Seconds before the time limit at which Slurm warns the ranks; at most a sixth of the limit,
    for Slurm may warn up to a minute earlier."""
    mail_user: Line | None = None
    """Whom Slurm writes to, where it sends mail; left out, the user who submits."""
    mail_type: list[MailType] = []  # noqa: RUF012
    """When it writes, as `[END, FAIL]`: once for each array, with `ARRAY_TASKS` for each task."""
    interface: Interface | None = None
    """Network interface that the ranks talk over, as `ib0`; left out, the ranks choose."""

    @model_validator(mode="after")
    def one_environment(self) -> Self:
        if self.conda is not None and (self.venv is not None or self.container is not None):
            other = "venv" if self.venv is not None else "container"
            raise ValueError(f"conda and {other} both say which Python starts the ranks: give one")
        return self

    @model_validator(mode="after")
    def mail_has_an_occasion(self) -> Self:
        if self.mail_user is not None and not self.mail_type:
            raise ValueError(
                "mail_user is given, but not when to write: mail_type: [END, FAIL], say"
            )
        return self


def parameters(
    resources: Resources,
    site: Site,
    job_name: str,
    array_parallelism: int | None = None,
    exclusive: bool = False,
) -> dict[str, Any]:
    """What submitit's AutoExecutor is told, in its own words; what is not asked is left out."""
    limit_min = resources.timeout_min * resources.runs_per_task
    tasks, cpus = _tasks(resources)
    asked: dict[str, Any] = {
        "name": job_name,
        "timeout_min": limit_min,
        "nodes": resources.nodes,
        "tasks_per_node": tasks,
        "cpus_per_task": cpus,
        "gpus_per_node": resources.node_gpus or None,
        **_memory(resources, site),
        "slurm_partition": site.partition,
        "slurm_account": site.account,
        "slurm_qos": site.qos,
        "slurm_constraint": site.constraint,
        "slurm_exclusive": exclusive or None,
        "slurm_mail_user": site.mail_user,
        "slurm_mail_type": ",".join(site.mail_type) or None,
        "slurm_signal_delay_s": min(site.signal_delay_s, limit_min * 10),
        "slurm_array_parallelism": array_parallelism or site.array_parallelism,
        "slurm_additional_parameters": _further(site) or None,
        "slurm_setup": [*setup(resources, site), "export HPCNCF_LAUNCHED_BY=slurm"],
        "slurm_teardown": shell.teardown(site.teardown) or None,
        "slurm_srun_args": _srun_args(cpus, site),
    }
    return {key: value for key, value in asked.items() if value is not None}


def python_request(site: Site) -> str:
    """The shell words that start Python on a node."""
    return shell.python_shell(site.conda, site.venv, site.container, sys.executable)


def python_of_ranks(site: Site) -> str:
    """The same for what a Python on a node starts itself."""
    return shell.inside(site.conda, site.venv, site.container, sys.executable)


def _tasks(resources: Resources) -> tuple[int, int]:
    """Tasks on each node and CPUs of each: one torchrun has the cores of all its ranks, and so has
    what starts runs side by side."""
    if resources.launcher == "torchrun" or resources.packed:
        return 1, resources.node_cores
    return resources.tasks_per_node, resources.cpus_per_task


def _memory(resources: Resources, site: Site) -> dict[str, Any]:
    whole = math.ceil(resources.node_mem_gb * 1024)
    if site.memory == "mem":
        # submitit rounds down, to 0 at last, which asks for the whole node's.
        return {"mem_gb": whole / 1024}
    if site.memory == "mem_per_cpu":
        return {"slurm_mem_per_cpu": f"{-(-whole // resources.node_cores)}MB"}
    if site.memory == "mem_per_gpu" and resources.node_gpus:
        return {"slurm_mem_per_gpu": f"{-(-whole // resources.node_gpus)}MB"}
    return {}


def asks_memory(resources: Resources, site: Site) -> bool:
    """Whether Slurm is told of memory at all; else `resources.mem_gb` changes nothing there."""
    return bool(_memory(resources, site))


def _further(site: Site) -> dict[str, Any]:
    # `--key=False` would ask for it.
    asked = {key: value for key, value in site.additional_parameters.items() if value is not False}
    return asked | ({"reservation": site.reservation} if site.reservation is not None else {})


def setup(resources: Resources, site: Site) -> list[str]:
    """The batch script's lines before srun."""
    threads = str(resources.cpus_per_task)
    ours = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    if site.interface is not None:
        ours |= {"GLOO_SOCKET_IFNAME": site.interface, "NCCL_SOCKET_IFNAME": site.interface}
    outside = None if site.container is not None else site.venv
    return [
        *shell.unset(_further(site)),
        *shell.modules(site.modules),
        *shell.activate(site.conda, outside),
        *shell.exports(ours | site.environment),
        *site.setup,
    ]


def _srun_args(cpus: int, site: Site) -> list[str]:
    """From Slurm 22.05 on srun does not inherit sbatch's `--cpus-per-task`: a bound step then
    gives each rank one core. And one dead rank must not leave the others waiting for it."""
    return [f"--cpus-per-task={cpus}", "--kill-on-bad-exit=1", *site.srun_args]
