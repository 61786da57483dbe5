"""Slurm's arrays in a line each: how many of their elements are done, run, wait and why."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from hpcncf.slurm import times
from hpcncf.state.status import RunState


def lines(states: Sequence[RunState]) -> list[str]:
    """`array 123: 40 of 64 done, 8 running, 16 pending: others are before it (Priority), ...`."""
    return [_line(array) for array in plain(states)]


def plain(states: Sequence[RunState]) -> list[dict[str, Any]]:
    """For `--json`: a Slurm array's runs by state, and what those wait for that wait."""
    arrays: dict[str, list[RunState]] = defaultdict(list)
    for state in states:
        master, _, element = state.job.id.partition("_") if state.job else ("", "", "")
        if element:
            arrays[master].append(state)
    return [_summary(master, runs) for master, runs in arrays.items() if len(runs) > 1]


def _summary(master: str, runs: Sequence[RunState]) -> dict[str, Any]:
    waiting = Counter(state.reason for state in runs if state.state == "pending")
    starts = [state.slurm.starts for state in runs if state.slurm and state.slurm.starts]
    return {
        "array": master,
        "runs": len(runs),
        "states": dict(Counter(state.state for state in runs)),
        "waiting_for": dict(waiting.most_common(3)),
        "expected_start": min(starts, default=None),
    }


def _line(array: dict[str, Any]) -> str:
    states = dict(array["states"])
    parts = [f"{states.pop('completed', 0)} of {array['runs']} done"]
    pending = states.pop("pending", 0)
    parts += [f"{number} {state.replace('_', ' ')}" for state, number in states.items()]
    if pending:
        why = "; ".join(array["waiting_for"])
        parts.append(f"{pending} pending" + (f": {why}" if why else ""))
    if pending and array["expected_start"]:
        parts.append(f"the next expected {when(array['expected_start'])}")
    return f"array {array['array']}: {', '.join(parts)}"


def when(text: str) -> str:
    """`at 14:05`, or with the day where it is not today."""
    moment = times.moment(text)
    if moment is None:
        return f"at {text}"
    today = moment.date() == datetime.now().astimezone().date()
    return f"at {moment:%H:%M}" if today else f"on {moment:%b %-d at %H:%M}"
