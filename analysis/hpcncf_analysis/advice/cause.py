"""Which cause to name first, in words: what wastes, how much, and what to do about it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from hpcncf_analysis import words
from hpcncf_analysis.diagnosis import Cause, Diagnosis, Finding, telling
from hpcncf_analysis.summary import Configuration

Diagnoses = Mapping[str, Diagnosis]
"""Run id -> its diagnosis."""

# No cause of waste, and told only where there is no other.
TOO_SHORT: Final[Cause] = "too_short_to_judge"
# Cores that idle for one of these may be needed once it is gone.
HIDING: Final[frozenset[Cause]] = frozenset(
    {"one_core_confinement", "neighbour_load", "memory_pressure", TOO_SHORT}
)
MEANS: Final[Mapping[Cause, str]] = {
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
}


@dataclass(frozen=True)
class Named:
    """The cause that a conclusion opens with."""

    cause: Cause
    sentence: str
    """Whose it is, what it costs, and the remedy where that is told."""
    remedy: str = ""
    """As the sentence tells it; empty where it names one that is free of the cause instead."""


def of(one: Configuration, diagnoses: Diagnoses) -> Diagnosis | None:
    """The first that says what more than half of the repeats say; None where there is none."""
    known = [diagnoses[row["run_id"]] for row in one.rows if row["run_id"] in diagnoses]
    if not known:
        return None
    said, times = Counter(map(_says, known)).most_common(1)[0]
    if 2 * times <= len(one.rows):
        return None
    return next(each for each in known if _says(each) == said)


def _says(diagnosis: Diagnosis) -> str:
    return diagnosis.primary.cause if diagnosis.primary else diagnosis.verdict


def hides_need(found: Diagnosis | None) -> bool:
    """Whether idle cores tell nothing of how many are needed."""
    return found is not None and found.primary is not None and found.primary.cause in HIDING


def named(
    configurations: Sequence[Configuration], best: Configuration, diagnoses: Diagnoses
) -> Named | None:
    """The costliest cause, its cost, its remedy: the best one, where that is free of it."""
    found = _worst(configurations, diagnoses)
    if found is None:
        return None
    one, finding = found
    if finding.cause == TOO_SHORT and len(configurations) > 1:
        return None
    whose = one.label if len(configurations) > 1 else "This run"
    told = f"{whose} {_loses(finding)}: {MEANS[finding.cause]} ({finding.cause})"
    chosen = of(best, diagnoses)
    if chosen and _is_free(chosen, finding):
        return Named(finding.cause, f"{told}; {best.label} does not.")
    advised = remedy(finding)
    return Named(finding.cause, f"{told}. {advised}", advised)


def _is_free(chosen: Diagnosis, finding: Finding) -> bool:
    """Whether the run was judged, and not found to have it."""
    causes = {each.cause for each in chosen.findings}
    return chosen.verdict != "unknown" and not causes & {finding.cause, TOO_SHORT}


def left(
    configurations: Sequence[Configuration], best: Configuration, diagnoses: Diagnoses
) -> list[str]:
    """What still costs the best one something, where the sentence is about another."""
    worst, found = _worst(configurations, diagnoses), of(best, diagnoses)
    if worst is None or found is None or found.primary is None:
        return []
    finding = found.primary
    if finding.cause in (worst[1].cause, TOO_SHORT):
        return []
    return [
        f"{best.label} still {_loses(finding)}: {MEANS[finding.cause]} ({finding.cause}). "
        f"{remedy(finding)}"
    ]


def _worst(
    configurations: Sequence[Configuration], diagnoses: Diagnoses
) -> tuple[Configuration, Finding] | None:
    """Where a cause wastes most core-hours of a run."""
    found = [(one, each.primary) for one in configurations if (each := of(one, diagnoses))]
    causes = [(one, finding) for one, finding in found if finding]
    told = [each for each in causes if each[1].cause != TOO_SHORT]
    return max(told or causes, key=_lost, default=None)


def _lost(found: tuple[Configuration, Finding]) -> float:
    one, finding = found
    return finding.share * (one.median("core_hours") or 0.0)


def _loses(finding: Finding) -> str:
    if finding.cause == TOO_SHORT:
        return "tells little"
    return f"loses {words.percent(finding.share)} of its {finding.of}"


def remedy(finding: Finding) -> str:
    """With the settings that apply it, and what they should bring."""
    settings = telling.settings(finding.changes)
    brings = [settings] if settings else []
    brings += [f"predicted: {telling.gain(finding.gain)}"] if finding.gain else []
    return (
        f"{finding.remedy.removesuffix('.')} ({'; '.join(brings)})." if brings else finding.remedy
    )
