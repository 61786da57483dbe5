"""Write runs as a Chrome trace: a timeline for Perfetto (ui.perfetto.dev) or chrome://tracing.

The format is Google's Trace Event Format (catapult, "Trace Event Format"), its JSON Object form.
Times are in microseconds. Each node and each rank is a process of the trace. Only what the records
hold is written: phases of a program are known as shares of an interval, not in their order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from hpcncf.files import write_text
from hpcncf.records.schema import NodeRecord, ProgramProfile, RankRecord, TrainingRecord
from hpcncf_analysis.report.sections.timeline import build_timeline

Event = dict[str, Any]

US: Final = 1e6
EPOCHS, PAUSES, PHASES, LINES = "epochs", "pauses", "phases", "lines"
"""Threads of a rank's process, in this order."""
THREADS: Final = {
    EPOCHS: "epochs",
    PAUSES: "pauses",
    PHASES: "phases: shares of each interval, their order is not recorded",
    LINES: "hot lines: shares of each phase, over the whole training",
}


@dataclass
class Trace:
    """Events of several runs on one clock, which begins with the first of them."""

    events: list[Event] = field(default_factory=list)
    processes: int = 0

    def add_run(self, name: str, ranks: Sequence[RankRecord], nodes: Sequence[NodeRecord]) -> None:
        for node in nodes:
            pid = self._process(f"{name} · node {node.node}")
            self.events += _node_events(pid, _moment(node.started_at), node)
        for rank in ranks:
            began = _moment(rank.started_at)
            pid = self._process(f"{name} · rank {rank.rank} on {rank.node}")
            self.events += _rank_events(pid, began, rank)
            programs = [each for each in rank.program if not each.is_worker]
            for program in programs:
                if len(programs) > 1:  # as under torchrun: each process has a timeline of its own
                    title = f"{name} · {program.program}, rank {program.rank}, pid {program.pid}"
                    pid = self._process(title)
                    self.events += _thread_names(pid)
                self.events += _program_events(pid, began, program)

    def _process(self, name: str) -> int:
        self.processes += 1
        self.events.append(_metadata(self.processes, 0, "process_name", name))
        return self.processes

    def write(self, path: Path) -> None:
        """Write the trace as JSON, completely or not at all."""
        timed = [each["ts"] for each in self.events if "ts" in each]
        first = min(timed, default=0.0)
        for each in self.events:
            if "ts" in each:
                each["ts"] = round(each["ts"] - first, 1)
        write_text(path, json.dumps({"traceEvents": self.events, "displayTimeUnit": "ms"}))


def _moment(text: str) -> float:
    """Convert a time in ISO 8601 to microseconds since 1970."""
    return datetime.fromisoformat(text).timestamp() * US


def _metadata(pid: int, tid: int, kind: str, name: str) -> Event:
    return {"ph": "M", "pid": pid, "tid": tid, "name": kind, "args": {"name": name}}


def _counter(pid: int, ts: float, name: str, values: Mapping[str, float | None]) -> Event:
    return {"ph": "C", "pid": pid, "ts": ts, "name": name, "args": dict(values)}


def _node_events(pid: int, began: float, node: NodeRecord) -> Iterator[Event]:
    """Yield the node's counters: each core's busy share, other processes, memory, traffic."""
    for at, start_s in enumerate(node.start_s):
        ts, length_s = began + start_s * US, node.length_s[at] or 1.0
        for row, cpu in enumerate(node.cpus):
            ours, busy = node.ours[row][at], node.busy[row][at]
            shares = {"this run": ours, "others": max(0.0, busy - ours)}
            yield _counter(pid, ts, f"CPU {cpu}", shares)
        yield _counter(pid, ts, "cores used by others", {"cores": node.others_cores[at]})
        yield _counter(pid, ts, "resident memory (MiB)", {"MiB": node.rss_mib[at]})
        traffic = {
            "network": node.network_mib[at] / length_s,
            "disks": node.disk_mib[at] / length_s,
        }
        yield _counter(pid, ts, "traffic (MiB/s)", traffic)
        for gpu in node.gpus or []:
            yield _counter(pid, ts, f"GPU {gpu.index}", {"busy": gpu.busy[at]})
    if node.start_s:  # counters hold their value until the next: here they end
        ts = began + (node.start_s[-1] + node.length_s[-1]) * US
        for cpu in node.cpus:
            yield _counter(pid, ts, f"CPU {cpu}", {"this run": 0.0, "others": 0.0})


def _thread_names(pid: int) -> Iterator[Event]:
    for tid, name in enumerate(THREADS.values(), 1):
        yield _metadata(pid, tid, "thread_name", name)


def _rank_events(pid: int, began: float, rank: RankRecord) -> Iterator[Event]:
    yield from _thread_names(pid)
    whole = {"outcome": rank.outcome, "cores allocated": rank.cores.allocated}
    yield _slice(pid, EPOCHS, began, rank.elapsed_s, "run", whole)
    if rank.training is not None:
        yield from _training_events(pid, began, rank.training)


def _slice(
    pid: int, thread: str, ts: float, seconds: float, name: str, args: Mapping[str, Any]
) -> Event:
    tid = 1 + list(THREADS).index(thread)
    event: Event = {"ph": "X", "pid": pid, "tid": tid, "ts": ts, "dur": round(seconds * US, 1)}
    return event | {"name": name, "args": dict(args)}


def _training_events(pid: int, began: float, training: TrainingRecord) -> Iterator[Event]:
    """Yield the epochs with their evaluations and checkpoints, and the pauses between steps."""
    first_step = now = began + training.startup_s * US
    yield _slice(pid, EPOCHS, began, training.startup_s, "start-up", {})
    resumed = training.resumed_epoch or 0
    for epoch in [each for each in training.epochs if each.epoch >= resumed]:
        parts = {
            f"epoch {epoch.epoch}": epoch.training_s,
            "evaluation": epoch.evaluation_s,
            "checkpoint": epoch.checkpoint_s,
        }
        args = {"steps": epoch.steps, "instances": epoch.instances, "loss": epoch.loss}
        for name, seconds in parts.items():
            if seconds:
                yield _slice(pid, EPOCHS, now, seconds, name, args)
                now += seconds * US
    timeline = build_timeline(training)
    for stop in timeline.stops if timeline else []:
        yield _slice(pid, PAUSES, first_step + stop.begun_s * US, stop.seconds, stop.kind, {})
    phases = {
        name.removesuffix("_s"): seconds for name, seconds in training.phases.model_dump().items()
    }
    yield from _shares(pid, first_step, training.training_s, phases)


def _program_events(pid: int, began: float, program: ProgramProfile) -> Iterator[Event]:
    """Yield start-up, phases and hot lines of a program, as its probe saw them."""
    first_step = began + program.startup_s * US
    if program.startup_s:
        seen = {"imports (s)": program.imports_s}
        yield _slice(pid, EPOCHS, began, program.startup_s, "start-up", seen)
    moments = program.moments
    for before, after in pairwise(moments):
        length_s = after.elapsed_s - before.elapsed_s
        phases = {
            name: seconds - before.phases.get(name, 0.0) for name, seconds in after.phases.items()
        }
        steps = {"steps": after.steps - before.steps}
        at = began + before.elapsed_s * US
        yield from _shares(pid, at, length_s, phases, steps)
    totals = {name: phase.seconds for name, phase in program.phases.items()}
    if len(moments) < 2:
        yield from _shares(pid, first_step, program.seconds, totals)
    now = first_step
    whole = sum(totals.values()) or 1.0
    for phase, seconds in totals.items():
        phase_s = program.seconds * seconds / whole
        lines = sorted(
            (each for each in program.lines if each.phase == phase),
            key=lambda line: -line.own_share,
        )
        at = now
        for line in lines:
            if line.own_share > 0:
                where = f"{Path(line.file).name}:{line.line} {line.function}"
                args = {"phase": phase, "file": line.file, "share of the phase": line.own_share}
                yield _slice(pid, LINES, at, phase_s * line.own_share, where, args)
                at += phase_s * line.own_share * US
        now += phase_s * US


def _shares(
    pid: int,
    ts: float,
    length_s: float,
    phases: Mapping[str, float],
    args: Mapping[str, Any] | None = None,
) -> Iterator[Event]:
    """Yield the phases one after another, as long as their shares of the interval."""
    whole = sum(seconds for seconds in phases.values() if seconds > 0)
    for name, seconds in sorted(phases.items(), key=lambda each: -each[1]):
        if seconds > 0:
            part_s = length_s * seconds / whole
            share = {"share of the interval": round(seconds / whole, 4), **(args or {})}
            yield _slice(pid, PHASES, ts, part_s, name, share)
            ts += part_s * US
