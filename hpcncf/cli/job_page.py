"""The page of a job that runs still, or that only the probe observed."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from hpcncf.cli.run_summary import WIDTH, facts_of, launched_lines, program_lines
from hpcncf.errors import printable
from hpcncf.records.schema import TOO_SHORT_S, NodeRecord, RankRecord
from hpcncf.text import format_duration, pluralize
from hpcncf_analysis.diagnosis.summary import Summary, judge_program


def lines_so_far(
    summary: Summary, state: str, folder: str, forecast: Sequence[str] = ()
) -> list[str]:
    """Lines of the page of a command that runs; `state` says since when.

    `forecast` says how far it gets before its time limit.
    """
    rank, program = summary.rank, program_lines(summary.program)
    facts = facts_of(rank, summary.node)
    shown = {
        "state": state,
        "cores": facts["cores"],
        "CPU": _efficiency(rank),
        "memory": f"{rank.memory.rss_peak_mib:,.0f} MiB resident now",
    }
    if program or rank.elapsed_s < TOO_SHORT_S:
        concluded = program or ["Too early to say how it uses its cores."]
    else:
        concluded = textwrap.wrap(summary.conclusion, WIDTH)
    text = [
        textwrap.shorten(f"hpcncf run: {summary.name}", WIDTH, placeholder=" ..."),
        *(f"  {label:<10} {fact}" for label, fact in shown.items()),
        *launched_lines(rank),
        "",
        *concluded,
        *(line for each in forecast for line in textwrap.wrap(each, WIDTH)),
        *_warnings([rank]),
        f"record so far: {folder}",
    ]
    return [printable(line) for line in text]


def lines_of_probe(
    ranks: Sequence[RankRecord], nodes: Sequence[NodeRecord], folder: str
) -> list[str]:
    """Lines of the page of a job of which only the probe's files are known."""
    first = ranks[0]
    used = [rank.cores.used or 0.0 for rank in ranks]
    programs = dict.fromkeys(word for rank in ranks for word in rank.run["workload"]["command"])
    allocated = sum(rank.cores.allocated for rank in ranks)
    usable = sum(rank.cores.usable for rank in ranks)
    text = [
        textwrap.shorten(f"hpcncf probe: {', '.join(programs)}", WIDTH, placeholder=" ..."),
        f"  seen       for {format_duration(first.elapsed_s)}, processes of Python only",
        f"  cores      {allocated:g} allocated, {usable:g} usable, {sum(used):.2f} used by them",
    ]
    for rank, cores in zip(ranks, used, strict=True):
        number = rank.cpu.processes_peak
        processes = "1 process" if number == 1 else f"{number:,} processes"
        text.append(
            f"  {rank.node[:10]:<10} {cores:.2f} of {pluralize(rank.cores.allocated, 'core')}, "
            f"{rank.memory.rss_peak_mib:,.0f} MiB, {processes}"
        )
    program = program_lines(judge_program(ranks, nodes))
    text += ["", *(program or ["No process lived long enough to say where its time goes."])]
    return [printable(line) for line in [*text, *_warnings(ranks), f"files of the probe: {folder}"]]


def _efficiency(rank: RankRecord) -> str:
    average = rank.cpu.efficiency
    return "?" if average is None else f"{average:.1%} on average so far"


def _warnings(ranks: Sequence[RankRecord]) -> list[str]:
    found = dict.fromkeys(each for rank in ranks for each in rank.warnings)
    return [
        line for each in found for line in textwrap.wrap(f"! {each}", WIDTH, subsequent_indent="  ")
    ]
