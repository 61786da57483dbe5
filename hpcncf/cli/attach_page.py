"""The page of `hpcncf attach`: that of `hpcncf run`, with a table of the processes."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from hpcncf.cli.run_summary import WIDTH, Marks, cpu_lines, facts_of, program_lines
from hpcncf.errors import printable
from hpcncf.records.schema import NodeRecord, RankRecord
from hpcncf.text import format_duration, pluralize
from hpcncf_analysis.diagnosis.summary import conclude_cores, judge_program, share_cores

MOST_PROCESSES: Final = 8
MOST_THREADS: Final = 6
MOST_FILES: Final = 4
SOME_CORES: Final = 0.005
TABLE: Final = "        PID  cores  threads    ran  ready  waits      MiB  command"
# Causes that show from outside; a neighbour's load is in the conclusion.
OUTSIDE: Final = ("one_core_confinement", "oversubscribed", "memory_pressure", "gpu_underused")

Raw = Mapping[str, Any]


def lines(
    what: str,
    raws: Sequence[Raw],
    ranks: Sequence[RankRecord],
    nodes: Sequence[NodeRecord],
    marks: Marks,
    unseen: Sequence[str],
) -> list[str]:
    """Lines of the whole page; `what` names the job or process, `unseen` what was not seen."""
    text = [_cut(f"hpcncf attach: {what}")]
    for raw, rank, node in zip(raws, ranks, nodes, strict=True):
        if len(raws) > 1:
            text += ["", f"node {raw['node']}"]
        text += [*_facts(raw, rank, node), "", *process_lines(raw)]
        if len(raws) == 1 and not rank.program:
            text += ["", *cpu_lines(share_cores(node), marks)]
    text += ["", *_conclusions(ranks, nodes)]
    warned = dict.fromkeys(each for rank in ranks for each in rank.warnings)
    noted = [
        f"{raw['node']}: {each}" if len(raws) > 1 else each for raw in raws for each in raw["notes"]
    ]
    text += [line for each in (*noted, *warned) for line in _wrap(f"! {each}", "  ")]
    text += [line for each in unseen for line in _wrap(f"not seen: {each}", "  ")]
    return [printable(line) for line in text]


def _facts(raw: Raw, rank: RankRecord, node: NodeRecord) -> list[str]:
    facts = facts_of(rank, node)
    del facts["exit"]
    age = raw["age_s"] + raw["elapsed_s"]
    goes_on = "it has ended" if raw["ended"] else f"it has run for {format_duration(age)}"
    watched = f"{format_duration(raw['elapsed_s'])}; {goes_on}"
    return [f"  {label:<10} {fact}" for label, fact in {"watched": watched, **facts}.items()]


def process_lines(raw: Raw) -> list[str]:
    """Table of the busiest processes, then threads of the first one, and the files in use.

    `ran`, `ready` and `waits` are shares of the time of the process's busiest thread.
    """
    elapsed_s, processes = raw["elapsed_s"] or 1.0, raw["processes"]
    text = [TABLE]
    for one in processes[:MOST_PROCESSES]:
        text.append(_cut(_row(one, elapsed_s)))
    if rest := processes[MOST_PROCESSES:]:
        cores = sum(one["cpu_s"] for one in rest) / elapsed_s
        threads, mib = (sum(one[key] for one in rest) for key in ("threads", "rss_mib"))
        text.append(f"  {len(rest):>5} more {cores:6.2f} {threads:8} {'':20} {mib:8,.0f}")
    text += _threads(processes[0], elapsed_s) if processes else []
    return [*text, *_files(raw["files"], elapsed_s)]


def _row(one: Raw, elapsed_s: float) -> str:
    shares = ["", "", ""]
    if one["busiest"]:
        shares = [_percent(share) for share in _shares(one["busiest"][0])]
    ran, ready, waits = shares
    state = max(one["states"], key=lambda state: one["states"][state])
    stopped = {"T": "(stopped) ", "t": "(traced) ", "Z": "(ended) "}.get(state, "")
    return (
        f"  {one['pid']:>9} {one['cpu_s'] / elapsed_s:6.2f} {one['threads']:8} {ran:>6} {ready:>6} "
        f"{waits:>6} {one['rss_mib']:8,.0f}  {stopped}{_short(one['command'])}"
    )


def _shares(thread: Raw) -> tuple[float, float | None, float | None]:
    """Shares of a thread's time: on a core, ready without one, waiting; None if not counted."""
    seen_s = thread["seen_s"]
    if seen_s <= 0:
        return 0.0, None, None
    ran = min(1.0, thread["ran_s"] / seen_s)
    if thread["ready_s"] is None:
        return ran, None, None
    ready = min(1.0 - ran, thread["ready_s"] / seen_s)
    return ran, ready, max(0.0, 1.0 - ran - ready)


def _percent(share: float | None) -> str:
    return "?" if share is None else f"{share:.0%}"


def _threads(one: Raw, elapsed_s: float) -> list[str]:
    """Cores that each of a process's busiest threads used; none for a single thread."""
    if one["threads"] < 2:
        return []
    busy = [each for each in one["busiest"] if each["ran_s"] / elapsed_s >= SOME_CORES]
    if len(busy) < 2:
        return []
    shown = [f"{each['name']} {each['ran_s'] / elapsed_s:.2f}" for each in busy[:MOST_THREADS]]
    more = one["threads"] - len(shown)
    text = f"threads of {one['pid']}, in cores: {', '.join(shown)}"
    text += f"; {more} more" if more > 0 else ""
    return [f"  {line}" for line in _wrap(text, "  ")]


def _files(files: Sequence[Raw], elapsed_s: float) -> list[str]:
    """Lines of the files that were read or written, or newly opened, or are mapped."""
    moved = [each for each in files if each["moved_bytes"] or each["opened"]]
    mapped = [each for each in files if each["mapped_bytes"] and each not in moved]
    text = []
    for each in [*moved, *mapped][:MOST_FILES]:
        verb = "writes" if each["writes"] else "reads"
        rate = each["moved_bytes"] / 2**20 / elapsed_s
        figures = [f"{rate:,.1f} MiB/s"] if each["moved_bytes"] else []
        figures += [f"opened {pluralize(each['opened'], 'time')}"] if each["opened"] else []
        if each["mapped_bytes"]:
            figures.append(f"{each['mapped_bytes'] / 2**20:,.0f} MiB mapped")
        text.append(f"  {verb:<10} {each['path']} ({', '.join(figures)})")
    return text


def _conclusions(ranks: Sequence[RankRecord], nodes: Sequence[NodeRecord]) -> list[str]:
    if inside := program_lines(judge_program(ranks, nodes)):
        return inside
    from hpcncf_analysis.diagnosis.diagnose import diagnose
    from hpcncf_analysis.diagnosis.program_text import cause_lines

    found: dict[str, list[str]] = {}
    for rank, node in zip(ranks, nodes, strict=True):
        found.setdefault(conclude_cores(rank, node), []).append(rank.node)
    text: list[str] = []
    for sentence, where in found.items():
        named = f"{', '.join(where)}: " if len(found) > 1 else ""
        text += _wrap(f"{named}{sentence}", "")
    diagnosis = diagnose(ranks, nodes)
    seen = [each for each in diagnosis.findings if each.cause in OUTSIDE]
    causes = replace(diagnosis, primary=seen[0] if seen else None, secondary=tuple(seen[1:]))
    return [*text, *cause_lines(causes)]


def _short(command: Sequence[str]) -> str:
    """The command with the names of its program and script only, in one line."""
    words = [Path(word).name if at < 2 and "/" in word else word for at, word in enumerate(command)]
    return " ".join(shlex.join(words).split())


def name_command(command: Sequence[str]) -> str:
    return textwrap.shorten(_short(command), WIDTH, placeholder=" ...") or "unknown command"


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 4]} ..."


def _wrap(text: str, indent: str) -> Iterator[str]:
    yield from textwrap.wrap(text, WIDTH - 2, subsequent_indent=indent)
