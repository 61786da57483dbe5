"""What to ask for next, what it costs and saves, and how sure that is. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from hpcncf.plan import Run
from hpcncf.spec import JobSpec
from hpcncf_analysis import words
from hpcncf_analysis.advice import cause, following, saving
from hpcncf_analysis.advice.asked import Asked
from hpcncf_analysis.advice.cause import Diagnoses
from hpcncf_analysis.advice.change import Change, change, remedied
from hpcncf_analysis.advice.front import Choice, Front, Standing, front
from hpcncf_analysis.advice.request import Request, request, spelled
from hpcncf_analysis.advice.saving import Saving
from hpcncf_analysis.advice.sureness import Sureness, sureness, untried
from hpcncf_analysis.commands import by_name
from hpcncf_analysis.diagnosis import Diagnosis, Gain
from hpcncf_analysis.summary import Configuration

WIDTH: Final = 98
HEADING: Final = "What to ask for next, by hpcncf."


@dataclass(frozen=True)
class Advice:
    """The next request, ready to be submitted."""

    choices: Front
    choice: Choice
    chosen: Standing
    """What was measured of it; where something is `changed`, of the run before the change."""
    request: Request
    """What `job` asks of Slurm, with the reasons for memory and time."""
    job: JobSpec
    sbatch: str
    """The same request as #SBATCH lines, for a script of one's own."""
    saves: Saving | None
    """None where the choice is what was asked for, and where there is no other."""
    sure: Sureness
    changed: Change | None
    """What in the job was not measured so; None where all of it was."""

    @property
    def fastest(self) -> Standing:
        return self.choices.fastest

    @property
    def cheapest(self) -> Standing:
        return self.choices.cheapest

    @property
    def knee(self) -> Standing:
        return self.choices.knee

    @property
    def front(self) -> tuple[Standing, ...]:
        return self.choices.front

    @property
    def sureness(self) -> str:
        """How sure it is, in whole sentences."""
        return self.sure.text

    @property
    def job_yaml(self) -> str:
        """A whole job file, with what was concluded as comments."""
        return following.as_yaml(self.job, _wrapped([HEADING, *self.reasons]))

    @property
    def reasons(self) -> list[str]:
        """What it costs, saves and rests on: sentences, the most important first."""
        unit = self.choices.unit
        return [
            f"{self.chosen.label}: {saving.price_saving(self.chosen, unit)}.",
            *([saving.told(self.saves, unit)] if self.saves else []),
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
            *([saving.predicted(self.chosen, costs, unit)] if costs else []),
            *([self._as_measured()] if len(self.choices.standings) > 1 else []),
        ]

    def _as_measured(self) -> str:
        """Who wants what was measured gets it with these settings, and is told how sure that is."""
        assert self.changed
        told = (f"-s {key}={spelled(value)}" for key, value in self.changed.before.items())
        sure = sureness(self.choice, self.choices).text
        return f"To ask for what was measured instead, submit it with {' '.join(told)}. {sure}"

    def _whole_run(self) -> str:
        of_one = self.request.core_hours
        return (
            f" In all {words.core_time(of_one * self.job.repeats)}." if of_one is not None else ""
        )


def _wrapped(sentences: Sequence[str]) -> list[str]:
    """As lines of comments: only what can be printed, no line too long."""
    plain = (" ".join(text.split()) for text in sentences)
    printable = ("".join(c if c.isprintable() else "?" for c in text) for text in plain)
    return [line for text in printable for line in textwrap.wrap(text, WIDTH)]


def advise(
    configurations: Sequence[Configuration],
    asked: Asked,
    diagnoses: Diagnoses | None = None,
    choice: Choice = "knee",
    as_measured: bool = False,
) -> Advice | None:
    """None where nothing was measured, or where the commands did different work.

    `as_measured`: nothing that was not run is asked for, whatever it promises.
    """
    if len(by_name([one for one in configurations if one.by_hand])) > 1:
        return None
    choices = front(configurations)
    if choices is None:
        return None
    run = asked.runs.get(choices.chosen(choice).one.rows[0]["run_id"])
    found = cause.of(choices.chosen(choice).one, diagnoses or {})
    return _advice(choices, choice, run, asked, found, as_measured) if run else None


def _advice(
    choices: Front,
    choice: Choice,
    run: Run,
    asked: Asked,
    found: Diagnosis | None,
    as_measured: bool,
) -> Advice:
    chosen = choices.chosen(choice)
    wanted = request(chosen.one, run.resources)
    name = following.following_following(asked.name, choice)
    job = following.job_following(run, wanted.resources, name, asked.job)
    changed = None
    if not as_measured and len(choices.standings) == 1 and not choices.unsound:
        changed = change(chosen.one, job, run.resources, wanted, found)
    elif not as_measured and found and found.primary and _serves(choice, found.primary.gain):
        changed = remedied(found.primary, job, run.resources, wanted)
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
        sbatch=following.sbatch(job, asked.site),
        saves=saving.saving(chosen, choices, asked.base),
        sure=untried() if changed else sureness(choice, choices),
        changed=changed,
    )


def _serves(choice: Choice, gain: Gain | None) -> bool:
    """Whether a study's best is asked for with its remedy: where it should gain at worst, and not
    the fastest with one that saves core-hours and may take longer."""
    if gain is None:
        return False
    if gain.what == "core_hours":
        return gain.high < 1 and choice != "fastest"
    return gain.low > 1


def _was_measured(job: JobSpec, run: Run, choices: Front, asked: Asked) -> bool:
    """Whether the study has it: then it was no better. Its epochs may have been cut short."""
    if run.training:
        cut = job.training.model_copy(update={"max_steps": run.training.max_steps})
        job = job.model_copy(update={"training": cut})
    known = {each.key for each in choices.standings} | {one.key for one in choices.unsound}
    return asked.configuration(job) in known
