"""Rules for the scheduler's variables: those that a job does not have, and those of another."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from hpcncf.batch.edits import Edit
from hpcncf.batch.options import Scheduler
from hpcncf.batch.script import SLURM_VARIABLES
from hpcncf.batch.shell import Command, Word
from hpcncf.lint.batch_context import Context, find
from hpcncf.lint.rules import Complaint

QUIET: Final = frozenset({"echo", "printf", "[", "[[", "test", "if", "exit"})
NAMES: Final[dict[Scheduler, str]] = {
    "slurm": "Slurm",
    "lsf": "LSF",
    "pbs": "PBS",
    "sge": "Grid Engine",
}
OWNERS: Final = re.compile(r"(SLURM_)|(LSB_|LS_SUBCWD)|(PBS_)|(SGE_|NSLOTS$)")
IN_ARITHMETIC: Final = re.compile(r"[A-Za-z_]\w+")
# Variables of the same meaning.
ALIKE: Final[tuple[dict[Scheduler, str], ...]] = (
    {
        "slurm": "SLURM_ARRAY_TASK_ID",
        "lsf": "LSB_JOBINDEX",
        "pbs": "PBS_ARRAY_INDEX",
        "sge": "SGE_TASK_ID",
    },
    {
        "slurm": "SLURM_CPUS_PER_TASK",
        "lsf": "LSB_DJOB_NUMPROC",
        "pbs": "NCPUS",
        "sge": "NSLOTS",
    },
    {"slurm": "SLURM_JOB_ID", "lsf": "LSB_JOBID", "pbs": "PBS_JOBID", "sge": "JOB_ID"},
    {"slurm": "SLURM_JOB_NAME", "lsf": "LSB_JOBNAME", "pbs": "PBS_JOBNAME", "sge": "JOB_NAME"},
    {
        "slurm": "SLURM_SUBMIT_DIR",
        "lsf": "LS_SUBCWD",
        "pbs": "PBS_O_WORKDIR",
        "sge": "SGE_O_WORKDIR",
    },
)
# sbatch(1), OUTPUT ENVIRONMENT VARIABLES, and srun(1).
_SLURM = """
ARRAY_JOB_ID ARRAY_TASK_COUNT ARRAY_TASK_ID ARRAY_TASK_MAX ARRAY_TASK_MIN ARRAY_TASK_STEP
CLUSTER_NAME CPUS_ON_NODE CPUS_PER_GPU CPUS_PER_TASK CPU_BIND CPU_FREQ_REQ CONTAINER CONF
CONTAINER_ID DISTRIBUTION EXPORT_ENV GPU_BIND GPU_FREQ GPUS GPUS_ON_NODE GPUS_PER_NODE
GPUS_PER_SOCKET GPUS_PER_TASK GTIDS HET_SIZE HINT JOBID JOB_ACCOUNT JOB_CPUS_PER_NODE
JOB_DEPENDENCY JOB_END_TIME JOB_GID JOB_GPUS JOB_GROUP JOB_ID JOB_LICENSES JOB_NAME JOB_NODELIST
JOB_NUM_NODES JOB_PARTITION JOB_QOS JOB_RESERVATION JOB_START_TIME JOB_UID JOB_USER JOB_TMP
LAUNCH_NODE_IPADDR LOCALID MEM_BIND MEM_PER_CPU MEM_PER_GPU MEM_PER_NODE MPI_TYPE NETWORK NNODES
NODEID NODELIST NODE_ALIASES NPROCS NTASKS NTASKS_PER_CORE NTASKS_PER_GPU NTASKS_PER_NODE
NTASKS_PER_SOCKET OVERCOMMIT PRIO_PROCESS PROCID PROFILE RESTART_COUNT SHARDS_ON_NODE STEPID
STEP_GPUS STEP_ID STEP_LAUNCHER_PORT STEP_NODELIST STEP_NUM_NODES STEP_NUM_TASKS STEP_RESV_PORTS
STEP_TASKS_PER_NODE SUBMIT_DIR SUBMIT_HOST TASKS_PER_NODE TASK_PID THREADS_PER_CORE TMPDIR
TOPOLOGY_ADDR TOPOLOGY_ADDR_PATTERN TRES_PER_TASK UMASK WORKING_CLUSTER OPEN_MODE
"""
MOST_NAMES: Final = 500
SLURM_KNOWN: Final = tuple(f"SLURM_{name}" for name in _SLURM.split())
OTHER_NAMES: Final = {"SLURM_JOBID": "SLURM_JOB_ID", "PBS_ARRAYID": "PBS_ARRAY_INDEX"}


def check_variables(context: Context) -> Iterator[Complaint]:
    if context.script.scheduler is None:
        return
    yield from _empty(context)
    yield from _foreign(context)


def _empty(context: Context) -> Iterator[Complaint]:
    """Find variables that Slurm leaves unset, because no directive gives their option."""
    told: set[str] = set()
    for command, name in context.script.empty_uses:
        option = _option_of(name)
        if name in told or command.name in QUIET or command.is_condition or not option:
            continue
        if _given_elsewhere(context, option):
            continue
        told.add(name)
        line = next((word.line for word in _words(command) if name in word.variables()), 0)
        yield find("unset-variable", line or command.line, name=name, option=option)


def _words(command: Command) -> tuple[Word, ...]:
    return (*command.words, *(word for _, word in command.assignments))


def _option_of(name: str) -> str:
    if name in SLURM_VARIABLES:
        return SLURM_VARIABLES[name]
    if name in ("SLURM_NTASKS", "SLURM_NPROCS"):
        return "ntasks"
    return "array" if name.startswith("SLURM_ARRAY") else ""


def _given_elsewhere(context: Context, option: str) -> bool:
    """Return whether a comment shows an sbatch command line that gives the option."""
    return any(
        "sbatch" in line and (f"--{option}" in line or (option == "array" and " -a" in line))
        for line in context.script.lines
        if line.lstrip().startswith("#") and not line.startswith("#SBATCH")
    )


def _foreign(context: Context) -> Iterator[Complaint]:
    """Find variables of another scheduler, in scripts that were written for that one."""
    script = context.script
    own = script.scheduler
    assert own is not None
    told = {assigned.name for assigned in script.assigned}
    told |= {each.name for command in script.commands for each in command.blocks}
    # A script for several schedulers has directives of each, or asks whose variables are set.
    others: set[Scheduler | None] = {
        each.scheduler for each in script.directives if each.scheduler != own
    }
    for command in script.commands:
        for word in _words(command):
            for name, asks in _uses(word):
                if asks or command.is_condition or command.name in ("[", "[[", "test"):
                    others.add(_whose(context, name))
    for command in script.commands:
        if command.name in QUIET:
            continue
        for word in _words(command):
            for name, _ in _uses(word):
                if name in told or len(told) > MOST_NAMES:
                    continue
                told.add(name)
                whose = _whose(context, name)
                meant = _meant(name) if own == "slurm" else ""
                if not (whose or meant) or (whose and whose in others):
                    continue
                mend = meant or _counterpart(name, own)
                edits: tuple[Edit, ...] = ()
                if mend and _is_array_set(context, mend):
                    text = context.line(word.line)
                    mended = re.sub(rf"\b{name}\b", mend, text)
                    edits = (Edit(word.line, (mended,)),) if mended != text else ()
                yield find(
                    "foreign-variable", word.line, edits, name=name, why=_why(name, whose, own),
                    mend=f". Use ${mend}" if mend else "",
                )  # fmt: skip


def _uses(word: Word) -> Iterator[tuple[str, bool]]:
    """Yield the variables of a word, and whether its text provides for an empty one."""
    for part in word.parts:
        if part.kind == "variable":
            yield part.text, bool(part.operation)
        elif part.kind == "arithmetic":
            for name in IN_ARITHMETIC.findall(part.text[:200]):
                yield name, f"{name}:-" in part.text


def _whose(context: Context, name: str) -> Scheduler | None:
    """Return the scheduler that sets a variable, if the job does not have it; else None."""
    own = context.script.scheduler
    options = context.request.options
    if own == "sge" and name == "TASK_ID" and "t" in options:
        return "sge"  # for the names of logs only
    if own == "pbs" and name == "PBS_ARRAYID":
        return "pbs" if "J" in options else None
    if own == "pbs" and name == "PBS_ARRAY_INDEX":
        return "pbs" if "t" in options and "J" not in options else None
    found = OWNERS.match(name)
    if found is None:
        return None
    schedulers: tuple[Scheduler, ...] = ("slurm", "lsf", "pbs", "sge")
    whose = schedulers[(found.lastindex or 1) - 1]
    return whose if whose != own else None


def _counterpart(name: str, own: Scheduler) -> str:
    if name == "TASK_ID":
        return "SGE_TASK_ID"
    if name == "PBS_ARRAY_INDEX" and own == "pbs":
        return "PBS_ARRAYID"
    name = OTHER_NAMES.get(name, name)
    return next((group[own] for group in ALIKE if name in group.values()), "")


def _is_array_set(context: Context, name: str) -> bool:
    """Return whether the job has this variable: an array's index only in an array."""
    return name not in ALIKE[0].values() or context.request.array is not None


def _meant(name: str) -> str:
    """Return the variable of Slurm that a name was meant for; empty if it is none's slip."""
    if not name.startswith("SLURM_") or name in SLURM_KNOWN:
        return ""
    words = sorted(name.split("_"))
    for known in SLURM_KNOWN:
        if sorted(known.split("_")) == words or known.replace("_", "") == name.replace("_", ""):
            return known
    import difflib

    near = difflib.get_close_matches(name, SLURM_KNOWN, n=1, cutoff=0.93)
    return near[0] if near else ""


def _why(name: str, whose: Scheduler | None, own: Scheduler) -> str:
    """Return why the job does not have a variable, as a predicate."""
    if whose is None:
        return f"is no variable of {NAMES[own]}"
    if name == "TASK_ID":
        return "is known in the names of logs only"
    if whose == own == "pbs":
        setter = "Torque's -t" if name == "PBS_ARRAYID" else "PBS Professional's -J"
        return f"is set by {setter}"
    return f"is a variable of {NAMES[whose]}, and this is a job of {NAMES[own]}"
