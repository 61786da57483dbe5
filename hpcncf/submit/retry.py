"""Retry with more memory or time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from hpcncf.job.plan import Plan, Run
from hpcncf.job.spec import JobSpec, Resources
from hpcncf.paths import ResultPaths
from hpcncf.records.results_folder import locked, read_plan, write_plan, writing
from hpcncf.records.submissions import read_submissions
from hpcncf.slurm.site import asks_memory, load_sites
from hpcncf.state import status
from hpcncf.state.status import RunState

Key = Literal["mem_gb", "timeout_min"]
MORE: Final = 2
# Of what the job file asks: three times doubled. What needs more has another fault.
MOST: Final = 8


@dataclass(frozen=True)
class Change:
    """What one or several runs get, and had."""

    key: Key
    before: float
    after: float
    """No more than `before` where the runs are left alone."""
    why_not: str
    """Why they are left alone; empty where they are not."""


def escalate(
    paths: ResultPaths, job: JobSpec, refusal: Callable[[Resources], str | None]
) -> tuple[Plan, Mapping[Change, list[str]]]:
    """The results' plan with more for those that ran out, and what changed for which runs.

    `refusal` says why the cluster would not take such resources.
    """
    changes: dict[Change, list[str]] = {}
    more: dict[str, Resources] = {}
    with writing(paths.folder), locked(paths):
        plan = read_plan(paths)
        unsent = read_submissions(paths).unsent()  # these have more already
        for state in status.states(paths, plan):
            key = None if state.run.id in unsent else ran_out_of(state)
            if key is None:
                continue
            change = enlarged(state.run, key, job, refusal)
            changes.setdefault(change, []).append(state.run.id)
            if not change.why_not:
                more[state.run.id] = _with(state.run.resources, key, change.after)
        if more:
            plan = plan.model_copy(update={"runs": [_amended(run, more) for run in plan.runs]})
            write_plan(paths, plan)
    return plan, changes


def ran_out_of(state: RunState) -> Key | None:
    """What the run had too little of, as far as its end tells."""
    if state.run.retired:
        return None
    if state.state == "out_of_memory":
        return "mem_gb"
    return "timeout_min" if state.state == "timeout" or _warned_late(state) else None


def _warned_late(state: RunState) -> bool:
    """Stopped by Slurm's warning after most of its time: preemption would come at any time."""
    limit_s = state.run.resources.timeout_min * 60
    warned = state.state == "stopped" and "time limit" in state.reason
    return warned and any(rank.elapsed_s > limit_s / 2 for rank in state.ranks)


def enlarged(
    run: Run, key: Key, job: JobSpec, refusal: Callable[[Resources], str | None]
) -> Change:
    """Twice as much, or why not."""
    asked = run.varied.get(f"resources.{key}", getattr(job.resources, key))
    before = getattr(run.resources, key)
    after = min(before * MORE, asked * MOST)
    if after <= before:
        return Change(key, before, before, f"that is {MOST} times what the job file asks")
    if key == "mem_gb" and not asks_memory(run.resources, load_sites(job.site)):
        return Change(key, before, before, f"site {job.site} asks Slurm for no memory (its memory)")
    refused = refusal(_with(run.resources, key, after))
    return Change(key, before, before if refused else after, refused or "")


def _with(resources: Resources, key: Key, amount: float) -> Resources:
    return resources.model_copy(update={key: amount})


def _amended(run: Run, more: Mapping[str, Resources]) -> Run:
    return run.model_copy(update={"resources": more.get(run.id, run.resources)})
