"""The primary cause in words, and the settings that remove it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Final

from pydantic import ValidationError

from hpcncf.errors import UsageError
from hpcncf.job.load import apply_override
from hpcncf.job.plan import expand_job
from hpcncf.job.spec import JobSpec, Resources
from hpcncf_analysis.advice.recommend import mostly_disturbed
from hpcncf_analysis.advice.request import Request, time_limit_min
from hpcncf_analysis.configurations import Configuration, pluralize
from hpcncf_analysis.diagnosis import format
from hpcncf_analysis.diagnosis.evidence import Cause, Diagnosis, Finding, Gain
from hpcncf_analysis.formatting import format_cores, format_percent

Diagnoses = Mapping[str, Diagnosis]
"""Run id -> its diagnosis."""

# No cause of waste, and told only where there is no other.
TOO_SHORT: Final[Cause] = "too_short_to_judge"
# Cores that idle for one of these may be needed once it is gone.
CAUSES_HIDING_NEED: Final[frozenset[Cause]] = frozenset(
    {"one_core_confinement", "neighbour_load", "memory_pressure", TOO_SHORT}
)
CAUSE_DESCRIPTIONS: Final[Mapping[Cause, str]] = {
    "one_core_confinement": "it may use fewer cores than it was allocated",
    "oversubscribed": "more threads want to run than it has cores",
    "neighbour_load": "others are busy on its cores",
    "python_input": "its samples are made in Python, while training waits",
    "input_io": "it waits for files",
    "worker_overhead": "its DataLoader workers cost more than they bring",
    "dense_optimizer": "the optimiser walks rows that no batch touched",
    "serial_step": "one thread works and the other cores idle",
    "sync_bound": "its ranks wait for what they exchange",
    "straggler": "all ranks wait for a slow one",
    "load_imbalance": "its ranks have unequal shares of the data",
    "evaluation_bound": "it evaluates where it could train",
    "startup_bound": "it is starting up",
    "checkpoint_bound": "it writes checkpoints",
    "memory_pressure": "it is short of memory",
    "too_short_to_judge": "it was too short to judge",
    "gpu_underused": "its GPU waits for work",
    "loop_code": "its own Python code takes the time between the phases of a step",
    "interpreter_lock": "its Python threads wait for the interpreter's lock",
    "too_few_workers": "its DataLoader workers are all busy while cores idle",
    "memory_growth": "its memory grows with each step",
}


@dataclass(frozen=True)
class CauseSentence:
    """The cause that a conclusion opens with."""

    cause: Cause
    sentence: str
    """Whose it is, what it costs, and the remedy where that is told."""
    remedy: str = ""
    """As the sentence tells it; empty where it names one that is free of the cause instead."""


def agreed_diagnosis(one: Configuration, diagnoses: Diagnoses) -> Diagnosis | None:
    """The first that says what more than half of the repeats say; None where there is none."""
    known = [diagnoses[row["run_id"]] for row in one.rows if row["run_id"] in diagnoses]
    if not known:
        return None
    said, times = Counter(map(_cause_or_verdict, known)).most_common(1)[0]
    if 2 * times <= len(one.rows):
        return None
    return next(each for each in known if _cause_or_verdict(each) == said)


def _cause_or_verdict(diagnosis: Diagnosis) -> str:
    return diagnosis.primary.cause if diagnosis.primary else diagnosis.verdict


def hides_need(found: Diagnosis | None) -> bool:
    """Whether idle cores tell nothing of how many are needed."""
    return (
        found is not None
        and found.primary is not None
        and found.primary.cause in CAUSES_HIDING_NEED
    )


def describe_main_cause(
    configurations: Sequence[Configuration], best: Configuration, diagnoses: Diagnoses
) -> CauseSentence | None:
    """The costliest cause, its cost, its remedy: the best one, where that is free of it."""
    found = _worst(configurations, diagnoses)
    if found is None:
        return None
    one, finding = found
    if finding.cause == TOO_SHORT and len(configurations) > 1:
        return None
    whose = one.label if len(configurations) > 1 else "This run"
    told = (
        f"{whose} {_describe_loss(finding)}: {CAUSE_DESCRIPTIONS[finding.cause]} ({finding.cause})"
    )
    chosen = agreed_diagnosis(best, diagnoses)
    if chosen and _is_free(chosen, finding):
        return CauseSentence(finding.cause, f"{told}; {best.label} does not.")
    advised = describe_remedy(finding)
    return CauseSentence(finding.cause, f"{told}. {advised}", advised)


def _is_free(chosen: Diagnosis, finding: Finding) -> bool:
    """Whether the run was judged, and not found to have it."""
    causes = {each.cause for each in chosen.findings}
    return chosen.verdict != "unknown" and not causes & {finding.cause, TOO_SHORT}


def describe_remaining_costs(
    configurations: Sequence[Configuration], best: Configuration, diagnoses: Diagnoses
) -> list[str]:
    """What still costs the best one something, where the sentence is about another."""
    worst, found = _worst(configurations, diagnoses), agreed_diagnosis(best, diagnoses)
    if worst is None or found is None or found.primary is None:
        return []
    finding = found.primary
    if finding.cause in (worst[1].cause, TOO_SHORT):
        return []
    return [
        f"{best.label} still {_describe_loss(finding)}: {CAUSE_DESCRIPTIONS[finding.cause]} "
        f"({finding.cause}). "
        f"{describe_remedy(finding)}"
    ]


def _worst(
    configurations: Sequence[Configuration], diagnoses: Diagnoses
) -> tuple[Configuration, Finding] | None:
    """Where a cause wastes most core-hours of a run."""
    found = [
        (one, each.primary) for one in configurations if (each := agreed_diagnosis(one, diagnoses))
    ]
    causes = [(one, finding) for one, finding in found if finding]
    told = [each for each in causes if each[1].cause != TOO_SHORT]
    return max(told or causes, key=_lost_core_hours, default=None)


def _lost_core_hours(found: tuple[Configuration, Finding]) -> float:
    one, finding = found
    return finding.share * (one.median("core_hours") or 0.0)


def _describe_loss(finding: Finding) -> str:
    if finding.cause == TOO_SHORT:
        return "tells little"
    return f"loses {format_percent(finding.share)} of its {finding.of}"


def describe_remedy(finding: Finding) -> str:
    """With the settings that apply it, and what they should bring."""
    settings = format.settings(finding.changes)
    brings = [settings] if settings else []
    brings += [f"predicted: {format.gain(finding.gain)}"] if finding.gain else []
    return (
        f"{finding.remedy.removesuffix('.')} ({'; '.join(brings)})." if brings else finding.remedy
    )


# Below this share of its cores a single run is told to try fewer.
IDLE_EFFICIENCY: Final = 0.8
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


def build_change(
    one: Configuration, job: JobSpec, asked: Resources, wanted: Request, found: Diagnosis | None
) -> Change | None:
    """`job` as it was measured, asking what is `wanted`; None where nothing is to be changed."""
    if found and found.primary and found.primary.changes:
        return apply_remedy(found.primary, job, asked, wanted)
    fewer = None if hides_need(found) else fewer_cores(one)
    if fewer is None:
        return None
    threads = job.training.threads
    changes: dict[str, Any] = {"resources.cpus_per_task": fewer}
    changes |= {"training.threads": "auto"} if threads != "auto" and threads > fewer else {}
    reason = f"{format_cores(one.median('cores_used'))} of {pluralize(one.cores, 'core')} were used"
    return _changed_job(job, asked, wanted, changes, f"since {reason}", None)


def fewer_cores(one: Configuration) -> int | None:
    """Cores for each rank that hold what was used; None where that is no fewer, or not known."""
    used, efficiency = one.median("cores_used"), one.median("cpu_efficiency")
    if (
        used is None
        or efficiency is None
        or efficiency >= IDLE_EFFICIENCY
        or mostly_disturbed([one])
    ):
        return None
    fewer = max(ceil(used / one.ranks - NO_CORE), 1)
    return fewer if fewer * one.ranks < one.cores else None


def apply_remedy(
    finding: Finding, job: JobSpec, asked: Resources, wanted: Request
) -> Change | None:
    """With the settings that remove the cause; None where none does."""
    why = f"the remedy of {finding.cause}"
    return _changed_job(job, asked, wanted, finding.changes, why, finding.gain)


def _changed_job(
    job: JobSpec,
    asked: Resources,
    wanted: Request,
    changes: Mapping[str, Any],
    why: str,
    gain: Gain | None,
) -> Change | None:
    """None where the settings do not go together, or nothing is left to change."""
    changed = _apply_changes(job, changes)
    if changed is None or changed == job:
        return None
    before = {key: _value(job, key) for key in changes}
    told = ", ".join(f"{key} {before[key]} → {changes[key]}" for key in changes)
    sized = _resize_request(changed.resources, asked, wanted, gain)
    expected = f"; predicted: {format.gain(gain)}" if gain else ""
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


def _apply_changes(job: JobSpec, changes: Mapping[str, Any]) -> JobSpec | None:
    plain = job.model_dump(mode="json")
    for key, value in changes.items():
        apply_override(plain, key, value)
    try:
        changed = JobSpec.model_validate(plain)
        expand_job(changed)
    except (ValidationError, UsageError):
        return None
    return changed


def _value(job: JobSpec, dotted: str) -> Any:
    section, _, key = dotted.partition(".")
    known = getattr(job, section)
    return known.get(key) if isinstance(known, Mapping) else getattr(known, key) if key else known


def _resize_request(
    changed: Resources, asked: Resources, wanted: Request, gain: Gain | None
) -> Request:
    """Memory no less than it had, and a time that holds should the change slow it down."""
    expected_s = wanted.expected_s
    if expected_s is not None:
        expected_s *= max(1.0, _worst_slowdown(changed, wanted.resources, gain))
    sized = {
        "mem_gb": max(asked.mem_gb, wanted.resources.mem_gb),
        "timeout_min": asked.timeout_min if expected_s is None else time_limit_min(expected_s),
    }
    return replace(
        wanted,
        resources=changed.model_copy(update=sized),
        expected_s=expected_s,
        memory=f"{wanted.memory} No less than before: the change was not measured.",
    )


def _worst_slowdown(changed: Resources, before: Resources, gain: Gain | None) -> float:
    """At worst so many times the time: without a prediction, all the more for fewer cores."""
    cores = before.cores / changed.cores
    if gain is None:
        return cores
    if gain.what == "core_hours":
        return gain.high * cores
    return 1 / gain.low if gain.low > 0 else 1.0
