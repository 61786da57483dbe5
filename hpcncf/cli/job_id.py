"""Show what is known of a Slurm job by its id."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, Final

from hpcncf.cli.lookup import folders_of
from hpcncf.paths import AttemptPaths, ResultPaths
from hpcncf.records.claims import is_alive
from hpcncf.records.plan_file import read_plan
from hpcncf.records.schema import Claim, NodeRecord, RankRecord, read_optional

JOB_ID: Final = re.compile(r"[1-9]\d{0,9}(_\d{1,7})?")
PROBES: Final = "probes"
"""Folder in a results folder: files of the probe by job."""
PAGES: Final = 4
"""Tasks of an array whose pages are printed whole."""

FoundAttempts = list[tuple[AttemptPaths, Claim]]


def is_job_id(text: str) -> bool:
    return JOB_ID.fullmatch(text) is not None


def is_run_id(text: str, results: Path | None) -> bool:
    """Whether the id of a run in the results folders begins with `text`."""
    plans = (read_plan(ResultPaths(folder)) for folder in folders_of(results))
    return any(run.id.startswith(text) for plan in plans for run in plan.runs)


def find_attempts(job: str, results: Path | None) -> FoundAttempts:
    """Find the attempts that a Slurm job, or any task of an array, started, by task."""
    found: FoundAttempts = []
    for folder in folders_of(results):
        for path in ResultPaths(folder).folder.glob("runs/*/attempt-*/claim.json"):
            claim = read_optional(path, Claim)
            known = claim and claim.slurm_job_id
            if claim and known and (known == job or known.startswith(f"{job}_")):
                found.append((AttemptPaths(path.parent), claim))
    return sorted(found, key=lambda each: (_task(each[1]), each[1].claimed_at))


def _task(claim: Claim) -> int:
    task = (claim.slurm_job_id or "").partition("_")[2]
    return int(task) if task else -1


def describe_unknown(job: str, results: Path | None) -> str:
    """Explain why there are no records of a Slurm job, and what to do."""
    from hpcncf.slurm.query import job_states

    where = ", ".join(str(each) for each in folders_of(results)) or "./results (no results)"
    state = job_states([job], []).get(job)
    if state is None:
        return (
            f"job {job}: not in {where}, and Slurm does not know it. Expected a job that "
            "`hpcncf sbatch` submitted from this folder, or one with `hpcncf run` in its script"
        )
    if state.state == "pending":
        return f"job {job}: is pending ({state.reason or state.word}); it has not started yet"
    return (
        f"job {job}: is {state.word}, and was not observed: no record in {where}. Submit it by "
        f"`hpcncf sbatch`, or read Slurm's figures: hpcncf explain {job}"
    )


def show(found: FoundAttempts, as_json: bool) -> int:
    """Print the summary of each attempt; returns exit code 3 if none left a record, else 0."""
    from hpcncf.cli.output import format_path, print_json
    from hpcncf.cli.run_summary import lines, marks_for
    from hpcncf_analysis.diagnosis.summary import summarize

    marks = marks_for(sys.stdout)
    shown = 0
    plain: list[dict[str, Any]] = []
    for attempt, claim in found:
        ranks = _read(attempt.rank_records(), RankRecord)
        nodes = _read(attempt.node_records(), NodeRecord)
        if not ranks or not nodes:
            plain.append(_show_unfinished(attempt, claim, as_json))
            continue
        shown += 1
        summary = summarize(ranks, nodes)
        plain.append(
            {
                "job": claim.slurm_job_id,
                "folder": str(attempt.folder),
                "state": ranks[0].outcome,
                **summary.plain(),
                "ranks": [each.model_dump(mode="json") for each in ranks],
            }
        )
        if not as_json and shown <= PAGES:
            where = format_path(attempt.folder)
            print(
                f"job {claim.slurm_job_id}",
                *lines(summary, where, marks),
                "",
                sep="\n",
            )
    if as_json:
        print_json("diagnose", {"jobs": plain})
    elif shown > PAGES:
        print(f"{shown - PAGES} more tasks: hpcncf diagnose {found[-1][1].slurm_job_id}")
    return 0 if shown else 3


def _show_unfinished(attempt: AttemptPaths, claim: Claim, as_json: bool) -> dict[str, Any]:
    """Print what is known so far of a job without a record; return it as plain data."""
    from hpcncf.cli.early import forecast
    from hpcncf.cli.job_page import lines_so_far
    from hpcncf.cli.output import format_path
    from hpcncf.collect.unfinished import records_so_far
    from hpcncf_analysis.diagnosis.summary import summarize

    state = "is running" if is_alive(claim, attempt) else "left no record"
    since = f"{state} (since {claim.claimed_at})"
    ranks, nodes = records_so_far(attempt, claim)
    summary = summarize(ranks, nodes) if ranks else None
    if not as_json:
        print(f"job {claim.slurm_job_id}: {since}")
        if summary:
            where, end = format_path(attempt.folder), forecast(summary, claim.slurm_job_id)
            print(*lines_so_far(summary, since, where, end), "", sep="\n")
    return {
        "job": claim.slurm_job_id,
        "folder": str(attempt.folder),
        "state": state,
        **(summary.plain() if summary else {}),
        "ranks": [each.model_dump(mode="json") for each in ranks],
    }


def find_probe_folders(job: str, results: Path | None) -> list[Path]:
    """Find folders of the probe of a Slurm job, or of any task of an array, by task.

    They are those of jobs that had the probe's variables only: see `hpcncf sbatch --print-env`.
    """
    found = []
    for folder in [results] if results else sorted(Path("results").glob("*")):
        found += [path for path in (folder / PROBES).glob(f"{job}*") if _is_of(path.name, job)]
    return sorted(found, key=lambda path: (len(path.name), path.name))


def _is_of(name: str, job: str) -> bool:
    return name == job or (name.startswith(f"{job}_") and is_job_id(name))


def show_probed(folders: list[Path], as_json: bool) -> int:
    """Print the page of each folder of the probe; returns exit code 3 if none has files, else 0."""
    from hpcncf.cli.job_page import lines_of_probe
    from hpcncf.cli.output import format_path, print_json
    from hpcncf.collect.unfinished import records_of_probe

    plain: list[dict[str, Any]] = []
    for folder in folders:
        ranks, nodes = records_of_probe(folder)
        shown = [each.model_dump(mode="json") for each in ranks]
        job = ranks[0].slurm_job_id if ranks else folder.name
        plain.append({"job": job, "folder": str(folder), "state": "not known", "ranks": shown})
        if as_json:
            continue
        if ranks:
            print(*lines_of_probe(ranks, nodes, format_path(folder)), "", sep="\n")
        else:
            print(f"{format_path(folder)}: no process of Python has left a file for the probe yet")
    if as_json:
        print_json("diagnose", {"jobs": plain})
    return 0 if any(each["ranks"] for each in plain) else 3


def _read(paths: list[Path], kind: type) -> list:  # type: ignore[type-arg]
    return [each for path in paths if (each := read_optional(path, kind))]
