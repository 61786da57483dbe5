"""Why a process may use fewer cores than it was allocated, as far as can be told from inside."""

from __future__ import annotations

import os
from collections.abc import Mapping

from hpcncf.monitor.cores import cpu_list


def told(
    allocated: float,
    usable: float,
    cpus: list[int],
    quota: float | None,
    env: Mapping[str, str] = os.environ,
) -> str | None:
    """A sentence with the cause and what to do; None where every core can be used."""
    if usable >= allocated:
        return None
    limit = (
        f"the cgroup's quota is {quota:g} cores"
        if quota is not None and quota < len(cpus)
        else f"its affinity mask is {cpu_list(cpus)}"
    )
    said = f"only {usable:g} of {allocated:g} allocated cores could be used: {limit}. "
    return said + _cause(allocated, env)


def _cause(allocated: float, env: Mapping[str, str]) -> str:
    task = f"--cpus-per-task={allocated:g}"
    if "SLURM_STEP_ID" not in env:
        return f"Under Slurm, start it with srun {task}, which binds each rank to CPUs of its own"
    if env.get("SLURM_CPUS_ON_NODE") != env.get("SLURM_JOB_CPUS_PER_NODE", "").partition("(")[0]:
        return (
            f"The job has more CPUs than srun gave to the ranks: give srun {task} too; it does "
            "not take that from sbatch"
        )
    if "OMP_PROC_BIND" in env or "KMP_AFFINITY" in env or "GOMP_CPU_AFFINITY" in env:
        return "OMP_PROC_BIND or its kin bound it: unset them"
    return (
        f"srun bound each rank to fewer CPUs than its own: give srun {task}, and leave --cpu-bind "
        "and SLURM_CPU_BIND out, or set them to none"
    )
