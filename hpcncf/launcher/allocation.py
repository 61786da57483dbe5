"""Cores allocated to this process: by Slurm, or by another batch system on this node."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from hpcncf.launcher.environment import hosts, on_this_node, place_of_command
from hpcncf.monitor.cgroup import in_slurm_step, parse_cpu_list

FLUX_TIMEOUT_S: Final = 10.0
NODE_CPUS: Final = "SLURM_CPUS_ON_NODE"


class BatchSystem(NamedTuple):
    """A batch system: the variable that identifies its jobs, and the function that reads cores."""

    name: str
    job_variable: str
    cores: Callable[[Mapping[str, str], str], float | None]
    """From the environment and this host's name."""
    variables: tuple[str, ...]
    """All variables that are read, for the docs and the record."""


def allocated_cores(env: Mapping[str, str] = os.environ) -> float | None:
    """Return the cores that the batch system allocated to this process; None outside a job.

    In Slurm, a rank's are what its step asked for each task. A step that did not ask passes on
    what the job asked; if the job did not ask either (a whole node), the ranks share what it got
    there, and so they do if they are more than its CPUs (--overcommit). A batch script has its
    node's CPUs. In other systems the ranks of a node share the job's CPUs on it.
    """
    if env.get("HPCNCF_LAUNCHED_BY") == "local":  # our own queue divides its allocation itself
        return None
    # torchrun's ranks share its one task.
    ranks = int(env.get("LOCAL_WORLD_SIZE", "1")) if "TORCHELASTIC_RUN_ID" in env else 1
    cores = _slurm_task_cores(env) if in_slurm_step(env) else _number(env.get(NODE_CPUS))
    if cores is None and (system := batch_system(env)):
        cores, ranks = (
            system.cores(env, os.uname().nodename),
            place_of_command(env).local_world_size,
        )
    return None if cores is None else cores / ranks


def _slurm_task_cores(env: Mapping[str, str]) -> float | None:
    task, node = _number(env.get("SLURM_CPUS_PER_TASK")), cpus_of_job(env)
    tasks = (on_this_node(env, "SLURM_STEP_TASKS_PER_NODE") or [1])[0]
    return min((cpus for cpus in (task, node and node / tasks) if cpus), default=None)


def cpus_of_job(env: Mapping[str, str] = os.environ) -> float | None:
    """Return the number of CPUs that the Slurm job has on this node; None if unknown.

    A step may have been given fewer of them.
    """
    found = on_this_node(env, "SLURM_JOB_CPUS_PER_NODE")
    return float(found[0]) if found else _number(env.get(NODE_CPUS))


def allocated_by(env: Mapping[str, str] = os.environ) -> str | None:
    """Return the name of the batch system whose job runs this process; None outside a job."""
    if "SLURM_JOB_ID" in env:
        return "Slurm"
    system = batch_system(env)
    return system.name if system else None


def batch_system(env: Mapping[str, str] = os.environ) -> BatchSystem | None:
    """Return the batch system, other than Slurm, whose job runs this process, or None."""
    return next((each for each in BATCH_SYSTEMS if env.get(each.job_variable)), None)


def _lsf(env: Mapping[str, str], host: str) -> float | None:
    """Cores of an LSF job on this host: CPUs of its affinity file, or else its slots.

    The affinity file exists if the job requested affinity[...].
    """
    lines = _lines(env.get("LSB_AFFINITY_HOSTFILE"))
    cpus = {
        cpu
        for words in lines
        if len(words) > 1 and _same_host(words[0], host)
        for cpu in parse_cpu_list(words[1])
    }
    if cpus:
        return float(len(cpus))
    words = env.get("LSB_MCPU_HOSTS", "").split()
    pairs = list(zip(words[::2], words[1::2], strict=False))
    slots = [_number(count) for name, count in pairs if _same_host(name, host)]
    if not slots and len(pairs) <= 1:
        return _number(env.get("LSB_DJOB_NUMPROC"))
    return sum(each or 0.0 for each in slots) or None


def _pbs(env: Mapping[str, str], host: str) -> float | None:
    """Cores of a PBS job on this host: the largest of the counts that PBS reports.

    Torque writes a line for each CPU into the node file; PBS Professional and OpenPBS write one
    for each MPI process, and the first chunk's CPUs (or its `ompthreads`) into NCPUS.
    """
    hosts = [words[0] for words in _lines(env.get("PBS_NODEFILE"))]
    known = [float(sum(_same_host(name, host) for name in hosts))]
    known += [_number(env.get(name)) or 0.0 for name in ("NCPUS", "PBS_NUM_PPN")]
    if len(set(hosts)) <= 1:  # a count of all nodes
        known.append(_number(env.get("PBS_NCPUS")) or 0.0)
    return max(known) or None


def _grid_engine(env: Mapping[str, str], host: str) -> float | None:
    """Cores of a Grid Engine job on this host: its slots in PE_HOSTFILE.

    The file has lines `host slots queue processors`. NSLOTS counts the slots of all hosts, and
    is used only if the file names at most one.
    """
    lines = [words for words in _lines(env.get("PE_HOSTFILE")) if len(words) > 1]
    here = sum(_number(words[1]) or 0.0 for words in lines if _same_host(words[0], host))
    return here or (_number(env.get("NSLOTS")) if len(lines) <= 1 else None)


def _oar(env: Mapping[str, str], host: str) -> float | None:
    """Cores of an OAR job on this host; the node file has one line for each core."""
    hosts = [words[0] for words in _lines(env.get("OAR_NODEFILE") or env.get("OAR_NODE_FILE"))]
    return float(sum(_same_host(name, host) for name in hosts)) or None


def _condor(env: Mapping[str, str], _host: str) -> float | None:
    """Cores of an HTCondor job: `Cpus` of the slot that runs it, from the machine ad."""
    for words in _lines(env.get("_CONDOR_MACHINE_AD")):
        if words[:2] == ["Cpus", "="] and len(words) > 2:
            return _number(words[2])
    return None


def _flux(env: Mapping[str, str], host: str) -> float | None:
    """Cores of a Flux job on this host, from `flux job info`; None if that fails.

    Flux sets no environment variable with the number.
    """
    command = ["flux", "job", "info", env["FLUX_JOB_ID"], "R"]
    with suppress(OSError, subprocess.SubprocessError):
        found = subprocess.check_output(
            command, stderr=subprocess.DEVNULL, timeout=FLUX_TIMEOUT_S, text=True
        )
        return flux_cores(found, host)
    return None


def flux_cores(resource_set: str, host: str) -> float | None:
    """Cores on this host in a Flux resource set (RFC 20, version 1); None if unreadable.

    Its ranks are in the order of its node list.
    """
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        execution = json.loads(resource_set)["execution"]
        nodes = [name for part in execution["nodelist"] for name in hosts(part)]
        counts = {
            rank: len(parse_cpu_list(entry["children"]["core"]))
            for entry in execution["R_lite"]
            for rank in parse_cpu_list(entry["rank"])
        }
        by_node = dict(zip(nodes, (counts[rank] for rank in sorted(counts)), strict=True))
        here = sum(count for name, count in by_node.items() if _same_host(name, host))
        return float(here) or None
    return None


def _lines(path: str | None) -> list[list[str]]:
    """Split every non-empty line of a file into words; an empty list if it cannot be read."""
    with suppress(OSError):
        if path:
            text = Path(path).read_text(encoding="utf-8", errors="replace")
            return [line.split() for line in text.splitlines() if line.strip()]
    return []


def _same_host(name: str, host: str) -> bool:
    """Whether two host names mean the same host; either may be short or fully qualified."""
    return name.partition(".")[0].lower() == host.partition(".")[0].lower()


def _number(text: str | None) -> float | None:
    return float(text) if text and text.isdecimal() and int(text) > 0 else None


# Flux comes first, because its instances run inside jobs of the others. Sources:
# Flux: RFC 20, flux-environment(7). LSF: IBM Spectrum LSF 10.1, "Environment variables set for job
# execution", and Open MPI's ras/lsf for the affinity file. PBS: pbs_resources(7B), OpenPBS User's
# Guide, "Environment variables"; Torque, "Exported batch environment variables". Grid Engine 8.1.9:
# submit(1), sge_pe(5). OAR 2.5: oarsub(1). HTCondor: "Environment Variables for jobs".
BATCH_SYSTEMS: Final = (
    BatchSystem("Flux", "FLUX_JOB_ID", _flux, ("FLUX_JOB_ID",)),
    BatchSystem(
        "LSF",
        "LSB_JOBID",
        _lsf,
        ("LSB_JOBID", "LSB_AFFINITY_HOSTFILE", "LSB_MCPU_HOSTS", "LSB_DJOB_NUMPROC"),
    ),
    BatchSystem(
        "PBS",
        "PBS_JOBID",
        _pbs,
        ("PBS_JOBID", "PBS_NODEFILE", "NCPUS", "PBS_NUM_PPN", "PBS_NCPUS"),
    ),
    BatchSystem("Grid Engine", "NSLOTS", _grid_engine, ("NSLOTS", "PE_HOSTFILE")),
    BatchSystem("OAR", "OAR_JOB_ID", _oar, ("OAR_JOB_ID", "OAR_NODEFILE", "OAR_NODE_FILE")),
    BatchSystem("HTCondor", "_CONDOR_MACHINE_AD", _condor, ("_CONDOR_MACHINE_AD",)),
)
