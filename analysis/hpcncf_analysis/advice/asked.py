"""What was asked for so far: the planned runs, their job file, and its site."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from hpcncf import jobfile, plan, results
from hpcncf.errors import UsageError
from hpcncf.paths import ResultPaths
from hpcncf.plan import Run
from hpcncf.slurm import sites
from hpcncf.slurm.request import Site
from hpcncf.spec import JobSpec


@dataclass(frozen=True)
class Asked:
    """What was asked for so far, and of which site."""

    name: str
    """The job's."""
    runs: Mapping[str, Run]
    """Run id -> as it was planned."""
    job: JobSpec | None = None
    """None for commands that `hpcncf run` started."""
    site: Site = field(default_factory=Site)

    @property
    def base(self) -> str | None:
        """The configuration that the job file asks for outside its grid; None where it is none."""
        if self.job is None:
            return None
        outside = self.job.model_copy(update={"grid": {}, "points": [], "exclude": []})
        return self.configuration(outside)

    def configuration(self, job: JobSpec) -> str | None:
        """That of a job without a grid, on the data as it was planned; None where it is none."""
        keys = {run.data.path: run.data_key for run in self.runs.values() if run.data}
        try:
            (run,) = plan.expand(job.model_copy(update={"repeats": 1}), keys).runs
        except UsageError:
            return None  # settings that only some point of the grid makes whole
        return plan.configuration(run)


def read(paths: ResultPaths) -> Asked:
    """What the results folder tells; a site that is not known on this machine asks for nothing.

    Raises UsageError where there is no plan.
    """
    planned, job = results.read_plan(paths), _job(paths)
    site = _site(job.site if job else str(JobSpec.model_fields["site"].default))
    return Asked(planned.job, {run.id: run for run in planned.runs}, job, site)


def _job(paths: ResultPaths) -> JobSpec | None:
    """None for commands, too; a torn one, or another version's, tells nothing: the plan does."""
    with contextlib.suppress(UsageError):
        return jobfile.load_jobfile(paths.job)
    return None


def _site(name: str) -> Site:
    with contextlib.suppress(UsageError):
        return sites.load_sites(name)
    return Site()  # the results were brought here from elsewhere
