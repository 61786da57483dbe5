"""What a job at a site asks of Slurm: parameters for submitit, and the lines around srun."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final

from hpcncf.errors import UsageError, abbreviate
from hpcncf.job.spec import Resources
from hpcncf.slurm.site import UNFIT_IN_PATHS, Site, quote_path

# sbatch passes on the whole environment of the submitting shell. If that belongs to another job,
# these variables would describe the other job to our ranks.
OF_RANKS: Final = (
    "RANK LOCAL_RANK GROUP_RANK ROLE_RANK WORLD_SIZE LOCAL_WORLD_SIZE ROLE_WORLD_SIZE "
    "GROUP_WORLD_SIZE MASTER_ADDR MASTER_PORT HPCNCF_ATTEMPT HPCNCF_LAUNCHED_BY HPCNCF_NODE_CPUS"
)


# Prefixes of variables.
PREFIXES: Final = ("SRUN_", "SUBMITIT_", "TORCHELASTIC_", "SLURM_STEP_", "SLURM_CPU_BIND")


# Variables that srun reads as options. SLURM_EXPORT_ENV=NONE, set by sbatch --export=NONE, would
# hide this script's exports from the ranks. From 23.11 on, srun ends at once if SLURM_TRES_PER_TASK
# differs from --cpus-per-task, and if memory is given in two forms; a step that requests no memory
# gets all of its job's.
OF_SRUN: Final = (
    "SLURM_EXPORT_ENV SLURM_EXACT SLURM_OVERLAP SLURM_WHOLE SLURM_TRES_PER_TASK SLURM_GPU_BIND "
    "SLURM_MEM_BIND SLURM_DISTRIBUTION SLURM_HINT SLURM_THREADS_PER_CORE SLURM_CPUS_PER_GPU "
    "SLURM_GPUS SLURM_GPUS_PER_TASK SLURM_NTASKS_PER_GPU SLURM_NTASKS_PER_CORE "
    "SLURM_NTASKS_PER_SOCKET SLURM_MEM_PER_NODE SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU"
)


# Slurm's warning signal would kill a Python that is still importing, and fail the job. A run
# preempted that early has nothing to save: Slurm requeues it by itself.
DEAF_AT_FIRST: Final = """sh -c 'trap "" USR2; exec "$@"' sh"""


def unset_lines(options: Collection[str]) -> list[str]:
    """Return bash lines that unset Slurm variables which belong to other jobs.

    Variables that Slurm sets for these `options` are kept.
    """
    own = [
        name
        for name in OF_SRUN.split()
        if name.removeprefix("SLURM_").lower().replace("_", "-") not in options
    ]
    prefixed = [f'"${{!{prefix}@}}"' for prefix in PREFIXES]
    return [
        "# what the submitting shell knew of other jobs",
        *(" ".join(["unset", *names]) for names in (OF_RANKS.split(), own, prefixed)),
    ]


def module_lines(names: Sequence[str]) -> list[str]:
    """Return bash lines that load only these modules; a missing module ends the job."""
    if not names:
        return []
    return [
        "type module >/dev/null 2>&1 || . /etc/profile",
        "module purge",
        *(f"module load {shlex.quote(name)} || exit" for name in names),
    ]


def teardown_lines(lines: Sequence[str]) -> list[str]:
    """Return bash lines that run at the job's end and keep the exit status of its ranks."""
    return ["status=$?", *lines, "exit $status"] if lines else []


def folder_for_slurm(folder: Path) -> Path:
    """Return the absolute results folder; raises UsageError if Slurm cannot log to it."""
    if unfit := UNFIT_IN_PATHS.search(str(folder.absolute())):
        raise UsageError(
            f"{abbreviate(str(folder))}: Slurm interprets {unfit.group()!r} in a log's path. "
            "Choose --results without %, backslash and control characters."
        )
    return folder.absolute()


def parameters(
    resources: Resources,
    site: Site,
    job_name: str,
    array_parallelism: int | None = None,
    exclusive: bool = False,
) -> dict[str, Any]:
    """Build the parameters of submitit's AutoExecutor, except those that are not set."""
    limit_min = resources.timeout_min * resources.runs_per_task
    tasks, cpus = resources.tasks_per_node, resources.cpus_per_task
    if resources.launcher == "torchrun" or resources.packed:
        # One process per node starts the ranks or the co-located runs, and has all their cores.
        tasks, cpus = 1, resources.node_cores
    request: dict[str, Any] = {
        "name": job_name,
        "timeout_min": limit_min,
        "nodes": resources.nodes,
        "tasks_per_node": tasks,
        "cpus_per_task": cpus,
        "gpus_per_node": resources.node_gpus or None,
        **_memory_parameters(resources, site),
        "slurm_partition": site.partition,
        "slurm_account": site.account,
        "slurm_qos": site.qos,
        "slurm_constraint": site.constraint,
        "slurm_exclusive": exclusive or None,
        "slurm_mail_user": site.mail_user,
        "slurm_mail_type": ",".join(site.mail_type) or None,
        "slurm_signal_delay_s": min(site.signal_delay_s, limit_min * 10),
        "slurm_array_parallelism": array_parallelism or site.array_parallelism,
        "slurm_additional_parameters": _further_parameters(site) or None,
        "slurm_setup": [*setup_lines(resources, site), "export HPCNCF_LAUNCHED_BY=slurm"],
        "slurm_teardown": teardown_lines(site.teardown) or None,
        # From Slurm 22.05 on srun does not inherit sbatch's `--cpus-per-task`: a bound step would
        # give each rank one core. And a dead rank must not leave the others waiting for it.
        "slurm_srun_args": [f"--cpus-per-task={cpus}", "--kill-on-bad-exit=1", *site.srun_args],
    }
    return {key: value for key, value in request.items() if value is not None}


def python_request(site: Site) -> str:
    """Return the shell words that start Python on a node, in the site's container if any."""
    container = "" if site.container is None else f"{shlex.join(shlex.split(site.container))} "
    return f"{container}{python_inside(site)}"


def python_inside(site: Site) -> str:
    """Return the shell words that start Python for a process in the site's container."""
    if site.venv is not None:
        return f"{quote_path(site.venv)}/bin/python"
    own = site.conda is None and site.container is None
    return shlex.quote(sys.executable) if own else "python3"


def _memory_parameters(resources: Resources, site: Site) -> dict[str, Any]:
    node_mib = math.ceil(resources.node_mem_gb * 1024)
    if site.memory == "mem":
        # submitit rounds down, possibly to 0, which would request the memory of the whole node.
        return {"mem_gb": node_mib / 1024}
    if site.memory == "mem_per_cpu":
        return {"slurm_mem_per_cpu": f"{-(-node_mib // resources.node_cores)}MB"}
    if site.memory == "mem_per_gpu" and resources.node_gpus:
        return {"slurm_mem_per_gpu": f"{-(-node_mib // resources.node_gpus)}MB"}
    return {}


def asks_memory(resources: Resources, site: Site) -> bool:
    """Return whether the job requests an amount of memory from Slurm at this site."""
    return bool(_memory_parameters(resources, site))


def _further_parameters(site: Site) -> dict[str, Any]:
    # `--key=False` would set the option.
    flags = {key: value for key, value in site.additional_parameters.items() if value is not False}
    return flags | ({"reservation": site.reservation} if site.reservation is not None else {})


def setup_lines(resources: Resources, site: Site) -> list[str]:
    """Return the lines of the batch script that come before srun."""
    threads = str(resources.cpus_per_task)
    variables = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    if site.interface is not None:
        variables |= {"GLOO_SOCKET_IFNAME": site.interface, "NCCL_SOCKET_IFNAME": site.interface}
    activate = []
    if site.conda is not None:
        activate = [
            'eval "$("${CONDA_EXE:-conda}" shell.bash hook)"',
            f"conda activate {quote_path(site.conda)} || exit",
        ]
    elif site.venv is not None and site.container is None:
        activate = [f". {quote_path(site.venv)}/bin/activate || exit"]
    return [
        *unset_lines(_further_parameters(site)),
        *module_lines(site.modules),
        *activate,
        *(f"export {k}={shlex.quote(v)}" for k, v in (variables | site.environment).items()),
        *site.setup,
    ]
