"""The rule on memory: a run that waits for it, swaps, or lives at its limit. Pure."""

from __future__ import annotations

from hpcncf_analysis.diagnosis import thresholds
from hpcncf_analysis.diagnosis.evidence import Evidence
from hpcncf_analysis.diagnosis.finding import Finding
from hpcncf_analysis.words import mebibytes, percent


def memory_pressure(evidence: Evidence) -> Finding | None:
    """Its cost is the time that threads waited for memory, or at a limit, what no CPU computed."""
    waits = min(1.0, evidence.of_elapsed(evidence.memory_pressure_s))
    at_limit = _of_limit(evidence) >= thresholds.MEMORY_LIMIT
    swapped = evidence.swap_peak_mib or 0.0
    if waits < thresholds.WORTH and at_limit and _faults(evidence):
        waits = max(waits, evidence.idle)
    if waits < thresholds.WORTH:
        return None
    told = [f"its threads waited for memory for {percent(waits)} of the time"]
    if evidence.memory_limit_mib:
        told.append(
            f"memory peaked at {mebibytes(evidence.memory_peak_mib)} of a limit of "
            f"{mebibytes(evidence.memory_limit_mib)}"
        )
    if swapped:
        told.append(f"{mebibytes(swapped)} were swapped out")
    if evidence.major_faults:
        told.append(f"{evidence.major_faults:,} page faults read from a disk")
    return Finding(
        "memory_pressure",
        waits,
        "time",
        tuple(told),
        "Ask for more memory (resources.mem_gb), or keep less of it: fewer workers, fewer ranks.",
    )


def _of_limit(evidence: Evidence) -> float:
    if not evidence.memory_limit_mib or evidence.memory_peak_mib is None:
        return 0.0
    return evidence.memory_peak_mib / evidence.memory_limit_mib


def _faults(evidence: Evidence) -> bool:
    return bool(evidence.major_faults or evidence.swap_peak_mib)
