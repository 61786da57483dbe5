"""sacct: a row for each job and step, with `-D` for each earlier start, too."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from fake_slurm.cluster import Cluster
from fake_slurm.jobs import Job, Run, Step, folded, spanned
from fake_slurm.request import Refused
from fake_slurm.times import cpu, full, stamp


@dataclass(frozen=True)
class Row:
    job: Job
    name: str
    run: Run
    step: Step | None
    form: str | None

    def when(self, moment: float | None) -> str:
        return stamp(moment, self.form) if moment else "Unknown"

    @property
    def began(self) -> float | None:
        return self.step.began if self.step else self.run.began

    @property
    def ended(self) -> float | None:
        return self.step.ended if self.step else self.run.ended

    @property
    def elapsed(self) -> float:
        return (self.ended or time.time()) - self.began if self.began else 0.0

    @property
    def cpus(self) -> int:
        return self.step.cpus if self.step else self.job.cpus

    @property
    def cpu_s(self) -> float:
        """A job's is the sum of its steps'."""
        return self.step.cpu_s if self.step else sum(step.cpu_s for step in self.run.steps)

    @property
    def state(self) -> str:
        if self.step:
            return self.step.state
        by = (
            f" by {self.run.by}"
            if self.run.state == "CANCELLED" and self.run.by is not None
            else ""
        )
        return self.run.state + by


def answer(cluster: Cluster, words: list[str], variables: dict[str, str]) -> str:
    """Raises Refused without accounting."""
    settings = cluster.queue.settings
    if not settings.accounting:
        raise Refused("Slurm accounting storage is disabled\n")
    if not settings.database:
        raise Refused("sacct: error: Problem talking to the database: Connection refused\n")
    asked = _options().parse_args(words)
    fields = (asked.format or DEFAULT).split(",")
    if unknown := [name for name in fields if name.lower().split("%")[0] not in FIELDS]:
        raise Refused(f'sacct: error: Invalid field requested: "{unknown[0]}"\n')
    jobs = _jobs(cluster, asked.jobs)
    rows = _rows(jobs, asked, variables.get("SLURM_TIME_FORMAT"))
    lines = [[FIELDS[name.lower().split("%")[0]](row) for name in fields] for row in rows]
    head = [] if asked.noheader else [[name.split("%")[0] for name in fields]]
    return "".join(_line(cells, asked) for cells in [*head, *lines])


def _line(cells: list[str], asked: argparse.Namespace) -> str:
    if asked.parsable or asked.parsable2:
        return "|".join(cells) + ("|" if asked.parsable else "") + "\n"
    return "".join(f"{cell[:12]:>12} " for cell in cells) + "\n"


def _options() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser("sacct", add_help=False, allow_abbrev=False)
    for names in (("-n", "--noheader"), ("-P", "--parsable2"), ("-p", "--parsable")):
        options.add_argument(*names, action="store_true")
    for names in (("-X", "--allocations"), ("-D", "--duplicates"), ("-a", "--allusers")):
        options.add_argument(*names, action="store_true")
    options.add_argument("-o", "--format")
    options.add_argument("-j", "--jobs", action="append")
    for names in (("-S", "--starttime"), ("-E", "--endtime"), ("-u", "--user"), ("-s", "--state")):
        options.add_argument(*names)
    options.add_argument("--units")
    return options


DEFAULT: Final = "JobID,JobName,Partition,Account,AllocCPUS,State,ExitCode"


def _jobs(cluster: Cluster, asked: list[str] | None) -> list[Job]:
    if asked is None:
        return cluster.queue.jobs
    words = [word for text in asked for word in text.split(",")]
    return [job for word in words for job in cluster.queue.find(word.split(".")[0])]


def _rows(jobs: list[Job], asked: argparse.Namespace, form: str | None) -> Iterator[Row]:
    told: set[tuple[int | None, str]] = set()
    for job in jobs:
        if job.forgotten:
            continue
        if job.array is not None and not (job.numbered or job.nameless):
            yield from _waiting(job, told, form)
            continue
        for run in [*(job.earlier if asked.duplicates else []), job.run()]:
            yield Row(job, job.name, run, None, form)
            for step in [] if asked.allocations else run.steps:
                yield Row(job, f"{job.name}.{step.name}", run, step, form)


def _waiting(job: Job, told: set[tuple[int | None, str]], form: str | None) -> Iterator[Row]:
    """Elements that never started share a row."""
    if (job.array, job.state) not in told:
        told.add((job.array, job.state))
        unnamed = [one for one in job.group if not (one.numbered or one.nameless)]
        same = [one.element for one in unnamed if one.state == job.state]
        elements = spanned([element for element in same if element is not None])
        throttle = f"%{job.request.throttle}" if job.request.throttle else ""
        yield Row(job, f"{job.array}_[{elements}{throttle}]", job.run(), None, form)


def _raw(row: Row) -> str:
    return f"{row.job.number}.{row.step.name}" if row.step else str(row.job.number)


def _exit(code: tuple[int, int]) -> str:
    return f"{code[0]}:{code[1]}"


def _of_job(text: Callable[[Row], str]) -> Callable[[Row], str]:
    return lambda row: "" if row.step else text(row)


FIELDS: Final[dict[str, Callable[[Row], str]]] = {
    "jobid": lambda row: row.name,
    "jobidraw": _raw,
    "jobname": lambda row: row.step.command if row.step else row.job.title,
    "partition": _of_job(lambda row: row.job.partition),
    "account": lambda row: row.job.request.asked.account or "root",
    "alloccpus": lambda row: str(row.cpus),
    "ncpus": lambda row: str(row.cpus),
    "reqcpus": lambda row: str(row.cpus),
    "state": lambda row: row.state,
    "exitcode": lambda row: _exit(row.step.exit_code if row.step else row.run.exit_code),
    "nodelist": lambda row: (
        folded(row.step.nodes if row.step else row.run.nodes) or "None assigned"
    ),
    "nnodes": lambda row: str(len(row.step.nodes if row.step else row.run.nodes) or 1),
    "ntasks": lambda row: str(row.step.tasks) if row.step else "",
    "submit": lambda row: row.when(row.run.submitted),
    "start": lambda row: row.when(row.began),
    "end": lambda row: row.when(row.ended),
    "elapsed": lambda row: full(row.elapsed),
    "elapsedraw": lambda row: str(int(row.elapsed)),
    "cputimeraw": lambda row: str(int(row.elapsed) * row.cpus),
    "totalcpu": lambda row: cpu(row.cpu_s),
    "maxrss": lambda row: f"{row.step.max_rss_kib}K" if row.step and row.step.ended else "",
    "reqmem": _of_job(lambda row: f"{row.job.request.mem_mib}M"),
    "timelimit": _of_job(lambda row: full(row.job.limit_min * 60)),
    "timelimitraw": _of_job(lambda row: str(int(row.job.limit_min))),
    "reason": _of_job(lambda row: row.run.reason),
    "user": _of_job(lambda _: "root"),
    "uid": _of_job(lambda row: str(row.job.user)),
}
