"""A run's state as plain data, and in the few words that fit a line."""

from __future__ import annotations

from typing import Any

from hpcncf.cli import layout
from hpcncf.status import RunState
from hpcncf.tables import account


def plain(state: RunState) -> dict[str, Any]:
    """For `--json`: what `status` knows of one run."""
    return {
        "id": state.run.id,
        "state": state.state,
        "reason": state.reason or None,
        "attempt": state.attempt,
        "varied": state.run.varied,
        "repeat": state.run.repeat,
        "retired": state.run.retired,
        "resources": state.run.resources.model_dump(mode="json"),
        "job_id": state.job.id if state.job else None,
        "progress": state.progress.model_dump(mode="json") if state.progress else None,
        **figures(state),
        "stale": state.stale,
        "problems": state.problems,
    }


def figures(state: RunState) -> dict[str, float | None]:
    """Speed and CPU efficiency: of the whole run once it is complete, else so far."""
    source: dict[str, Any] = {}
    if state.state == "completed":
        source = account.settle(state.run, state.ranks, None)
    elif state.state == "running" and state.progress:
        source = state.progress.model_dump()
    return {name: source.get(name) for name in ("instances_per_s", "cpu_efficiency")}


def sentence(state: RunState) -> str:
    """`epoch 2/3, 51,234 instances/s, CPU 98 %`, or why there is nothing of the kind."""
    parts = [_epoch(state)] if state.state == "running" else []
    told = figures(state)
    if told["instances_per_s"] is not None:
        parts.append(f"{told['instances_per_s']:,.0f} instances/s")
    if told["cpu_efficiency"] is not None:
        parts.append(f"CPU {100 * told['cpu_efficiency']:.0f} %")
    parts.append(state.reason)
    return ", ".join(part for part in parts if part)


def _epoch(state: RunState) -> str:
    now = state.progress
    if now is None or now.phase == "startup":
        return "starting"
    if now.phase == "command":
        return f"{now.elapsed_s:,.0f} s"
    told = now.phase == "training" and now.steps_per_epoch > 0
    done = f" {100 * now.step / now.steps_per_epoch:.0f} %" if told else ""
    return f"{now.phase}, epoch {min(now.epoch + 1, now.epochs)}/{now.epochs}{done}"


def table(states: list[RunState]) -> str:
    heads = ["run", "varies", "state", "try", "details"]
    rows = [
        [
            state.run.id[: layout.ID],
            layout.varies(state.run) + (" (retired)" if state.run.retired else ""),
            state.state.replace("_", " "),
            str(state.attempt or "-"),
            sentence(state),
        ]
        for state in states
    ]
    return layout.table(heads, rows)


def stale(states: list[RunState]) -> list[str]:
    """A line for each cause that makes completed runs answer another question than today's."""
    causes = [state.stale for state in states if state.stale]
    return [
        f"{causes.count(cause)} completed run{'s' * (causes.count(cause) != 1)} {cause}: "
        "`hpcncf submit --again` runs them once more"
        for cause in dict.fromkeys(causes)
    ]
