"""The batch script of an array: one way to make it, whether it is printed or sent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hpcncf.slurm import private, request, shell, sites
from hpcncf.slurm.checks import folder_for_slurm
from hpcncf.spec import JobSpec, Resources

if TYPE_CHECKING:
    from submitit.slurm.slurm import SlurmExecutor


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

    site = sites.load_sites(job.site)
    asked = request.parameters(resources, site, job.name, exclusive=job.exclusive)
    kind = slurm.SlurmExecutor if sends else Printing
    # -P: the folder that submits is not on Python's path; a checkout there may be another version.
    python = f"{shell.DEAF_AT_FIRST} {request.python_request(site)} -P"
    made = kind(folder_for_slurm(folder), python=python)
    own = {key.removeprefix("slurm_"): value for key, value in asked.items()}
    own["setup"] = [private.guard(folder), *own["setup"]]
    made.update_parameters(**made._convert_parameters(own))
    return made


def text(folder: Path, job: JobSpec, resources: Resources, tasks: int) -> str:
    """What sbatch gets for an array of so many tasks, byte by byte."""
    made = executor(folder, job, resources, sends=False)
    if tasks > 1:  # one task is no array
        made.parameters["map_count"] = tasks
    return made._make_submission_file_text(made._submitit_command_str, "")
