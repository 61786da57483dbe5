"""More memory or time for runs sent once more: neither is part of a run's identity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from hpcncf import jobfile, plain_yaml, results
from hpcncf.errors import UsageError
from hpcncf.paths import ResultPaths
from hpcncf.plan import Plan, Run
from hpcncf.spec import Resources
from hpcncf.state import status

FREE: Final = ("resources.mem_gb", "resources.timeout_min", "resources.runs_per_task")
# The others keep what they had, or have.
KEPT: Final = ("completed", "running", "pending")


def amend(paths: ResultPaths, settings: Sequence[str]) -> Plan:
    """The results' plan, with these `key=value` settings in every run that is still to be sent.

    Raises UsageError for a setting that would make another run of it.
    """
    changes = _changes(settings)
    if not changes:
        return results.read_plan(paths)
    with results.writing(paths.folder), results.locked(paths):
        plan = results.read_plan(paths)
        known = status.states(paths, plan)
        runs = [s.run if s.state in KEPT else _with(s.run, changes) for s in known]
        plan = plan.model_copy(update={"runs": runs})
        results.write_plan(paths, plan)
    return plan


def _with(run: Run, changes: Mapping[str, Any]) -> Run:
    return run.model_copy(update={"resources": run.resources.model_copy(update=changes)})


def _changes(settings: Sequence[str]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for setting in settings:
        dotted, equals, text = setting.partition("=")
        if not equals:
            raise UsageError(f"-s {setting}: expected key=value, as in -s {FREE[1]}=60")
        if dotted not in FREE:
            raise UsageError(
                f"-s {setting}: would be another run, not this one once more: submit the job file "
                f"with it; retry takes {', '.join(FREE)}"
            )
        plain[dotted.split(".")[1]] = plain_yaml.parse(text, f"-s {setting}")
    return jobfile.validated(Resources, plain, "-s").model_dump(include=set(plain))
