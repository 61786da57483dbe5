"""Rules on a program's own Python code, beside the phases of its steps and in threads."""

from __future__ import annotations

from hpcncf_analysis.diagnosis import thresholds
from hpcncf_analysis.diagnosis.evidence import Evidence, Finding
from hpcncf_analysis.diagnosis.expected_gain import removed
from hpcncf_analysis.diagnosis.program_facts import COMPUTES
from hpcncf_analysis.diagnosis.rules_overhead import (
    excess_arithmetic,
    frequent_call,
    is_growth,
    share_of_own_code,
    small_operations,
)
from hpcncf_analysis.diagnosis.source_lines import CodeLocation, line_of_thread, place
from hpcncf_analysis.formatting import format_cores, format_percent


def interpreter_lock(evidence: Evidence) -> Finding | None:
    """Find Python threads that compute but together get only about one core."""
    if evidence.inside is None:
        return None
    rank = evidence.inside.longest
    whole = rank.elapsed_s if not rank.steps else rank.seconds
    if rank.main_cpu_s is None or whole <= 0:
        return None
    # Beside neighbours they get less of a core than they would use.
    wanted = evidence.wanted / evidence.used if evidence.wanted and evidence.used else 1.0
    busy = [each for each in rank.threads if wanted * each.cpu_s >= 0.02 * whole]
    # Some may be found only in the library, in which they let go of the lock.
    at = next((each for each in busy if each.file), None)
    others = sum(each.cpu_s for each in busy) / whole
    together = others + rank.main_cpu_s / whole
    computed = sum(each.threads for each in busy)
    computed += wanted * rank.main_cpu_s >= 0.1 * whole
    if at is None or computed < 2 or wanted * others < thresholds.WORTH:
        return None
    if wanted * together < 0.7 or together > 1.2:
        return None
    return Finding(
        "interpreter_lock",
        min(wanted * others, 1.0),
        "time",
        (
            f"{computed} Python threads computed, {together:.2f} cores together: only one "
            "at a time holds the interpreter's lock",
        ),
        "Use processes instead of threads (DataLoader workers, multiprocessing), or array "
        "operations that release the lock.",
        places=(place(line_of_thread(at), others),),
    )


def _is_arithmetic(evidence: Evidence) -> bool:
    """Whether a training's own code spends its time in long library operations."""
    moving = evidence.inside.moving("loop") if evidence.inside else None
    hot = evidence.places("loop")[:1]
    called = {
        (each.file, each.line): each.called
        for each in (evidence.inside.longest.lines if evidence.inside else ())
        if each.phase == "loop"
    }
    is_plain = all(not called.get((each.file, each.line)) for each in hot)
    return moving is not None and moving < COMPUTES and is_plain


def loop_code(evidence: Evidence) -> Finding | None:
    """Find a program's own code that takes the time between the phases of a step.

    In a program without steps, it is all of the time.
    """
    program = evidence.inside
    if program is None:
        return None
    busy = evidence.wanted_by_steps >= thresholds.BUSY * (evidence.cores.usable or 0.0)
    looked_at = program.longest.moved is not None
    if not program.steps and not program.interprets and (looked_at or busy):
        return None  # inside of long operations; or, never looked at, on all cores
    share = share_of_own_code(evidence)
    if share < 1.25 * thresholds.WORTH or _batch_thread(evidence):
        return None
    if program.steps and (_is_arithmetic(evidence) or small_operations(evidence)):
        return None
    hot = evidence.places("loop")[:1]
    if program.steps and (excess_arithmetic(evidence) or any(is_growth(evidence, p) for p in hot)):
        return None
    if program.steps and evidence.waiting("loop") <= 0.5 and frequent_call(evidence):
        return None
    waits = evidence.waiting("loop")
    fact = f"{format_percent(share)} of the time is in the program's own code"
    fact += " between the phases of a step" if program.steps else ""
    if waits > 0.5:
        fact += f", which waits for {format_percent(waits)} of that"
    facts = [fact]
    cores = evidence.cores
    if cores.used is not None and cores.usable is not None:
        used, usable = format_cores(cores.used), format_cores(cores.usable)
        facts.append(f"{used} of {usable} usable cores in use")
    if program.interprets:
        facts.append("its operations are short: it goes on to the next within 0.1 ms")
    return Finding(
        "loop_code",
        share,
        "time",
        tuple(facts),
        _remedy_of_own_code(evidence, waits),
        gain=removed(share),
        places=evidence.places("loop"),
    )


def _remedy_of_own_code(evidence: Evidence, waits: float) -> str:
    """Choose a remedy by what the hot line does: wait, call a library, or loop."""
    if waits > 0.5:
        return "Look at what that line waits for: a file, a network, a lock or a sleep."
    hot = evidence.places("loop")[:1]
    lines = evidence.inside.longest.lines if evidence.inside else []
    called = next(
        (
            line.called
            for line in lines
            if line.phase == "loop" and hot and (line.file, line.line) == (hot[0].file, hot[0].line)
        ),
        None,
    )
    if called:
        return (
            f"That line calls {called}: do it once before the loop, less often, or for many rows "
            "at a time."
        )
    return "Replace the Python loop at that line by array operations, or move it out of the step."


def batch_thread(evidence: Evidence) -> Finding | None:
    """Find training that waits while another of its threads makes the batches in Python."""
    thread = _batch_thread(evidence)
    if thread is None:
        return None
    share, computes = evidence.of_time("loop"), thread.share
    return Finding(
        "python_input",
        share,
        "time",
        (
            f"for {format_percent(share)} of the time training waits between its steps, while "
            f"another thread of it computes for {format_percent(computes)}",
        ),
        "Make whole batches at once by array operations: a thread computes no faster than "
        "the training itself would.",
        gain=removed(share),
        places=(thread,),
    )


def _batch_thread(evidence: Evidence) -> CodeLocation | None:
    """Line of a thread that computes while training waits for it; None if there is none."""
    program = evidence.inside
    if program is None or not program.steps or program.longest.seconds <= 0:
        return None
    rank = program.longest
    # It computes more than the training thread, for most of the time between the steps.
    least = 0.5 * rank.seconds * program.share("loop")
    busy = [
        each
        for each in rank.threads
        if each.file
        and each.cpu_s >= (rank.main_cpu_s or 0.0)
        and each.cpu_s + each.runqueue_s >= least
    ]
    long = program.share("loop") >= 1.25 * thresholds.WORTH
    if not long or program.waiting("loop") < thresholds.WORTH or not busy:
        return None
    computes = min(1.0, (busy[0].cpu_s + busy[0].runqueue_s) / rank.seconds)
    return place(line_of_thread(busy[0]), computes)
