"""Batch scripts, for submitit and by hand."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hpcncf.errors import HpcncfError, UsageError
from hpcncf.job.plan import Run
from hpcncf.job.spec import JobSpec, Resources
from hpcncf.slurm.site import Site
from hpcncf.slurm.submitit_parameters import (
    DEAF_AT_FIRST,
    folder_for_slurm,
    parameters,
    python_inside,
    python_request,
    setup_lines,
)

if TYPE_CHECKING:
    from submitit.slurm.slurm import SlurmExecutor


def make_private_folder(folder: Path) -> None:
    """Create the folder with mode 0700; raises HpcncfError if others can write to it.

    Jobs execute what lies there. Folders above it may be open to a group that shares results: see
    `guard`.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    mode = stat.S_IMODE(status.st_mode)
    open_parents = [
        parent
        for parent in folder.resolve().parents
        if parent.stat().st_mode & stat.S_IWOTH and not parent.stat().st_mode & stat.S_ISVTX
    ]
    if not stat.S_ISDIR(status.st_mode):
        problem = f"{folder}: a link or a file, expected a folder of yours"
    elif status.st_uid != os.geteuid():
        problem = f"{folder}: belongs to another user (id {status.st_uid})"
    elif mode & 0o077:
        problem = f"{folder}: others may use it (mode {mode:04o}, expected 0700)"
    elif open_parents:
        mode = stat.S_IMODE(open_parents[0].stat().st_mode)
        problem = f"{open_parents[0]}: everybody may rename what is in it (mode {mode:04o})"
    else:
        return
    raise HpcncfError(
        f"{problem}. Jobs would execute files that others put into {folder}, so nothing is "
        "submitted. Remove it with its logs, or use another folder with --results."
    )


def guard_line(folder: Path) -> str:
    """Return a line of bash that ends the job if another user owns the folder.

    Somebody with access to the results folder could have replaced it while the job waited, but
    cannot make a folder that this user owns.
    """
    name = shlex.quote(str(folder))
    message = shlex.quote(f"hpcncf: {folder}: is not this user's own folder any more: not started")
    return f"if [ ! -O {name} ] || [ -L {name} ]; then echo {message} >&2; exit 1; fi"


def build_executor(
    folder: Path, job: JobSpec, site: Site, resources: Resources, sends: bool = True
) -> SlurmExecutor:
    """Build submitit's executor for an array of runs with these resources; creates no folder.

    Raises UsageError if a value of the site or the folder's name cannot be passed to Slurm, and
    RuntimeError if it `sends` and there is no Slurm.
    """
    from submitit.slurm import slurm

    class PrintingExecutor(slurm.SlurmExecutor):
        """Executor that writes scripts without submitting them, also on a machine without Slurm."""

        @classmethod
        def affinity(cls) -> int:
            return 1

    request = parameters(resources, site, job.name, exclusive=job.exclusive)
    kind = slurm.SlurmExecutor if sends else PrintingExecutor
    # -P keeps the submitting folder off Python's path: a checkout there may be another version.
    python = f"{DEAF_AT_FIRST} {python_request(site)} -P"
    executor = kind(folder_for_slurm(folder), python=python)
    own = {key.removeprefix("slurm_"): value for key, value in request.items()}
    own["setup"] = [guard_line(folder), *own["setup"]]
    executor.update_parameters(**executor._convert_parameters(own))
    return executor


def script_text(folder: Path, job: JobSpec, site: Site, resources: Resources, tasks: int) -> str:
    """Return the exact script that sbatch receives for an array of this many tasks."""
    printing = build_executor(folder, job, site, resources, sends=False)
    if tasks > 1:  # one task is no array
        printing.parameters["map_count"] = tasks
    return printing._make_submission_file_text(printing._submitit_command_str, "")


# Parameters that are no #SBATCH line of the same name.
NO_FLAGS: Final = (
    *("setup", "teardown", "srun_args", "additional_parameters"),
    *("array_parallelism", "signal_delay_s"),
)
FREE_PORT: Final = '"$head:$((12000 + SLURM_JOB_ID % 20000))"'
NOTE: Final = (
    "# Made by `hpcncf plan --by-hand`. Submit it with sbatch; watch it with squeue, and with "
    "`hpcncf status` once it runs."
)


@dataclass(frozen=True)
class RunSource:
    """Paths by which the ranks find their run and write its records."""

    job_file: Path
    results: Path
    settings: Sequence[str] = ()


def plain_script(
    job: JobSpec, site: Site, runs: list[Run], source: RunSource, note: str = NOTE
) -> str:
    """Return the batch script of one run, or of an array of runs with equal resources.

    Raises UsageError for co-located runs.
    """
    resources = runs[0].resources
    if resources.packed:
        raise UsageError(_describe_alternatives(resources, source))
    alone = resources.model_copy(update={"runs_per_task": 1})
    request = _with_slurm_names(parameters(alone, site, job.name, exclusive=job.exclusive))
    flags = _flags(request) | {"signal": f"USR2@{request['signal_delay_s']}"}
    flags |= {"open-mode": "append", "output": "%x-%j.out"}
    if len(runs) > 1:
        flags["output"] = "%x-%A_%a.out"
        flags["array"] = f"0-{len(runs) - 1}%{min(len(runs), request['array_parallelism'])}"
    torchrun = resources.launcher == "torchrun"
    head = ['head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'] * torchrun
    command = " \\\n    ".join(_command(request["srun_args"], resources, source, site))
    parts = [
        ["#!/bin/bash", note, *_sbatch_lines(flags)],
        setup_lines(resources, site),
        _select_run(runs),
        [*head, command],
        request.get("teardown", []),
    ]
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def _describe_alternatives(resources: Resources, source: RunSource) -> str:
    alone = {"runs_per_node": 1, "runs_per_gpu": 1, "mps": False}
    changed = [name for name, value in alone.items() if getattr(resources, name) != value]
    settings = " ".join(f"-s resources.{name}={str(alone[name]).lower()}" for name in changed)
    gpus = f" and {resources.node_gpus} GPUs" if resources.node_gpus else ""
    overrides = [word for setting in source.settings for word in ("-s", setting)]
    call = ["hpcncf", "submit", str(source.job_file), *overrides, "--cluster", "local", "--wait"]
    return (
        f"--by-hand: co-located runs ({', '.join(changed)}) need a process of hpcncf that assigns "
        "cores and GPUs to each; a plain script has none. Instead:\n"
        "  submit the job file (--sbatch prints the script)\n"
        f"  or call, in a batch script for one task with {resources.node_cores} cores{gpus}:\n"
        f"    {shlex.join(call)}\n"
        f"  or run each run alone: {settings}"
    )


def directives(resources: Resources, site: Site, name: str, exclusive: bool = False) -> list[str]:
    """Return #SBATCH lines that request these resources, for a script of the user's own."""
    request = _with_slurm_names(parameters(resources, site, name, exclusive=exclusive))
    return _sbatch_lines(_flags(request))


def _with_slurm_names(request: dict[str, Any]) -> dict[str, Any]:
    """Rename submitit's parameters to Slurm's names."""
    slurm = {"name": "job_name", "timeout_min": "time", "tasks_per_node": "ntasks_per_node"}
    own = {slurm.get(key, key.removeprefix("slurm_")): value for key, value in request.items()}
    if "mem_gb" in own:
        own["mem"] = f"{own.pop('mem_gb') * 1024:.0f}M"
    return own


def _flags(request: dict[str, Any]) -> dict[str, Any]:
    further: dict[str, Any] = request.get("additional_parameters", {})
    return {key: value for key, value in request.items() if key not in NO_FLAGS} | further


def _sbatch_lines(flags: dict[str, Any]) -> list[str]:
    return [
        f"#SBATCH --{key}" + ("" if value is True else f"={shlex.quote(str(value))}")
        for key, value in sorted((key.replace("_", "-"), value) for key, value in flags.items())
    ]


def _select_run(runs: list[Run]) -> list[str]:
    if len(runs) == 1:
        return [f"run={runs[0].id}"]
    lines = []
    for run in runs:
        values = {**run.varied, "repeat": run.repeat}
        note = " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in values.items())
        printable = "".join(char if char.isprintable() else "?" for char in note)  # one line
        lines.append(f"    {run.id}  # {printable}")
    return ["runs=(", *lines, ")", "run=${runs[SLURM_ARRAY_TASK_ID]}"]


def _command(
    srun_args: list[str], resources: Resources, source: RunSource, site: Site
) -> Iterator[str]:
    yield shlex.join(["srun", *srun_args])
    yield f"{python_request(site)} -P -u"
    if resources.launcher == "torchrun":
        yield f"-m torch.distributed.run --nnodes {resources.nodes}"
        yield f"--nproc-per-node {resources.tasks_per_node} --rdzv-backend c10d"
        yield f'--rdzv-id "$SLURM_JOB_ID" --rdzv-endpoint {FREE_PORT}'
        yield f"--no-python {python_inside(site)} -P -u"  # torchrun's own call lacks the -P
    yield f"-m hpcncf.worker {shlex.quote(str(source.job_file))}"
    # Not `--run`: torchrun of Python 3.11 takes it for an ambiguous prefix of its own options.
    yield f'--run-id "$run" --results {shlex.quote(str(source.results))}'
    yield from (f"-s {shlex.quote(setting)}" for setting in source.settings)
