"""Give a run a new id if its code was edited since it ran, so that it runs again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hpcncf.job.plan import Plan, Run
from hpcncf.job.spec import JobSpec, Program
from hpcncf.paths import ResultPaths, hash_identity
from hpcncf.records.plan_file import read_plan
from hpcncf.records.user_code import UserCode, hash_command_code, name_command_code
from hpcncf.state import status
from hpcncf.text import pluralize

DONE: Final = ("completed", "running")
"""States of runs that have computed, or compute, what their code was then."""


@dataclass(frozen=True)
class Renewed:
    """A plan whose commands are identified by the code that they would run now."""

    plan: Plan
    changed: int
    """Runs that were complete or running with other code, and are other runs now."""
    unfollowed: list[str]
    """Places whose changes go unnoticed."""

    def describe(self) -> list[str]:
        lines = [f"a change will go unnoticed: {place}" for place in self.unfollowed]
        if self.changed:
            lines.append(
                f"{pluralize(self.changed, 'run')} had other code: its files were edited since; "
                "submitted as new runs, and the earlier ones stay in the results, as retired"
            )
        return lines


def renew_changed_runs(paths: ResultPaths, job: JobSpec, plan: Plan) -> Renewed:
    """Record each command's code; a run that has computed with other code gets another id.

    A run that has not begun, or has failed, keeps its id and takes the code as it is now.
    """
    codes = _CommandCodes()
    old = {run.id: run for run in read_plan(paths).runs} if paths.plan.exists() else {}
    done = _done(paths, plan, old, all_queued=job.code == "snapshot")
    runs, changed = list[Run](), 0
    for run in plan.runs:
        code, then = codes.of(run), old.get(run.id)
        number = run.id
        if code and then and then.code not in (None, code) and run.id in done:
            number = hash_identity({"run": run.id, "code": code})
            changed += number not in old
        runs.append(run.model_copy(update={"id": number, "code": code}))
    return Renewed(plan.model_copy(update={"runs": runs}), changed, codes.unfollowed)


def _done(paths: ResultPaths, plan: Plan, old: Mapping[str, Run], all_queued: bool) -> set[str]:
    """Return ids of runs that keep their recorded code, because they have computed with it.

    With `all_queued`, queued runs are included, since their code was copied.
    """
    there = [old[run.id] for run in plan.runs if run.id in old and old[run.id].code]
    if not there:
        return set()
    kept = (*DONE, "pending") if all_queued else DONE
    found = status.states(paths, Plan(job=plan.job, runs=there))
    return {state.run.id for state in found if state.state in kept}


class _CommandCodes:
    """Cache of hashes of commands' code, since thousands of runs mostly name the same files."""

    def __init__(self) -> None:
        self.unfollowed: list[str] = []
        self._known: dict[tuple[object, ...], str | None] = {}

    def of(self, run: Run) -> str | None:
        if not isinstance(run.workload, Program):
            return None
        names = name_command_code(run.words)
        key = (run.workload.folder, *names)
        if key not in self._known:
            code: UserCode = hash_command_code(run.words, Path(run.workload.folder))
            self._known[key] = code.sha256()
            self.unfollowed += [each for each in code.unfollowed if each not in self.unfollowed]
        return self._known[key]
