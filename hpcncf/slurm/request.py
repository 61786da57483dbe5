"""What Slurm is asked for: a site's settings and a run's resources as submitit's parameters."""

from __future__ import annotations

import shlex
from typing import Any, Literal

from pydantic import PositiveInt

from hpcncf.spec import Resources, Settings


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
