"""Rules on input: samples made in Python, slow files, DataLoader workers."""

from __future__ import annotations

from hpcncf_analysis.configurations import pluralize
from hpcncf_analysis.diagnosis import thresholds
from hpcncf_analysis.diagnosis.evidence import Evidence, Finding, Gain
from hpcncf_analysis.diagnosis.expected_gain import applied, in_process, vectorized
from hpcncf_analysis.formatting import format_percent


def python_input(evidence: Evidence) -> Finding | None:
    """The steps wait for samples that are being computed, one by one, in Python."""
    share = evidence.of_time("input") - waiting(evidence)
    if not evidence.worth(share) or not _one_by_one(evidence) or pays_less(evidence):
        return None
    return Finding(
        "python_input",
        share,
        "time",
        (
            f"{format_percent(evidence.phases['input'])} of a step waits for the next batch, "
            "while a CPU "
            "computes",
            *_maker(evidence),
        ),
        "Make whole batches at once with tensor or array operations"
        + (": training.loader vectorized." if evidence.trained else "."),
        applied(evidence, loader="vectorized"),
        vectorized(evidence) if evidence.trained else None,
    )


def _one_by_one(evidence: Evidence) -> bool:
    """Of our own training the loader is known; a command's input that computes is taken for it."""
    return not evidence.trained or evidence.training.get("loader") == "per_sample"


def _maker(evidence: Evidence) -> list[str]:
    if not evidence.trained:
        return []
    return [f"training.loader is per_sample, with {pluralize(evidence.workers, 'worker')}"]


def waiting(evidence: Evidence) -> float:
    """Share of the elapsed time in which the input neither arrives nor is computed by anybody."""
    return min(
        evidence.of_time("input"), max(0.0, evidence.idle - evidence.phases.get("sync", 0.0))
    )


def input_io(evidence: Evidence) -> Finding | None:
    """The steps, or a command of which no phase is known, wait for files."""
    device = _device(evidence)
    share = waiting(evidence)
    if not evidence.worth(share) and not evidence.phases:
        share = min(device, evidence.idle)
    if not evidence.worth(share):
        return None
    return Finding(
        "input_io",
        share,
        "time",
        tuple(_waits(evidence, share)),
        "Read from a faster place (node-local disk or memory), in larger pieces, or ahead of need "
        "by workers.",
    )


def _device(evidence: Evidence) -> float:
    """Share of the time that a rank's thread waited for a disk."""
    measured = evidence.iowait_s
    if measured is None:
        measured = evidence.blocked_s
    return min(1.0, evidence.of_elapsed(measured) / evidence.world_size)


def _waits(evidence: Evidence, share: float) -> list[str]:
    told = []
    if "input" in evidence.phases:
        told.append(
            f"{format_percent(evidence.phases['input'])} of a step waits for the next batch"
        )
    told.append(f"no CPU of the run computes for {format_percent(share)} of the time meanwhile")
    if evidence.iowait_s:
        told.append(f"its threads waited {evidence.iowait_s:.0f} s for disks")
    if evidence.read_mib:
        told.append(f"{evidence.read_mib:,.0f} MiB were read from storage")
    if evidence.major_faults:
        told.append(f"{evidence.major_faults:,} page faults read from a disk")
    return told


def worker_overhead(evidence: Evidence) -> Finding | None:
    """DataLoader workers that cost more than they bring: the steps wait for their batches longer
    than making them would take, or an epoch for its workers to start."""
    waits = evidence.of_time("input") if pays_less(evidence) else 0.0
    starts = evidence.of_elapsed(evidence.first_batch_s) if evidence.workers else 0.0
    share = max(waits, starts)
    if not evidence.worth(share):
        return None
    told = [f"{pluralize(evidence.workers, 'worker')} per rank"]
    if waits >= starts:
        told.append(
            f"{format_percent(evidence.phases['input'])} of the steps' time waits for their "
            "batches, "
            f"making them would take {format_percent(_computed(evidence))} at most"
        )
    if evidence.worth(starts):
        told.append(f"{format_percent(starts)} of the time epochs wait for their first batch")
    return Finding(
        "worker_overhead",
        share,
        "time",
        tuple(told),
        "Make the batches in the rank's own process: num_workers 0"
        + (", or training.loader vectorized." if evidence.trained else "."),
        applied(evidence, num_workers=0),
        _in_process(evidence),
    )


def _in_process(evidence: Evidence) -> Gain | None:
    if not evidence.trained or evidence.children_s is None:
        return None
    return in_process(evidence, _computed(evidence))


def pays_less(evidence: Evidence) -> bool:
    """Whether the rank would have waited less by making the batches itself."""
    if not evidence.workers or evidence.children_s is None or not evidence.training_s:
        return False
    # Threads that make batches spend the rank's own CPU time: nothing tells them apart.
    if evidence.training.get("workers") == "thread":
        return False
    return evidence.phases.get("input", 0.0) >= _computed(evidence)


def _computed(evidence: Evidence) -> float:
    """The CPU time of all workers but for their starts, sending included, as a share of the steps:
    so much would a rank take at most that makes its batches itself."""
    if not evidence.training_s:
        return 0.0
    anew = evidence.training.get("persistent_workers") is False
    starts = evidence.workers * evidence.world_size * (evidence.epochs if anew else 1)
    own_s = max(0.0, (evidence.children_s or 0.0) - thresholds.WORKER_START_S * starts)
    return own_s / (evidence.training_s * evidence.world_size)
