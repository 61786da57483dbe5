"""Rules on what surrounds the steps: start-up, evaluation, checkpoints, and too little. Pure."""

from __future__ import annotations

from hpcncf_analysis.diagnosis import gains, thresholds
from hpcncf_analysis.diagnosis.changes import applied
from hpcncf_analysis.diagnosis.evidence import Evidence
from hpcncf_analysis.diagnosis.finding import Finding
from hpcncf_analysis.words import duration, percent


def too_short_to_judge(evidence: Evidence) -> Finding | None:
    """Too little was measured after start-up, unless start-up is what there is to say."""
    left_s = evidence.elapsed_s - (evidence.startup_s or 0.0)
    few = (
        evidence.counted_steps is not None
        and evidence.counted_steps < thresholds.SHORT_STEPS
        and (evidence.training_s or 0.0) < thresholds.SHORT_S
        and not evaluation_bound(evidence)
    )
    enough = (left_s >= thresholds.SHORT_S and not few) or evidence.elapsed_s >= thresholds.LONG_S
    if enough or startup_bound(evidence):
        return None
    told = [f"{duration(max(left_s, 0.0))} were measured"]
    if evidence.startup_s:
        told[0] += f" after {duration(evidence.startup_s)} of start-up"
    if few:
        told.append(f"{evidence.counted_steps} steps were counted")
    return Finding(
        "too_short_to_judge",
        min(1.0, evidence.of_elapsed(evidence.startup_s)),
        "time",
        tuple(told),
        f"Let it run for {thresholds.SHORT_S:g} s after its start-up at least, better a minute.",
    )


def startup_bound(evidence: Evidence) -> Finding | None:
    own_s = _without_neighbours(evidence, evidence.startup_s or 0.0)
    share = evidence.of_elapsed(own_s)
    if own_s < 2 * thresholds.STARTUP_S or share < thresholds.STARTUP:
        return None
    return Finding(
        "startup_bound",
        min(share, 1.0),
        "time",
        (
            f"{duration(evidence.startup_s)} of {duration(evidence.elapsed_s)} passed before the "
            "first step",
        ),
        "Do more in one run (more epochs), and have packages and data on a fast file system.",
    )


def _without_neighbours(evidence: Evidence, seconds: float) -> float:
    """What is left of the time if as much of it as of the whole run's was waiting for a core that
    others used: imports, which compute, are as slow beside a neighbour as anything else."""
    if not evidence.others_cores or not evidence.runqueue_s:
        return seconds
    return seconds * max(0.0, 1 - evidence.starved_by_others / evidence.world_size)


def evaluation_bound(evidence: Evidence) -> Finding | None:
    share = evidence.of_elapsed(evidence.evaluation_s)
    if not evidence.worth(share):
        return None
    full = evidence.training.get("evaluation") == "full"
    return Finding(
        "evaluation_bound",
        min(share, 1.0),
        "time",
        (
            f"evaluation takes {duration(evidence.evaluation_s)} of {duration(evidence.elapsed_s)}",
            *(["training.evaluation is full: every user against every item"] if full else []),
        ),
        "Evaluate against sampled negatives (training.evaluation sampled)."
        if full
        else "Evaluate less often, or in larger batches"
        + (": training.engine native ranks fastest." if evidence.trained else "."),
        applied(evidence, evaluation="sampled") if full else {},
        gains.fewer_core_hours(share, gains.SAMPLED_LEFT) if full else None,
    )


def checkpoint_bound(evidence: Evidence) -> Finding | None:
    share = evidence.of_elapsed(evidence.checkpoint_s)
    if not evidence.worth(share):
        return None
    return Finding(
        "checkpoint_bound",
        min(share, 1.0),
        "time",
        (
            f"writing checkpoints takes {duration(evidence.checkpoint_s)} of "
            f"{duration(evidence.elapsed_s)}, {percent(share)}",
        ),
        "Write checkpoints less often (training.checkpoint_every), or to a faster disk.",
        applied(evidence, checkpoint_every=0),
        gains.fewer_core_hours(share, gains.SAVED_LEFT) if evidence.trained else None,
    )
