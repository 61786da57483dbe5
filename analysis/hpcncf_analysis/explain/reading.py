"""Any text: which schedulers' summaries are in it, and what in it was not understood. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from hpcncf_analysis.explain import logs, lsf, pbs, reportseff, sacct, seff
from hpcncf_analysis.explain.amounts import COMMA
from hpcncf_analysis.explain.job import Job

READERS: Final = (seff.read_seff, reportseff.read_reportseff, sacct.read_sacct, lsf.read_lsf, pbs.read_pbs)
POSSIBLE: Final = (
    "seff; reportseff; sacct with its header (default, --long, --format, --parsable); LSF's "
    "bjobs -l, bhist -l and job report; PBS's qstat -f; a folder of Slurm's logs"
)


@dataclass(frozen=True)
class Reading:
    jobs: tuple[Job, ...]
    problems: tuple[str, ...]
    """What looks like a summary and was not understood, with the way out."""


def of_text(text: str) -> Reading:
    jobs = [job for read in READERS for job in read(text)]
    return Reading(tuple(jobs), tuple(_problems(text, bool(jobs))))


def of_files(files: Mapping[str, str]) -> Reading:
    """A folder's logs by name: the summaries in them, else the jobs that their names tell."""
    readings = {name: of_text(text) for name, text in sorted(files.items())}
    jobs = [job for reading in readings.values() for job in reading.jobs]
    told = {job.id for job in jobs}
    jobs += [job for job in logs.read_logs(files) if job.id not in told]
    problems = [
        f"{name}: {problem}" for name, reading in readings.items() for problem in reading.problems
    ]
    return Reading(tuple(jobs), tuple(problems))


def _problems(text: str, understood: bool) -> list[str]:
    found = []
    comma = COMMA.search(text)
    if comma:
        found.append(
            f"{comma[0]}: a decimal comma is not understood; print it once more with LC_ALL=C"
        )
    if not understood and re.search(r"(?m)^\d+(?:_\d+)?(?:\.\w+)?\|", text):
        found.append("rows of sacct without their header; leave --noheader (-n) out")
    return found
