"""The early verdict: what the first minutes of a job say, in at most six lines."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Final

from hpcncf.records.schema import ProgramProfile, RankRecord
from hpcncf.text import format_duration
from hpcncf_analysis.diagnosis import program_text
from hpcncf_analysis.diagnosis.evidence import Finding
from hpcncf_analysis.diagnosis.summary import Summary

WIDTH: Final = 100
# Steps after which shares of phases and the pace are steady.
ENOUGH_STEPS: Final = 100


def has_enough_steps(rank: RankRecord) -> bool | None:
    """Return whether the program has taken enough steps to be judged; None if it takes none."""
    steps = max((each.steps for each in rank.program if not each.is_worker), default=0)
    return None if steps == 0 else steps >= ENOUGH_STEPS


def early_lines(summary: Summary, ends_in_s: float | None, more: str) -> list[str]:
    """Lines of the verdict so far: cores, the first cause with line and gain, the projected end.

    `ends_in_s`: until the job's time limit; None if it is not known. `more` is the command that
    shows the whole page.
    """
    rank = summary.rank
    cores = rank.cores
    used = "?" if cores.used is None else f"{cores.used:.2f}"
    text = [
        f"after {format_duration(rank.elapsed_s)}: {used} of {cores.allocated:g} allocated cores "
        f"used, {rank.memory.rss_peak_mib:,.0f} MiB"
    ]
    if summary.program:
        found = summary.program.diagnosis.findings
        text += _cause(found) if found else ["no known waste takes a fifth of the time or cores"]
    elif rank.cores.used is not None:
        text.append(summary.conclusion)
    if end := forecast_end(rank.program, ends_in_s):
        text.append(end)
    cut = [textwrap.shorten(line, WIDTH, placeholder=" ...") for line in text]
    return [*cut[:5], f"more: {more}"]


def _cause(found: Sequence[Finding]) -> list[str]:
    first = found[0]
    cost = f" ({first.share:.0%} of the {first.of})" if first.share >= 0.01 else ""
    remedy = first.remedy[0].upper() + first.remedy[1:].rstrip(".")
    return [
        f"cause: {program_text.CAUSES[first.cause]}{cost}",
        *(f"line: {place.name}" for place in first.places[:1]),
        f"{remedy}.{program_text.describe_gain(first)}",
    ]


def forecast_end(programs: Sequence[ProgramProfile], ends_in_s: float | None) -> str:
    """Say how far the program gets before its time limit; empty if that cannot be known.

    How many epochs it wants is not seen, only where the limit will cut.
    """
    trained = [each for each in programs if each.steps and not each.is_worker]
    if ends_in_s is None or not trained:
        return ""
    program = min(trained, key=lambda each: each.rank)
    limit = f"at this pace its time limit, in {format_duration(ends_in_s)}, comes"
    if program.seconds <= 0:
        return ""
    steps = program.steps + ends_in_s * program.steps / program.seconds
    loaders = [each for each in program.loaders if each.length and not each.evaluates]
    if not loaders:
        return f"{limit} at step {steps:,.0f} (now {program.steps:,})"
    loader = max(loaders, key=lambda each: each.batches)
    length = float(loader.length or 1)
    if loader.epochs > 1:  # a program may leave each epoch before its end
        length = min(length, loader.batches / (loader.epochs - 1))
    epochs = (loader.batches + ends_in_s * loader.batches / program.seconds) / length
    now = loader.batches / length
    return (
        f"{limit} at {epochs % 1:.0%} of epoch {int(epochs) + 1} "
        f"(now at {now % 1:.0%} of epoch {int(now) + 1})"
    )
