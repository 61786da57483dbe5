"""Which of a run's processes this one is, as its launcher's environment tells. Imports no torch."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from hpcncf.errors import UsageError

LaunchedBy = Literal["local", "slurm", "torchrun", "run", "debug", "train"]


@dataclass(frozen=True)
class Place:
    """A rank's place among the ranks of its run; the default is the only one."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    node_index: int = 0


def place(env: Mapping[str, str] = os.environ) -> Place:
    """torch's variables (torchrun, our local launcher), else those of a Slurm step, else alone."""
    if "RANK" in env and "WORLD_SIZE" in env:
        return _of_torch(env)
    # A batch script outside of srun has SLURM_PROCID too; only a step has its number of tasks.
    if "SLURM_PROCID" in env and "SLURM_STEP_NUM_TASKS" in env:
        return _of_slurm(env)
    return Place()


def _of_torch(env: Mapping[str, str]) -> Place:
    world, local = _number(env, "WORLD_SIZE"), _number(env, "LOCAL_WORLD_SIZE", "WORLD_SIZE")
    rank = _number(env, "RANK")
    return Place(
        rank=rank,
        local_rank=_number(env, "LOCAL_RANK", "RANK"),
        world_size=world,
        local_world_size=local,
        node_index=int(env.get("GROUP_RANK", rank // max(local, 1))),
    )


def _of_slurm(env: Mapping[str, str]) -> Place:
    world = _number(env, "SLURM_STEP_NUM_TASKS")
    nodes = int(env.get("SLURM_STEP_NUM_NODES", "1"))
    return Place(
        rank=_number(env, "SLURM_PROCID"),
        local_rank=_number(env, "SLURM_LOCALID"),
        world_size=world,
        local_world_size=-(-world // nodes),
        node_index=int(env.get("SLURM_NODEID", "0")),
    )


def _number(env: Mapping[str, str], *names: str) -> int:
    """The first of the variables that is set."""
    for name in names:
        if name in env:
            if not env[name].isdecimal():
                raise UsageError(f"environment: {name}: expected a number, came {env[name]!r}")
            return int(env[name])
    raise UsageError(f"environment: {names[0]} is not set, while other ranks' variables are")


def rendezvous(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables torch's `env://` reads, made up where Slurm alone started the ranks."""
    here = place(env)
    known = {"RANK": str(here.rank), "WORLD_SIZE": str(here.world_size)}
    if "RANK" in env and "MASTER_ADDR" in env:  # the latter alone leaks from login shells
        return known
    hosts = env.get("SLURM_STEP_NODELIST", "127.0.0.1")
    # Runs that share a node are of other jobs: their numbers keep their ports apart.
    port = 20000 + int(env.get("SLURM_JOB_ID", "0")) % 20000
    return known | {"MASTER_ADDR": first_host(hosts), "MASTER_PORT": str(port)}


def first_host(nodelist: str) -> str:
    """The first of Slurm's compressed host list: `cpu[03-05,9],gpu1` -> `cpu03`."""
    found = re.match(r"([^\[,]+)(?:\[([^\],-]+)[^\]]*\]([^,]*))?", nodelist)
    assert found, nodelist
    return "".join(part or "" for part in found.groups())


def launched_by(env: Mapping[str, str] = os.environ) -> LaunchedBy:
    named = env.get("HPCNCF_LAUNCHED_BY")
    if named is not None:
        for known in get_args(LaunchedBy):
            if named == known:
                return known  # type: ignore[no-any-return]
        raise UsageError(
            f"environment: HPCNCF_LAUNCHED_BY: expected one of "
            f"{', '.join(get_args(LaunchedBy))}; came {named!r}"
        )
    if "TORCHELASTIC_RUN_ID" in env:
        return "torchrun"
    return "slurm" if "SLURM_STEP_NUM_TASKS" in env else "train"


def requeued(job_id: str | None, env: Mapping[str, str] = os.environ) -> bool:
    """Whether this job is a later start of that job: Slurm ended the earlier one first."""
    return "SLURM_RESTART_COUNT" in env and job_id is not None and job_id == slurm_job_id(env)


def slurm_job_id(env: Mapping[str, str] = os.environ) -> str | None:
    """`123_4` in an array, `123` outside of one, None outside of Slurm."""
    if "SLURM_ARRAY_JOB_ID" in env and "SLURM_ARRAY_TASK_ID" in env:
        return f"{env['SLURM_ARRAY_JOB_ID']}_{env['SLURM_ARRAY_TASK_ID']}"
    return env.get("SLURM_JOB_ID")
