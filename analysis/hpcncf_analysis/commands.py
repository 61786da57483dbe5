"""Configurations of a user's own program: which speed they can be compared by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hpcncf.monitor.sampler import TOO_SHORT_S
from hpcncf_analysis import formatting
from hpcncf_analysis.advice.recommend import mostly_disturbed
from hpcncf_analysis.advice.request import enough_gb, memory_peak
from hpcncf_analysis.configurations import Configuration, counted

# More sentences than these nobody reads: the table has the rest.
MOST: Final = 12


def by_name(commands: Sequence[Configuration]) -> dict[str, list[Configuration]]:
    """Only those of one name (given, or the command itself) do the same work."""
    grouped: dict[str, list[Configuration]] = {}
    for one in commands:
        grouped.setdefault(one.command, []).append(one)
    return grouped


def sentence(commands: Sequence[Configuration]) -> str:
    short = sum(map(is_short, commands))
    if len(commands) == short:
        which = "The command" if len(commands) == 1 else f"All {len(commands)} commands"
        return f"{which} ended too soon to judge: nothing to conclude from."
    if len(commands) == 1:
        return f"The command had {used(commands[0])}"
    left = f"; {short} ended too soon to judge" if short else ""
    return f"{len(commands)} different commands, each shown on its own{left}."


def facts(commands: Sequence[Configuration]) -> list[str]:
    if len(commands) == 1:
        return []
    told = [f"{one.label}: {used(one)}" for one in commands if not is_short(one)]
    more = len(told) - MOST
    short = [one.label for one in commands if is_short(one)]
    return [
        *told[:MOST],
        *([f"And {counted(more, 'command')} more, in the table."] if more > 0 else []),
        *([f"Too short to judge: {'; '.join(short)}."] if short else []),
    ]


def is_short(one: Configuration) -> bool:
    """Start-up and the clock's ticks are most of what was measured."""
    return (one.median("elapsed_s") or 0.0) < TOO_SHORT_S


def used(one: Configuration) -> str:
    """In the words that `hpcncf run` printed."""
    cores = (
        f"{counted(one.cores, 'core')} allocated, {formatting.cores(one.median('cores_usable'))} "
        f"usable, {formatting.hundredths(one.median('cores_used'))} used"
    )
    kept = f"CPU efficiency {formatting.percent(one.median('cpu_efficiency'))}"
    doubt = ""
    if mostly_disturbed([one]):
        doubt = "; neighbours held its cores, so the number it needs is unknown"
    return f"{cores}, {kept}{_memory(one)}{doubt}."


def _memory(one: Configuration) -> str:
    peak_mib, enough = memory_peak(one.rows), enough_gb(one.rows)
    if peak_mib is None or enough is None:
        return ""
    return f", {formatting.mebibytes(peak_mib)} at the peak (ask for {enough:g} GB)"
