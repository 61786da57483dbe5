"""The next request as a job file, a batch script, and `#SBATCH` lines."""

from __future__ import annotations

import contextlib
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, get_args

import yaml

from hpcncf.errors import UsageError
from hpcncf.job.command import Program
from hpcncf.job.load import build_plan, load_job
from hpcncf.job.plan import Run, configuration_id, expand_job
from hpcncf.job.spec import JobSpec, Resources
from hpcncf.ncf.data.manifest import DataError
from hpcncf.paths import ResultPaths
from hpcncf.records.results_folder import JobDumper, read_plan
from hpcncf.records.schema import write_text
from hpcncf.slurm.batch_script import Source, directives, text_byhand
from hpcncf.slurm.site import Site, load_sites
from hpcncf_analysis.advice import recommend
from hpcncf_analysis.advice.confidence import Confidence, assess_confidence, unproven_confidence
from hpcncf_analysis.advice.pareto import Choice, Choices, PricedConfiguration, build_choices
from hpcncf_analysis.advice.recommend import Saving
from hpcncf_analysis.advice.remedy import (
    Change,
    Diagnoses,
    agreed_diagnosis,
    apply_remedy,
    build_change,
)
from hpcncf_analysis.advice.request import Request, build_request, format_yaml_value
from hpcncf_analysis.commands import group_by_command
from hpcncf_analysis.configurations import Configuration, pluralize
from hpcncf_analysis.diagnosis.evidence import Diagnosis, Gain
from hpcncf_analysis.formatting import format_core_time


@dataclass(frozen=True)
class PlannedJob:
    """What was asked for so far, and of which site."""

    name: str
    """The job's."""
    runs: Mapping[str, Run]
    """Run id -> as it was planned."""
    job: JobSpec | None = None
    """None for commands that `hpcncf run` started."""
    site: Site = field(default_factory=Site)

    @property
    def base(self) -> str | None:
        """The configuration that the job file asks for outside its grid; None where it is none."""
        if self.job is None:
            return None
        outside = self.job.model_copy(update={"grid": {}, "points": [], "exclude": []})
        return self.configuration(outside)

    def configuration(self, job: JobSpec) -> str | None:
        """That of a job without a grid, on the data as it was planned; None where it is none."""
        keys = {run.data.path: run.data_key for run in self.runs.values() if run.data}
        sets = {run.data.path: run.data.dataset for run in self.runs.values() if run.data}
        try:
            (run,) = expand_job(job.model_copy(update={"repeats": 1}), keys, sets).runs
        except UsageError:
            return None  # settings that only some point of the grid makes whole
        return configuration_id(run)


def read_request(paths: ResultPaths) -> PlannedJob:
    """What the results folder tells; a site that is not known on this machine asks for nothing.

    Raises UsageError where there is no plan.
    """
    planned, job = read_plan(paths), _job(paths)
    site = _site(job.site if job else str(JobSpec.model_fields["site"].default))
    return PlannedJob(planned.job, {run.id: run for run in planned.runs}, job, site)


def _job(paths: ResultPaths) -> JobSpec | None:
    """None for commands, too; a torn one, or another version's, tells nothing: the plan does."""
    with contextlib.suppress(UsageError):
        return load_job(paths.job)
    return None


def _site(name: str) -> Site:
    with contextlib.suppress(UsageError):
        return load_sites(name)
    return Site()  # the results were brought here from elsewhere


# Of 64 letters; what follows the name needs some.
MAX_NAME: Final = 50
# Said even where they are the defaults: what a reader looks for first.
ALWAYS_WRITTEN: Final = {
    "resources": ("nodes", "tasks_per_node", "cpus_per_task", "mem_gb", "timeout_min"),
    "training": ("epochs", "engine", "loader"),
}


def build_next_job(run: Run, resources: Resources, name: str, base: JobSpec | None) -> JobSpec:
    """A job of this one run, or of as many as share its GPU, its epochs whole; where it runs is as
    in `base`."""
    training = run.training.model_copy(update={"max_steps": None}) if run.training else None
    sections = {"data": run.data, "model": run.model, "training": training}
    return JobSpec.model_validate(
        {
            "name": name,
            "workload": _workload(run),
            "parameters": run.parameters,
            "resources": resources,
            "repeats": resources.side_by_side,
            **{key: value for key, value in sections.items() if value is not None},
            **({"site": base.site, "exclusive": base.exclusive} if base else {}),
        }
    )


def _workload(run: Run) -> Any:
    """A job file's command has placeholders: the braces of one that was typed are to stay."""
    if not isinstance(run.workload, Program) or not run.by_hand:
        return run.workload
    words = [word.replace("{", "{{").replace("}", "}}") for word in run.words]
    return run.workload.model_copy(update={"command": words})


def next_job_name(name: str, choice: Choice) -> str:
    """`demo-next`, then `demo-next2`: another name has another results folder."""
    earlier = re.search(r"-(next|fastest|cheapest)(\d*)$", name)
    stem = name[: earlier.start()] if earlier else name
    kept = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).lstrip("._-")[:MAX_NAME] or "command"
    number = int(earlier.group(2) or 1) + 1 if earlier else ""
    return f"{kept}-{'next' if choice == 'knee' else choice}{number}"


def job_as_yaml(job: JobSpec, comments: Sequence[str]) -> str:
    """The job file, what is at its default left out; `comments` above it, a line each."""
    whole = job.model_dump(mode="json")
    plain = job.model_dump(mode="json", exclude_defaults=True) | {"site": job.site}
    for section, names in ALWAYS_WRITTEN.items():
        if section == "resources" or job.workload == "ncf":
            said = {*names, *plain.get(section, {})}
            plain[section] = {name: whole[section][name] for name in whole[section] if name in said}
    ordered = {name: plain[name] for name in JobSpec.model_fields if name in plain}
    text = yaml.dump(ordered, Dumper=JobDumper, sort_keys=False, allow_unicode=True)
    return "".join(f"# {line}\n" for line in comments) + text


def format_sbatch_lines(job: JobSpec, site: Site) -> str:
    """For a script of one's own."""
    lines = directives(job.resources, site, job.name, job.exclusive)
    cores, runs = job.resources.cpus_per_task, job.resources.side_by_side
    script = f"# and in the script: srun --cpus-per-task={cores} ..."
    if runs > 1:
        each = job.resources.tasks_per_node * cores
        script = f"# for {runs} runs side by side, each on {pluralize(each, 'core')} of its own"
    return "\n".join([*lines, script]) + "\n"


WIDTH: Final = 98
HEADING: Final = "What to ask for next, by hpcncf."


@dataclass(frozen=True)
class Advice:
    """The next request, ready to be submitted."""

    choices: Choices
    choice: Choice
    chosen: PricedConfiguration
    """What was measured of it; where something is `changed`, of the run before the change."""
    request: Request
    """What `job` asks of Slurm, with the reasons for memory and time."""
    job: JobSpec
    sbatch: str
    """The same request as #SBATCH lines, for a script of one's own."""
    saves: Saving | None
    """None where the choice is what was asked for, and where there is no other."""
    sure: Confidence
    changed: Change | None
    """What in the job was not measured so; None where all of it was."""

    @property
    def fastest(self) -> PricedConfiguration:
        return self.choices.fastest

    @property
    def cheapest(self) -> PricedConfiguration:
        return self.choices.cheapest

    @property
    def knee(self) -> PricedConfiguration:
        return self.choices.knee

    @property
    def front(self) -> tuple[PricedConfiguration, ...]:
        return self.choices.front

    @property
    def sureness(self) -> str:
        """How sure it is, in whole sentences."""
        return self.sure.text

    @property
    def job_yaml(self) -> str:
        """A whole job file, with what was concluded as comments."""
        return job_as_yaml(self.job, _wrapped([HEADING, *self.reasons]))

    @property
    def reasons(self) -> list[str]:
        """What it costs, saves and rests on: sentences, the most important first."""
        unit = self.choices.unit
        return [
            f"{self.chosen.label}: {recommend.describe_price(self.chosen, unit)}.",
            *([recommend.describe_savings(self.saves, unit)] if self.saves else []),
            *(self._change() if self.changed else []),
            self.sureness,
            *([self.request.sharing] if self.request.sharing else []),
            f"Time: {self.request.time}{self._whole_run()}",
            f"Memory: {self.request.memory}",
        ]

    def _change(self) -> list[str]:
        assert self.changed
        costs, unit = self.changed.costs, self.choices.unit
        return [
            self.changed.text,
            *([recommend.describe_predicted_cost(self.chosen, costs, unit)] if costs else []),
            *([self._as_measured()] if len(self.choices.standings) > 1 else []),
        ]

    def _as_measured(self) -> str:
        """Who wants what was measured gets it with these settings, and is told how sure that is."""
        assert self.changed
        told = (
            f"-s {key}={format_yaml_value(value)}" for key, value in self.changed.before.items()
        )
        sure = assess_confidence(self.choice, self.choices).text
        return f"To ask for what was measured instead, submit it with {' '.join(told)}. {sure}"

    def _whole_run(self) -> str:
        of_one = self.request.core_hours
        return (
            f" In all {format_core_time(of_one * self.job.repeats)}." if of_one is not None else ""
        )


def _wrapped(sentences: Sequence[str]) -> list[str]:
    """As lines of comments: only what can be printed, no line too long."""
    plain = (" ".join(text.split()) for text in sentences)
    printable = ("".join(c if c.isprintable() else "?" for c in text) for text in plain)
    return [line for text in printable for line in textwrap.wrap(text, WIDTH)]


def build_advice(
    configurations: Sequence[Configuration],
    asked: PlannedJob,
    diagnoses: Diagnoses | None = None,
    choice: Choice = "knee",
    as_measured: bool = False,
) -> Advice | None:
    """None where nothing was measured, or where the commands did different work.

    `as_measured`: nothing that was not run is asked for, whatever it promises.
    """
    if len(group_by_command([one for one in configurations if one.by_hand])) > 1:
        return None
    choices = build_choices(configurations)
    if choices is None:
        return None
    run = asked.runs.get(choices.chosen(choice).one.rows[0]["run_id"])
    found = agreed_diagnosis(choices.chosen(choice).one, diagnoses or {})
    return _advice(choices, choice, run, asked, found, as_measured) if run else None


def _advice(
    choices: Choices,
    choice: Choice,
    run: Run,
    asked: PlannedJob,
    found: Diagnosis | None,
    as_measured: bool,
) -> Advice:
    chosen = choices.chosen(choice)
    wanted = build_request(chosen.one, run.resources)
    name = next_job_name(asked.name, choice)
    job = build_next_job(run, wanted.resources, name, asked.job)
    changed = None
    if not as_measured and len(choices.standings) == 1 and not choices.unsound:
        changed = build_change(chosen.one, job, run.resources, wanted, found)
    elif not as_measured and found and found.primary and _remedy_suits(choice, found.primary.gain):
        changed = apply_remedy(found.primary, job, run.resources, wanted)
    if changed and _was_measured(changed.job, run, choices, asked):
        changed = None
    if changed:
        job, wanted = changed.job, changed.request
    return Advice(
        choices=choices,
        choice=choice,
        chosen=chosen,
        request=wanted,
        job=job,
        sbatch=format_sbatch_lines(job, asked.site),
        saves=recommend.compute_saving(chosen, choices, asked.base),
        sure=unproven_confidence() if changed else assess_confidence(choice, choices),
        changed=changed,
    )


def _remedy_suits(choice: Choice, gain: Gain | None) -> bool:
    """Whether a study's best is asked for with its remedy: where it should gain at worst, and not
    the fastest with one that saves core-hours and may take longer."""
    if gain is None:
        return False
    if gain.what == "core_hours":
        return gain.high < 1 and choice != "fastest"
    return gain.low > 1


def _was_measured(job: JobSpec, run: Run, choices: Choices, asked: PlannedJob) -> bool:
    """Whether the study has it: then it was no better. Its epochs may have been cut short."""
    if run.training:
        cut = job.training.model_copy(update={"max_steps": run.training.max_steps})
        job = job.model_copy(update={"training": cut})
    known = {each.key for each in choices.standings} | {one.key for one in choices.unsound}
    return asked.configuration(job) in known


NOTE: Final = (
    "# Written by `hpcncf report`: submit it with sbatch, or the job file beside it with "
    "`hpcncf submit`."
)


@dataclass(frozen=True)
class WrittenAdvice:
    """One choice's advice, and where it lies."""

    advice: Advice
    job: Path
    script: Path | None
    """None where the job file cannot be planned here: other data lies in its folder by now."""


def advice_file_name(choice: Choice) -> str:
    return "next" if choice == "knee" else f"next-{choice}"


def write_advice(
    configurations: Sequence[Configuration], paths: ResultPaths, diagnoses: Diagnoses
) -> list[WrittenAdvice]:
    """Each choice that differs, the knee first; what an earlier report advised goes. Nothing where
    there is nothing to advise."""
    asked = read_request(paths)
    written: list[WrittenAdvice] = []
    for choice in get_args(Choice):
        job, script = (
            paths.report / f"{advice_file_name(choice)}.{ending}" for ending in ("yaml", "sbatch")
        )
        advice = _unless_repeated(build_advice(configurations, asked, diagnoses, choice), written)
        _write_or_remove(job, advice.job_yaml if advice else None)
        text = _batch_script(job, asked.site, paths.folder.resolve().parent) if advice else None
        _write_or_remove(script, text)
        if advice:
            written.append(WrittenAdvice(advice, job, script if text else None))
    return written


def _unless_repeated(advice: Advice | None, written: Sequence[WrittenAdvice]) -> Advice | None:
    """None where another choice is the same configuration."""
    known = {each.advice.chosen.key for each in written}
    return advice if advice and advice.chosen.key not in known else None


def _write_or_remove(path: Path, text: str | None) -> None:
    if text is None:
        path.unlink(missing_ok=True)
    else:
        write_text(path, text)


def _batch_script(path: Path, site: Site, results: Path) -> str | None:
    """What `hpcncf plan --by-hand` prints of the job file."""
    job = load_job(path)
    source = Source(path.resolve(), results / job.name)
    try:
        return text_byhand(job, site, build_plan(job, path).runs, source, NOTE)
    except (UsageError, DataError):  # other data, of another format; runs side by side
        return None
