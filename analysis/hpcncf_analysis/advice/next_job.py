"""The next job: a request, a trial of a remedy, or longer runs of what was too short to judge."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any, Final, Literal, get_args

import yaml
from pydantic import ValidationError

from hpcncf.data.manifest import DataError, content_key
from hpcncf.errors import UsageError
from hpcncf.files import write_text
from hpcncf.job.expand import expand_job
from hpcncf.job.load import BATCH_SIZES, apply_override
from hpcncf.job.plan import Run
from hpcncf.job.spec import JobSpec, Resources
from hpcncf.paths import ResultPaths
from hpcncf.records.plan_file import JobDumper
from hpcncf.slurm.batch_script import RunSource, directives, plain_script
from hpcncf.slurm.site import Site
from hpcncf.text import pluralize
from hpcncf_analysis.advice.judge import (
    CHOICES,
    NOT_RUN,
    Choice,
    Confidence,
    Diagnoses,
    Judged,
    Judgement,
    MeasuredRemedy,
    agreed_diagnosis,
    assess_confidence,
    judge,
    mostly_disturbed,
)
from hpcncf_analysis.advice.request import (
    ResourceRequest,
    build_request,
    format_yaml_value,
    time_limit_min,
)
from hpcncf_analysis.configurations import Configuration
from hpcncf_analysis.diagnosis import format
from hpcncf_analysis.diagnosis.evidence import Cause
from hpcncf_analysis.formatting import (
    format_core_time,
    format_cores,
    format_duration,
    format_percent,
)
from hpcncf_analysis.planned_job import PlannedJob

# Of 64 letters; the suffix needs some.
MAX_NAME: Final = 50


WIDTH: Final = 98


WHOLE: Final = {"max_steps": None, "max_s": None}


# Written even at their defaults: a reader looks for them first.
ALWAYS_WRITTEN: Final = {
    "resources": ("nodes", "tasks_per_node", "cpus_per_task", "mem_gb", "timeout_min"),
    "training": ("epochs", "engine", "loader"),
}


NOTE: Final = (
    "# Written by `hpcncf report`. Submit it with sbatch, or the job file beside it with "
    "`hpcncf submit`."
)


# Below this share of its cores a single run is repeated with fewer.
IDLE_EFFICIENCY: Final = 0.8


# Clocks tick and start-up counts: so little of a core is no core.
NO_CORE: Final = 0.1


# Cores that idle because of these causes may be needed once the cause is gone.
CAUSES_HIDING_NEED: Final[frozenset[Cause]] = frozenset(
    {"one_core_confinement", "neighbour_load", "memory_pressure", "too_short_to_judge"}
)


# Training and evaluation that a repeated run should have.
REPEAT_S: Final = 30.0


REPEATS: Final = 3


# Reports before these were settings of next.yaml wrote a file for each.
EARLIER_FILES: Final = tuple(
    f"next-{purpose}.{ending}"
    for purpose in ("repeat", "fastest", "cheapest")
    for ending in ("yaml", "sbatch")
)


def judge_job(
    configurations: Sequence[Configuration], planned: PlannedJob, diagnoses: Diagnoses
) -> Judgement | None:
    """Judge the configurations of a planned job; None if they cannot be compared.

    That is so if nothing was measured, if typed commands differ, or for trials of
    hpcncf tune, which end before their work is done.
    """
    if len({one.command for one in configurations if one.command}) > 1 or planned.of_trials:
        return None
    outcomes = measured_remedies(configurations, planned, diagnoses)
    efficiency = planned.site.min_cpu_efficiency
    return judge(configurations, diagnoses, outcomes, efficiency, planned.epochs)


def measured_remedies(
    configurations: Sequence[Configuration], planned: PlannedJob, diagnoses: Diagnoses
) -> dict[tuple[str, str], MeasuredRemedy]:
    """(configuration key, cause) -> measured effect of each remedy that the study ran."""
    measured = {planned.of(one): one for one in configurations if one.speed}
    found: dict[tuple[str, str], MeasuredRemedy] = {}
    for one in measured.values():
        run = planned.runs.get(one.rows[0]["run_id"])
        diagnosis = agreed_diagnosis(one, diagnoses)
        for finding in diagnosis.findings if run and diagnosis else ():
            assert run
            job = build_next_job(run, run.resources, "a", planned.job)
            changed = _apply_changes(job, finding.changes) if finding.changes else None
            after = measured.get(planned.configuration(changed)) if changed else None
            if after is not None and after is not one:
                what = finding.gain.what if finding.gain else "instances_per_s"
                factor = (after.speed or 0.0) / (one.speed or 1.0)
                if what == "core_hours":
                    costs = [each.median("core_hours") or 0.0 for each in (after, one)]
                    factor = costs[0] / costs[1] if all(costs) else factor
                found[one.key, finding.cause] = MeasuredRemedy(after.label, factor)
    return found


def build_next_job(run: Run, resources: Resources, name: str, base: JobSpec | None) -> JobSpec:
    """Build a job that repeats this run with whole epochs and the given resources.

    Runs that share its GPU are kept as repeats. Site and exclusiveness are those of `base`.
    """
    training = run.training.model_copy(update=WHOLE) if run.training else None
    sections = {"data": run.data, "model": run.model, "training": training}
    return JobSpec.model_validate(
        {
            "name": name,
            "workload": run.template,
            "parameters": run.parameters,
            "remedies": run.remedies,
            "resources": resources,
            "repeats": resources.side_by_side,
            **{key: value for key, value in sections.items() if value is not None},
            **({"site": base.site, "exclusive": base.exclusive} if base else {}),
        }
    )


Purpose = Literal["repeat", "next", "fastest", "cheapest"]
"""In the order in which they are shown."""


def next_job_name(name: str, purpose: Purpose) -> str:
    """Name a follow-up job so that its results folder is new: `demo-next`, `demo-next2`."""
    earlier = re.search(r"-(next|repeat|fastest|cheapest)(\d*)$", name)
    stem = name[: earlier.start()] if earlier else name
    kept = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).lstrip("._-")[:MAX_NAME] or "command"
    number = int(earlier.group(2) or 1) + 1 if earlier else ""
    return f"{kept}-{purpose}{number}"


def job_as_yaml(job: JobSpec, comments: Sequence[str]) -> str:
    """Format a job as YAML without default settings, below `comments` as YAML comments."""
    whole = job.model_dump(mode="json")
    plain = job.model_dump(mode="json", exclude_defaults=True) | {"site": job.site}
    for section, names in ALWAYS_WRITTEN.items():
        if section == "resources" or job.workload == "ncf":
            kept = {*names, *plain.get(section, {})}
            plain[section] = {name: whole[section][name] for name in whole[section] if name in kept}
    ordered = {name: plain[name] for name in JobSpec.model_fields if name in plain}
    text = yaml.dump(ordered, Dumper=JobDumper, sort_keys=False, allow_unicode=True)
    plain_words = (" ".join(comment.split()) for comment in comments)
    printable = ("".join(c if c.isprintable() else "?" for c in line) for line in plain_words)
    lines = [line for each in printable for line in textwrap.wrap(each, WIDTH)]
    return "".join(f"# {line}\n" for line in lines) + text


def format_sbatch_lines(job: JobSpec, site: Site) -> str:
    """Format a job's request as #SBATCH lines for the user's own batch script."""
    lines = directives(job.resources, site, job.name, job.exclusive)
    cores, runs = job.resources.cpus_per_task, job.resources.side_by_side
    script = f"# and in the script: srun --cpus-per-task={cores} ..."
    if runs > 1:
        own = job.resources.tasks_per_node * cores
        script = f"# for {runs} runs side by side, each on {pluralize(own, 'core')} of its own"
    return "\n".join([*lines, script]) + "\n"


@dataclass(frozen=True)
class JobChange:
    """A job that differs from the run that was measured."""

    job: JobSpec
    request: ResourceRequest
    reasons: Sequence[str]
    """What was changed and why, and what is predicted; how to submit what was measured."""
    before: Mapping[str, Any]
    """The settings as they were measured, dotted."""


def build_change(
    row: Judged, job: JobSpec, planned: Resources, request: ResourceRequest, diagnoses: Diagnoses
) -> JobChange | None:
    """Change a job by the remedy of the row's open cause, or else to the cores it used.

    None if nothing is to be changed, the settings exclude each other, or are as they were. Memory
    is no less than before, and the time holds if the change slows the run down.
    """
    changes: dict[str, Any] = {}
    gain = None
    if row.cause and row.cause.changes:
        changes, gain = dict(row.cause.changes), row.cause.gain
        why = f"the remedy of {row.cause.cause}"
    else:
        found = agreed_diagnosis(row.one, diagnoses)
        hidden = found and found.primary and found.primary.cause in CAUSES_HIDING_NEED
        fewer = None if hidden else fewer_cores(row.one)
        if fewer is None:
            return None
        changes["resources.cpus_per_task"] = fewer
        if job.training.threads != "auto" and job.training.threads > fewer:
            changes["training.threads"] = "auto"
        used = format_cores(row.one.median("cores_used"))
        why = f"because {used} of {pluralize(row.one.cores, 'core')} were used"
    changed = _apply_changes(job, changes)
    if changed is None or changed == job:
        return None
    before = {key: _value(job, key) for key in changes}
    cores = request.resources.cores / changed.resources.cores
    slowdown = cores
    if gain:
        slowdown = gain.high * cores if gain.what == "core_hours" else 1 / max(gain.low, 0.1)
    expected_s = request.expected_s and request.expected_s * max(1.0, slowdown)
    sized = {
        "mem_gb": max(planned.mem_gb, request.resources.mem_gb),
        "timeout_min": planned.timeout_min if expected_s is None else time_limit_min(expected_s),
    }
    resources = changed.resources.model_copy(update=sized)
    memory = f"{request.memory} No less than before, because the change was not measured."
    request = replace(request, resources=resources, expected_s=expected_s, memory=memory)
    listed = ", ".join(f"{key} {before[key]} → {changes[key]}" for key in changes)
    predicted = f"; predicted: {format.gain(gain)}" if gain else ""
    back = " ".join(f"-s {key}={format_yaml_value(value)}" for key, value in before.items())
    return JobChange(
        job=changed.model_copy(update={"resources": resources}),
        request=request,
        reasons=[
            f"Not run yet: {listed}, {why}{predicted}.",
            f"To submit what was measured instead: {back}.",
        ],
        before=before,
    )


def fewer_cores(one: Configuration) -> int | None:
    """Cores per rank that suffice for the cores used; None if not fewer or not known."""
    used, efficiency = one.median("cores_used"), one.median("cpu_efficiency")
    if used is None or efficiency is None or efficiency >= IDLE_EFFICIENCY:
        return None
    fewer = max(ceil(used / one.ranks - NO_CORE), 1)
    return fewer if fewer * one.ranks < one.cores and not mostly_disturbed([one]) else None


def _apply_changes(job: JobSpec, changes: Mapping[str, Any]) -> JobSpec | None:
    plain = job.model_dump(mode="json")
    for key, value in changes.items():
        apply_override(plain, key, value)
    try:
        changed = JobSpec.model_validate(plain)
        expand_job(changed)
    except (ValidationError, UsageError):
        return None
    return changed


def _value(job: JobSpec, dotted: str) -> Any:
    section, _, key = dotted.partition(".")
    known = getattr(job, section)
    return known.get(key) if isinstance(known, Mapping) else getattr(known, key) if key else known


@dataclass(frozen=True)
class Advice:
    """One job that a report advises."""

    purpose: Purpose
    chosen: Judged
    """The row that it is about; if something is `changed`, as measured before the change."""
    job: JobSpec
    sbatch: str
    """The request as #SBATCH lines, for a script of one's own."""
    confidence: Confidence
    changed: JobChange | None
    """None if the job was measured as it is."""
    reasons: Sequence[str]
    """Sentences, the most important first."""

    @property
    def job_yaml(self) -> str:
        return job_as_yaml(self.job, ["Written by `hpcncf report`.", *self.reasons])


def build_advice(
    table: Judgement,
    planned: PlannedJob,
    diagnoses: Diagnoses | None = None,
    choice: Choice = "recommended",
    as_measured: bool = False,
) -> Advice | None:
    """Build the advised job of a choice; None if the table has no row for it.

    If nothing is recommended, it is the best row with the remedy of its cause. `as_measured`: only
    what was run.
    """
    row = table.chosen(choice)
    if choice == "recommended" and not as_measured:
        row = table.candidate
    run = planned.runs.get(row.one.rows[0]["run_id"]) if row else None
    if row is None or run is None:
        return None
    purpose: Purpose = "next" if choice == "recommended" else choice
    epochs = planned.epochs if table.unit == "run" else None
    request = build_request(row.one, run.resources, epochs)
    job = build_next_job(run, request.resources, next_job_name(planned.name, purpose), planned.job)
    if epochs and run.training:
        training = job.training.model_copy(update={"epochs": epochs})
        job = job.model_copy(update={"training": training})
    reasons = [
        f"Measured: {row.label}, {format_duration(row.seconds)} and "
        f"{format_core_time(row.core_h)} for {table.work}."
    ]
    changed = None
    is_open = table.recommended is None or len(table.rows) == 1
    if choice == "recommended" and is_open and not as_measured:
        changed = build_change(row, job, run.resources, request, diagnoses or {})
        known = {planned.of(each.one) for each in table.rows}
        if changed and planned.configuration(changed.job) in known:
            changed = None
    if changed:
        job, request = changed.job, changed.request
        reasons += changed.reasons
    elif row is not table.recommended and purpose == "next":
        reasons.append(f"Not recommended: {why_not(row, table)}.")
    confidence = NOT_RUN if changed else assess_confidence(row, choice, table)
    total = ""
    if request.core_hours is not None and job.repeats > 1:
        total = f" In all {format_core_time(request.core_hours * job.repeats)}."
    reasons += [confidence.text, *([request.sharing] if request.sharing else [])]
    reasons += [request.time + total, request.memory]
    sbatch = format_sbatch_lines(job, planned.site)
    return Advice(purpose, row, job, sbatch, confidence, changed, reasons)


def why_not(row: Judged, table: Judgement) -> str:
    """Reason why a judged row is not recommended, as a sentence part."""
    if row.cause:
        return f"{row.cause.cause} costs {format.cost(row.cause)}"
    if not table.is_efficient(row):
        needed = format_percent(table.min_efficiency)
        return (
            f"its CPU efficiency is {format_percent(row.efficiency)}, below the site's "
            f"min_cpu_efficiency of {needed}"
        )
    if row not in table.worth:
        return "it costs more core-hours than its speed is worth"
    return f"{row.beaten_by or 'another'} takes less time for no more"


def build_repeat(table: Judgement, planned: PlannedJob) -> Advice | None:
    """Build a job that repeats rows too short to judge with more epochs; None without any.

    Each grid point gets enough epochs for about REPEAT_S seconds. A command has to be given
    more work by hand.
    """
    rows = [row for row in table.to_repeat if planned.runs.get(row.one.rows[0]["run_id"])]
    if not rows:
        return None
    runs = [planned.runs[row.one.rows[0]["run_id"]] for row in rows]
    name = next_job_name(planned.name, "repeat")
    job = build_next_job(runs[0], runs[0].resources, name, planned.job)
    expected_s, points = 0.0, []
    for row, run in zip(rows, runs, strict=True):
        point, first = run.point, row.one.rows[0]
        if run.training and run.training.max_steps:
            times = REPEAT_S / max(first["training_s"], 0.1)
            point["training.max_steps"] = ceil(run.training.max_steps * max(times, 1.0))
        elif run.training and run.training.max_s:
            point["training.max_s"] = max(REPEAT_S, run.training.max_s)
        elif run.training and (epoch_s := first["seconds_per_epoch"]):
            epoch_s += first.get("seconds_per_evaluation") or 0.0
            point["training.epochs"] = max(ceil(REPEAT_S / epoch_s), run.training.epochs)
        if point not in points:
            points.append(point)
        measured_s = max(row["elapsed_s"] or 0.0 for row in row.one.rows)
        expected_s = max(expected_s, measured_s + (REPEAT_S if run.training else 0.0))
    side_by_side = max(run.resources.side_by_side for run in runs)
    resources = job.resources.model_copy(
        update={"timeout_min": max(time_limit_min(expected_s), job.resources.timeout_min)}
    )
    update: dict[str, Any] = {"resources": resources, "repeats": max(REPEATS, side_by_side)}
    if planned.epochs and job.workload == "ncf":
        update["training"] = job.training.model_copy(update={"epochs": planned.epochs})
    if any(points):
        update["points"] = [point for point in points if point]
    job = job.model_copy(update=update)
    core_h = sum(row.one.cores * expected_s / 3600 for row in rows) * job.repeats
    how = "Give the program more work, so that it runs for a minute."
    if planned.epochs:
        how = (
            f"Each is repeated {job.repeats} times, for about {format_duration(REPEAT_S)} of "
            f"training and evaluation; in all about {format_core_time(core_h)}."
        )
    reasons = [f"Too short to judge: {'; '.join(row.label for row in rows)}.", how]
    sbatch = format_sbatch_lines(job, planned.site)
    return Advice("repeat", rows[0], job, sbatch, NOT_RUN, None, reasons)


@dataclass(frozen=True)
class WrittenAdvice:
    """Advice, and how next.yaml submits it."""

    advice: Advice
    job: Path
    """next.yaml, whichever advice it holds."""
    overrides: Sequence[str]
    """Settings `key=value` that make it this advice's job; empty for the advice that it holds."""
    script: Path | None
    """next.sbatch; None for other advice, for several points, and if the job cannot be planned here
    (other data by now)."""

    def command(self, path: str) -> str:
        """Shell command that submits the job, with next.yaml at `path`."""
        settings = "".join(f" -s {shlex.quote(setting)}" for setting in self.overrides)
        return f"hpcncf submit {shlex.quote(path)}{settings}"


def write_advice(
    table: Judgement | None, planned: PlannedJob, paths: ResultPaths, diagnoses: Diagnoses
) -> list[WrittenAdvice]:
    """Write next.yaml and next.sbatch to the report folder, and return all that is advised.

    The file holds the next job, or else the longer runs of what was too short. Without advice the
    files of an earlier report are removed.
    """
    advised = advise(table, planned, diagnoses) if table else []
    job, script = paths.report / "next.yaml", paths.report / "next.sbatch"
    for path in (job, script, *(paths.report / name for name in EARLIER_FILES)):
        path.unlink(missing_ok=True)
    if not advised:
        return []
    first = next((each for each in advised if each.purpose == "next"), advised[0])
    write_text(job, first.job_yaml)
    text = None
    if first.purpose != "repeat":  # which has several points
        text = _batch_script(first.job, planned, job, paths.folder.resolve().parent)
    if text:
        write_text(script, text)
    return [
        WrittenAdvice(
            each,
            job,
            describe_overrides(first.job, each.job),
            script if text and each is first else None,
        )
        for each in advised
    ]


def advise(table: Judgement, planned: PlannedJob, diagnoses: Diagnoses) -> list[Advice]:
    """List all advice on a judged job: what to repeat, and the next, fastest and cheapest job.

    Each piece of advice is about another row of the table.
    """
    repeat = build_repeat(table, planned)
    advised = [] if repeat is None else [repeat]
    known = set[str]()
    for choice in CHOICES:
        advice = build_advice(table, planned, diagnoses, choice)
        if advice is None or advice.chosen.key in known:
            continue
        trial = choice == "recommended" and table.recommended is None
        if repeat and trial and not advice.changed:
            continue  # longer runs come first
        known.add(advice.chosen.key)
        advised.append(advice)
    return sorted(advised, key=lambda each: get_args(Purpose).index(each.purpose))


def describe_overrides(base: JobSpec, job: JobSpec) -> list[str]:
    """Settings `key=value`, for `-s`, that make `job` of the job file of `base`."""
    before, after = base.model_dump(mode="json"), job.model_dump(mode="json")
    changes: dict[str, Any] = {}
    for name, value in after.items():
        old = before[name]
        if isinstance(value, dict) and isinstance(old, dict) and set(value) == set(old):
            changes |= {f"{name}.{key}": value[key] for key in value if value[key] != old[key]}
        elif value != old:
            changes[name] = value
    # One batch size replaces the other, which is then not to be unset after it.
    if given := [key for key in BATCH_SIZES if changes.get(key) is not None]:
        changes = {key: v for key, v in changes.items() if key not in BATCH_SIZES - {*given}}
    # The points first, since an override of a setting also replaces it in every point.
    ordered = sorted(changes.items(), key=lambda each: each[0] != "points")
    return [f"{key}={_format_flow(value)}" for key, value in ordered]


def _format_flow(value: Any) -> str:
    """Format a value as YAML in one line."""
    text: str = yaml.dump(
        value, Dumper=JobDumper, default_flow_style=True, allow_unicode=True, width=10**6
    )
    return text.removesuffix("\n").removesuffix("\n...")


def _batch_script(job: JobSpec, planned: PlannedJob, path: Path, results: Path) -> str | None:
    """Batch script for the job file at `path`, as printed by `hpcncf plan --by-hand`.

    None for runs side by side, which no plain script can start, and if the data is another by now.
    """
    runs = planned.expand(job)
    if runs[0].resources.packed or not all(map(_has_planned_data, runs)):
        return None
    return plain_script(
        job, planned.site, runs, RunSource(path.resolve(), results / job.name), NOTE
    )


def _has_planned_data(run: Run) -> bool:
    """Whether the run's data is unchanged since planning, or absent from this machine."""
    try:
        return run.data is None or content_key(Path(run.data.path)) in (None, run.data_key)
    except DataError:
        return False
