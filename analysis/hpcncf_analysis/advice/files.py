"""The next job as files to be used at once: a job file, and a batch script for sbatch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, get_args

from hpcncf import jobfile, records
from hpcncf.errors import UsageError
from hpcncf.ncf.data.manifest import DataError
from hpcncf.paths import ResultPaths
from hpcncf.slurm import byhand
from hpcncf.slurm.byhand import Source
from hpcncf.slurm.request import Site
from hpcncf_analysis.advice import asked as asking
from hpcncf_analysis.advice.advise import Advice, advise
from hpcncf_analysis.advice.cause import Diagnoses
from hpcncf_analysis.advice.front import Choice
from hpcncf_analysis.summary import Configuration

NOTE: Final = (
    "# Written by `hpcncf report`: submit it with sbatch, or the job file beside it with "
    "`hpcncf submit`."
)


@dataclass(frozen=True)
class Written:
    """One choice's advice, and where it lies."""

    advice: Advice
    job: Path
    script: Path | None
    """None where the job file cannot be planned here: other data lies in its folder by now."""


def name(choice: Choice) -> str:
    return "next" if choice == "knee" else f"next-{choice}"


def write(
    configurations: Sequence[Configuration], paths: ResultPaths, diagnoses: Diagnoses
) -> list[Written]:
    """Each choice that differs, the knee first; what an earlier report advised goes. Nothing where
    there is nothing to advise."""
    asked = asking.read(paths)
    written: list[Written] = []
    for choice in get_args(Choice):
        job, script = (paths.report / f"{name(choice)}.{ending}" for ending in ("yaml", "sbatch"))
        advice = _new(advise(configurations, asked, diagnoses, choice), written)
        _leave(job, advice.job_yaml if advice else None)
        text = _script(job, asked.site, paths.folder.resolve().parent) if advice else None
        _leave(script, text)
        if advice:
            written.append(Written(advice, job, script if text else None))
    return written


def _new(advice: Advice | None, written: Sequence[Written]) -> Advice | None:
    """None where another choice is the same configuration."""
    known = {each.advice.chosen.key for each in written}
    return advice if advice and advice.chosen.key not in known else None


def _leave(path: Path, text: str | None) -> None:
    if text is None:
        path.unlink(missing_ok=True)
    else:
        records.write_text(path, text)


def _script(path: Path, site: Site, results: Path) -> str | None:
    """What `hpcncf plan --by-hand` prints of the job file."""
    job = jobfile.load_jobfile(path)
    source = Source(path.resolve(), results / job.name)
    try:
        return byhand.text_byhand(job, site, jobfile.plan(job, path).runs, source, NOTE)
    except (UsageError, DataError):  # other data, of another format; runs side by side
        return None
