"""Rules on short runs, start-up, evaluation, checkpoints and a step's own work."""

from __future__ import annotations

from typing import Final

from hpcncf_analysis.diagnosis import thresholds
from hpcncf_analysis.diagnosis.evidence import Evidence, Finding
from hpcncf_analysis.diagnosis.expected_gain import (
    SAMPLED_LEFT,
    SAVED_LEFT,
    applied,
    exchanged_rows,
    fewer_core_hours,
    rowwise,
)
from hpcncf_analysis.formatting import format_duration, format_number, format_percent

# Engines whose step costs what its rows cost.
OF_ROWS: Final = frozenset({"rowwise", "native"})


def too_short_to_judge(evidence: Evidence) -> Finding | None:
    """Too little was measured after start-up, and start-up is not the cause itself."""
    left_s = evidence.elapsed_s - (evidence.startup_s or 0.0)
    seen = any(
        each.steps >= thresholds.SEEN_STEPS or each.seconds >= thresholds.SEEN_S
        for each in evidence.program
        if not each.is_worker
    )
    few = (
        evidence.counted_steps is not None
        and evidence.counted_steps < thresholds.SHORT_STEPS
        and (evidence.training_s or 0.0) < thresholds.SHORT_S
        and not evaluation_bound(evidence)
    )
    enough = (left_s >= thresholds.SHORT_S and not few) or evidence.elapsed_s >= thresholds.LONG_S
    if enough or seen or startup_bound(evidence):
        return None
    measured = f"{format_duration(max(left_s, 0.0))} were measured"
    if evidence.startup_s:
        measured += f" after {format_duration(evidence.startup_s)} of start-up"
    return Finding(
        "too_short_to_judge",
        min(1.0, evidence.of_elapsed(evidence.startup_s)),
        "time",
        (measured, *([f"{evidence.counted_steps} steps were counted"] if few else [])),
        f"Let it run for {thresholds.SHORT_S:g} s after its start-up at least, better a minute.",
    )


def startup_bound(evidence: Evidence) -> Finding | None:
    """The first step comes late; waiting for a core that others used is not start-up's."""
    seconds = evidence.startup_s or 0.0
    if evidence.others_cores and evidence.runqueue_s:
        # Imports, which compute, are as slow beside a neighbour as anything else.
        seconds *= max(0.0, 1 - evidence.starved_by_others / evidence.world_size)
    share = evidence.of_elapsed(seconds)
    if seconds < 2 * thresholds.STARTUP_S or share < thresholds.STARTUP:
        return None
    startup, elapsed = map(format_duration, (evidence.startup_s, evidence.elapsed_s))
    return Finding(
        "startup_bound",
        min(share, 1.0),
        "time",
        (f"{startup} of {elapsed} passed before the first step",),
        "Do more in one run (more epochs), and have packages and data on a fast file system.",
    )


def evaluation_bound(evidence: Evidence) -> Finding | None:
    """Evaluation takes the time."""
    share = evidence.of_elapsed(evidence.evaluation_s)
    if not evidence.worth(share):
        return None
    full = evidence.training.get("evaluation") == "full"
    return Finding(
        "evaluation_bound",
        min(share, 1.0),
        "time",
        (
            f"evaluation takes {format_duration(evidence.evaluation_s)} of "
            f"{format_duration(evidence.elapsed_s)}",
            *(["training.evaluation is full: every user against every item"] if full else []),
        ),
        "Evaluate against sampled negatives (training.evaluation sampled)."
        if full
        else "Evaluate less often, or in larger batches"
        + (": training.engine native ranks fastest." if evidence.trained else "."),
        applied(evidence, evaluation="sampled") if full else {},
        fewer_core_hours(share, SAMPLED_LEFT) if full else None,
    )


def checkpoint_bound(evidence: Evidence) -> Finding | None:
    """Writing checkpoints takes the time."""
    share = evidence.of_elapsed(evidence.checkpoint_s)
    if not evidence.worth(share):
        return None
    return Finding(
        "checkpoint_bound",
        min(share, 1.0),
        "time",
        (
            f"writing checkpoints takes {format_duration(evidence.checkpoint_s)} of "
            f"{format_duration(evidence.elapsed_s)}, {format_percent(share)}",
        ),
        "Write checkpoints less often (training.checkpoint_every), or to a faster disk.",
        applied(evidence, checkpoint_every=0),
        fewer_core_hours(share, SAVED_LEFT) if evidence.trained else None,
    )


def dense_optimizer(evidence: Evidence) -> Finding | None:
    """The optimiser's time goes to rows that the step did not read: the share it could save."""
    read, rows, training = evidence.rows_per_step, evidence.table_rows, evidence.training
    # A step of some engines touches its own rows only, and weight decay asks for all of them.
    few = training.get("engine") in OF_ROWS or training.get("sparse")
    if not read or not rows or read / rows > thresholds.SPARSE:
        return None
    if few or training.get("weight_decay"):
        return None
    share = evidence.of_time("optimizer") * (1 - read / rows)
    if not evidence.worth(share):
        return None
    part = read / rows
    percent = format_percent(part) if part >= 0.01 else f"{100 * part:.2g} %"
    several = evidence.world_size > 1
    gain = exchanged_rows if several else rowwise
    return Finding(
        "dense_optimizer",
        share,
        "time",
        (
            f"the optimiser takes {format_percent(evidence.phases['optimizer'])} of a step",
            f"a step reads {format_number(read)} of {format_number(rows)} embedding rows, "
            f"{percent}",
        ),
        "Update only the rows that a step read"
        + (
            ": training.engine rowwise gives the same mathematics, native the same in one compiled "
            "step."
            if evidence.trained
            else ": sparse gradients with an optimiser for them."
        ),
        applied(evidence, engine="rowwise", **({"sync": "rows"} if several else {})),
        gain(evidence) if evidence.trained else None,
    )
