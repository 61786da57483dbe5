"""Print the workloads of past jobs: a table, its reasons, and one next step; or JSON."""

from __future__ import annotations

import getpass
from collections.abc import Callable

from hpcncf.cli.output import filled, print_json, width
from hpcncf.explain.conclude import sbatch_options
from hpcncf.explain.words import format_core_hours, format_memory, format_share
from hpcncf.explain.workloads import Workload, Workloads
from hpcncf.slurm.past_jobs import EVERYBODY, PastJobsQuery
from hpcncf.table import NONE, Table
from hpcncf.text import pluralize

ROWS = 20
REASONS = 5
LONGEST_NAME = 28


def show(query: PastJobsQuery, found: Workloads, as_json: bool) -> None:
    workloads = found.most_wasteful_first()
    if as_json:
        plain = {
            "since": query.since.isoformat(timespec="seconds"),
            "jobs_running": found.running,
            "jobs_of_failed_nodes": found.node_failed,
            "core_hours": found.core_hours,
            "core_hours_idle": found.core_hours_idle,
            "workloads": [each.plain() for each in workloads],
        }
        print_json("explain", plain)
        return
    whose = _whose(query)
    if not workloads:
        running = f" ({pluralize(found.running, 'job')} still running)" if found.running else ""
        print(f"no job of {whose} has ended since {query.since:%Y-%m-%d %H:%M}{running}")
        return
    print(_summary(query, found, whose))
    print()
    rows = [_row(each) for each in workloads[:ROWS]]
    heads = [
        "workload",
        "runs",
        "cores",
        "used",
        "memory",
        "longest",
        "idle core-hours",
        "next request",
    ]
    texts = frozenset((heads[-1],))
    print(Table(heads, rows, texts).layout(width()))
    if hidden := workloads[ROWS:]:
        idle = format_core_hours(sum(each.core_hours_idle for each in hidden))
        print(f"\n{pluralize(len(hidden), 'more workload')} with {idle} not used: see --json")
    _show_reasons(workloads)


def _whose(query: PastJobsQuery) -> str:
    if query.user == EVERYBODY or (query.account and not query.user):
        whose = "everybody"
    else:
        whose = query.user or getpass.getuser()
    if query.account:
        whose += f" in account {query.account}"
    return whose + (f" named {query.name}" if query.name else "")


def _summary(query: PastJobsQuery, found: Workloads, whose: str) -> str:
    text = (
        f"Jobs of {whose} since {query.since:%Y-%m-%d %H:%M}: {pluralize(found.runs, 'run')} in "
        f"{pluralize(len(found.all), 'workload')}, {format_core_hours(found.core_hours)} reserved, "
        f"{format_core_hours(found.core_hours_idle)} of them not used."
    )
    if found.uncounted:
        text += f" CPU time of {pluralize(found.uncounted, 'run')} was not counted."
    if found.running:
        text += f" {pluralize(found.running, 'job')} still running: left out."
    if found.node_failed:
        text += f" {pluralize(found.node_failed, 'job')} of failed nodes: left out."
    return filled(text)


def _row(workload: Workload) -> list[str]:
    used, cores = workload.mean_cores_used, workload.cores
    share = f" ({format_share(used / cores)})" if used is not None and cores else ""
    advice = workload.advice()
    request = sbatch_options(advice.request)
    return [
        _short(workload.name),
        f"{workload.runs}",
        "+".join(str(part.cores or NONE) for part in workload.shape),
        NONE if used is None else f"{used:.2f}{share}",
        _of(workload.memory.largest, workload.memory_asked_mib, format_memory),
        _of(workload.longest_s, workload.limit_s, _clock),
        NONE if not workload.counted_s else f"{workload.core_hours_idle:,.1f}",
        advice.not_enough or request or "as today",
    ]


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def _short(name: str) -> str:
    half = LONGEST_NAME // 2 - 1
    return name if len(name) <= LONGEST_NAME else f"{name[:half]}..{name[-half:]}"


def _of(used: float, asked: float | None, formatted: Callable[[float], str]) -> str:
    if not used:
        return NONE
    return formatted(used) + (f" of {formatted(asked)}" if asked else "")


def _show_reasons(workloads: list[Workload]) -> None:
    for each in [each for each in workloads[:ROWS] if each.advice().notes][:REASONS]:
        print(f"\n{_short(each.name)}")
        for note in each.advice().notes:
            print(filled(note, indent="    "))
    top = workloads[0]
    print("\n  next step\n    hpcncf sbatch JOBSCRIPT")
    why = (
        f"Submit {_short(top.name)} by it once: the last lines of its log name the cause of the "
        f"idle cores and its line. What Slurm counted of its last run: hpcncf explain "
        f"{top.last_job}"
    )
    print(filled(why, indent="    "))
