"""The job of a results folder as it was planned, with its job file and site."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from hpcncf.errors import UsageError
from hpcncf.job.expand import expand_job
from hpcncf.job.identity import configuration_id
from hpcncf.job.load import load_job
from hpcncf.job.plan import Run
from hpcncf.job.spec import JobSpec, Program
from hpcncf.paths import ResultPaths
from hpcncf.records.plan_file import read_plan
from hpcncf.slurm.site import Site, load_site
from hpcncf_analysis.configurations import Configuration


@dataclass(frozen=True)
class PlannedJob:
    """The job that was run, and its site."""

    name: str
    runs: Mapping[str, Run]
    """Run id -> run as planned."""
    job: JobSpec | None = None
    """None for commands that `hpcncf run` started."""
    site: Site = field(default_factory=Site)

    @property
    def base(self) -> str | None:
        """Id of the job file's configuration without its grid; None without a valid job file."""
        if self.job is None:
            return None
        outside = self.job.model_copy(update={"grid": {}, "points": [], "exclude": []})
        return self.configuration(outside)

    @property
    def epochs(self) -> int | None:
        """Number of epochs that the job file sets outside its grid; None if it does not train."""
        trains = self.job is not None and self.job.workload == "ncf"
        return self.job.training.epochs if self.job and trains else None

    @property
    def of_trials(self) -> bool:
        """Whether these runs are trials of hpcncf tune, which it ends before their work is done."""
        workloads = [run.workload for run in self.runs.values()]
        return any(isinstance(each, Program) and each.trial for each in workloads)

    def configuration(self, job: JobSpec) -> str | None:
        """Id of the single configuration of a job without a grid; None if its settings clash.

        Uses the data as planned.

        Runs that differ only in their length have the same.
        """
        try:
            (run,) = self.expand(job.model_copy(update={"repeats": 1}))
        except UsageError:
            return None
        return without_length(run)

    def expand(self, job: JobSpec) -> list[Run]:
        """Expand another job into runs on the data as planned.

        Raises UsageError if settings clash.
        """
        keys = {run.data.path: run.data_key for run in self.runs.values() if run.data}
        datasets = {run.data.path: run.data.dataset for run in self.runs.values() if run.data}
        return expand_job(job, keys, datasets).runs

    def of(self, one: Configuration) -> str | None:
        """Id of a measured configuration, comparable with `configuration`; None if not planned."""
        run = self.runs.get(one.rows[0]["run_id"])
        return without_length(run) if run else None


def without_length(run: Run) -> str:
    """Id of the run's configuration without its length, as if it trained for one epoch."""
    training = run.training and run.training.model_copy(
        update={"epochs": 1, "max_steps": None, "max_s": None}
    )
    return configuration_id(run.model_copy(update={"training": training}))


def read_planned_job(paths: ResultPaths) -> PlannedJob:
    """Read the plan of a results folder, with its job file and site if readable here.

    Raises UsageError if there is no plan.
    """
    planned, job, site = read_plan(paths), None, Site()
    with contextlib.suppress(UsageError):  # commands; a job file of another version
        job = load_job(paths.job)
    with contextlib.suppress(UsageError):  # results from another machine
        site = load_site(job.site if job else str(JobSpec.model_fields["site"].default))
    return PlannedJob(planned.job, {run.id: run for run in planned.runs}, job, site)
