"""Submit runs as job arrays, as many as Slurm has room for."""

from __future__ import annotations

import contextlib
import io
import re
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Final

from hpcncf.errors import HpcncfError
from hpcncf.job.plan import Run, batched, packs_by_resources
from hpcncf.job.spec import JobSpec, Resources
from hpcncf.paths import ResultPaths
from hpcncf.records.schema import read_record, write_record
from hpcncf.records.submissions import Submission, SubmittedJob, user
from hpcncf.slurm import batch_script, query
from hpcncf.slurm.batch_script import make_private_folder
from hpcncf.slurm.query import query_jobs, run_query
from hpcncf.slurm.site import Site, load_sites
from hpcncf.submit.final_report import report
from hpcncf.worker.task import work

# Slurm's own MaxArraySize, where nobody tells; it caps the index, so an array holds as many.
USUAL_ARRAY: Final = 1001
ASSOCIATION: Final = ("account", "partition", "maxsubmitjobs", "defaultqos")
QOS: Final = ("name", "maxsubmitjobsperuser")
QUEUE: Final = "%a|%q"


@dataclass(frozen=True)
class Quota:
    """How many array elements fit. Each of them counts as a job."""

    array: int = USUAL_ARRAY
    """Most elements of one array."""
    left: int | None = None
    """Most elements that may be added to the queue now; None: no limit is known."""
    limit: str = ""
    """What sets `left`, in words."""

    def without(self, elements: int) -> Quota:
        """What it leaves beside so many others."""
        return self if self.left is None else replace(self, left=max(self.left - elements, 0))


def quota_quotas(site: Site) -> Quota:
    """Asked of this cluster, in at most four calls; what cannot be asked sets no limit."""
    config = parse_config(answer("scontrol", "show", "config") or "")
    queue = answer("squeue", "--noheader", "--array", f"--user={user()}", f"--format={QUEUE}") or ""
    bounds = [_cluster_room(config, queue)]
    if "limits" in config.get("AccountingStorageEnforce", ""):
        shown = ["sacctmgr", "--noheader", "--parsable2", "show"]
        rows = answer(*shown, "assoc", f"user={user()}", f"format={','.join(ASSOCIATION)}") or ""
        levels = answer(*shown, "qos", f"format={','.join(QOS)}") or ""
        account = site.account or (answer(*shown, "user", user(), "format=defaultaccount") or "")
        bounds.append(account_room(rows, levels, queue, account.strip(), site))
    left, limit = min((bound for bound in bounds if bound), default=(None, ""))
    array = int(config.get("MaxArraySize", USUAL_ARRAY))
    return Quota(max(array, 1), left, limit)  # 0 forbids arrays; one task is none


def _cluster_room(config: dict[str, str], queue: str) -> tuple[int, str] | None:
    """Other people's jobs count as well, but to list them all would be a burden to the cluster."""
    most = config.get("MaxJobCount", "")
    return _bound(int(most), _lines(queue), "this cluster's MaxJobCount") if most else None


def account_room(
    associations: str, levels: str, queue: str, account: str, site: Site
) -> tuple[int, str] | None:
    """Elements that the user's association or QOS leaves, and why; a QOS's limit goes first."""
    rows = [row for row in _rows(associations, len(ASSOCIATION)) if row[0] == account]
    rows = [row for row in rows if row[1] in ("", site.partition)]
    if not rows:
        return None
    _, _, most, usual = max(rows, key=lambda row: row[1])  # the partition's own, where it has one
    qos = site.qos or usual or "normal"
    queued = _rows(queue, 2)
    for name, per_user in _rows(levels, len(QOS)):
        if name == qos and per_user:
            used = sum(row[1] == qos for row in queued)
            return _bound(int(per_user), used, f"MaxSubmitJobsPerUser of QOS {qos}")
    if not most:
        return None
    used = sum(row[0] == account for row in queued)
    return _bound(int(most), used, f"MaxSubmitJobs of your account {account}")


def _bound(most: int, used: int, name: str) -> tuple[int, str]:
    return max(most - used, 0), f"{name} is {most:,}, {used:,} are queued already"


def queued(ids: Sequence[str]) -> set[str] | None:
    """Which of these jobs are in the queue; None where Slurm cannot be asked."""
    problems = list[str]()
    said = query_jobs(["squeue", "--noheader", "--array", "--format=%i"], ids, problems)
    return None if problems else set(said.split()) & set(ids)


def parse_config(text: str) -> dict[str, str]:
    """`scontrol show config`: its `Key = Value` lines."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


def answer(*command: str) -> str | None:
    """What the command prints; None where Slurm cannot be asked."""
    problems = list[str]()
    text = run_query(list(command), problems)
    return None if problems else text


def _rows(text: str, columns: int) -> list[list[str]]:
    rows = [[cell.strip() for cell in line.split("|")] for line in text.splitlines()]
    return [row for row in rows if len(row) == columns]


def _lines(text: str) -> int:
    return len(text.split())


Task = list[Run]


class NoRoom(HpcncfError):
    """Slurm takes no (or not so many) more jobs of this user now."""


def tasks(runs: Sequence[Run]) -> list[Task]:
    """Runs of equal resources share tasks, `runs_per_task` packs each; order is kept."""
    at = {run.id: number for number, run in enumerate(runs)}
    made = [
        list(chain.from_iterable(some))
        for shape in packs_by_resources(runs)
        for some in batched(shape, shape[0][0].resources.runs_per_task)
    ]
    return sorted(made, key=lambda task: at[task[0].id])


def shapes(tasks: Sequence[Task]) -> list[list[Task]]:
    """Tasks that may share an array: Slurm gives all of its elements the same resources."""
    grouped: dict[Resources, list[Task]] = defaultdict(list)
    for task in tasks:
        grouped[task[0].resources].append(task)
    return list(grouped.values())


def fit(wanted: Sequence[Task], quota: Quota, give: Callable[[list[Task]], None]) -> str:
    """Give arrays until all is given or no room is left; returns what Slurm last said of room.

    `give` raises NoRoom. That is answered by half as many: where nobody tells how much room there
    is, all of it is found in as many calls as the number has binary digits.
    """
    room, said = len(wanted) if quota.left is None else min(quota.left, len(wanted)), ""
    for rest in shapes(wanted[:room]):
        while rest and room:
            most = (room + 1) // 2 if said else room
            some = min(len(rest), quota.array, most)
            try:
                give(rest[:some])
            except NoRoom as full:
                room, said = some - 1, str(full)
            else:
                rest, room = rest[some:], room - some
    return said


def runs_per_task(left: Sequence[Run], room: int) -> int | None:
    """The fewest packs in a task with which those left fit into `room` tasks; None: none does."""
    sizes = [len(each) for each in packs_by_resources(left)]
    if len(sizes) > room:
        return None
    return next(n for n in range(1, len(left) + 1) if sum(-(-size // n) for size in sizes) <= room)


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
    quota = quota_quotas(load_sites(job.site)).without(int(submission.report))
    said = fit(tasks(runs), quota, giver.array)
    submission = giver.submission()
    left = [run for run in runs if submission.job_of(run.id) is None]
    if left:
        sent = [run for run in submission.runs if submission.job_of(run)]
        submission = submission.model_copy(update={"runs": sent, "left": [run.id for run in left]})
        write_record(file, submission)
    no_report = giver.report() if submission.report and submission.jobs else ""
    return Given(left, said or quota.limit, len(submission.jobs), no_report)


@dataclass(frozen=True)
class Giver:
    """Gives the arrays of one submission to Slurm, through submitit."""

    paths: ResultPaths
    job: JobSpec
    file: Path

    def submission(self) -> Submission:
        return read_record(self.file, Submission)

    def array(self, array: list[Task]) -> None:
        """Raises NoRoom, or HpcncfError with what else sbatch said."""
        before, tasks = self.submission(), [[run.id for run in task] for task in array]
        over = [{run: before.over.get(run, 0) for run in runs} for runs in tasks]
        folder, again = [str(self.paths.folder)] * len(tasks), [before.again] * len(tasks)
        with undisturbed(), raise_refusals():
            executor = batch_script.executor(self._logs(), self.job, array[0][0].resources)
            if before.report:  # Slurm mails once an array; the end of all is the report's
                _drop_mail(executor)
            write_record(self.file, before.model_copy(update={"sending": tasks}))
            given = self._given(lambda: executor.map_array(work, folder, tasks, again, over))
            jobs = [
                SubmittedJob(id=one.job_id, runs=runs)
                for one, runs in zip(given, tasks, strict=True)
            ]
            known = before.model_copy(update={"jobs": [*before.jobs, *jobs]})
            write_record(self.file, known)

    def report(self) -> str:
        """A job that waits for all the others, however they end; why Slurm did not take it."""
        try:
            self._report(self.submission())
        except HpcncfError as error:
            return str(error)
        return ""

    def _report(self, submission: Submission) -> None:
        masters = query.masters(job.id for job in submission.jobs)
        with undisturbed(), raise_refusals():
            executor = batch_script.executor(self._logs(), self.job, REPORTING)
            executor.update_parameters(
                job_name=f"{self.job.name}-report", dependency=":".join(["afterany", *masters])
            )
            asked = (report, str(self.paths.folder))
            given = self._given(lambda: executor.submit(*asked))
            noted = submission.model_copy(update={"report_job": given.job_id})
            write_record(self.file, noted)

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
        logs = self.paths.submitit(user())
        make_private_folder(logs)
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
def raise_refusals() -> Iterator[None]:
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
