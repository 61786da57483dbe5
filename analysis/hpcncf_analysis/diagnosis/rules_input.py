"""Rules on input: samples made in Python, slow files, DataLoader workers."""

from __future__ import annotations

from hpcncf_analysis.configurations import pluralize
from hpcncf_analysis.diagnosis import thresholds
from hpcncf_analysis.diagnosis.evidence import Evidence, Finding
from hpcncf_analysis.diagnosis.expected_gain import applied, in_process, vectorized
from hpcncf_analysis.formatting import format_percent


def python_input(evidence: Evidence) -> Finding | None:
    """The steps wait for samples that are being computed, one by one, in Python.

    Our own training's loader is known; a command's input that computes is taken for one.
    """
    share = evidence.of_time("input") - waiting(evidence)
    own = evidence.trained
    one_by_one = not own or evidence.training.get("loader") == "per_sample"
    if not evidence.worth(share) or not one_by_one or pays_less(evidence):
        return None
    waits = f"{format_percent(evidence.phases['input'])} of a step waits for the next batch"
    workers = pluralize(evidence.workers, "worker")
    return Finding(
        "python_input",
        share,
        "time",
        (
            f"{waits}, while a CPU computes",
            *([f"training.loader is per_sample, with {workers}"] if own else []),
        ),
        "Make whole batches at once with tensor or array operations"
        + (": training.loader vectorized." if own else "."),
        applied(evidence, loader="vectorized"),
        vectorized(evidence) if own else None,
    )


def waiting(evidence: Evidence) -> float:
    """Share of the elapsed time in which the input neither arrives nor is computed by anybody."""
    return min(
        evidence.of_time("input"), max(0.0, evidence.idle - evidence.phases.get("sync", 0.0))
    )


def input_io(evidence: Evidence) -> Finding | None:
    """The steps, or a command of which no phase is known, wait for files."""
    share = waiting(evidence)
    if not evidence.worth(share) and not evidence.phases:
        waited_s = evidence.blocked_s if evidence.iowait_s is None else evidence.iowait_s
        share = min(evidence.of_elapsed(waited_s) / evidence.world_size, evidence.idle, 1.0)
    if not evidence.worth(share):
        return None
    lines = []
    if "input" in evidence.phases:
        waits = format_percent(evidence.phases["input"])
        lines.append(f"{waits} of a step waits for the next batch")
    lines.append(f"no CPU of the run computes for {format_percent(share)} of the time meanwhile")
    if evidence.iowait_s:
        lines.append(f"its threads waited {evidence.iowait_s:.0f} s for disks")
    if evidence.read_mib:
        lines.append(f"{evidence.read_mib:,.0f} MiB were read from storage")
    if evidence.major_faults:
        lines.append(f"{evidence.major_faults:,} page faults read from a disk")
    return Finding(
        "input_io",
        share,
        "time",
        tuple(lines),
        "Read from a faster place (node-local disk or memory), in larger pieces, or ahead of need "
        "by workers.",
    )


def worker_overhead(evidence: Evidence) -> Finding | None:
    """DataLoader workers that cost more than they bring: the steps wait for their batches longer
    than making them would take, or an epoch for its workers to start."""
    waits = evidence.of_time("input") if pays_less(evidence) else 0.0
    starts = evidence.of_elapsed(evidence.first_batch_s) if evidence.workers else 0.0
    share = max(waits, starts)
    if not evidence.worth(share):
        return None
    lines = [f"{pluralize(evidence.workers, 'worker')} per rank"]
    if waits >= starts:
        waited, computed = map(format_percent, (evidence.phases["input"], _computed(evidence)))
        lines.append(
            f"{waited} of the steps' time waits for their batches, making them would take "
            f"{computed} at most"
        )
    if evidence.worth(starts):
        lines.append(f"{format_percent(starts)} of the time epochs wait for their first batch")
    known = evidence.trained and evidence.children_s is not None
    return Finding(
        "worker_overhead",
        share,
        "time",
        tuple(lines),
        "Make the batches in the rank's own process: num_workers 0"
        + (", or training.loader vectorized." if evidence.trained else "."),
        applied(evidence, num_workers=0),
        in_process(evidence, _computed(evidence)) if known else None,
    )


def pays_less(evidence: Evidence) -> bool:
    """Whether the rank would have waited less by making the batches itself."""
    if not evidence.workers or evidence.children_s is None or not evidence.training_s:
        return False
    # Threads that make batches spend the rank's own CPU time, which no counter splits.
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
