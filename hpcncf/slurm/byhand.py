"""Plain batch scripts for those who submit by hand: the same settings, no submitit."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hpcncf.errors import UsageError
from hpcncf.plan import Run
from hpcncf.slurm import request
from hpcncf.slurm.request import Site
from hpcncf.spec import JobSpec, Resources

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
    asked = request.parameters(alone, site, job.name, exclusive=job.exclusive)
    parts = [
        [
            "#!/bin/bash",
            note,
            *_flags(_own_names(asked), len(runs)),
        ],
        request.setup(resources, site),
        _chosen(runs),
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
    asked = _own_names(request.parameters(resources, site, name, exclusive=exclusive))
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


def _chosen(runs: list[Run]) -> list[str]:
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
    yield f"{request.python_request(site)} -P -u"
    if resources.launcher == "torchrun":
        yield f"-m torch.distributed.run --nnodes {resources.nodes}"
        yield f"--nproc-per-node {resources.tasks_per_node} --rdzv-backend c10d"
        yield f'--rdzv-id "$SLURM_JOB_ID" --rdzv-endpoint {FREE_PORT}'
        yield f"--no-python {request.python_of_ranks(site)} -P -u"  # torchrun's own lacks the -P
    yield f"-m hpcncf.worker {shlex.quote(str(source.job_file))}"
    yield f'--run-id "$run" --results {shlex.quote(str(source.results))}'
    yield from (f"-s {shlex.quote(setting)}" for setting in source.settings)
