"""What a submission left, why, and the command that sends it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcncf.submit.launch import Launched


def sentences(launched: Launched, command: Sequence[str]) -> list[str]:
    told: list[str] = []
    given, held = launched.given, launched.held
    if given.left:
        told.append(f"{_runs(len(given.left))} left: {given.limit}")
        told.append(f"send the rest when jobs have ended: {shlex.join(command)}")
    packed = _packed(launched)
    if packed:
        told.append(
            f"or all at once, {packed} runs in a task, when the above have ended: "
            f"{shlex.join(_in_tasks(command, packed))}"
        )
    if given.no_report:
        told.append(f"the runs are submitted, but nothing will report them: {given.no_report}")
    if held:
        told.append(
            f"{_runs(len(held))} held back, for whether they are queued or run is not known: "
            f"{held[0].reason}"
        )
        told.append(f"send them where you know that they are not: {shlex.join(_forced(command))}")
    return told


def plain(launched: Launched, command: Sequence[str]) -> dict[str, Any]:
    packed = _packed(launched)
    return {
        "left": [run.id for run in launched.given.left],
        "limit": launched.given.limit if launched.given.left else None,
        "command_for_the_rest": shlex.join(command) if launched.given.left else None,
        "command_for_all_at_once": shlex.join(_in_tasks(command, packed)) if packed else None,
        "no_report": launched.given.no_report or None,
        "held": {state.run.id: state.reason for state in launched.held},
        "command_for_held": shlex.join(_forced(command)) if launched.held else None,
    }


def _packed(launched: Launched) -> int | None:
    """How many runs in a task would leave none, where that is more than now."""
    from hpcncf.submit import packing

    given = launched.given
    if not given.left:
        return None
    number = packing.runs_per_task(given.left, given.tasks)
    now = max(run.resources.runs_per_task for run in given.left)
    return number if number and number > now else None


def _in_tasks(command: Sequence[str], number: int) -> list[str]:
    return [*command, "-s", f"resources.runs_per_task={number}"]


def _forced(command: Sequence[str]) -> list[str]:
    return [*command, "--force"]


def _runs(number: int) -> str:
    return f"{number} run{'s' * (number != 1)}"
