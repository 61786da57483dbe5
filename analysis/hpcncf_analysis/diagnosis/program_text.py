"""Where a program's time goes, as text for a terminal of 80 columns."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Final

from hpcncf.text import pluralize
from hpcncf_analysis.diagnosis import thresholds
from hpcncf_analysis.diagnosis.evidence import Diagnosis, Evidence, Finding
from hpcncf_analysis.diagnosis.expected_gain import faster
from hpcncf_analysis.diagnosis.facts import PHASES
from hpcncf_analysis.diagnosis.format import disturbance
from hpcncf_analysis.diagnosis.program_facts import ObservedProgram
from hpcncf_analysis.diagnosis.rules_step import LONG_STEP_S
from hpcncf_analysis.formatting import THIN, format_cores, format_duration, format_number

WIDTH: Final = 80
BAR: Final = 16
EIGHTHS: Final = " ▏▎▍▌▋▊▉"
LEAST: Final = 0.015
MOST_CAUSES: Final = 3
# A cause that is nearly all of the time cannot go altogether: then no figure is printed.
MOST_GAIN: Final = 15.0
SOME_CORES: Final = 0.3
LINES_OF: Final = ("input", "loop", "evaluation")
MEANINGS: Final = {
    "input": "waiting for batches",
    "sync": "waiting for other ranks",
    "loop": "own code between the phases",
    "workers": "loader workers start and stop",
    "evaluation": "",
    "checkpoint": "torch.save",
}
CAUSES: Final = {
    "python_input": "input is made on the CPU, one sample at a time",
    "input_io": "input waits for files or a network",
    "too_few_workers": "too few loader workers",
    "worker_overhead": "loader workers cost more than they bring",
    "dense_optimizer": "dense optimizer over embedding tables",
    "sync_bound": "the ranks' exchange of gradients",
    "straggler": "one rank is slower than the others",
    "load_imbalance": "one rank has more work than the others",
    "evaluation_bound": "evaluation",
    "checkpoint_bound": "checkpoints",
    "startup_bound": "start-up before the first step",
    "loop_code": "the program's own Python code",
    "interpreter_lock": "threads wait for the interpreter's lock",
    "serial_step": "the step uses one core of several",
    "memory_growth": "memory grows with each step",
    "small_operations": "many small operations, bound by Python and dispatch",
    "slowing_steps": "steps get slower and slower",
    "excess_arithmetic": "more arithmetic than the result needs",
    "costly_option": "a costly option is on",
    "frequent_call": "a costly call in each step",
    "worker_memory": "loader workers copy Python objects",
    "oversubscribed": "more threads than cores",
    "one_core_confinement": "fewer usable cores than allocated",
    "neighbour_load": "other processes use the cores",
    "memory_pressure": "too little memory",
    "gpu_underused": "the GPU is idle",
    "too_short_to_judge": "too short to judge",
}


def lines(evidence: Evidence, diagnosis: Diagnosis) -> list[str]:
    """Report on a program as lines of text: where its time goes, causes and cores to request.

    It begins with a warning if other processes disturbed the run.
    """
    program = evidence.inside
    assert program is not None
    disturbed = disturbance(diagnosis)
    text = [
        *(_wrap(f"{disturbed}.", "Disturbed ") if disturbed else ()),
        *_where(program),
        *_causes(diagnosis, program, evidence),
        *_ask(diagnosis, evidence, program),
    ]
    return [line.replace(THIN, " ") for line in text]


def _where(program: ObservedProgram) -> list[str]:
    rank = program.longest
    if rank.steps:
        each_s = rank.seconds / rank.steps
        length = f"{1000 * each_s:.3g} ms" if each_s < 1 else format_duration(each_s)
        head = (
            f"{rank.steps:,} steps of {length}, "
            f"{pluralize(max(len(program.ranks), rank.ranks), 'rank')}"
        )
        if rank.startup_s:  # one that ran already was not seen to start
            head += f", after {format_duration(rank.startup_s)} of start-up"
    elif rank.from_outside:
        head = f"{format_duration(rank.seconds)} seen from outside: steps are not counted"
    else:
        head = f"{format_duration(rank.seconds)} of Python, no training step seen"
    shown = [f"Where the time goes   {head}"]
    for phase in sorted(PHASES, key=lambda phase: -program.share(phase)):
        share = program.share(phase)
        if share < LEAST:
            continue
        name = "rest" if phase == "loop" and share < 0.05 else phase
        meaning = _meaning(program, phase)
        shown.append(_cut(f"  {name:<11}{share:4.0%}  {bar(share)}  {meaning}".rstrip()))
        if phase in LINES_OF and share >= 0.1:
            shown += _lines_of(program, phase)
        elif share >= thresholds.WORTH and (inside := _line_inside(program, phase)):
            shown.append(inside)
    return shown


def _lines_of(program: ObservedProgram, phase: str) -> list[str]:
    """Lines of text with the two hottest places of a phase, in user code or in libraries.

    The line to change comes first.
    """
    share, profile = program.share(phase), program.longest
    libraries = [
        (each.share * share, each.name) for each in profile.libraries if each.phase == phase
    ]
    began = {
        (each.file, each.line) for each in profile.lines if each.phase == phase and each.outside
    }
    text = [
        (place.share, place.name + (f"   {place.source}" if place.source else ""))
        for place in program.places(phase)
        if not libraries or (place.file, place.line) not in began
    ]
    found = sorted([*text[:2], *libraries], key=lambda each: -each[0])
    if text:  # the line to change, then the next
        found = [text[0], *(each for each in found if each is not text[0])]
    return [_cut(f"      {cost:4.0%}  {name}") for cost, name in found[:2] if cost >= 0.05]


def _line_inside(program: ObservedProgram, phase: str) -> str:
    """Text with the hottest user line within a phase, or empty.

    The line that begins the phase does not count.
    """
    begun = {
        (each.file, each.line)
        for each in program.longest.lines
        if each.phase == phase and (each.outside or each.depth == 0)
    }
    for place in program.places(phase)[:1]:
        if (place.file, place.line) not in begun and place.share >= 0.05:
            return _cut(f"      {place.share:4.0%}  {place.name}   {place.source or ''}".rstrip())
    return ""


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 4]} ..."


def bar(share: float) -> str:
    """Draw a share as a text bar, such as `████▎`, padded to BAR columns."""
    eighths = round(8 * BAR * min(1.0, share))
    return ("█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()).ljust(BAR)


def _meaning(program: ObservedProgram, phase: str) -> str:
    waits = program.waiting(phase)
    if phase == "input":
        loaders = [each for each in program.longest.loaders if not each.evaluates]
        workers = max((each.workers for each in loaders), default=0)
        if workers:
            return f"waiting for {pluralize(workers, 'loader worker')}"
        return "waiting" if waits > 0.5 else "on the CPU, in this process"
    if phase == "optimizer":
        rank = program.longest
        large = [each for each in rank.tables if each.touched is not None]
        rows, touched = sum(each.rows for each in large), sum(each.touched or 0 for each in large)
        if not rows or touched > rows / 2:
            return rank.optimizer or ""
        gradient = f"gradient in {format_number(touched)} of {format_number(rows)} rows"
        return f"{rank.optimizer}: {gradient}"
    if phase == "loop" and program.share("loop") < 0.05:
        return ""
    return MEANINGS.get(phase, "")


def _causes(diagnosis: Diagnosis, program: ObservedProgram, evidence: Evidence) -> list[str]:
    found = diagnosis.findings
    if not found:
        reason = "no known waste takes a fifth of the time or of the cores"
        if diagnosis.verdict == "unknown":
            reason = f"unknown: not seen {diagnosis.missing[0]}" if diagnosis.missing else "unknown"
            return [f"Cause     none: {reason}"]
        return [f"Cause     none: {reason}", *_wrap(_what_it_is(program, evidence), " " * 10)]
    return cause_lines(diagnosis)


def cause_lines(diagnosis: Diagnosis) -> list[str]:
    """Lines of text with each cause, its line, evidence and remedy; empty without a finding."""
    found, text = diagnosis.findings, []
    beside = " beside the others" if disturbance(diagnosis) else ""
    for number, finding in enumerate(found[:MOST_CAUSES], 1):
        label = f"Cause {number}   "
        cost = f" ({finding.share:.0%} of the {finding.of})" if finding.share >= 0.01 else ""
        text += _wrap(f"{CAUSES[finding.cause]}{cost}", label)
        advice = None
        if finding.places:
            first = finding.places[0]
            text.append(_cut(" " * len(label) + first.name))
            advice = first.advice
        text += _wrap(_sentence(finding.evidence[0]), " " * len(label))
        gain = _gain(finding, found[: number - 1], beside)
        remedy = _sentence(finding.remedy)
        if advice:
            problem, _, change = advice.partition(". ")
            problem = _sentence(problem[0].upper() + problem[1:])
            own = "hpcncf.remedies" in remedy or not change
            remedy = f"{problem} {remedy if own else _sentence(change)}"
        text += _wrap(remedy + gain, " " * len(label))
    return text


def _what_it_is(program: ObservedProgram, evidence: Evidence) -> str:
    """Describe the kind of load, such as `Compute-bound: 92 % arithmetic, 1.9 of 2 cores`.

    It says why a wait is no cause, where one takes a fifth of the time.
    """
    arithmetic, overhead, waits = program.arithmetic
    cores = evidence.cores
    used = f", {format_cores(cores.used)} of {format_cores(cores.usable)} cores"
    used = used if cores.used is not None and cores.usable is not None else ""
    kind, share = "Compute-bound", f"{arithmetic:.0%} arithmetic"
    if overhead > arithmetic:
        kind = "Bound by short operations"
        share = f"{overhead:.0%} in Python and between operations"
        if (cores.usable or 0.0) > (cores.used or 0.0) + 0.5:
            used += "; larger batches would spread over more"
    text = f"{kind}: {share}{used}."
    if waits >= thresholds.WORTH:
        text = f"{text[:-1]}, {waits:.0%} waiting."
    if program.share("sync") >= thresholds.WORTH:
        text += " No rank is late for long enough, nor is the exchange a fifth of the last one's."
    return text


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def describe_gain(finding: Finding) -> str:
    """Expected gain of a cause alone as text: ` Expected 1.2x.`, or empty."""
    return _gain(finding, (), "")


def _gain(finding: Finding, before: Sequence[Finding], beside: str) -> str:
    """Expected gain as text: ` Expected 1.2x, 3.1x with cause 1 gone, too.`, or empty.

    Gains of earlier causes add up, because those cost other time.
    """
    gain = finding.gain
    if gain is None or gain.what != "instances_per_s":
        return ""
    expected = 1.05 <= gain.factor < gain.high
    factor = gain.factor if expected else gain.high
    if not 1.05 <= factor < MOST_GAIN:
        return ""
    text = f" {'Expected' if expected else 'At most'} {factor:.1f}x{beside}"
    gone = [number for number, each in enumerate(before, 1) if each.gain and each.of == "time"]
    if gone:
        saved = sum(1 - 1 / each.gain.factor for each in [*before, finding] if each.gain)
        causes = " and ".join(map(str, gone))
        noun = "cause" if len(gone) == 1 else "causes"
        text += f", {faster(saved):.1f}x with {noun} {causes} gone, too"
    return f"{text}."


def _ask(diagnosis: Diagnosis, evidence: Evidence, program: ObservedProgram) -> list[str]:
    cores = evidence.cores
    if cores.used is None or cores.allocated is None or diagnosis.verdict == "unknown":
        return []
    first, library = diagnosis.primary, 0.0 if program.steps else program.library_cores
    spinning = program.spinning if first and first.cause == "python_input" else 0.0
    idle = library if program.interprets else spinning
    need = max(1, math.ceil(cores.used - idle - SOME_CORES))
    need = min(need, math.ceil(cores.allocated))
    text = f"{pluralize(need, 'core')} as it is now (allocated "
    text += f"{format_cores(cores.allocated)}, used {format_cores(cores.used)}"
    if spinning > SOME_CORES:
        text += (
            f", {format_cores(spinning)} of it by threads of torch that spin while samples are "
            "made: OMP_WAIT_POLICY=passive"
        )
    elif library > SOME_CORES:
        text += (
            f", {format_cores(library)} of it by threads of a library such as BLAS, which may only "
            "wait: compare with hpcncf run --with threads=1"
        )
    if need > 1 and _may_fit_one_core(evidence, program):
        text += "; for steps this short one may be as fast: hpcncf tune"
    return _wrap(f"{text})", "Ask for   ")


def _may_fit_one_core(evidence: Evidence, program: ObservedProgram) -> bool:
    """Whether the steps may be as fast on one core: short, and the rest fits on it.

    The rest is all that is not computed by torch's threads.
    """
    rank, used = program.longest, evidence.cores.used or 0.0
    is_alone = not evidence.several and len(program.ranks) == 1 and not rank.gpu_busy
    is_short = 0 < rank.seconds < LONG_STEP_S * rank.steps
    return is_alone and is_short and used - program.library_cores <= 1 + SOME_CORES


def _wrap(text: str, label: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=label, subsequent_indent=" " * len(label))
