"""Submit a plan to Slurm or to the local queue."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from hpcncf.data import manifest
from hpcncf.errors import HpcncfError, UsageError
from hpcncf.job.plan import Plan, Run
from hpcncf.job.spec import JobSpec, Program, Resources
from hpcncf.job.validate import describe_gloo_choice, describe_shared_memory
from hpcncf.launch.job_arrays import Delivery, query_queued, send_arrays
from hpcncf.launch.orphaned_arrays import recover_arrays
from hpcncf.launch.snapshot import remove_unused, snapshot_code
from hpcncf.local import machine
from hpcncf.paths import ResultPaths
from hpcncf.records.code_version import record_code
from hpcncf.records.plan_file import locked, write_plan, writing
from hpcncf.records.schema import read_record, write_record
from hpcncf.records.submissions import Cluster, Submission, begin, read_submissions
from hpcncf.removed import describe_removed_cluster
from hpcncf.slurm.preflight import Limits
from hpcncf.slurm.site import load_site
from hpcncf.state import status
from hpcncf.state.decide import read_claim
from hpcncf.state.status import RunState

# Runs in these states belong to another submission, or to a user's own torchrun.
ACTIVE: Final = ("pending", "running")


Why = Literal["active", "refused", "unknown", "no_room"]
"""Why a run is not submitted: it is complete, queued or running; it cannot run here; its state is
unknown, so that it may be queued or running; Slurm has no room for more jobs now."""


@dataclass(frozen=True)
class NotSubmitted:
    """A run that was not submitted, with the reason."""

    run: Run
    why: Why
    reason: str
    """In words; for `active` the state."""


@dataclass(frozen=True)
class Launched:
    """Outcome of a request to submit: the runs that were submitted, and those that were not."""

    runs: list[Run]
    """Submitted runs."""
    not_submitted: list[NotSubmitted]
    again: bool
    notes: list[str]
    """Warnings: missing checks, doubtful settings."""
    delivery: Delivery
    """Outcome of sending to Slurm."""

    def left_out(self, why: Why) -> list[NotSubmitted]:
        return [each for each in self.not_submitted if each.why == why]


def choose_cluster(requested: Literal["auto"] | Cluster) -> Cluster:
    """Choose the cluster for a submission: `auto` is Slurm where it is installed, else local.

    Raises UsageError if Slurm is requested and not installed, or if there is no such cluster.
    """
    if requested not in ("auto", *get_args(Cluster)):
        raise UsageError(
            describe_removed_cluster(requested)
            or f"cluster: expected auto, local or slurm, came {requested!r}"
        )
    has_slurm = shutil.which("sbatch") is not None
    if requested == "slurm" and not has_slurm:
        raise UsageError("--cluster slurm: no sbatch on this machine; local runs jobs here")
    if requested != "auto":
        return requested
    return "slurm" if has_slurm else "local"


def last_cluster(paths: ResultPaths) -> Literal["auto"] | Cluster:
    """Return the cluster of the last submission; `auto` if there is none."""
    submissions = read_submissions(paths).submissions
    cluster = submissions[-1].cluster if submissions else "auto"
    return "auto" if cluster == "debug" else cluster


def limits_of(job: JobSpec, cluster: Cluster, ask: bool = True) -> Limits | None:
    """Return Slurm's limits for the job's site; None if the cluster is not Slurm.

    Unless `ask`, no limit is known.
    """
    if cluster != "slurm":
        return None
    site = load_site(job.site)
    return Limits.query(site) if ask else Limits.unknown(site)


def check(runs: list[Run], cluster: Cluster, limits: Limits | None = None) -> None:
    """Check a submission before anything is written.

    Raises UsageError if no run could run, DataError if data is damaged.
    """
    refused = find_refusals(runs, cluster, limits, some=True)
    check_data([run for run in runs if run.id not in refused])


def check_data(runs: list[Run]) -> None:
    """Check that the runs' data is prepared, complete and the same as in the plan.

    Raises UsageError if it is not prepared or differs, and DataError if an array is missing or
    truncated.
    """
    for data, key in {(run.data, run.data_key) for run in runs if run.data}:
        current = manifest.content_key(Path(data.path))
        if current is None:
            raise UsageError(
                f"data.path: {data.path} holds no prepared data: make it with "
                f"`{manifest.prepare_command(data.dataset, Path(data.path))}` and submit again"
            )
        if current != key:
            raise UsageError(
                f"data.path: {data.path} holds other data than when this was planned, or the same "
                "data prepared for another version of hpcncf. Submit the job file again to plan "
                "its runs anew; existing runs stay in the results, as retired."
            )
        manifest.check_arrays(Path(data.path))


def seen_by_slurm(paths: ResultPaths, plan: Plan) -> bool:
    """Return whether a Slurm job has started a run, so that compute nodes see the folder."""
    attempts = (attempt for run in plan.runs for attempt in paths.run(run.id).attempts())
    claims = (read_claim(attempt) for attempt in attempts)
    return any(claim and claim.slurm_job_id for claim in claims)


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
    retry: bool = False,
) -> Launched:
    """Submit the plan's runs that are not active; complete runs only with `again`.

    Runs of unknown state are not submitted unless `force`, runs in `without` never. With `retry`
    they run the code of their last submission, if that was copied. Raises
    UsageError if none of them can run here, HpcncfError if the cluster refuses.
    """
    with writing(paths.folder), locked(paths):
        if cluster == "slurm":
            recover_arrays(paths)
        excluded = {run.id for run in plan.runs if run.retired}.union(without)
        states = [state for state in status.states(paths, plan) if state.run.id not in excluded]
        owed = read_submissions(paths).unsent(again=True)
        everything = {state.run.id for state in states}
        left_out = not_submittable(states, everything if again else owed, force)
        passed = {each.run.id for each in left_out}
        open_runs = [state.run for state in states if state.run.id not in passed]
        limits = limits or limits_of(job, cluster)
        refused = find_refusals(open_runs, cluster, limits, some=True)
        runs = [run for run in open_runs if run.id not in refused]
        check_data(runs)
        delivery = Delivery([])
        if runs:
            ids = [run.id for run in runs]
            attempts = {state.run.id: state.attempt or 0 for state in states}
            over = {run_id: attempts[run_id] for run_id in ids if attempts[run_id]}
            reruns = again or not owed.isdisjoint(ids)
            file = begin(paths, cluster, ids, reruns, over, report, refused)
            save_code_version(file, runs)
            if job.code == "snapshot":
                runs = snapshot_code(paths, job, runs, retry)
                copied = {run.id: run for run in runs}
                plan = plan.model_copy(
                    update={"runs": [copied.get(run.id, run) for run in plan.runs]}
                )
                write_plan(paths, plan)
                remove_unused(paths, plan.runs)
            delivery = _send(paths, job, runs, file, limits)
    left_out += [
        NotSubmitted(run, "refused", refused[run.id]) for run in open_runs if run.id in refused
    ]
    left_out += [NotSubmitted(run, "no_room", delivery.limit) for run in delivery.unsent]
    unsent = {run.id for run in delivery.unsent}
    return Launched(
        runs=[run for run in runs if run.id not in unsent],
        not_submitted=left_out,
        again=again,
        notes=find_warnings(runs, cluster, limits),
        delivery=delivery,
    )


def not_submittable(
    states: list[RunState], again: Collection[str] = (), force: bool = False
) -> list[NotSubmitted]:
    """Return the runs that must not or need not be submitted, each with the reason.

    `again`: runs to submit although they are complete. `force`: also submit runs of unknown state.
    Squeue is asked for the jobs of these; a run whose job it no longer lists can be submitted.
    """
    unknown = [] if force else [state for state in states if state.state == "unknown"]
    jobs = {s.job.id for s in unknown if s.job and s.job.process_started is None}
    in_queue = query_queued(sorted(jobs)) if jobs else set()
    ended = set() if in_queue is None else jobs - in_queue
    return [
        NotSubmitted(state.run, "active", state.state)
        for state in states
        if state.state in ACTIVE or (state.state == "completed" and state.run.id not in again)
    ] + [
        NotSubmitted(state.run, "unknown", state.reason)
        for state in unknown
        if state.job is None or state.job.id not in ended
    ]


def save_code_version(file: Path, runs: list[Run]) -> None:
    """Record in the submission file which version of the code its runs would run now."""
    program = runs[0].workload
    folder = Path(program.folder) if isinstance(program, Program) else Path.cwd()
    code = record_code(folder)
    submission = read_record(file, Submission)
    write_record(file, submission.model_copy(update={"code": code}))


def find_refusals(
    runs: list[Run], cluster: Cluster, limits: Limits | None = None, some: bool = False
) -> dict[str, str]:
    """Return reasons why runs cannot run on this cluster: run id -> reason.

    With `some`, raises UsageError if no run can.
    """
    reasons: dict[Resources, str | None] = {}
    for run in runs:
        asked = run.resources
        if asked in reasons:
            continue
        if cluster == "slurm":
            reasons[asked] = limits.refusal(asked) if limits else None
        else:
            reasons[asked] = machine.refusal(run)
    refused = {run.id: reason for run in runs if (reason := reasons[run.resources])}
    if some and refused and len(refused) == len(runs):
        raise UsageError("\n".join(describe_refusals(refused)))
    return refused


def find_warnings(runs: list[Run], cluster: Cluster, limits: Limits | None = None) -> list[str]:
    """Return warnings about runs that the cluster does not refuse."""
    lines: list[str] = []
    for describe in (describe_gloo_choice, describe_shared_memory):
        found = {run.id: describe(run.resources, run.training) for run in runs if run.training}
        lines += describe_refusals({run: reason for run, reason in found.items() if reason})
    if cluster == "slurm":
        return [*lines, *(limits.notes() if limits and runs else [])]
    here = {run.id: reason for run in runs if (reason := machine.find_warning(run))}
    return [*lines, *describe_refusals(here)]


def describe_refusals(refused: dict[str, str]) -> list[str]:
    """Format refusals, run id -> reason, as one line for each distinct reason."""
    runs: dict[str, list[str]] = {}
    for run_id, reason in refused.items():
        runs.setdefault(reason, []).append(run_id)
    return [
        f"run {ids[0]}{f' and {len(ids) - 1} more' * (len(ids) > 1)}: {reason}"
        for reason, ids in runs.items()
    ]


def _send(
    paths: ResultPaths, job: JobSpec, runs: list[Run], file: Path, limits: Limits | None
) -> Delivery:
    """Send the runs to the cluster; if that fails, record the error in the submission file."""
    try:
        if limits:  # the cluster is Slurm
            return send_arrays(paths, job, limits.site, runs, file)
        machine.start(paths, file)
    except HpcncfError as error:
        update = {"error": str(error)}
        write_record(file, read_record(file, Submission).model_copy(update=update))
        raise
    return Delivery([])
