"""Configurations of a user's own program: which speed they can be compared by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hpcncf.monitor.sampler import TOO_SHORT_S
from hpcncf_analysis import formatting
from hpcncf_analysis.advice.judge import mostly_disturbed
from hpcncf_analysis.advice.request import largest_memory_peak_mib, memory_to_request_gb
from hpcncf_analysis.configurations import Configuration, pluralize

# More sentences than these nobody reads: the table has the rest.
MAX_FACTS: Final = 12


def group_by_command(commands: Sequence[Configuration]) -> dict[str, list[Configuration]]:
    """Only those of one name (given, or the command itself) do the same work."""
    grouped: dict[str, list[Configuration]] = {}
    for one in commands:
        grouped.setdefault(one.command, []).append(one)
    return grouped


def describe_commands(commands: Sequence[Configuration]) -> str:
    short = sum(map(is_short, commands))
    if len(commands) == short:
        which = "The command" if len(commands) == 1 else f"All {len(commands)} commands"
        return f"{which} ended too soon to judge: nothing to conclude from."
    if len(commands) == 1:
        return f"The command had {describe_usage(commands[0])}"
    left = f"; {short} ended too soon to judge" if short else ""
    return f"{len(commands)} different commands, each shown on its own{left}."


def list_command_facts(commands: Sequence[Configuration]) -> list[str]:
    if len(commands) == 1:
        return []
    told = [f"{one.label}: {describe_usage(one)}" for one in commands if not is_short(one)]
    more = len(told) - MAX_FACTS
    short = [one.label for one in commands if is_short(one)]
    return [
        *told[:MAX_FACTS],
        *([f"And {pluralize(more, 'command')} more, in the table."] if more > 0 else []),
        *([f"Too short to judge: {'; '.join(short)}."] if short else []),
    ]


def is_short(one: Configuration) -> bool:
    """Start-up and the clock's ticks are most of what was measured."""
    return (one.median("elapsed_s") or 0.0) < TOO_SHORT_S


def describe_usage(one: Configuration) -> str:
    """In the words that `hpcncf run` printed."""
    cores = (
        f"{pluralize(one.cores, 'core')} allocated, "
        f"{formatting.format_cores(one.median('cores_usable'))} "
        f"usable, {formatting.format_hundredths(one.median('cores_used'))} used"
    )
    kept = f"CPU efficiency {formatting.format_percent(one.median('cpu_efficiency'))}"
    doubt = ""
    if mostly_disturbed([one]):
        doubt = "; neighbours held its cores, so the number it needs is unknown"
    return f"{cores}, {kept}{_memory(one)}{doubt}."


def _memory(one: Configuration) -> str:
    peak_mib, enough = largest_memory_peak_mib(one.rows), memory_to_request_gb(one.rows)
    if peak_mib is None or enough is None:
        return ""
    return f", {formatting.format_mebibytes(peak_mib)} at the peak (ask for {enough:g} GB)"
