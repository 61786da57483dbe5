"""Submit a plan to Slurm or to the local queue."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from hpcncf.errors import HpcncfError, UsageError
from hpcncf.job.command import Program
from hpcncf.job.load import validate_settings
from hpcncf.job.plan import Plan, Run
from hpcncf.job.settings import parse_yaml
from hpcncf.job.spec import Data, JobSpec, Resources
from hpcncf.job.validate import describe_gloo_choice
from hpcncf.local import machine
from hpcncf.ncf.data import manifest
from hpcncf.ncf.data import manifest as whole
from hpcncf.paths import ResultPaths
from hpcncf.records.code_version import record_code
from hpcncf.records.results_folder import locked, read_plan, write_plan, writing
from hpcncf.records.schema import read_record, write_record
from hpcncf.records.submissions import Cluster, Submission, begin, read_submissions, user
from hpcncf.slurm.preflight import Limits
from hpcncf.slurm.site import load_sites, parameters
from hpcncf.state import status
from hpcncf.state.decide import claim
from hpcncf.state.status import RunState
from hpcncf.submit.arrays import Given, give, queued
from hpcncf.submit.recover import mend

FREE: Final = ("resources.mem_gb", "resources.timeout_min", "resources.runs_per_task")
# The others keep what they had, or have.
KEPT: Final = ("completed", "running", "pending")


def amend(paths: ResultPaths, settings: Sequence[str]) -> Plan:
    """The results' plan, with these `key=value` settings in every run that is still to be sent.

    Raises UsageError for a setting that would make another run of it.
    """
    changes = _changes(settings)
    if not changes:
        return read_plan(paths)
    with writing(paths.folder), locked(paths):
        plan = read_plan(paths)
        known = status.states(paths, plan)
        runs = [s.run if s.state in KEPT else _with(s.run, changes) for s in known]
        plan = plan.model_copy(update={"runs": runs})
        write_plan(paths, plan)
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
        plain[dotted.split(".")[1]] = parse_yaml(text, f"-s {setting}")
    return validate_settings(Resources, plain, "-s").model_dump(include=set(plain))


# What another submission, or somebody's torchrun, is at already.
TAKEN = ("pending", "running")


@dataclass(frozen=True)
class Launched:
    """What became of a request to submit."""

    runs: list[Run]
    """Those submitted."""
    skipped: list[RunState]
    """Complete, running or queued already."""
    refused: dict[str, str]
    """Run id -> why this machine cannot run it."""
    again: bool
    notes: list[str] = field(default_factory=list)
    """What the user should know: what could not be checked, what looks doubtful."""
    held: list[RunState] = field(default_factory=list)
    """Not submitted, since nobody knows whether they still are in a queue or run."""
    given: Given = field(default_factory=lambda: Given([]))
    """What Slurm had no room for."""


def choose_cluster(asked: Literal["auto"] | Cluster) -> Cluster:
    """Raises UsageError where Slurm is asked for and not there."""
    there = shutil.which("sbatch") is not None
    if asked == "slurm" and not there:
        raise UsageError("--cluster slurm: no sbatch on this machine; local runs jobs here")
    if asked != "auto":
        return asked
    return "slurm" if there else "local"


def last_cluster(paths: ResultPaths) -> Literal["auto"] | Cluster:
    """Where something of these results was submitted last; `auto` where nothing was."""
    known = read_submissions(paths).submissions
    return known[-1].cluster if known else "auto"


def site_parameters(job: JobSpec, run: Run) -> dict[str, object]:
    """What submitit is told about the array that the run is in."""
    site = load_sites(job.site)
    return parameters(run.resources, site, job.name, exclusive=job.exclusive)


def limits_of(job: JobSpec, cluster: Cluster) -> Limits | None:
    """What the site's jobs may ask for, by Slurm's word; None where Slurm is not meant."""
    return Limits.query(load_sites(job.site), user()) if cluster == "slurm" else None


def check(runs: list[Run], cluster: Cluster, limits: Limits | None = None) -> None:
    """Raises UsageError where nothing of it could run, DataError where its data is damaged, before
    anything is written."""
    refused = refusals(runs, cluster, limits)
    check_data([run for run in runs if run.id not in refused])


def check_data(runs: list[Run]) -> None:
    """Raises UsageError where data is not prepared, or was prepared anew since it was planned,
    DataError where an array of it is missing or cut: each run would fail of it.
    """
    for data, key in {(run.data, run.data_key) for run in runs if run.data}:
        found = manifest.content_key(Path(data.path))
        if found is None:
            raise UsageError(
                f"data.path: {data.path} holds no prepared data: make it with "
                f"`{prepare_command(data)}` and submit again"
            )
        if found != key:
            raise UsageError(
                f"data.path: {data.path} holds other data than when this was planned, or the same "
                "prepared for another version of hpcncf: submit the job file again, so that its "
                "runs are planned anew; those before stay in the results, as retired"
            )
        whole.check_arrays(Path(data.path))


def reached(paths: ResultPaths, plan: Plan) -> bool:
    """Whether a Slurm job has begun one of the runs: then compute nodes see the folder."""
    tried = (attempt for run in plan.runs for attempt in paths.run(run.id).attempts())
    claims = (claim(attempt) for attempt in tried)
    return any(claim and claim.slurm_job_id for claim in claims)


def prepare_command(data: Data) -> str:
    return manifest.prepare_command(data.dataset, Path(data.path))


def submit(
    paths: ResultPaths,
    job: JobSpec,
    plan: Plan,
    cluster: Cluster,
    again: bool = False,
    limits: Limits | None = None,
    force: bool = False,
    report: bool = False,
    without: Collection[str] = (),
) -> Launched:
    """Submit what the plan wants and nobody is at yet; completed runs only when asked `again`.

    Runs of which nobody knows whether they still run are held back, unless `force`; those
    `without` are left alone. Raises UsageError where none of them can run here, HpcncfError where
    the cluster refuses.
    """
    with writing(paths.folder), locked(paths):
        if cluster == "slurm":
            mend(paths)
        gone = {run.id for run in plan.runs if run.retired}.union(without)
        now = [state for state in status.states(paths, plan) if state.run.id not in gone]
        owed = read_submissions(paths).unsent(again=True)
        done = [state for state in now if passed_over(state, again or state.run.id in owed)]
        held = [] if force else unclear(now)
        passed = {state.run.id for state in (*done, *held)}
        open_runs = [state.run for state in now if state.run.id not in passed]
        limits = limits or limits_of(job, cluster)
        refused = refusals(open_runs, cluster, limits)
        runs = [run for run in open_runs if run.id not in refused]
        check_data(runs)
        given = Given([])
        if runs:
            ids = [run.id for run in runs]
            tried = {state.run.id: state.attempt or 0 for state in now}
            over = {run_id: tried[run_id] for run_id in ids if tried[run_id]}
            asked_again = again or not owed.isdisjoint(ids)
            file = begin(paths, cluster, ids, asked_again, over, report, refused)
            keep_code(paths, file, runs)
            given = send(paths, job, runs, file)
    unsent = {run.id for run in given.left}
    return Launched(
        runs=[run for run in runs if run.id not in unsent],
        skipped=done,
        refused=refused,
        again=again,
        notes=doubts(runs, cluster, limits),
        held=held,
        given=given,
    )


def passed_over(state: RunState, again: bool = False) -> bool:
    """Whether nobody need send it: it is complete, or somebody is at it."""
    return state.state in TAKEN or (state.state == "completed" and not again)


def unclear(states: list[RunState]) -> list[RunState]:
    """Those that may still be queued or run, and are held back. What squeue has no more, does
    neither."""
    unknown = [state for state in states if state.state == "unknown"]
    jobs = {s.job.id for s in unknown if s.job and s.job.process_started is None}
    there = queued(sorted(jobs)) if jobs else set()
    gone = set() if there is None else jobs - there
    return [state for state in unknown if state.job is None or state.job.id not in gone]


def keep_code(paths: ResultPaths, file: Path, runs: list[Run]) -> None:
    """Note in the submission what its runs would run if they started now."""
    program = runs[0].workload
    folder = Path(program.folder) if isinstance(program, Program) else Path.cwd()
    code = record_code(paths.code(file), folder)
    submission = read_record(file, Submission)
    write_record(file, submission.model_copy(update={"code": code}))


def refusals(runs: list[Run], cluster: Cluster, limits: Limits | None = None) -> dict[str, str]:
    """Run id -> why it cannot run here. Raises UsageError where that holds for all of them."""
    refused = left_out(runs, cluster, limits)
    if refused and len(refused) == len(runs):
        raise UsageError("\n".join(describe_refusals(refused)))
    return refused


def left_out(runs: list[Run], cluster: Cluster, limits: Limits | None = None) -> dict[str, str]:
    """Run id -> why it cannot run here."""
    shapes = {run.resources: run for run in runs}
    reasons = {shape: _refusal(run, cluster, limits) for shape, run in shapes.items()}
    return {run.id: reason for run in runs if (reason := reasons[run.resources])}


def doubts(runs: list[Run], cluster: Cluster, limits: Limits | None = None) -> list[str]:
    """What the user should know of runs that are not refused."""
    lines = describe_refusals({run.id: reason for run in runs if (reason := _shared_gpus(run))})
    if cluster == "slurm":
        return [*lines, *(limits.notes() if limits and runs else [])]
    return [
        *lines,
        *describe_refusals({run.id: reason for run in runs if (reason := machine.doubt(run))}),
    ]


def _shared_gpus(run: Run) -> str | None:
    return describe_gloo_choice(run.resources, run.training) if run.training else None


def describe_refusals(refused: dict[str, str]) -> list[str]:
    """A line for each reason, not for each of thousands of runs."""
    runs: dict[str, list[str]] = {}
    for run_id, reason in refused.items():
        runs.setdefault(reason, []).append(run_id)
    more = {reason: f" and {len(ids) - 1} more" * (len(ids) > 1) for reason, ids in runs.items()}
    return [f"run {ids[0]}{more[reason]}: {reason}" for reason, ids in runs.items()]


def _refusal(run: Run, cluster: Cluster, limits: Limits | None) -> str | None:
    if cluster == "slurm":
        return limits.refusal(run.resources) if limits else None
    if cluster == "debug" and run.resources.world_size > 1:
        return (
            f"has {run.resources.world_size} ranks; --cluster debug runs one, in this process, "
            "so that a debugger can follow: use --cluster local"
        )
    return machine.refusal(run)


def send(paths: ResultPaths, job: JobSpec, runs: list[Run], file: Path) -> Given:
    """Tell the cluster. The submission's file says before and after what was meant and done."""
    cluster = read_record(file, Submission).cluster
    try:
        if cluster == "slurm":
            return give(paths, job, runs, file)
        if cluster == "local":
            machine.start(paths, file)
        else:
            write_record(file, machine.started(read_record(file, Submission), os.getpid()))
    except HpcncfError as error:
        broken = read_record(file, Submission).model_copy(update={"error": str(error)})
        write_record(file, broken)
        raise
    return Given([])


def debug(paths: ResultPaths, runs: list[Run], again: bool) -> list[int]:
    """Run one rank after another in this process, where a debugger can follow."""
    from hpcncf.worker.rank import work

    os.environ["HPCNCF_LAUNCHED_BY"] = "debug"
    return [work(paths.folder, run.id, again) for run in runs]
