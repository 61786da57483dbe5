"""Retry with more memory or time, as the user asks or doubled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from hpcncf.errors import UsageError
from hpcncf.job.load import parse_yaml
from hpcncf.job.plan import Plan, Run
from hpcncf.job.spec import JobSpec, Resources, validate_settings
from hpcncf.paths import ResultPaths
from hpcncf.records.plan_file import locked, read_plan, write_plan, writing
from hpcncf.records.submissions import read_submissions
from hpcncf.slurm.preflight import Limits
from hpcncf.slurm.submitit_parameters import asks_memory
from hpcncf.state import status
from hpcncf.state.status import RunState

ResourceKey = Literal["mem_gb", "timeout_min"]
FACTOR: Final = 2
FREE: Final = ("resources.mem_gb", "resources.timeout_min", "resources.runs_per_task")
# Runs in these states keep their request.
KEPT_STATES: Final = ("completed", "running", "pending")
# Of the job file's request: three doublings. A run that needs more has another fault.
MAX_ESCALATION: Final = 8


@dataclass(frozen=True)
class RequestChange:
    """The request of one or several runs, before and after."""

    key: ResourceKey
    before: float
    after: float
    """`before` if the request stays."""
    why_not: str
    """Why the request stays; empty if it grows."""


def escalate(
    paths: ResultPaths, job: JobSpec, limits: Limits | None
) -> tuple[Plan, Mapping[RequestChange, list[str]]]:
    """Double the request of runs that ran out of it; return the new plan and all changes.

    `limits` are those of Slurm's site; None on this machine, which has none.
    """
    changes: dict[RequestChange, list[str]] = {}
    updates: dict[str, dict[str, float]] = {}
    with writing(paths.folder), locked(paths):
        plan = read_plan(paths)
        unsent = read_submissions(paths).unsent()  # doubled already
        for state in status.states(paths, plan):
            key = None if state.run.id in unsent else ran_out_of(state)
            if key is None:
                continue
            change = enlarged(state.run, key, job, limits)
            changes.setdefault(change, []).append(state.run.id)
            if not change.why_not:
                updates[state.run.id] = {key: change.after}
        if updates:
            runs = [with_resources(run, updates.get(run.id, {})) for run in plan.runs]
            plan = plan.model_copy(update={"runs": runs})
            write_plan(paths, plan)
    return plan, changes


def with_resources(run: Run, update: Mapping[str, Any]) -> Run:
    return run.model_copy(update={"resources": run.resources.model_copy(update=update)})


def ran_out_of(state: RunState) -> ResourceKey | None:
    """Return the resource that the run had too little of, as far as its end shows, or None."""
    if state.run.retired:
        return None
    if state.state == "out_of_memory":
        return "mem_gb"
    # Slurm's warning after most of the time; a preemption would come at any time.
    limit_s = state.run.resources.timeout_min * 60
    warned = state.state == "stopped" and "time limit" in state.reason
    late = warned and any(rank.elapsed_s > limit_s / 2 for rank in state.ranks)
    return "timeout_min" if state.state == "timeout" or late else None


def enlarged(run: Run, key: ResourceKey, job: JobSpec, limits: Limits | None) -> RequestChange:
    """Double the run's request of a resource; if it cannot grow, the result says why."""
    in_job_file = run.varied.get(f"resources.{key}", getattr(job.resources, key))
    before = getattr(run.resources, key)
    after = min(before * FACTOR, in_job_file * MAX_ESCALATION)
    if after <= before:
        why_not = f"that is {MAX_ESCALATION} times what the job file asks"
    elif key == "mem_gb" and limits and not asks_memory(run.resources, limits.site):
        why_not = f"site {job.site} asks Slurm for no memory (its memory)"
    else:
        asked = run.resources.model_copy(update={key: after})
        why_not = (limits.refusal(asked) if limits else None) or ""
    return RequestChange(key, before, before if why_not else after, why_not)


def amend(paths: ResultPaths, settings: Sequence[str]) -> Plan:
    """Apply `key=value` settings to all runs that will be submitted; return the new plan.

    Raises UsageError for a setting that would make it a different run.
    """
    plain: dict[str, Any] = {}
    for setting in settings:
        dotted, equals, text = setting.partition("=")
        if not equals:
            raise UsageError(f"-s {setting}: expected key=value, as in -s {FREE[1]}=60")
        if dotted not in FREE:
            raise UsageError(
                f"-s {setting}: would make it a different run. Submit the job file with that "
                f"setting; retry accepts {', '.join(FREE)}"
            )
        plain[dotted.split(".")[1]] = parse_yaml(text, f"-s {setting}")
    update = validate_settings(Resources, plain, "-s").model_dump(include=set(plain))
    if not update:
        return read_plan(paths)
    with writing(paths.folder), locked(paths):
        plan = read_plan(paths)
        states = status.states(paths, plan)
        runs = [s.run if s.state in KEPT_STATES else with_resources(s.run, update) for s in states]
        plan = plan.model_copy(update={"runs": runs})
        write_plan(paths, plan)
    return plan
