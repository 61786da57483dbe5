"""The next job: a configuration's settings as a whole job file, and as #SBATCH lines. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import yaml

from hpcncf.plan import Run
from hpcncf.results import JobDumper
from hpcncf.slurm import byhand
from hpcncf.slurm.request import Site
from hpcncf.spec import JobSpec, Resources
from hpcncf.workload import Program
from hpcncf_analysis.advice.front import Choice
from hpcncf_analysis.labels import counted

# Of 64 letters; what follows the name needs some.
LONGEST: Final = 50
# Said even where they are the defaults: what a reader looks for first.
ALWAYS: Final = {
    "resources": ("nodes", "tasks_per_node", "cpus_per_task", "mem_gb", "timeout_min"),
    "training": ("epochs", "engine", "loader"),
}


def job_following(run: Run, resources: Resources, name: str, base: JobSpec | None) -> JobSpec:
    """A job of this one run, or of as many as share its GPU, its epochs whole; where it runs is as
    in `base`."""
    training = run.training.model_copy(update={"max_steps": None}) if run.training else None
    sections = {"data": run.data, "model": run.model, "training": training}
    return JobSpec.model_validate(
        {
            "name": name,
            "workload": _workload(run),
            "parameters": run.parameters,
            "resources": resources,
            "repeats": resources.side_by_side,
            **{key: value for key, value in sections.items() if value is not None},
            **({"site": base.site, "exclusive": base.exclusive} if base else {}),
        }
    )


def _workload(run: Run) -> Any:
    """A job file's command has placeholders: the braces of one that was typed are to stay."""
    if not isinstance(run.workload, Program) or not run.by_hand:
        return run.workload
    words = [word.replace("{", "{{").replace("}", "}}") for word in run.words]
    return run.workload.model_copy(update={"command": words})


def following_following(name: str, choice: Choice) -> str:
    """`demo-next`, then `demo-next2`: another name has another results folder."""
    earlier = re.search(r"-(next|fastest|cheapest)(\d*)$", name)
    stem = name[: earlier.start()] if earlier else name
    kept = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).lstrip("._-")[:LONGEST] or "command"
    number = int(earlier.group(2) or 1) + 1 if earlier else ""
    return f"{kept}-{'next' if choice == 'knee' else choice}{number}"


def as_yaml(job: JobSpec, comments: Sequence[str]) -> str:
    """The job file, what is at its default left out; `comments` above it, a line each."""
    whole = job.model_dump(mode="json")
    plain = job.model_dump(mode="json", exclude_defaults=True) | {"site": job.site}
    for section, names in ALWAYS.items():
        if section == "resources" or job.workload == "ncf":
            said = {*names, *plain.get(section, {})}
            plain[section] = {name: whole[section][name] for name in whole[section] if name in said}
    ordered = {name: plain[name] for name in JobSpec.model_fields if name in plain}
    text = yaml.dump(ordered, Dumper=JobDumper, sort_keys=False, allow_unicode=True)
    return "".join(f"# {line}\n" for line in comments) + text


def sbatch(job: JobSpec, site: Site) -> str:
    """For a script of one's own."""
    lines = byhand.directives(job.resources, site, job.name, job.exclusive)
    cores, runs = job.resources.cpus_per_task, job.resources.side_by_side
    script = f"# and in the script: srun --cpus-per-task={cores} ..."
    if runs > 1:
        each = job.resources.tasks_per_node * cores
        script = f"# for {runs} runs side by side, each on {counted(each, 'core')} of its own"
    return "\n".join([*lines, script]) + "\n"
