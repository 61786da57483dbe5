"""Rules on short runs, start-up, evaluation and checkpoints."""

from __future__ import annotations

from hpcncf.records.schema import SourceLine
from hpcncf_analysis.diagnosis import thresholds
from hpcncf_analysis.diagnosis.evidence import Evidence, Finding
from hpcncf_analysis.diagnosis.expected_gain import (
    SAMPLED_LEFT,
    SAVED_LEFT,
    applied,
    fewer_core_hours,
    removed,
)
from hpcncf_analysis.diagnosis.source_lines import MOST_PLACES, places_of
from hpcncf_analysis.formatting import format_duration, format_percent


def too_short_to_judge(evidence: Evidence) -> Finding | None:
    """Find runs with too little measured after start-up, unless start-up is the cause."""
    left_s = evidence.elapsed_s - (evidence.startup_s or 0.0)
    seen = evidence.inside is not None and any(
        each.steps >= thresholds.SEEN_STEPS or each.seconds >= thresholds.SEEN_S
        for each in evidence.inside.ranks
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
    """Find runs whose first step comes late, without waits for cores others used."""
    startup = evidence.startup
    imports = 1.0 if startup.imports is None else startup.imports
    if startup.seconds <= 0:
        return None
    # Imports are the same in each program and take seconds; preparation is the program's own, and
    # is worth a word by its share of this run.
    prepared = startup.share * (1 - imports)
    is_own = prepared >= thresholds.WORTH and startup.own_s * (1 - imports) >= thresholds.PREPARED_S
    is_long = startup.own_s >= 2 * thresholds.STARTUP_S and startup.share >= thresholds.STARTUP
    if not is_own and not is_long:
        return None
    started, elapsed = map(format_duration, (startup.seconds, _elapsed_s(evidence)))
    facts = [f"{started} of {elapsed} passed before the first step ended"]
    remedy = "Do more in one run (more epochs), and have packages and data on a fast file system."
    if startup.imports is not None:
        facts.append(f"imports took {format_percent(imports)} of that")
        remedy = (
            "Put packages on a fast or local file system, and import less."
            if imports >= 0.5 and not is_own
            else "Prepare the data once and keep it in a file (numpy.save, Parquet), or do more in "
            "one run."
        )
    return Finding(
        "startup_bound", startup.share, "time", tuple(facts), remedy, places=startup.places
    )


def _elapsed_s(evidence: Evidence) -> float:
    """Seconds that the slowest rank ran, from the start of its process."""
    if evidence.inside is None:
        return evidence.elapsed_s
    return max(each.elapsed_s for each in evidence.inside.ranks)


def evaluation_bound(evidence: Evidence) -> Finding | None:
    """Find evaluations, and metrics computed after them, that take the time."""
    scored, computed, lines = evidence.of_time("evaluation"), 0.0, list[SourceLine]()
    if evidence.inside:
        in_loop, lines = evidence.inside.metrics
        computed = evidence.of_time("loop") * in_loop
    share = scored + computed
    graphs = evidence.inside.graphs_in_evaluation if evidence.inside else 0.0
    # Some evaluation belongs to every training; one that keeps graphs for nothing does not.
    if not evidence.worth(share if graphs > 0.5 else share / thresholds.EVALUATION):
        return None
    full = evidence.training.get("evaluation") == "full"
    facts = [f"evaluation takes {format_percent(share)} of the time"]
    if full:
        facts.append("training.evaluation is full: every user against every item")
    if computed > scored:
        facts.append(f"{format_percent(computed)} is after its model has computed")
    remedy = "Evaluate less often, in larger batches, or against sampled items."
    gain = removed(share) if evidence.inside else None
    if graphs > 0.5:
        facts.append(
            f"{format_percent(graphs)} of its batches build a graph for a backward pass that never "
            "comes"
        )
        remedy = "Evaluate under torch.no_grad() or torch.inference_mode(), in larger batches."
    if full:
        remedy = "Evaluate against sampled negatives (training.evaluation sampled)."
        gain = fewer_core_hours(share, SAMPLED_LEFT)
    elif evidence.trained:
        remedy = "Evaluate less often, or in larger batches: training.engine native ranks fastest."
    return Finding(
        "evaluation_bound",
        min(share, 1.0),
        "time",
        tuple(facts),
        remedy,
        applied(evidence, evaluation="sampled") if full else {},
        gain,
        tuple(places_of(lines, computed)) if computed > scored else evidence.places("evaluation"),
    )


def checkpoint_bound(evidence: Evidence) -> Finding | None:
    """Find checkpoints that take the time: `torch.save` and a training's own writes."""
    share, written, loop = evidence.of_time("checkpoint"), list[SourceLine](), 0.0
    if evidence.inside:
        written, loop = evidence.inside.written, evidence.of_time("loop")
        share += sum(each.own_share for each in written) * loop
    if not evidence.worth(share):
        return None
    fact = f"writing checkpoints takes {format_percent(share)} of the time"
    if evidence.inside and evidence.of_time("checkpoint") and not written:
        saves = sum(each.phases["checkpoint"].entered for each in evidence.inside.ranks)
        fact += f", {saves} in all"
    places = [*places_of(written, loop), *evidence.places("checkpoint")]
    every = " (training.checkpoint_every)" if evidence.trained else ""
    gain = removed(share) if evidence.inside else None
    return Finding(
        "checkpoint_bound",
        min(share, 1.0),
        "time",
        (fact,),
        f"Write checkpoints less often{every}, or to a faster disk.",
        applied(evidence, checkpoint_every=0),
        fewer_core_hours(share, SAVED_LEFT) if evidence.trained else gain,
        tuple(places[:MOST_PLACES]),
    )
