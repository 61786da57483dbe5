"""Where a program's time goes, as text for a terminal of 80 columns."""

from __future__ import annotations

import math
import textwrap
from typing import Final

from hpcncf_analysis.configurations import pluralize
from hpcncf_analysis.diagnosis.evidence import CoreCounts, Diagnosis, Evidence, Finding, Place
from hpcncf_analysis.diagnosis.rules_program import PHASES, Program
from hpcncf_analysis.formatting import THIN, format_cores, format_duration, format_number

WIDTH: Final = 80
BAR: Final = 20
EIGHTHS: Final = " ▏▎▍▌▋▊▉"
LEAST: Final = 0.015
MOST_CAUSES: Final = 3
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
    "oversubscribed": "more threads than cores",
    "one_core_confinement": "fewer usable cores than allocated",
    "neighbour_load": "other processes use the cores",
    "memory_pressure": "too little memory",
    "gpu_underused": "the GPU is idle",
    "too_short_to_judge": "too short to judge",
}


def lines(evidence: Evidence, diagnosis: Diagnosis) -> list[str]:
    """`Where the time goes`, the causes, and the cores to ask for."""
    program = Program(evidence)
    text = [*_where(program), *_causes(diagnosis), *_ask(diagnosis, evidence.cores)]
    return [line.replace(THIN, " ") for line in text]


def _where(program: Program) -> list[str]:
    rank = program.longest
    if rank.steps:
        each_ms = 1000 * rank.seconds / rank.steps
        head = (
            f"{rank.steps:,} steps of {each_ms:.3g} ms, "
            f"{pluralize(max(len(program.ranks), rank.ranks), 'rank')}, after "
            f"{format_duration(rank.startup_s)} of start-up"
        )
    else:
        head = f"{format_duration(rank.seconds)} of Python, no training step seen"
    shown = [f"Where the time goes   {head}"]
    for phase in sorted(PHASES, key=lambda phase: -program.share(phase)):
        share = program.share(phase)
        if share < LEAST:
            continue
        name = "rest" if phase == "loop" and share < 0.05 else phase
        shown.append(f"  {name:<11}{share:4.0%}  {bar(share)}  {_meaning(program, phase)}".rstrip())
        if phase in LINES_OF and share >= 0.1:
            shown += [_line(each) for each in program.places(phase)[:2]]
    return shown


def bar(share: float) -> str:
    """`████▎`, padded to BAR columns."""
    eighths = round(8 * BAR * min(1.0, share))
    return ("█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()).ljust(BAR)


def _meaning(program: Program, phase: str) -> str:
    waits = program.waiting(phase)
    if phase == "input":
        loaders = [each for each in program.longest.loaders if not each.evaluates]
        workers = max((each.workers for each in loaders), default=0)
        if workers:
            return f"waiting for {pluralize(workers, 'loader worker')}"
        return "waiting" if waits > 0.5 else "on the CPU, in this process"
    if phase == "optimizer":
        return _tables(program)
    if phase == "loop" and program.share("loop") < 0.05:
        return ""
    return MEANINGS.get(phase, "")


def _tables(program: Program) -> str:
    rank = program.longest
    large = [each for each in rank.tables if each.touched is not None]
    if not large:
        return rank.optimizer or ""
    rows, touched = sum(each.rows for each in large), sum(each.touched or 0 for each in large)
    if touched > rows / 2:
        return rank.optimizer or ""
    return (
        f"{rank.optimizer} walks {format_number(rows)} rows, {format_number(touched)} have a "
        "gradient"
    )


def _line(place: Place) -> str:
    text = f"      {place.share:4.0%}  {place.name}"
    if place.source:
        text += f"   {place.source}"
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 4]} ..."


def _causes(diagnosis: Diagnosis) -> list[str]:
    found = diagnosis.findings
    if not found:
        reason = "no cause takes a fifth of the time or of the cores"
        if diagnosis.verdict == "unknown":
            reason = f"unknown: not seen {diagnosis.missing[0]}" if diagnosis.missing else "unknown"
        return [f"Cause     none: {reason}"]
    text = []
    for number, finding in enumerate(found[:MOST_CAUSES], 1):
        label = f"Cause {number}   "
        cost = f" ({_cost(finding)})" if finding.share >= 0.01 else ""
        text += _wrap(f"{CAUSES[finding.cause]}{cost}", label)
        advice = None
        if finding.places:
            first = finding.places[0]
            text.append(" " * len(label) + first.name)
            advice = first.advice
        text += _wrap(_sentence(finding.evidence[0]), " " * len(label))
        text += _wrap(_sentence(advice or finding.remedy) + _gain(finding), " " * len(label))
    return text


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _cost(finding: Finding) -> str:
    return f"{finding.share:.0%} of the {finding.of}"


def _gain(finding: Finding) -> str:
    if finding.gain is None:
        return ""
    return f" At most {finding.gain.high:.1f}x as fast without it."


def _ask(diagnosis: Diagnosis, cores: CoreCounts) -> list[str]:
    if cores.used is None or cores.allocated is None or diagnosis.verdict == "unknown":
        return []
    need = max(1, math.ceil(cores.used - 0.3))
    need = min(need, math.ceil(cores.allocated))
    return [
        f"Ask for   {pluralize(need, 'core')} as it is now (allocated "
        f"{format_cores(cores.allocated)}, used {format_cores(cores.used)})"
    ]


def _wrap(text: str, label: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=label, subsequent_indent=" " * len(label))
