"""Rules on what a step itself does: its optimizer, its threads, what it keeps."""

from __future__ import annotations

from typing import Any, Final

from hpcncf.text import pluralize
from hpcncf_analysis.diagnosis import thresholds
from hpcncf_analysis.diagnosis.evidence import Evidence, Finding
from hpcncf_analysis.diagnosis.expected_gain import (
    SERIAL_LEFT,
    applied,
    exchanged_rows,
    fewer_core_hours,
    reduced,
    rowwise,
)
from hpcncf_analysis.diagnosis.source_lines import (
    MOST_PLACES,
    CodeLocation,
    find_lines,
    lines_that_keep_graphs,
)
from hpcncf_analysis.formatting import (
    format_cores,
    format_mebibytes,
    format_number,
    format_percent,
)

# Of the time that a dense optimizer spends, what an update of the touched rows alone takes, over
# their share of all rows: they lie apart, so each costs a cache miss where the walk streams.
SCATTERED: Final = (4.0, 1.0, 10.0)
ALL_LEFT: Final = 0.9
# Numbers in a table from which on `hpcncf.remedies.rowwise` takes it; of a fused optimizer.
LEAST_BY_ROWS: Final = 2**19
LEAST_IF_FUSED: Final = 2**21
# Of all trainable numbers, those in the tables.
MAINLY_TABLES: Final = 0.5
# One busy core of two is half of them, less the moments in which it waits.
SERIAL: Final = 0.45
# The same where the program itself gave torch fewer threads than cores, or where nothing is known
# of its steps; a shorter step gains little by more.
LIMITED: Final = 0.75
LONG_STEP_S: Final = 0.01


def dense_optimizer(evidence: Evidence) -> Finding | None:
    """Find optimizers that walk many table rows without a gradient.

    The cost includes making and clearing those gradients.
    """
    tables = evidence.tables
    if tables is None or tables.of_parameters < MAINLY_TABLES:
        return None
    part = tables.of_parameters * (1 - tables.touched / tables.rows)
    share = part * evidence.of_time("optimizer")
    # The dense gradient is made in the backward pass; of several ranks it is the exchange's. How
    # much of it is the tables' is not known of our own training.
    seen = evidence.inside is not None and not evidence.several
    made = part * evidence.of_time("backward") if seen else 0.0
    if share < thresholds.WORTH / 2 or not evidence.worth(share + made):
        return None
    left = [min(ALL_LEFT, cost * tables.touched / tables.rows) for cost in SCATTERED]
    if left[0] == ALL_LEFT:
        return None  # an update of scattered rows would take as long as the walk
    least = LEAST_IF_FUSED if tables.fused else LEAST_BY_ROWS
    large = tables.numbers is None or tables.numbers >= least
    if tables.fused and not large:
        return None  # it walks them as fast as their rows alone
    facts = (
        f"{tables.optimizer} walks {format_number(tables.rows)} rows of embedding tables, "
        f"{format_number(tables.touched)} of them have a gradient",
        f"the optimizer takes {format_percent(evidence.of_steps['optimizer'])} of the steps' time, "
        f"the backward pass {format_percent(evidence.of_steps.get('backward'))}",
    )
    remedy = (
        "Update only rows with a gradient, same result: hpcncf.remedies.rowwise(model, optimizer)."
    )
    changes: dict[str, Any] = {}
    gain = reduced(min(1.0, share + made), (left[0], left[1], left[2]))
    if evidence.trained:
        remedy = (
            "Update only the rows that a step read: training.engine rowwise gives the same "
            "mathematics, native the same in one compiled step."
        )
        several = evidence.world_size > 1
        changes = applied(evidence, engine="rowwise", **({"sync": "rows"} if several else {}))
        gain = (exchanged_rows if several else rowwise)(evidence)
    elif not large:
        remedy = (
            "Let one call update all parameters (fused=True, or hpcncf run --with fused): these "
            "tables are too small to gain from updates by rows."
        )
    return Finding(
        "dense_optimizer",
        min(1.0, share + made / 2),
        "time",
        facts,
        remedy,
        changes,
        gain if large else None,
        evidence.places("optimizer"),
    )


def serial_step(evidence: Evidence) -> Finding | None:
    """Find steps in which one thread computes while other usable cores idle."""
    usable, used, ranks = evidence.cores.usable, evidence.wanted, evidence.world_size
    if not usable or used is None:
        return None
    inside = evidence.inside
    if inside is None:
        # Cores that idle because one thread makes the input are not the step's.
        compute = 1 - evidence.phases.get("input", 0.0)
        cores_each = usable / ranks
        if cores_each < 1 + thresholds.CONFINED_CORES or used < thresholds.ONE_THREAD * ranks:
            return None  # every rank has one core, or waits
    else:
        phases = ("forward", "backward", "optimizer", *(["loop"] if inside.computes else []))
        compute = sum(map(evidence.of_time, phases))
    share = compute * (1 - used / usable)
    limited = _is_limited(evidence)
    if compute < 0.5 or used >= (LIMITED if limited else SERIAL) * usable:
        return None
    if share < thresholds.WORTH / 2 or (inside is None and share < thresholds.WORTH):
        return None
    threads = evidence.step_threads
    what = "the program" if inside and inside.computes else "the step"
    facts = [
        f"{what} computes for {format_percent(compute)} of the time, with {format_cores(used)} of "
        f"{format_cores(usable)} usable cores"
    ]
    if threads is not None and not (inside and inside.computes):
        facts.append(f"torch was set to {pluralize(threads, 'thread')} per rank{_by(evidence)}")
    changes = _one_core(evidence)
    gain = fewer_core_hours(1 - ranks / usable, SERIAL_LEFT) if changes else None
    phases_shown = ("forward", "loop") if inside and inside.computes else ("forward",)
    places = _lines_that_set_threads(evidence) or evidence.places(*phases_shown)
    remedy = _remedy_of_serial_step(evidence, limited)
    return Finding("serial_step", share, "cores", tuple(facts), remedy, changes, gain, places)


def _lines_that_set_threads(evidence: Evidence) -> tuple[CodeLocation, ...]:
    """Lines of the program that set a variable for the number of threads."""
    inside = evidence.inside
    names = inside.longest.threads_set if inside else {}
    pattern = "|".join(names)
    if inside is None or not pattern:
        return ()
    return tuple(p for file in inside.files for p in find_lines(file, pattern))[:MOST_PLACES]


def _by(evidence: Evidence) -> str:
    """Name what set torch's threads: ` by OMP_NUM_THREADS=1 of the environment`, or empty."""
    rank = evidence.inside.longest if evidence.inside else None
    if rank is None:
        return ""
    for given, who in ((rank.threads_set, "the program itself"), (rank.threads_given, "")):
        for name, threads in given.items():
            if threads == rank.torch_threads:
                where = who or "the environment: its image, script or torchrun's default"
                return f" by {name}={threads} of {where}"
    return ""


def _is_limited(evidence: Evidence) -> bool:
    """Whether more threads than the program was given could have used the idle cores."""
    inside, usable = evidence.inside, evidence.cores.usable or 0.0
    if inside is None or inside.computes:
        return True
    rank = inside.longest
    threads = (rank.torch_threads or 0) * len(inside.ranks)
    return 0 < threads < usable and rank.seconds >= LONG_STEP_S * rank.steps


def _remedy_of_serial_step(evidence: Evidence, limited: bool) -> str:
    inside = evidence.inside
    if evidence.trained and evidence.threads == 1:
        return "Ask for one core per rank, or set training.threads to auto where steps are large."
    if inside is None:
        return "Ask for one core per rank: a step this small does not spread over more."
    if inside.computes:
        return (
            "Let the library use as many threads as cores (OMP_NUM_THREADS, "
            "torch.set_num_threads, n_jobs), or ask for fewer cores."
        )
    if not limited:
        return (
            "Ask for fewer cores: a step this small does not spread over more. Or use larger "
            "batches."
        )
    asked = [each.remedy for each in inside.longest.remedies if each.remedy.startswith("threads=")]
    if asked:
        return f"Ask for fewer cores: the others idle by --with {asked[0]}."
    if by := _by(evidence):
        variable = by.removeprefix(" by ").partition("=")[0]
        return f"Set {variable} to the number of cores, or ask for fewer cores."
    return (
        "Give torch as many threads as cores (torch.set_num_threads, OMP_NUM_THREADS), or ask for "
        "fewer cores."
    )


def _one_core(evidence: Evidence) -> dict[str, Any]:
    """Settings for one core per rank if each rank uses about one core; otherwise empty.

    With workers it is not known which process used the core.
    """
    few = (evidence.wanted or 0.0) < thresholds.RUNNABLE * evidence.world_size
    shrinks = evidence.trained and evidence.resources.get("cpus_per_task", 1) > 1
    if not (few and shrinks) or evidence.workers:
        return {}
    asked = evidence.training.get("threads")
    threads = applied(evidence, threads="auto") if isinstance(asked, int) and asked > 1 else {}
    return {"resources.cpus_per_task": 1, **threads}


def memory_growth(evidence: Evidence) -> Finding | None:
    """Find programs whose memory grows as long as they train."""
    grown, peak, inside = evidence.memory_growth_mib, evidence.memory_peak_mib, evidence.inside
    if grown is None or not peak or inside is None or not inside.steps:
        return None
    if grown < thresholds.WORTH * peak:
        return None
    places = lines_that_keep_graphs(inside.longest.lines)
    return Finding(
        "memory_growth",
        min(1.0, grown / peak),
        "memory",
        (f"memory grew steadily by {format_mebibytes(grown)}",),
        "Keep numbers, not tensors with a graph: loss.item() or loss.detach()."
        if places
        else "Look for what each step adds to and nothing empties: a list of results, a cache, "
        "a sum of losses that was not detached.",
        places=places,
    )
