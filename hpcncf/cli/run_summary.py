"""The summary that `hpcncf run` prints at the end."""

from __future__ import annotations

import math
import shlex
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final

from hpcncf.collect.node_means import IDLE_MIB_S, TRAFFIC, mean, traffic
from hpcncf.records.plain import TOO_SHORT_S
from hpcncf.text import format_duration

if TYPE_CHECKING:
    from hpcncf.records.schema import Cpu, NodeRecord, RankRecord

WIDTH: Final = 80
BAR: Final = 20
MOST_CPUS: Final = 16
MOST_BY_CORE: Final = 10

FULL_SHARE: Final = 0.85
IDLE_CORES: Final = 0.3
# With so much taken by others, what a command used does not show what it needs.
DISTURBED_CORES: Final = 0.5


@dataclass(frozen=True)
class Marks:
    """What a bar is drawn with."""

    ours: str
    others: str
    idle: str


PLAIN = Marks("#", "+", ".")
BLOCKS = Marks("█", "▒", "·")


def lines(
    rank: RankRecord,
    node: NodeRecord,
    folder: str,
    marks: Marks = PLAIN,
    ranks: Sequence[RankRecord] | None = None,
    nodes: Sequence[NodeRecord] | None = None,
) -> list[str]:
    """Lines of the whole summary, at most 80 columns wide except for paths.

    `ranks`, `nodes`: all of a program that was started several times; else there is this one.
    """
    command = shlex.join(rank.run["workload"]["command"])
    named = rank.run.get("varied", {}).get("run.command") or command
    program = program_lines(ranks or [rank], nodes or [node])
    facts = facts_of(rank, node)
    if program:
        facts = {label: facts[label] for label in ("exit", "cores", "CPU", "memory")}
        facts["by core"] = _by_core(node)
    if moved := _traffic(nodes or [node]):
        facts["traffic"] = moved
    return [
        textwrap.shorten(f"hpcncf run: {named}", WIDTH, placeholder=" ..."),
        *([] if rank.world_size == 1 else [f"  rank       0 of {rank.world_size}, whose figures:"]),
        *(f"  {label:<10} {fact}" for label, fact in facts.items()),
        *remedy_lines(rank),
        *([] if program else ["", *cpu_lines(node, marks)]),
        "",
        *(program or _wrapped(conclusion(rank, node), "")),
        *(line for warning in rank.warnings for line in _wrapped(f"! {warning}", "  ")),
        f"record: {folder}",
    ]


def remedy_lines(rank: RankRecord) -> list[str]:
    """Lines that tell for each requested remedy whether and where it was applied.

    Only the processes of this rank count. Without requested remedies there are none.
    """
    if not any((rank.run.get("remedies") or {}).values()):
        return []
    from hpcncf.job.spec import Remedies

    asked = str(Remedies.model_validate(rank.run["remedies"]))
    seen = [each for program in rank.program if not program.is_worker for each in program.remedies]
    found: dict[tuple[str, bool], dict[str, int]] = {}
    for each in seen:
        counts = found.setdefault((each.remedy, each.applied), {})
        counts[each.to] = counts.get(each.to, 0) + each.count
    if not seen:
        found = {
            (each, False): {"the probe saw no program that uses torch": 1}
            for each in asked.split(",")
        }
    text: list[str] = []
    for (remedy, applied), counts in sorted(found.items(), key=lambda each: not each[0][1]):
        to = "; ".join(f"{to} ({count} times)" if count > 1 else to for to, count in counts.items())
        label = "  with       " if not text else "             "
        line = f"{remedy}: {'applied' if applied else 'NOT applied'}: {to}"
        text += textwrap.wrap(line, WIDTH, initial_indent=label, subsequent_indent=" " * 15)
    return text


def import_diagnosis() -> None:
    """Import what `program_lines` needs."""
    for name in ("diagnose", "from_records", "program_text"):
        import_module(f"hpcncf_analysis.diagnosis.{name}")


def program_lines(ranks: Sequence[RankRecord], nodes: Sequence[NodeRecord]) -> list[str]:
    """Lines that tell where the time of a training program goes, and why.

    They come from the probe, and there are none if it saw no program.
    """
    if all(each.is_worker for rank in ranks for each in rank.program):
        return []
    from hpcncf_analysis.diagnosis import diagnose, program_text
    from hpcncf_analysis.diagnosis.from_records import evidence

    seen = evidence(ranks, nodes)
    return program_text.lines(seen, diagnose.diagnose_evidence(seen))


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
    average = "?" if cpu.efficiency is None else f"{cpu.efficiency:.1%}"
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


def _shares(node: NodeRecord) -> dict[int, tuple[float, float]]:
    """Map each CPU to two shares of the time: used by this command, and used by anybody."""
    if not sum(node.length_s):
        return {}
    return {
        cpu: (_mean(ours, node.length_s), _mean(busy, node.length_s))
        for cpu, ours, busy in zip(node.cpus, node.ours, node.busy, strict=True)
    }


def _by_core(node: NodeRecord) -> str:
    """List this command's share of each CPU, the busiest first: `98%, 2%, 0%, 0%`.

    At most MOST_BY_CORE shares are listed.
    """
    ours = sorted((share for share, _ in _shares(node).values()), reverse=True)
    if not ours:
        return "not measured"
    more = f", and {len(ours) - MOST_BY_CORE} more" if len(ours) > MOST_BY_CORE else ""
    return ", ".join(f"{share:.0%}" for share in ours[:MOST_BY_CORE]) + more


def cpu_lines(node: NodeRecord, marks: Marks) -> list[str]:
    """Draw a bar for each CPU: used by this command, used by others, idle.

    Of many CPUs the busiest are drawn.
    """
    shares = _shares(node)
    if not shares:
        return ["  no CPU was sampled"]
    shown = sorted(sorted(shares, key=lambda cpu: -shares[cpu][1])[:MOST_CPUS])
    found = [_cpu_line(cpu, *shares[cpu], marks) for cpu in shown]
    hidden = [shares[cpu][1] for cpu in shares if cpu not in shown]
    if hidden:
        found.append(f"  and {len(hidden)} more, {sum(hidden) / len(hidden):.0%} busy on average")
    legend = f"{marks.ours} this command (estimated), {marks.others} others, {marks.idle} idle"
    return [*found, f"             {legend}"]


def _mean(shares: list[float], lengths: list[float]) -> float:
    pairs = zip(shares, lengths, strict=True)
    return sum(share * length for share, length in pairs) / sum(lengths)


def _cpu_line(cpu: int, ours: float, busy: float, marks: Marks) -> str:
    filled = round(BAR * min(1.0, busy))
    mine = min(filled, round(BAR * ours))
    bar = marks.ours * mine + marks.others * (filled - mine) + marks.idle * (BAR - filled)
    others = max(0.0, busy - ours)
    return f"  CPU {cpu:<4}   {bar}  {busy:4.0%} busy: {ours:.0%} ours, {others:.0%} others"


def conclusion(rank: RankRecord, node: NodeRecord) -> str:
    """Conclude in one or two sentences how many cores the next request should have."""
    cores, used = rank.cores, rank.cores.used
    if used is None or rank.elapsed_s < TOO_SHORT_S:
        return "Too short to say how it uses its cores."
    others = _mean(node.others_cores, node.length_s) if sum(node.length_s) else 0.0
    if others >= DISTURBED_CORES:
        return _disturbed(rank, others)
    if cores.usable < cores.allocated and used >= FULL_SHARE * cores.usable:
        return (
            f"The {cores.usable:g} usable of {cores.allocated:g} allocated cores did all the work: "
            "the rest was paid for and out of reach."
        )
    if used >= FULL_SHARE * cores.allocated:
        return f"{_all_of(cores.allocated)} at work: more might help, fewer would slow it down."
    if used < IDLE_CORES:
        return (
            f"It mostly waited: {used:.2f} of {cores.allocated:g} cores' worth of work. Look at "
            "its disk, network, locks and sleeps, not at its cores."
        )
    return _partly(cores.allocated, used, rank)


def _disturbed(rank: RankRecord, others: float) -> str:
    alone = "when they rest" if rank.slurm_job_id is None else "on a node of its own (--exclusive)"
    return (
        f"The number of cores it needs is unknown: other processes held {others:.1f} of its "
        f"{rank.cores.usable:g} cores, and it may have waited for them. Measure again {alone}."
    )


def _all_of(allocated: float) -> str:
    return "Its one core was" if allocated == 1 else f"All {allocated:g} cores were"


def _partly(allocated: float, used: float, rank: RankRecord) -> str:
    enough = max(1, math.ceil(used - 0.15))
    if enough >= allocated:
        return f"It used {used:.1f} of {allocated:g} cores: it waits part of the time."
    work = "One" if enough == 1 else f"{enough}"
    peak = rank.cpu.efficiency_peak
    high = (
        f" (at its peak {peak * allocated:.1f})"
        if peak is not None and peak * allocated > used + 0.5
        else ""
    )
    ask = "1 core" if enough == 1 else f"{enough} cores"
    return (
        f"{work} of {allocated:g} cores did the work{high}: ask for {ask}, or make it use more "
        "of them (threads, ranks, workers)."
    )


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="", subsequent_indent=indent)
