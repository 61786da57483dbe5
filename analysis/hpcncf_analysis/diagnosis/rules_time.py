"""Rules on short runs, start-up, evaluation, checkpoints and a step's own work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from statistics import median
from typing import Any, Final

from hpcncf.collect.resource_columns import TIMED, is_number, phases
from hpcncf.records.schema import RankRecord, TrainingRecord
from hpcncf_analysis.diagnosis import thresholds
from hpcncf_analysis.diagnosis.evidence import Evidence, Finding, RankTimes
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
    bound = "at most " if evidence.rows_estimated else ""
    several = evidence.world_size > 1
    gain = exchanged_rows if several else rowwise
    return Finding(
        "dense_optimizer",
        share,
        "time",
        (
            f"the optimiser takes {format_percent(evidence.phases['optimizer'])} of a step",
            f"a step reads {bound}{format_number(read)} of {format_number(rows)} embedding rows, "
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


FEW: Final = 10
"""Sums of steps below which their median is that of single ones."""
SECONDS: Final = ("startup_s", "training_s", "evaluation_s", "checkpoint_s")


@dataclass(frozen=True)
class Steps:
    """One rank's; None if its record does not have it."""

    phases_s: Mapping[str, float]
    """By the phase's name; of the counted steps."""
    seconds: Mapping[str, float | None]
    instances: float | None
    steps: float | None
    rows_per_step: float | None
    table_rows: float | None

    @property
    def steps_s(self) -> float:
        return sum(self.phases_s.values())


def steps_of_rank(record: RankRecord) -> Steps:
    """As our own training counted them, or as a command reported them."""
    trained = record.training
    if trained:
        return Steps(
            phases_s={name.removesuffix("_s"): getattr(trained.phases, name) for name in TIMED},
            seconds={name: getattr(trained, name) for name in SECONDS},
            instances=trained.counted_instances,
            steps=trained.counted_steps,
            rows_per_step=trained.rows_per_step,
            table_rows=trained.table_rows,
        )
    phases_s = phases(record.reported)
    numbers = {
        name: float(value)
        for name, value in record.reported.items()
        if is_number(value) and value >= 0
    }
    seconds = {name: numbers.get(name) for name in SECONDS}
    if phases_s:
        seconds["training_s"] = sum(phases_s.values())
    if record.run.get("training"):
        seconds["startup_s"] = record.elapsed_s  # a training that ended before its first step
    return Steps(
        phases_s={name.removesuffix("_s"): value for name, value in phases_s.items()},
        seconds=seconds,
        instances=numbers.get("instances"),
        steps=numbers.get("steps"),
        rows_per_step=numbers.get("rows_per_step"),
        table_rows=numbers.get("table_rows"),
    )


def rank_times(record: RankRecord, steps: Steps) -> RankTimes:
    known = steps.steps_s > 0
    return RankTimes(
        rank=record.rank,
        node=record.node,
        steps_s=steps.steps_s if known else None,
        sync_s=steps.phases_s.get("sync") if known else None,
        instances=None if steps.instances is None else int(steps.instances),
        cpu_s=record.cpu.user_s + record.cpu.system_s,
    )


def merge_steps(parts: Sequence[Steps]) -> dict[str, Any]:
    """Fields of Evidence: the slowest rank's seconds, and the phases' shares of all steps."""
    total_s = sum(part.steps_s for part in parts)
    names = sorted({name for part in parts for name in part.phases_s})
    phases = {name: sum(part.phases_s.get(name, 0.0) for part in parts) for name in names}
    counted = [part.steps for part in parts if part.steps is not None]
    longest = {
        name: max((s for part in parts if (s := part.seconds[name]) is not None), default=None)
        for name in SECONDS
    }
    return {
        **longest,
        "phases": {name: s / total_s for name, s in phases.items()} if total_s > 0 else {},
        "counted_steps": int(max(counted)) if counted else None,
    }


def running_step(record: TrainingRecord) -> float | None:
    """A step that is not an epoch's first, over the mean of the counted ones, warm-up left out.

    The median of the sums in the record that hold no first step; None where fewer than `FEW` do.
    """
    every, an_epoch = record.batches.every, record.epochs[0].steps if record.epochs else 0
    if an_epoch <= 0 or not record.counted_steps or record.counted_s <= 0:
        return None
    done = record.resumed_step or 0
    apart = [
        seconds / every
        for at, seconds in zip(count(0, every), record.batches.seconds, strict=False)
        if at >= max(1, record.warmup_steps) and -(at + done) % an_epoch >= every
    ]
    if len(apart) < FEW:
        return None
    return median(apart) * record.counted_steps / record.counted_s
