"""A submission's runs are given to Slurm as arrays, each noted as soon as Slurm has it."""

from __future__ import annotations

import contextlib
import io
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hpcncf import final_report, records, submissions
from hpcncf.errors import HpcncfError
from hpcncf.paths import ResultPaths
from hpcncf.plan import Run
from hpcncf.rank import task
from hpcncf.slurm import ids, private, quotas, scripts, sites
from hpcncf.spec import JobSpec, Resources
from hpcncf.submissions import Submission, SubmittedJob
from hpcncf.submit import packing
from hpcncf.submit.packing import NoRoom, Task

# sbatch's words for a queue that is full for this user: AssocMaxSubmitJobLimit,
# QOSMaxSubmitJobPerUserLimit, AssocGrpSubmitJobsLimit, ...
NO_ROOM: Final = re.compile(r"\b(?:Assoc|QOS)\w*Submit\w*Limit\b")
# Of the job that collects and reports.
REPORTING: Final = Resources(mem_gb=1, timeout_min=30)
# What submitit wrote for an array before it asked sbatch.
UNTAKEN: Final = re.compile(r"[0-9a-f]{32}\.pkl|\.submission_file_[0-9a-f]{32}\.sh")


@dataclass(frozen=True)
class Given:
    """What became of the runs of one submission."""

    left: list[Run]
    """Those for which there was no room."""
    limit: str = ""
    """Why not, in words."""
    tasks: int = 0
    """So many were taken."""
    no_report: str = ""
    """Why Slurm did not take the job that was to report."""


def give(paths: ResultPaths, job: JobSpec, runs: Sequence[Run], file: Path) -> Given:
    """Give Slurm what it takes; the submission's file says before and after each array.

    Raises HpcncfError with what sbatch said.
    """
    giver = Giver(paths, job, file)
    submission = giver.submission()
    quota = quotas.quota_quotas(sites.load_sites(job.site)).without(int(submission.report))
    said = packing.fit(packing.tasks(runs), quota, giver.array)
    submission = giver.submission()
    left = [run for run in runs if submission.job_of(run.id) is None]
    if left:
        sent = [run for run in submission.runs if submission.job_of(run)]
        submission = submission.model_copy(update={"runs": sent, "left": [run.id for run in left]})
        records.write(file, submission)
    no_report = giver.report() if submission.report and submission.jobs else ""
    return Given(left, said or quota.limit, len(submission.jobs), no_report)


@dataclass(frozen=True)
class Giver:
    """Gives the arrays of one submission to Slurm, through submitit."""

    paths: ResultPaths
    job: JobSpec
    file: Path

    def submission(self) -> Submission:
        return records.read_records(self.file, Submission)

    def array(self, array: list[Task]) -> None:
        """Raises NoRoom, or HpcncfError with what else sbatch said."""
        before, tasks = self.submission(), [[run.id for run in task] for task in array]
        over = [{run: before.over.get(run, 0) for run in runs} for runs in tasks]
        folder, again = [str(self.paths.folder)] * len(tasks), [before.again] * len(tasks)
        with undisturbed(), refusals_told():
            executor = scripts.executor(self._logs(), self.job, array[0][0].resources)
            if before.report:  # Slurm mails once an array; the end of all is the report's
                _drop_mail(executor)
            records.write(self.file, before.model_copy(update={"sending": tasks}))
            given = self._given(lambda: executor.map_array(task.work, folder, tasks, again, over))
            jobs = [
                SubmittedJob(id=one.job_id, runs=runs)
                for one, runs in zip(given, tasks, strict=True)
            ]
            known = before.model_copy(update={"jobs": [*before.jobs, *jobs]})
            records.write(self.file, known)

    def report(self) -> str:
        """A job that waits for all the others, however they end; why Slurm did not take it."""
        try:
            self._report(self.submission())
        except HpcncfError as error:
            return str(error)
        return ""

    def _report(self, submission: Submission) -> None:
        masters = ids.masters(job.id for job in submission.jobs)
        with undisturbed(), refusals_told():
            executor = scripts.executor(self._logs(), self.job, REPORTING)
            executor.update_parameters(
                job_name=f"{self.job.name}-report", dependency=":".join(["afterany", *masters])
            )
            asked = (final_report.report, str(self.paths.folder))
            given = self._given(lambda: executor.submit(*asked))
            noted = submission.model_copy(update={"report_job": given.job_id})
            records.write(self.file, noted)

    def _given(self, ask: Callable[[], Any]) -> Any:
        """What submitit wrote for an array that Slurm refused is removed."""
        before = set(self._untaken())
        try:
            return ask()
        except RuntimeError:
            for path in set(self._untaken()) - before:
                path.unlink()
            raise

    def _untaken(self) -> Iterator[Path]:
        return (path for path in self._logs().iterdir() if UNTAKEN.fullmatch(path.name))

    def _logs(self) -> Path:
        logs = self.paths.submitit(submissions.user())
        private.make(logs)
        return logs


def _drop_mail(executor: Any) -> None:
    for key in ("mail_user", "mail_type"):
        executor.parameters.pop(key, None)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Ctrl-C waits, in sbatch as well, until what Slurm has is noted."""
    signals = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def refusals_told() -> Iterator[None]:
    """submitit raises RuntimeError with what sbatch said, or where there is no srun."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # it prints what it raises
            yield
    except RuntimeError as error:
        said = str(error)
        full = NO_ROOM.search(said)
        if full:
            raise NoRoom(f"Slurm said {full.group()}") from None
        raise HpcncfError(
            f"Slurm did not take the job: {_briefly(said)}; mend that, "
            "or --cluster local to run on this machine"
        ) from None


def _briefly(said: str) -> str:
    """A fatal line says what those before it led to; else each may be the reason."""
    lines = said.strip().splitlines()
    return "\n".join([line for line in lines if ": fatal: " in line][-1:] or lines)
