"""The text of a summary, which `hpcncf run` prints at the end."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TextIO

from hpcncf.collect.node_means import IDLE_MIB_S, TRAFFIC, mean, traffic
from hpcncf.text import format_duration

if TYPE_CHECKING:
    from hpcncf.records.schema import Cpu, NodeRecord, RankRecord
    from hpcncf_analysis.diagnosis.summary import (
        CoreShares,
        RequestedRemedy,
        SeenProgram,
        Summary,
    )

WIDTH: Final = 80
BAR: Final = 20
MOST_CPUS: Final = 16
MOST_BY_CORE: Final = 10
NUMBER: Final = re.compile(r"\d[\d,]*")


@dataclass(frozen=True)
class Marks:
    """The characters with which a bar is drawn."""

    ours: str
    others: str
    idle: str


PLAIN = Marks("#", "+", ".")
BLOCKS = Marks("█", "▒", "·")


def marks_for(stream: TextIO) -> Marks:
    """Marks that the stream's encoding can show."""
    return BLOCKS if (stream.encoding or "").lower().startswith("utf") else PLAIN


def lines(summary: Summary, folder: str, marks: Marks = PLAIN) -> list[str]:
    """Lines of the whole summary, at most 80 columns wide except for paths."""
    rank, program = summary.rank, program_lines(summary.program)
    facts = facts_of(rank, summary.node)
    if program:
        facts = {label: facts[label] for label in ("exit", "cores", "CPU", "memory")}
        facts["by core"] = _by_core(summary.cores)
    if moved := _traffic(summary.nodes):
        facts["traffic"] = moved
    return [
        textwrap.shorten(f"hpcncf run: {summary.name}", WIDTH, placeholder=" ..."),
        *([] if rank.world_size == 1 else [f"  rank       0 of {rank.world_size}, whose figures:"]),
        *(f"  {label:<10} {fact}" for label, fact in facts.items()),
        *launched_lines(rank),
        *remedy_lines(summary.remedies),
        *([] if program else ["", *cpu_lines(summary.cores, marks)]),
        "",
        *(program or _wrapped(summary.conclusion, "")),
        *(line for warning in rank.warnings for line in _wrapped(f"! {warning}", "  ")),
        f"record: {folder}",
    ]


def launched_lines(rank: RankRecord) -> list[str]:
    """Lines of what each node's processes used that a launcher such as `srun` started."""
    text = []
    for each in rank.by_launcher:
        cores = f"of {each.allocated:g} cores" if each.allocated else "cores"
        used = each.cpu_s / rank.elapsed_s if rank.elapsed_s > 0 else 0.0
        number = "1 process" if each.processes == 1 else f"{each.processes:,} processes"
        text.append(
            f"  {each.node[:10]:<10} {used:.2f} {cores} used by {number} of the launcher, "
            f"{each.memory_peak_mib:,.0f} MiB"
        )
    return text


def remedy_lines(remedies: Sequence[RequestedRemedy]) -> list[str]:
    """Lines that tell for each requested remedy whether and where it was applied."""
    text: list[str] = []
    for each in remedies:
        to = "; ".join(_places(each.places))
        label = "  with       " if not text else "             "
        line = f"{each.name}: {'applied' if each.is_applied else 'NOT applied'}: {to}"
        text += textwrap.wrap(line, WIDTH, initial_indent=label, subsequent_indent=" " * 15)
    return text


def _places(places: Mapping[str, int]) -> Iterator[str]:
    """Yield the places of a remedy; of those that differ in numbers only, the first stands for all.

    A model may have a table for each of dozens of features.
    """
    alike: dict[str, list[str]] = {}
    for to in places:
        alike.setdefault(NUMBER.sub("0", to), []).append(to)
    for first, *others in alike.values():
        if others:
            yield f"{first}, and {len(others)} more like it"
        else:
            yield f"{first} ({places[first]} times)" if places[first] > 1 else first


def program_lines(program: SeenProgram | None) -> list[str]:
    """Lines that tell where the time of a training program goes, and why; none without one."""
    if program is None:
        return []
    from hpcncf_analysis.diagnosis import program_text

    return program_text.lines(program.evidence, program.diagnosis)


def facts_of(rank: RankRecord, node: NodeRecord) -> dict[str, str]:
    """Facts about the rank's cores, memory and waits, by label."""
    return {
        "exit": f"{_ended(rank.exit_code)} after {format_duration(rank.elapsed_s)}",
        "cores": _cores(rank),
        "CPU": _efficiency(rank),
        "": f"user {format_duration(rank.cpu.user_s)}, system {format_duration(rank.cpu.system_s)}",
        "memory": _memory(rank),
        "processes": f"{rank.cpu.processes_peak} at most, with {rank.cpu.threads_peak} threads; "
        f"switches: {rank.cpu.context_switches_voluntary:,} waiting, "
        f"{rank.cpu.context_switches_involuntary:,} forced",
        "waited": _waited(rank.cpu),
        "storage": _storage(rank),
        "GPU": _gpu(node),
    }


def _ended(code: int | None) -> str:
    if code is not None and code < 0:
        return f"ended by signal {-code} ({128 - code} to the shell)"
    return f"{code}"


def _cores(rank: RankRecord) -> str:
    cores = rank.cores
    used = "?" if cores.used is None else f"{cores.used:.2f}"
    hardware = "" if cores.threads_per_core in (None, 1) else " hardware threads"
    return (
        f"{cores.allocated:g} allocated, {cores.usable:g} usable, {used} used "
        f"(node: {cores.on_node}{hardware})"
    )


def _efficiency(rank: RankRecord) -> str:
    cpu = rank.cpu
    if cpu.efficiency is None:
        return "not measured"
    average = f"{cpu.efficiency:.1%}"
    if cpu.efficiency_peak is None:
        return f"{average} on average; no peak: shorter than its {cpu.peak_window_s:g} s window"
    return f"{average} on average, {cpu.efficiency_peak:.1%} at the peak of {cpu.peak_window_s:g} s"


def _memory(rank: RankRecord) -> str:
    memory = rank.memory
    if memory.rss_peak_mib == 0:
        return "not measured: it ended before the first sample"
    peak = f"{memory.rss_peak_mib:,.0f} MiB resident at the peak"
    if memory.limit_mib is None:
        return f"{peak}, no limit set"
    return f"{peak}, {memory.rss_peak_mib / memory.limit_mib:.1%} of {memory.limit_mib:,.0f} MiB"


def _storage(rank: RankRecord) -> str:
    if rank.io.read_mib is None or rank.io.write_mib is None:
        return "not measured"
    return f"{rank.io.read_mib:,.1f} MiB read, {rank.io.write_mib:,.1f} MiB written"


def _traffic(nodes: Sequence[NodeRecord]) -> str:
    """Network and disk traffic in MiB/s; "" if no more than an idle system's."""
    rates = {TRAFFIC[column]: rate or 0.0 for column, rate in traffic(nodes).items()}
    if max(rates.values()) < IDLE_MIB_S:
        return ""
    return ", ".join(f"{name} {rate:,.1f}" for name, rate in rates.items()) + " MiB/s, by anyone"


def _waited(cpu: Cpu) -> str:
    """Time that the command's threads waited for a CPU and were held back by the quota."""
    if cpu.runqueue_s is None:
        return "not measured"
    held = f", {format_duration(cpu.throttled_s)} held back by the quota" if cpu.throttled_s else ""
    return f"its threads {format_duration(cpu.runqueue_s)} in all for a CPU{held}"


def _gpu(node: NodeRecord) -> str:
    if node.gpus is None:
        return "not measured"
    if not node.gpus:
        return "none used"
    busy = mean([node], lambda gpu: gpu.busy)
    share = "use unknown" if busy is None else f"{busy:.0%} busy, whoever used it"
    peak = max((mib for gpu in node.gpus for mib in gpu.memory_mib if mib), default=0.0)
    return f"{len(node.gpus)}, {share}, {peak:,.0f} MiB at the peak"


def _by_core(cores: Sequence[CoreShares]) -> str:
    """List this command's share of each CPU, the busiest first: `98%, 2%, 0%, 0%`.

    At most MOST_BY_CORE shares are listed.
    """
    ours = sorted((each.ours for each in cores), reverse=True)
    if not ours:
        return "not measured"
    more = f", and {len(ours) - MOST_BY_CORE} more" if len(ours) > MOST_BY_CORE else ""
    return ", ".join(f"{share:.0%}" for share in ours[:MOST_BY_CORE]) + more


def cpu_lines(cores: Sequence[CoreShares], marks: Marks) -> list[str]:
    """Draw a bar for each CPU: used by this command, used by others, idle.

    Of many CPUs the busiest are drawn.
    """
    if not cores:
        return ["  no CPU was sampled"]
    by_load = sorted(cores, key=lambda each: -each.busy)
    shown, hidden = by_load[:MOST_CPUS], by_load[MOST_CPUS:]
    found = [_cpu_line(each, marks) for each in sorted(shown, key=lambda each: each.cpu)]
    if hidden:
        busy = sum(each.busy for each in hidden) / len(hidden)
        found.append(f"  and {len(hidden)} more, {busy:.0%} busy on average")
    legend = f"{marks.ours} this command (estimated), {marks.others} others, {marks.idle} idle"
    return [*found, f"             {legend}"]


def _cpu_line(shares: CoreShares, marks: Marks) -> str:
    ours, busy = shares.ours, shares.busy
    filled = round(BAR * min(1.0, busy))
    mine = min(filled, round(BAR * ours))
    bar = marks.ours * mine + marks.others * (filled - mine) + marks.idle * (BAR - filled)
    others = max(0.0, busy - ours)
    return f"  CPU {shares.cpu:<4}   {bar}  {busy:4.0%} busy: {ours:.0%} ours, {others:.0%} others"


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="", subsequent_indent=indent)
