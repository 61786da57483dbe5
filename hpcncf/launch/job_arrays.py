"""Submit runs as job arrays, as many as Slurm has room for; record those of a killed submitter."""

from __future__ import annotations

import contextlib
import io
import re
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

from hpcncf.errors import HpcncfError
from hpcncf.job.packs import batched, packs_by_resources
from hpcncf.job.plan import Run
from hpcncf.job.spec import JobSpec, Resources
from hpcncf.paths import ResultPaths
from hpcncf.records.schema import read_record, write_record
from hpcncf.records.submissions import Submission, SubmittedJob, user
from hpcncf.slurm import batch_script, query
from hpcncf.slurm.batch_script import make_private_folder
from hpcncf.slurm.pending_reasons import describe_reason
from hpcncf.slurm.query import parse_config, query_jobs, run_query
from hpcncf.slurm.site import Site
from hpcncf.worker.task import work, write_report

# Slurm's default MaxArraySize. It limits the index, so an array has at most as many elements.
USUAL_ARRAY: Final = 1001


@dataclass(frozen=True)
class Quota:
    """Number of array elements that Slurm still accepts; each of them counts as a job."""

    array: int = USUAL_ARRAY
    """Most elements of one array."""
    room: int | None = None
    """Most elements that may be added to the queue now; None: sbatch refuses if there are more."""
    limit: str = ""
    """Reason for `room`, in words."""


def query_quota() -> Quota:
    """Ask Slurm how many jobs it still accepts; a question without answer sets no limit."""
    config = parse_config(run_query(["scontrol", "show", "config"], []))
    array = max(int(config.get("MaxArraySize", USUAL_ARRAY)), 1)  # 0 forbids arrays; 1 is no array
    if "MaxJobCount" not in config:
        return Quota(array)
    # sbatch waits and tries again for minutes at this limit. Other users' jobs count too, but
    # listing them all would burden the cluster.
    queue = run_query(["squeue", "--noheader", "--array", f"--user={user()}", "--format=%i"], [])
    most, used = int(config["MaxJobCount"]), len(queue.split())
    limit = f"this cluster's MaxJobCount is {most:,}, {used:,} are queued already"
    return Quota(array, max(most - used, 0), limit)


def query_queued(ids: Sequence[str]) -> set[str] | None:
    """Return which of these jobs are in Slurm's queue; None if Slurm cannot be asked."""
    problems = list[str]()
    text = query_jobs(["squeue", "--noheader", "--array", "--format=%i"], ids, problems)
    return None if problems else set(text.split()) & set(ids)


Task = list[Run]


class NoRoom(HpcncfError):
    """Slurm accepts no more jobs of this user now, or fewer than were sent."""


def build_tasks(runs: Sequence[Run]) -> list[Task]:
    """Distribute runs of equal resources over tasks of `runs_per_task` packs; order is kept."""
    position = {run.id: number for number, run in enumerate(runs)}
    tasks = [
        list(chain.from_iterable(packs))
        for shape in packs_by_resources(runs)
        for packs in batched(shape, shape[0][0].resources.runs_per_task)
    ]
    return sorted(tasks, key=lambda task: position[task[0].id])


def group_by_resources(tasks: Sequence[Task]) -> list[list[Task]]:
    """Group tasks by equal resources, as all elements of a Slurm array have the same."""
    grouped: dict[Resources, list[Task]] = defaultdict(list)
    for task in tasks:
        grouped[task[0].resources].append(task)
    return list(grouped.values())


def send_while_room(tasks: Sequence[Task], quota: Quota, send: Callable[[list[Task]], None]) -> str:
    """Send tasks as arrays until Slurm accepts no more; return its last refusal or ''.

    If `send` raises NoRoom, half as many are tried. That fills an unknown room in as many calls as
    its size has binary digits.
    """
    room, refusal = len(tasks) if quota.room is None else min(quota.room, len(tasks)), ""
    for rest in group_by_resources(tasks[:room]):
        while rest and room:
            number = min(len(rest), quota.array, (room + 1) // 2 if refusal else room)
            try:
                send(rest[:number])
            except NoRoom as error:
                room, refusal = number - 1, str(error)
            else:
                rest, room = rest[number:], room - number
    return refusal


def runs_per_task(runs: Sequence[Run], room: int) -> int | None:
    """Return the fewest packs per task with which the runs fit into `room` tasks.

    None if they do not fit.
    """
    sizes = [len(packs) for packs in packs_by_resources(runs)]
    if len(sizes) > room:
        return None
    return next(n for n in range(1, len(runs) + 1) if sum(-(-size // n) for size in sizes) <= room)


# sbatch's words for a queue that is full for this user: AssocMaxSubmitJobLimit,
# QOSMaxSubmitJobPerUserLimit, AssocGrpSubmitJobsLimit, ...
NO_ROOM: Final = re.compile(r"\b(?:Assoc|QOS)\w*Submit\w*Limit\b")


# Slurm's commands are installed, and no controller is there.
NO_CLUSTER: Final = re.compile(r"configuration source|contact slurm controller|fetch config")


# Resources of the job that collects and reports.
REPORTING: Final = Resources(mem_gb=1, timeout_min=30)


# Files that submitit wrote for an array before it called sbatch.
UNSENT_FILES: Final = re.compile(r"[0-9a-f]{32}\.pkl|\.submission_file_[0-9a-f]{32}\.sh")


@dataclass(frozen=True)
class Delivery:
    """Outcome of sending the runs of one submission to Slurm."""

    unsent: list[Run]
    """Runs without room in the queue."""
    limit: str = ""
    """Why there was no room, in words."""
    tasks: int = 0
    """Number of tasks that Slurm accepted."""
    no_report: str = ""
    """Why Slurm refused the job that reports."""


def send_arrays(
    paths: ResultPaths, job: JobSpec, site: Site, runs: Sequence[Run], file: Path
) -> Delivery:
    """Send as many runs as Slurm accepts; each array is recorded in the submission file.

    Raises HpcncfError with sbatch's message.
    """
    sender = ArraySender(paths, job, site, file)
    submission = sender.submission()
    quota = query_quota()
    refusal = send_while_room(build_tasks(runs), quota, sender.send)
    submission = sender.submission()
    unsent = [run for run in runs if submission.job_of(run.id) is None]
    if unsent:
        sent = [run for run in submission.runs if submission.job_of(run)]
        update = {"runs": sent, "left": [run.id for run in unsent]}
        submission = submission.model_copy(update=update)
        write_record(file, submission)
    no_report = ""
    if submission.report and submission.jobs:
        try:
            sender.send_report(submission)
        except HpcncfError as error:
            no_report = str(error)
    return Delivery(unsent, refusal or quota.limit, len(submission.jobs), no_report)


@dataclass(frozen=True)
class ArraySender:
    """Sends the arrays of one submission to Slurm, through submitit."""

    paths: ResultPaths
    job: JobSpec
    site: Site
    file: Path

    def submission(self) -> Submission:
        return read_record(self.file, Submission)

    def send(self, array: list[Task]) -> None:
        """Send one array. Raises NoRoom if Slurm's limits are reached, else HpcncfError."""
        before, tasks = self.submission(), [[run.id for run in task] for task in array]
        over = [{run: before.over.get(run, 0) for run in runs} for runs in tasks]
        folder, again = [str(self.paths.folder)] * len(tasks), [before.again] * len(tasks)
        with defer_signals(), raise_refusals():
            executor = batch_script.build_executor(
                self._logs(), self.job, self.site, array[0][0].resources
            )
            if before.report:  # Slurm mails for each array; the report is one mail for all
                for key in ("mail_user", "mail_type"):
                    executor.parameters.pop(key, None)
            write_record(self.file, before.model_copy(update={"sending": tasks}))
            accepted = self._call(lambda: executor.map_array(work, folder, tasks, again, over))
            jobs = [
                SubmittedJob(id=job.job_id, runs=runs)
                for job, runs in zip(accepted, tasks, strict=True)
            ]
            write_record(self.file, before.model_copy(update={"jobs": [*before.jobs, *jobs]}))

    def send_report(self, submission: Submission) -> None:
        """Send a job that waits for the end of all others, then collects and reports."""
        masters = query.array_ids(job.id for job in submission.jobs)
        with defer_signals(), raise_refusals():
            executor = batch_script.build_executor(self._logs(), self.job, self.site, REPORTING)
            executor.update_parameters(
                job_name=f"{self.job.name}-report", dependency=":".join(["afterany", *masters])
            )
            accepted = self._call(lambda: executor.submit(write_report, str(self.paths.folder)))
            update = {"report_job": accepted.job_id}
            write_record(self.file, submission.model_copy(update=update))

    def _call(self, submit: Callable[[], Any]) -> Any:
        """Call submitit; if Slurm refuses, remove the files that submitit wrote."""
        before = set(self._unsent_files())
        try:
            return submit()
        except RuntimeError:
            for path in set(self._unsent_files()) - before:
                path.unlink()
            raise

    def _unsent_files(self) -> Iterator[Path]:
        return (path for path in self._logs().iterdir() if UNSENT_FILES.fullmatch(path.name))

    def _logs(self) -> Path:
        logs = self.paths.submitit(user())
        make_private_folder(logs)
        return logs


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """Hold back Ctrl-C, in sbatch as well, until the accepted jobs are recorded."""
    signals = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def raise_refusals() -> Iterator[None]:
    """Convert submitit's RuntimeError in the block to NoRoom or HpcncfError.

    sbatch has then refused the jobs, or srun is missing.
    """
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # submitit prints what it raises
            yield
    except RuntimeError as error:
        message = str(error)
        if full := NO_ROOM.search(message):
            raise NoRoom(describe_reason(full.group())) from None
        # A fatal line sums up the lines before it; without one, each line may be the reason.
        lines = message.strip().splitlines()
        reason = "\n".join([line for line in lines if ": fatal: " in line][-1:] or lines)
        silent = NO_CLUSTER.search(reason)
        problem = "no Slurm cluster answers its commands" if silent else "Slurm refused the job"
        raise HpcncfError(
            f"{problem}: {reason}; solve that, or run on this machine with --cluster local "
            '(cluster="local" in Python)'
        ) from None
