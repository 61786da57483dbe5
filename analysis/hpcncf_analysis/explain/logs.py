"""What Slurm and LSF write into a job's own output: its end, seldom its figures. Pure.

Source: slurmstepd's and srun's messages (src/slurmd/slurmstepd in Slurm's repository), and the file
names that sbatch (`slurm-%j.out`), submitit (`123_4_log.out`) and reportseff know.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from hpcncf_analysis.explain.job import Job

_ENDS: Final = (
    (r"oom[-_]kill event|Out Of Memory|Exceeded job memory limit", "OUT_OF_MEMORY"),
    (r"CANCELLED AT \S+ DUE TO TIME LIMIT", "TIMEOUT"),
    (r"CANCELLED AT \S+ DUE TO PREEMPTION", "PREEMPTED"),
    (r"CANCELLED AT \S+ DUE TO NODE FAIL", "NODE_FAIL"),
    (r"\*\*\* (?:JOB|STEP) \S+ ON \S+ CANCELLED AT", "CANCELLED"),
    (r"srun: error: .*Exited with exit code [1-9]", "FAILED"),
)
_NAME: Final = re.compile(r"(?:^|[-_.])(\d{1,12}(?:_\d{1,8})?)(?:_\d+)?(?:_log)?\.(?:out|err|log)$")


def read_logs(files: Mapping[str, str]) -> list[Job]:
    """One for every job that a file's name tells, in the order of the names; `files`: its text.

    The state is empty where Slurm wrote nothing: it does not say when a job ends well.
    """
    found: dict[str, str] = {}
    for name in sorted(files):
        job_id = of_name(name)
        if job_id:
            found[job_id] = found.get(job_id) or end(files[name])
    return [Job(source="log", id=job_id, state=state) for job_id, state in found.items()]


def of_name(name: str) -> str:
    """`slurm-123.out`, `slurm-123_4.out`, `123_4_0_log.err`, `train_123.log`; empty for others."""
    found = _NAME.search(name)
    return found[1] if found else ""


def end(text: str) -> str:
    """Slurm's word for how the job ended, by what it wrote there."""
    return next((word for pattern, word in _ENDS if re.search(pattern, text)), "")
