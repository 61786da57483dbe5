"""Show what is known of a Slurm job by its id."""

from __future__ import annotations

import json
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
    from hpcncf.cli.output import format_path
    from hpcncf.cli.run_summary import BLOCKS, PLAIN, lines
    from hpcncf_analysis.diagnosis.summary import summarize

    marks = BLOCKS if (sys.stdout.encoding or "").lower().startswith("utf") else PLAIN
    shown = 0
    plain: list[dict[str, Any]] = []
    for attempt, claim in found:
        ranks = _read(attempt.rank_records(), RankRecord)
        nodes = _read(attempt.node_records(), NodeRecord)
        if not ranks or not nodes:
            state = "is running" if is_alive(claim, attempt) else "left no record"
            plain.append({"job": claim.slurm_job_id, "folder": str(attempt.folder), "state": state})
            if not as_json:
                print(f"job {claim.slurm_job_id}: {state} (since {claim.claimed_at})")
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
        print(json.dumps({"jobs": plain}, indent=1, allow_nan=False))
    elif shown > PAGES:
        print(f"{shown - PAGES} more tasks: hpcncf diagnose {found[-1][1].slurm_job_id}")
    return 0 if shown else 3


def _read(paths: list[Path], kind: type) -> list:  # type: ignore[type-arg]
    return [each for path in paths if (each := read_optional(path, kind))]
