"""Jobs of a folder of logs: by the summaries in them, else by the files' names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from hpcncf.explain.fields import JobFields
from hpcncf.explain.read import read_with_problems

# What slurmstepd and srun write (src/slurmd/slurmstepd in Slurm's repository), and the file names
# that sbatch (`slurm-%j.out`), submitit (`123_4_log.out`) and reportseff know.
_ENDS: Final = (
    (r"oom[-_]kill event|Out Of Memory|Exceeded job memory limit", "OUT_OF_MEMORY"),
    (r"CANCELLED AT \S+ DUE TO TIME LIMIT", "TIMEOUT"),
    (r"CANCELLED AT \S+ DUE TO PREEMPTION", "PREEMPTED"),
    (r"CANCELLED AT \S+ DUE TO NODE FAIL", "NODE_FAIL"),
    (r"\*\*\* (?:JOB|STEP) \S+ ON \S+ CANCELLED AT", "CANCELLED"),
    (r"srun: error: .*Exited with exit code [1-9]", "FAILED"),
)
_NAME: Final = re.compile(r"(?:^|[-_.])(\d{1,12}(?:_\d{1,8})?)(?:_\d+)?(?:_log)?\.(?:out|err|log)$")


def read_logs(files: Mapping[str, str]) -> tuple[list[JobFields], list[str]]:
    """Read jobs from log files, given as name -> text; also return what could not be read.

    Jobs with summaries in the files come first, then jobs that only a file's name mentions,
    with the way in which Slurm ended them.
    """
    jobs: list[JobFields] = []
    problems: list[str] = []
    for name, text in sorted(files.items()):
        found, failed = read_with_problems(text)
        jobs += [job for job in found if job.id or job.efficiency is not None]
        problems += [f"{name}: {problem}" for problem in failed]
    known = {job.id for job in jobs}
    ends: dict[str, str] = {}
    for name in sorted(files):
        if (job_id := job_id_from_name(name)) and job_id not in known:
            words = (word for pattern, word in _ENDS if re.search(pattern, files[name]))
            ends[job_id] = ends.get(job_id) or next(words, "")
    jobs += [JobFields("log", job_id, state) for job_id, state in ends.items()]
    return jobs, problems


def job_id_from_name(name: str) -> str:
    """Return the job id in a log file's name; empty if it has none.

    Known forms are `slurm-123.out`, `slurm-123_4.out`, `123_4_0_log.err` and `train_123.log`.
    """
    found = _NAME.search(name)
    return found[1] if found else ""
