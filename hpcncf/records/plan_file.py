"""The plan that a results folder holds, its retired runs, and the lock for changing it."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import yaml
from pydantic import ValidationError

from hpcncf.errors import UsageError
from hpcncf.files import write_text
from hpcncf.job.load import YamlLoader
from hpcncf.job.plan import Plan, Run, TypedCommand, merge_plans
from hpcncf.job.spec import JobSpec, Program
from hpcncf.paths import ResultPaths
from hpcncf.records.command_plan import locked as locked
from hpcncf.records.command_plan import writing as writing
from hpcncf.records.schema import RecordError, read_regular


class JobDumper(yaml.SafeDumper):
    """Writes YAML, and quotes exactly the text that our loader would read as another type."""

    yaml_implicit_resolvers = YamlLoader.yaml_implicit_resolvers


def read_plan(paths: ResultPaths) -> Plan:
    """Read the plan of a results folder. Raises UsageError if it has none, or a broken one."""
    try:
        return Plan.model_validate_json(read_regular(paths.plan).decode())
    except FileNotFoundError:
        meant = Path("results") / paths.folder.name
        nearby = f". Did you mean {meant}?" if (meant / paths.plan.name).exists() else ""
        raise UsageError(
            f"{paths.folder}: no results here (no {paths.plan.name}); expected a folder that "
            f"`hpcncf submit` or `hpcncf run` made, such as results/demo{nearby}"
        ) from None
    except OSError as error:
        raise UsageError(f"{paths.plan}: cannot be read: {error.strerror}") from None
    except RecordError as error:
        raise UsageError(str(error)) from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{paths.plan}: not UTF-8 text: {error.reason}") from None
    except ValidationError as error:
        problem = error.errors()[0]
        where = "".join(f"{part}: " for part in problem["loc"])
        raise UsageError(
            f"{paths.plan}: not a plan this hpcncf can read (torn, or written by another "
            f"version): {where}{problem['msg']}"
        ) from None


def record_plan(paths: ResultPaths, job: JobSpec, plan: Plan) -> Plan:
    """Write job.yaml and plan.json; runs of an earlier plan stay, as retired.

    Raises UsageError where the folder holds another job's results.
    """
    plain = job.model_dump(mode="json")
    text = yaml.dump(plain, Dumper=JobDumper, sort_keys=False, allow_unicode=True)
    with writing(paths.folder), locked(paths):
        if paths.plan.exists():
            plan = _with_snapshots(paths, _plan_of(paths, job.name), plan)
        _write(paths.job, text)
        write_plan(paths, plan)
    return plan


def has_snapshot(paths: ResultPaths, run: Run) -> bool:
    """Return whether the run's program was copied at its submission."""
    if not isinstance(run.workload, Program):
        return False
    return Path(run.workload.folder).resolve().is_relative_to(paths.snapshots.resolve())


def _with_snapshots(paths: ResultPaths, old: Plan, new: Plan) -> Plan:
    """Return the new plan with the old one's code copies, which queued runs keep."""
    copied = {run.id: run.workload for run in old.runs if has_snapshot(paths, run)}
    runs = [
        run.model_copy(update={"workload": copied[run.id]}) if run.id in copied else run
        for run in new.runs
    ]
    return merge_plans(old, new.model_copy(update={"runs": runs}))


def _plan_of(paths: ResultPaths, job: str) -> Plan:
    plan = read_plan(paths)
    if plan.job != job:
        raise UsageError(
            f"{paths.folder}: holds the results of job {plan.job!r}, this job is {job!r}: "
            "give another folder with --results"
        )
    return plan


def add_run(paths: ResultPaths, job: str, run: Run) -> None:
    """Add a job's run to the plan that is there, if it is new; the others stay as they are.

    Raises UsageError where the folder holds another job's results.
    """
    with writing(paths.folder), locked(paths):
        plan = _plan_of(paths, job)
        if all(known.id != run.id for known in plan.runs):
            write_plan(paths, plan.model_copy(update={"runs": [*plan.runs, run]}))


def add_command(paths: ResultPaths, run: Run) -> None:
    """Add a command's run to the folder's plan; those there stay as they are.

    Raises UsageError where the folder holds a job's results.
    """
    with writing(paths.folder), locked(paths):
        there = paths.plan.exists()
        plan = read_plan(paths) if there else Plan(job=paths.folder.resolve().name, runs=[])
        if not all(isinstance(each, TypedCommand) for each in plan.runs):
            raise UsageError(
                f"{paths.folder}: holds the results of the job {plan.job!r}; expected a folder of "
                "commands or a new one: choose another with --results"
            )
        write_plan(paths, plan.model_copy(update={"runs": [*plan.runs, run]}))


def write_plan(paths: ResultPaths, plan: Plan) -> None:
    """Write plan.json; to be called while `locked`."""
    _write(paths.plan, json.dumps(plan.model_dump(mode="json"), indent=1) + "\n")


def _write(path: Path, text: str) -> None:
    """Write a file, unless it has this text already.

    In a folder with the sticky bit nobody may replace another user's file.
    """
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if path.read_text(encoding="utf-8") == text:
            return
    write_text(path, text)
