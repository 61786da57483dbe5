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
from hpcncf.job.plan import Run, expand_job
from hpcncf.job.spec import Data, JobSpec, Resources
from hpcncf.slurm.site import (
    DEAF_AT_FIRST,
    Site,
    folder_for_slurm,
    load_sites,
    parameters,
    python_of_ranks,
    python_request,
    setup,
)

if TYPE_CHECKING:
    from submitit.slurm.slurm import SlurmExecutor


OTHERS = 0o077


def make_private_folder(folder: Path) -> None:
    """The folder, of mode 0700 and ours. Raises HpcncfError where it may be somebody else's."""
    folder.mkdir(mode=0o700, exist_ok=True)
    problem = danger(folder)
    if problem is not None:
        raise HpcncfError(
            f"{problem}; jobs would execute what others put into {folder}: nothing is "
            "submitted. Remove it (its logs go with it), or use another folder with --results"
        )


def danger(folder: Path) -> str | None:
    """How others could write there, in words; None where they cannot.

    The group may write above it, since people share results: see `guard`.
    """
    status = folder.lstat()
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISDIR(status.st_mode):
        return f"{folder}: a link or a file, where a folder of yours was expected"
    if status.st_uid != os.geteuid():
        return f"{folder}: belongs to another user (id {status.st_uid})"
    if mode & OTHERS:
        return f"{folder}: others may use it (mode {mode:04o}, expected 0700)"
    for parent in folder.resolve().parents:
        mode = stat.S_IMODE(parent.stat().st_mode)
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return f"{parent}: everybody may rename what is in it (mode {mode:04o})"
    return None


def guard(folder: Path) -> str:
    """A line of bash for the job's start: end it where the folder is no longer ours.

    Whoever may write to the results folder could have put another in its place while the job
    waited; a folder that this user owns they cannot make.
    """
    name = shlex.quote(str(folder))
    told = shlex.quote(f"hpcncf: {folder}: is not this user's own folder any more: not started")
    return f"if [ ! -O {name} ] || [ -L {name} ]; then echo {told} >&2; exit 1; fi"


def executor(folder: Path, job: JobSpec, resources: Resources, sends: bool = True) -> SlurmExecutor:
    """submitit's executor for an array of runs with these resources; makes no folder.

    Raises UsageError where Slurm could not do as the site or the folder says, RuntimeError where
    it is to send and there is no Slurm.
    """
    from submitit.slurm import slurm

    class Printing(slurm.SlurmExecutor):
        """Makes scripts on a machine without Slurm, too."""

        @classmethod
        def affinity(cls) -> int:
            return 1

    site = load_sites(job.site)
    asked = parameters(resources, site, job.name, exclusive=job.exclusive)
    kind = slurm.SlurmExecutor if sends else Printing
    # -P: the folder that submits is not on Python's path; a checkout there may be another version.
    python = f"{DEAF_AT_FIRST} {python_request(site)} -P"
    made = kind(folder_for_slurm(folder), python=python)
    own = {key.removeprefix("slurm_"): value for key, value in asked.items()}
    own["setup"] = [guard(folder), *own["setup"]]
    made.update_parameters(**made._convert_parameters(own))
    return made


def text(folder: Path, job: JobSpec, resources: Resources, tasks: int) -> str:
    """What sbatch gets for an array of so many tasks, byte by byte."""
    made = executor(folder, job, resources, sends=False)
    if tasks > 1:  # one task is no array
        made.parameters["map_count"] = tasks
    return made._make_submission_file_text(made._submitit_command_str, "")


# What is not a #SBATCH line of its own name.
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
class Source:
    """Where the ranks find their run, and where its records go."""

    job_file: Path
    results: Path
    settings: Sequence[str] = ()


def text_byhand(job: JobSpec, site: Site, runs: list[Run], source: Source, note: str = NOTE) -> str:
    """The script of one run, or of an array of runs with equal resources.

    Raises UsageError for runs side by side.
    """
    resources = runs[0].resources
    if resources.packed:
        raise UsageError(_instead(resources, source))
    alone = resources.model_copy(update={"runs_per_task": 1})
    asked = parameters(alone, site, job.name, exclusive=job.exclusive)
    parts = [
        [
            "#!/bin/bash",
            note,
            *_flags(_own_names(asked), len(runs)),
        ],
        setup(resources, site),
        _select_runs(runs),
        [
            *_meeting(resources),
            " \\\n    ".join(_command(asked, resources, source, site)),
        ],
        asked.get("slurm_teardown", []),
    ]
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def _instead(resources: Resources, source: Source) -> str:
    """Why runs side by side have no plain script, and what there is in its place."""
    alone = {"runs_per_node": 1, "runs_per_gpu": 1, "mps": False}
    asked = [name for name, value in alone.items() if getattr(resources, name) != value]
    settings = " ".join(f"-s resources.{name}={str(alone[name]).lower()}" for name in asked)
    gpus = f" and {resources.node_gpus} GPUs" if resources.node_gpus else ""
    given = [word for setting in source.settings for word in ("-s", setting)]
    call = ["hpcncf", "submit", str(source.job_file), *given, "--cluster", "local", "--wait"]
    return (
        f"--by-hand: runs side by side ({', '.join(asked)}) need a process of hpcncf's own, which "
        "gives each its cores and GPU; a plain script has none. Instead:\n"
        "  submit the job file; --sbatch prints the script that this sends\n"
        f"  or call, in a batch script for one task with {resources.node_cores} cores{gpus}:\n"
        f"    {shlex.join(call)}\n"
        f"  or have each run by itself: {settings}"
    )


def directives(resources: Resources, site: Site, name: str, exclusive: bool = False) -> list[str]:
    """The #SBATCH lines for a script of one's own: what is asked for, and where."""
    asked = _own_names(parameters(resources, site, name, exclusive=exclusive))
    return list(_lines(_values(asked)))


def _own_names(asked: dict[str, Any]) -> dict[str, Any]:
    """Slurm's names for what submitit calls otherwise."""
    theirs = {"name": "job_name", "timeout_min": "time", "tasks_per_node": "ntasks_per_node"}
    own = {theirs.get(key, key.removeprefix("slurm_")): value for key, value in asked.items()}
    if "mem_gb" in own:
        own["mem"] = f"{own.pop('mem_gb') * 1024:.0f}M"
    return own


def _flags(asked: dict[str, Any], tasks: int) -> Iterator[str]:
    values = _values(asked) | {"signal": f"USR2@{asked['signal_delay_s']}", "open-mode": "append"}
    values["output"] = "%x-%A_%a.out" if tasks > 1 else "%x-%j.out"
    if tasks > 1:
        values["array"] = f"0-{tasks - 1}%{min(tasks, asked['array_parallelism'])}"
    return _lines(values)


def _values(asked: dict[str, Any]) -> dict[str, Any]:
    further: dict[str, Any] = asked.get("additional_parameters", {})
    return {key: value for key, value in asked.items() if key not in NO_FLAGS} | further


def _lines(values: dict[str, Any]) -> Iterator[str]:
    for key, value in sorted((key.replace("_", "-"), value) for key, value in values.items()):
        yield f"#SBATCH --{key}" + ("" if value is True else f"={shlex.quote(str(value))}")


def _select_runs(runs: list[Run]) -> list[str]:
    if len(runs) == 1:
        return [f"run={runs[0].id}"]
    listed = [f"    {run.id}  # {_varied(run)}" for run in runs]
    return ["runs=(", *listed, ")", "run=${runs[SLURM_ARRAY_TASK_ID]}"]


def _varied(run: Run) -> str:
    """On one line, whatever the values are."""
    values = {**run.varied, "repeat": run.repeat}
    said = " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in values.items())
    return "".join(char if char.isprintable() else "?" for char in said)


def _meeting(resources: Resources) -> list[str]:
    if resources.launcher == "srun":
        return []
    return ['head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)']


def _command(
    asked: dict[str, Any], resources: Resources, source: Source, site: Site
) -> Iterator[str]:
    yield shlex.join(["srun", *asked["slurm_srun_args"]])
    yield f"{python_request(site)} -P -u"
    if resources.launcher == "torchrun":
        yield f"-m torch.distributed.run --nnodes {resources.nodes}"
        yield f"--nproc-per-node {resources.tasks_per_node} --rdzv-backend c10d"
        yield f'--rdzv-id "$SLURM_JOB_ID" --rdzv-endpoint {FREE_PORT}'
        yield f"--no-python {python_of_ranks(site)} -P -u"  # torchrun's own lacks the -P
    yield f"-m hpcncf.worker {shlex.quote(str(source.job_file))}"
    yield f'--run-id "$run" --results {shlex.quote(str(source.results))}'
    yield from (f"-s {shlex.quote(setting)}" for setting in source.settings)


MODULES = Site(partition="cpu", account="my_project", modules=["python/3.11"], venv="~/hpcncf")
GPUS = Site(
    partition="gpu", account="my_project", container="apptainer exec --nv '/images/torch 2.sif'"
)
NODES = {"nodes": 2, "tasks_per_node": 4, "cpus_per_task": 2, "mem_gb": 16.0}
# Name -> what is particular about it.
EXAMPLES: dict[str, tuple[Site, dict[str, Any], dict[str, list[Any]]]] = {
    "one_run": (MODULES, {"cpus_per_task": 4}, {}),
    "array": (MODULES, {"cpus_per_task": 2}, {"training.lr": [0.0005, 0.001, 0.002]}),
    "ranks_srun": (MODULES, NODES, {}),
    "ranks_torchrun": (MODULES, {**NODES, "launcher": "torchrun"}, {}),
    "gpus": (GPUS, {"tasks_per_node": 2, "gpus_per_node": 2, "cpus_per_task": 8}, {}),
}
NOTE_EXAMPLES = (
    "# An example of what `hpcncf plan JOB.yaml --by-hand` prints. Print your own: a run's id is "
    "made from its settings and data."
)


def texts() -> dict[str, str]:
    """File name -> the script."""
    return {f"{name}.sbatch": _text(name, *example) for name, example in EXAMPLES.items()}


def _text(name: str, site: Site, asked: dict[str, Any], grid: dict[str, list[Any]]) -> str:
    job = JobSpec(
        name=name, data=Data(path="/data/frappe"), resources=Resources(**asked), grid=grid
    )
    runs = expand_job(job, {}).runs
    source = Source(Path("/project/my job.yaml"), Path(f"/project/results/{name}"))
    return text_byhand(job, site, runs, source, NOTE_EXAMPLES)
