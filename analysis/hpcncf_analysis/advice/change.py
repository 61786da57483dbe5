"""What to try after a single run: its cause's remedy, or fewer cores; in a study the remedy of the
best. Not measured, and said so. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Final

from pydantic import ValidationError

from hpcncf import plan
from hpcncf.errors import UsageError
from hpcncf.overrides import override
from hpcncf.spec import JobSpec, Resources
from hpcncf_analysis import words
from hpcncf_analysis.advice.cause import hides_need
from hpcncf_analysis.advice.recommend import mostly_disturbed
from hpcncf_analysis.advice.request import Request, timeout_min
from hpcncf_analysis.diagnosis import Diagnosis, Finding, Gain, telling
from hpcncf_analysis.labels import counted
from hpcncf_analysis.summary import Configuration

# Below this share of its cores a single run is told to try fewer.
IDLE: Final = 0.8
# As much of a core is no core: clocks tick, start-up counts.
NO_CORE: Final = 0.1


@dataclass(frozen=True)
class Change:
    """A job that differs from the run that was measured."""

    job: JobSpec
    request: Request
    text: str
    """What was changed, why, and what is expected of it; sentences."""
    before: Mapping[str, Any]
    """The settings as they were measured, dotted."""
    costs: tuple[float, float, float] | None
    """Core-hours of the same work over what they were: predicted, at best, at worst; None where
    nothing tells, as of fewer cores that may slow it down."""


def change(
    one: Configuration, job: JobSpec, asked: Resources, wanted: Request, found: Diagnosis | None
) -> Change | None:
    """`job` as it was measured, asking what is `wanted`; None where nothing is to be changed."""
    if found and found.primary and found.primary.changes:
        return remedied(found.primary, job, asked, wanted)
    fewer = None if hides_need(found) else fewer_cores(one)
    if fewer is None:
        return None
    threads = job.training.threads
    changes: dict[str, Any] = {"resources.cpus_per_task": fewer}
    changes |= {"training.threads": "auto"} if threads != "auto" and threads > fewer else {}
    reason = f"{words.cores(one.median('cores_used'))} of {counted(one.cores, 'core')} were used"
    return _changed(job, asked, wanted, changes, f"since {reason}", None)


def fewer_cores(one: Configuration) -> int | None:
    """Cores for each rank that hold what was used; None where that is no fewer, or not known."""
    used, efficiency = one.median("cores_used"), one.median("cpu_efficiency")
    if used is None or efficiency is None or efficiency >= IDLE or mostly_disturbed([one]):
        return None
    fewer = max(ceil(used / one.ranks - NO_CORE), 1)
    return fewer if fewer * one.ranks < one.cores else None


def remedied(finding: Finding, job: JobSpec, asked: Resources, wanted: Request) -> Change | None:
    """With the settings that remove the cause; None where none does."""
    why = f"the remedy of {finding.cause}"
    return _changed(job, asked, wanted, finding.changes, why, finding.gain)


def _changed(
    job: JobSpec,
    asked: Resources,
    wanted: Request,
    changes: Mapping[str, Any],
    why: str,
    gain: Gain | None,
) -> Change | None:
    """None where the settings do not go together, or nothing is left to change."""
    changed = _with(job, changes)
    if changed is None or changed == job:
        return None
    before = {key: _value(job, key) for key in changes}
    told = ", ".join(f"{key} {before[key]} → {changes[key]}" for key in changes)
    sized = _sized(changed.resources, asked, wanted, gain)
    expected = f"; predicted: {telling.gain(gain)}" if gain else ""
    text = f"Not run yet: {told}, {why}{expected}."
    costs = _costs(gain, changed.resources.cores / job.resources.cores) if gain else None
    job = changed.model_copy(update={"resources": sized.resources})
    return Change(job, sized, text, before, costs)


def _costs(gain: Gain, cores: float) -> tuple[float, float, float] | None:
    """`cores`: times as many as before."""
    if gain.what == "core_hours":
        return gain.factor, gain.low, gain.high
    if min(gain.factor, gain.low, gain.high) <= 0:
        return None
    return cores / gain.factor, cores / gain.high, cores / gain.low


def _with(job: JobSpec, changes: Mapping[str, Any]) -> JobSpec | None:
    plain = job.model_dump(mode="json")
    for key, value in changes.items():
        override(plain, key, value)
    try:
        changed = JobSpec.model_validate(plain)
        plan.expand(changed)
    except (ValidationError, UsageError):
        return None
    return changed


def _value(job: JobSpec, dotted: str) -> Any:
    section, _, key = dotted.partition(".")
    known = getattr(job, section)
    return known.get(key) if isinstance(known, Mapping) else getattr(known, key) if key else known


def _sized(changed: Resources, asked: Resources, wanted: Request, gain: Gain | None) -> Request:
    """Memory no less than it had, and a time that holds should the change slow it down."""
    expected_s = wanted.expected_s
    if expected_s is not None:
        expected_s *= max(1.0, _slower(changed, wanted.resources, gain))
    sized = {
        "mem_gb": max(asked.mem_gb, wanted.resources.mem_gb),
        "timeout_min": asked.timeout_min if expected_s is None else timeout_min(expected_s),
    }
    return replace(
        wanted,
        resources=changed.model_copy(update=sized),
        expected_s=expected_s,
        memory=f"{wanted.memory} No less than before: the change was not measured.",
    )


def _slower(changed: Resources, before: Resources, gain: Gain | None) -> float:
    """At worst so many times the time: without a prediction, all the more for fewer cores."""
    cores = before.cores / changed.cores
    if gain is None:
        return cores
    if gain.what == "core_hours":
        return gain.high * cores
    return 1 / gain.low if gain.low > 0 else 1.0
