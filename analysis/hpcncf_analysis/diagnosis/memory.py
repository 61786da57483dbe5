"""The rule on memory: a run that waits for it, swaps, or lives at its limit. Pure."""

from __future__ import annotations

from hpcncf_analysis.diagnosis import thresholds
from hpcncf_analysis.diagnosis.evidence import Evidence
from hpcncf_analysis.diagnosis.finding import Finding
from hpcncf_analysis.words import mebibytes, percent


def memory_pressure(evidence: Evidence) -> Finding | None:
    """It costs the time that threads waited for memory; at its limit, where pages are read anew all
    the time, what no thread computed for itself."""
    waits = min(1.0, evidence.of_elapsed(evidence.memory_pressure_s))
    if _reads_anew(evidence):
        waits = max(waits, _not_computing(evidence))
    if waits < thresholds.WORTH:
        return None
    told = [f"for {percent(waits)} of the time threads waited for memory, or the kernel made room"]
    if evidence.memory_limit_mib:
        told.append(
            f"memory peaked at {mebibytes(evidence.memory_peak_mib)} of a limit of "
            f"{mebibytes(evidence.memory_limit_mib)}"
        )
    if evidence.swap_peak_mib:
        told.append(f"{mebibytes(evidence.swap_peak_mib)} were swapped out")
    if evidence.major_faults:
        told.append(f"{evidence.major_faults:,} page faults read from a disk")
    return Finding(
        "memory_pressure",
        waits,
        "time",
        tuple(told),
        "Ask for more memory (resources.mem_gb), or keep less of it: fewer workers, fewer ranks.",
    )


def _reads_anew(evidence: Evidence) -> bool:
    """Whether what was in memory is read again and again, since the limit leaves no room for it."""
    limit, faults = evidence.memory_limit_mib, evidence.major_faults or 0
    if not limit or evidence.memory_peak_mib is None:
        return False
    near = evidence.memory_peak_mib >= thresholds.MEMORY_LIMIT * limit
    return near and evidence.of_elapsed(faults) >= thresholds.FAULTS_PER_S


def _not_computing(evidence: Evidence) -> float:
    """Share of a rank's time in which its threads neither ran code of their own nor were kept from
    it by others."""
    in_kernel = evidence.of_elapsed(evidence.system_s) / evidence.world_size
    return min(1.0, evidence.idle + in_kernel)
