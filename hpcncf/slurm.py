"""Slurm in words and values: site settings, submitit parameters, states. Calls nothing."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import PositiveInt

from hpcncf.spec import Resources, Settings
from hpcncf.submissions import State

# Every state word of squeue and sacct (Slurm 22.05 to 25.05). One that is not here is `unknown`.
STATES: Final[dict[str, State]] = {
    "BOOT_FAIL": "node_failed",
    "CANCELLED": "cancelled",
    "COMPLETED": "completed",
    "COMPLETING": "running",
    "CONFIGURING": "pending",
    "DEADLINE": "timeout",
    "FAILED": "failed",
    "LAUNCH_FAILED": "failed",
    "NODE_FAIL": "node_failed",
    "OUT_OF_MEMORY": "out_of_memory",
    "PENDING": "pending",
    "POWER_UP_NODE": "pending",
    "PREEMPTED": "stopped",
    "RECONFIG_FAIL": "failed",
    "REQUEUED": "pending",
    "REQUEUE_FED": "pending",
    "REQUEUE_HOLD": "pending",
    "RESIZING": "running",
    "RESV_DEL_HOLD": "pending",
    "REVOKED": "failed",
    "RUNNING": "running",
    "SIGNALING": "running",
    "SPECIAL_EXIT": "pending",
    "STAGE_OUT": "running",
    "STOPPED": "running",
    "SUSPENDED": "running",
    "TIMEOUT": "timeout",
}

SQUEUE_FORMAT: Final = "%i|%T|%r"
SACCT_FIELDS: Final = "JobID,State,ExitCode"


class Site(Settings):
    """What differs between clusters: a file of slurm_templates/, or a user's own."""

    partition: str | None = None
    """Slurm's `--partition`; none means the cluster's default. So for the next three."""
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    memory: Literal["mem", "none"] = "mem"
    """`mem`: ask for `resources.mem_gb` per node. `none`: ask for none, where a site forbids it."""
    setup: list[str] = []  # noqa: RUF012  pydantic copies it
    """Shell lines before the ranks start, as `module load ...`."""
    environment: dict[str, str] = {}  # noqa: RUF012
    """Variables that every rank gets."""
    srun_args: list[str] = []  # noqa: RUF012
    """Further arguments of the srun that starts the ranks."""
    additional_parameters: dict[str, str | int | bool] = {}  # noqa: RUF012
    """Further `#SBATCH --key=value` lines, as `{no-requeue: true}`."""
    array_parallelism: PositiveInt = 256
    """At most this many tasks of an array run at a time."""
    signal_delay_s: PositiveInt = 30
    """Seconds before the time limit at which Slurm warns the ranks."""


def parameters(
    resources: Resources,
    site: Site,
    job_name: str,
    array_parallelism: int | None = None,
    exclusive: bool = False,
) -> dict[str, Any]:
    """What submitit's AutoExecutor is told, in its own words; what is not asked is left out."""
    asked: dict[str, Any] = {
        "name": job_name,
        "timeout_min": resources.timeout_min,
        "nodes": resources.nodes,
        "tasks_per_node": resources.tasks_per_node,
        "cpus_per_task": resources.cpus_per_task,
        "gpus_per_node": resources.gpus_per_node or None,
        "mem_gb": resources.mem_gb if site.memory == "mem" else None,
        "slurm_partition": site.partition,
        "slurm_account": site.account,
        "slurm_qos": site.qos,
        "slurm_constraint": site.constraint,
        "slurm_exclusive": exclusive or None,
        "slurm_signal_delay_s": site.signal_delay_s,
        "slurm_array_parallelism": array_parallelism or site.array_parallelism,
        "slurm_additional_parameters": site.additional_parameters or None,
        "slurm_setup": [*site.setup, *_exports(resources, site)],
        "slurm_srun_args": _srun_args(resources, site),
    }
    return {key: value for key, value in asked.items() if value is not None}


def _exports(resources: Resources, site: Site) -> list[str]:
    threads = str(resources.cpus_per_task)
    known = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "HPCNCF_LAUNCHED_BY": "slurm"}
    return [
        f"export {name}={shlex.quote(value)}" for name, value in (known | site.environment).items()
    ]


def _srun_args(resources: Resources, site: Site) -> list[str]:
    """From Slurm 22.05 on srun does not inherit sbatch's `--cpus-per-task`: a bound step then
    gives each rank one core. And one dead rank must not leave the others waiting for it."""
    return [
        f"--cpus-per-task={resources.cpus_per_task}",
        "--kill-on-bad-exit=1",
        *site.srun_args,
    ]


@dataclass(frozen=True)
class JobState:
    """What Slurm says of one job or array element."""

    state: State
    word: str
    """Slurm's own word."""
    reason: str


def state_of(word: str, job_id: str, detail: str = "") -> JobState:
    """Our word for Slurm's; sacct writes "CANCELLED by 1000" and "CANCELLED+" too."""
    plain = word.split()[0].rstrip("+") if word.split() else "nothing"
    state: State = STATES.get(plain, "unknown")
    said = f"Slurm job {job_id}: {plain}" + (f" ({detail})" if detail else "")
    quiet = state == "running" and plain == "RUNNING"
    return JobState(state, plain, "" if quiet else said)


def read_squeue(text: str) -> dict[str, JobState]:
    """`squeue --array --noheader --format=SQUEUE_FORMAT`: job id -> state."""
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 2]
    return {
        job_id.strip(): state_of(word, job_id.strip(), "" if reason == "None" else reason.strip())
        for job_id, word, reason in rows
    }


def read_sacct(text: str) -> dict[str, JobState]:
    """`sacct --noheader --parsable2 --format=SACCT_FIELDS`: job id -> state.

    A step that ran out of memory leaves its job FAILED, or even COMPLETED: the steps tell.
    """
    found: dict[str, JobState] = {}
    starved: set[str] = set()
    for job_id, word, exit_code in _sacct_rows(text):
        if "." not in job_id:
            found[job_id] = state_of(word, job_id, _exit_detail(word, exit_code))
        elif word.startswith("OUT_OF_ME"):
            starved.add(job_id.split(".")[0])
    for job_id in starved & set(found):
        found[job_id] = state_of("OUT_OF_MEMORY", job_id)
    return found


def _sacct_rows(text: str) -> Iterator[tuple[str, str, str]]:
    for line in text.splitlines():
        cells = line.split("|")
        if len(cells) == 3 and cells[0]:
            yield cells[0], cells[1], cells[2]


def _exit_detail(word: str, exit_code: str) -> str:
    """sacct's `code:signal` where it tells more than the state."""
    code, _, by_signal = exit_code.partition(":")
    if not word.startswith("FAILED"):
        return ""
    return f"signal {by_signal}" if by_signal not in ("", "0") else f"exit code {code}"
