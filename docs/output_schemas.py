"""Shapes of what each verb prints with `--json`, from which the published schemas derive."""

from __future__ import annotations

from typing import Any, Final, Literal, NotRequired

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from hpcncf.batch.edits import Edit
from hpcncf.cli.output import VERSIONS
from hpcncf.explain.conclude import Conclusion, NextRequest
from hpcncf.explain.workloads import JobShape
from hpcncf.job.plan import Run
from hpcncf.job.spec import Resources
from hpcncf.launch.submit import Why
from hpcncf.records.schema import Cores, Cpu, Io, Memory, Progress
from hpcncf.state.status import State
from hpcncf.tune.trials import Fate
from hpcncf_analysis.compare import Change, Moved
from hpcncf_analysis.diagnosis.evidence import (
    Cause,
    CoreCounts,
    DiagnosisVerdict,
    Gain,
    RemedyCode,
)
from hpcncf_analysis.diagnosis.source_lines import CodeLocation
from hpcncf_analysis.quality import QualityVerdict
from hpcncf_analysis.significance import Ratio, Verdict


class Error(TypedDict):
    """Printed by every verb but `run` if it fails: nothing else is on standard output then."""

    error: str
    exit_code: int


# apply, lint.


class Apply(TypedDict):
    edits: list[Edit]
    left: list[str]
    """What stays as it is, each with the reason."""
    backup: str | None
    """The script as it was, if `--write` changed it."""


class LintFinding(TypedDict):
    file: str
    level: Literal["warning", "note"]
    line: int
    rule: str
    """A stable code: see docs/lint.md."""
    message: str
    edits: list[Edit]


class Lint(TypedDict):
    findings: list[LintFinding]
    not_read: list[str]


# diagnose, run, attach.


class Rank(TypedDict):
    """What is used most of a rank's record; docs/records.md has all of it."""

    schema_version: int
    run_id: str
    rank: int
    world_size: int
    node: str
    outcome: str
    exit_code: int | None
    started_at: str
    ended_at: str
    elapsed_s: float
    run: dict[str, Any]
    environment: dict[str, Any]
    cores: Cores
    cpu: Cpu
    memory: Memory
    io: Io
    program: list[dict[str, Any]]
    warnings: list[str]


class Node(TypedDict):
    """What is used most of a node's record; docs/records.md has all of it."""

    schema_version: int
    run_id: str
    node: str
    node_index: int
    start_s: list[float]
    length_s: list[float]
    cpus: list[int]
    busy: list[list[float]]
    ours: list[list[float]]


Finding = TypedDict(
    "Finding",
    {
        "cause": Cause,
        "share": float,
        "of": Literal["time", "cores", "memory"],
        "evidence": list[str],
        "remedy": str,
        "remedy_codes": list[RemedyCode],
        "with": list[str],
        "changes": dict[str, Any],
        "gain": Gain | None,
        "places": list[CodeLocation],
    },
)


class Diagnosis(TypedDict):
    run_id: str
    cores: CoreCounts
    verdict: DiagnosisVerdict
    primary: Finding | None
    secondary: list[Finding]
    missing: list[str]
    alerts: list[str]


class NamedDiagnosis(Diagnosis):
    name: str
    """The configuration, of several runs; else empty."""


class DiagnosedRuns(TypedDict):
    """Of a results folder, a run or a record."""

    runs: list[NamedDiagnosis]


class DiagnosedJob(TypedDict):
    job: str | None
    folder: str
    state: str
    conclusion: NotRequired[str]
    diagnosis: NotRequired[Diagnosis | None]
    ranks: list[Rank]


class DiagnosedJobs(TypedDict):
    """Of a job id."""

    jobs: list[DiagnosedJob]


Auto = TypedDict(
    "Auto",
    {
        "with": str,
        "reason": str,
        "trials": int,
        "seconds": float,
        "tried": list[str],
        "out": list[str],
        "drop": str,
        "results": str | None,
    },
)


class RunOutput(TypedDict):
    """Written to the file of `--json`."""

    folder: str
    conclusion: str
    diagnosis: Diagnosis | None
    """None if no program of Python was seen."""
    rank: Rank
    node: Node
    auto: NotRequired[Auto]


class AttachedNode(TypedDict):
    node: str
    rank: Rank
    processes: list[dict[str, Any]]
    files: list[dict[str, Any]]
    observer_cpu_s: float


class Attach(TypedDict):
    watched: str
    seconds: float
    conclusion: str
    notes: list[str]
    not_seen: list[str]
    rank: Rank
    node: Node
    nodes: list[AttachedNode]


# compare, collect.


class ComparedSide(TypedDict):
    runs: list[str]
    instances_per_s: float | None
    elapsed_s: float | None
    seconds_per_epoch: float | None
    core_s_per_epoch: float | None
    cpu_efficiency: float | None
    memory_peak_mib: float | None
    hr10: float | None
    ndcg10: float | None
    loss: float | None


class ComparedMetric(TypedDict):
    a: float
    b: float


class Configuration(TypedDict):
    label: str
    speed: Ratio
    quality: QualityVerdict
    moved: Moved | None
    metrics: dict[str, ComparedMetric]
    a: ComparedSide
    b: ComparedSide


class Compare(TypedDict):
    a: str
    b: str
    speed_of: Literal["instances_per_s", "steps_per_s", "runs_per_hour"]
    settings: list[Change]
    environment: list[Change]
    cautions: list[str]
    configurations: list[Configuration]
    only_a: list[str]
    only_b: list[str]
    overall: Ratio | None
    threshold: NotRequired[float]
    failures: NotRequired[list[str]]
    open: NotRequired[list[str]]


class CollectedRun(TypedDict):
    run_id: str
    config: str
    state: State
    repeat: int


class Collect(TypedDict):
    job: str
    complete: bool
    states: dict[str, int]
    skipped: list[str]
    tables: str
    runs: list[CollectedRun]
    """Rows of runs.csv, with all of its columns."""


# data.


class Prepared(TypedDict):
    """Of `data prepare` and `data info`: the folder, and its manifest.json."""

    folder: str
    parameters: int
    key: str
    dataset: str
    title: str
    users: int
    items: int
    rows: int
    train_rows: int
    train_pairs: int
    test_rows: int
    test_negatives: int
    context_columns: list[str]
    options: dict[str, Any]
    source: dict[str, Any]
    outcome: NotRequired[Literal["made", "replaced", "already there"]]
    unseen_test_rows: NotRequired[int]
    bytes: NotRequired[dict[str, int]]


class LoaderSpeed(TypedDict):
    loader: str
    num_workers: int
    persistent_workers: bool
    prefetch_factor: int | None
    negatives: int
    positives: int
    first_batch_s: float
    next_epoch_s: float
    batches: int
    instances: int
    seconds: float


class LoaderSpeeds(TypedDict):
    """Of `data bench`."""

    loaders: list[LoaderSpeed]


# doctor, explain.


class Doctor(TypedDict):
    checks: dict[str, str]
    problems: list[str]


class Explained(TypedDict):
    fields: dict[str, Any]
    conclusions: list[Conclusion]
    open_questions: list[str]
    request: NextRequest
    next_step: str
    why: str
    confidence: Literal["high", "medium", "low", "none"]
    confidence_reason: str


class ExplainedGroup(Explained):
    kind: Literal["array", "het"]
    members: list[str]


class ExplainedJobs(TypedDict):
    jobs: list[Explained]
    groups: list[ExplainedGroup]
    not_understood: list[str]
    next_step: str


class Workload(TypedDict):
    name: str
    shape: list[JobShape]
    last_job: str
    runs: int
    states: dict[str, int]
    runs_uncounted: int
    core_hours: float
    core_hours_idle: float
    cores_used_mean: float | None
    cores_used_max: float | None
    memory_mib_max: float | None
    memory_asked_mib: float | None
    elapsed_s_max: float
    limit_s: float | None
    request: NextRequest
    not_enough: str | None
    notes: list[str]


class ExplainedWorkloads(TypedDict):
    """Of `--since`."""

    since: str
    jobs_running: int
    jobs_of_failed_nodes: int
    core_hours: float
    core_hours_idle: float
    workloads: list[Workload]


# plan, submit, retry, status, cancel, logs.


class PlannedArray(TypedDict):
    tasks: int
    launcher: str
    side_by_side: int
    parameters: dict[str, Any]
    runs: list[str]


class Plan(TypedDict):
    job: str
    runs: list[Run]
    arrays: list[PlannedArray]
    core_hours_at_most: float
    core_hours_left: float | None
    complete: list[str]
    refused: dict[str, str]
    data_missing: list[str]


class Queued(TypedDict):
    state: str | None
    reason: str | None
    expected_start: str | None
    restarts: int


class RunStatus(TypedDict):
    id: str
    state: State
    reason: str | None
    attempt: int | None
    varied: dict[str, Any]
    repeat: int
    retired: bool
    resources: Resources
    job_id: str | None
    slurm: Queued | None
    node: str | None
    progress: Progress | None
    elapsed_s: float | None
    instances_per_s: float | None
    cpu_efficiency: float | None
    cores_usable: float | None
    cores_allocated: float | None
    stale: str | None
    problems: list[str]


class ArrayStatus(TypedDict):
    array: str
    runs: int
    states: dict[str, int]
    waiting_for: dict[str, int]
    expected_start: str | None


class Failure(TypedDict):
    state: State
    reason: str
    traceback: list[str] | str | None
    message: str | None
    runs: list[str]
    log: str | None


class JobStatus(TypedDict):
    job: str
    results: str
    runs: list[RunStatus]
    arrays: list[ArrayStatus]
    failures: list[Failure]


class Status(TypedDict):
    jobs: list[JobStatus]


class NotSubmitted(TypedDict):
    run: str
    why: Why
    reason: str


class NextCommands(TypedDict):
    """Commands that submit what was left out; None where there is nothing."""

    rest: str | None
    all_at_once: str | None
    unknown: str | None


class Submit(TypedDict):
    results: str
    cluster: Literal["local", "slurm"]
    submitted: list[str]
    not_submitted: list[NotSubmitted]
    commands: NextCommands
    no_report: str | None
    runs: list[RunStatus]


class CancelledRun(TypedDict):
    results: str
    id: str
    was: State


class Cancel(TypedDict):
    cancelled: list[CancelledRun]


class Logs(TypedDict):
    run: str
    attempt: int | None
    rank: int
    files: list[str]


# tune.

Trial = TypedDict(
    "Trial",
    {
        "run_id": str,
        "point": str | None,
        "settings": dict[str, Any],
        "cores": NotRequired[int],
        "with": NotRequired[str],
        "steps": int | None,
        "repeat": int,
        "fate": Fate,
        "epoch_s": NotRequired[float | None],
        "step_s": NotRequired[float | None],
        "error": float,
        "memory_mib": float | None,
        "cores_used": float | None,
        "core_hours": float,
        "hr10": float | None,
        "left_out": str | None,
    },
)
Best = TypedDict(
    "Best",
    {
        "settings": dict[str, Any],
        "cores": NotRequired[int],
        "with": NotRequired[str],
        "verified": bool,
        "verdicts": dict[str, Verdict],
        "left_open": list[str],
        "disturbed": bool,
        "unseen": list[str],
        "models": list[str],
        "unsettled": list[str],
        "enough_core_h": float | None,
        "hr10": float | None,
        "point": str,
        "epoch_s": NotRequired[float],
        "step_s": NotRequired[float],
        "speedup": float | None,
        "verdict": Verdict | None,
        "trials": int,
        "trials_unchanged": int,
        "job_file": str | None,
        "mem_gb": int | None,
        "changes": list[str],
        "left": Any,
    },
)


class Tune(TypedDict):
    results: str
    step: str
    why: str
    budget_core_hours: float
    spent_core_hours: float
    trials: list[Trial]
    left_out: list[str]
    best: Best | None


SHAPES: Final[dict[str, Any]] = {
    "error": Error,
    "run": RunOutput,
    "data": Prepared | LoaderSpeeds,
    "plan": Plan,
    "submit": Submit,
    "retry": Submit,
    "cancel": Cancel,
    "attach": Attach,
    "status": Status,
    "logs": Logs,
    "collect": Collect,
    "diagnose": DiagnosedRuns | DiagnosedJobs,
    "compare": Compare,
    "tune": Tune,
    "explain": ExplainedJobs | ExplainedWorkloads,
    "lint": Lint,
    "apply": Apply,
    "doctor": Doctor,
}


def build_schema(verb: str) -> dict[str, Any]:
    """Build the JSON Schema of a verb's output. Keys may be added to it within a version."""
    title = f"hpcncf.{verb}/{VERSIONS.get(verb, 1)}"
    schema = TypeAdapter(SHAPES[verb]).json_schema(mode="serialization")
    for name, each in schema.get("$defs", {}).items():
        if getattr(globals().get(name), "__module__", "") != __name__:
            each.pop("description", None)  # of a class, for whoever reads the code
        # Fields with a default are printed, too.
        printed = [key for key, field in each.get("properties", {}).items() if "default" in field]
        if printed:
            each["required"] = list(dict.fromkeys([*each.get("required", []), *printed]))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": title,
        "type": "object",
        "properties": {"schema": {"const": title}, **schema.get("properties", {})},
        "required": ["schema", *schema.get("required", [])],
    }
