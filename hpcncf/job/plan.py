"""A plan: the runs that a job file requests, in the order in which they are submitted."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Discriminator, Tag, model_validator

from hpcncf.errors import UsageError, abbreviate
from hpcncf.job.spec import (
    Data,
    Model,
    Parameters,
    Program,
    Remedies,
    Resources,
    Settings,
    Training,
    Workload,
    build_command,
    placeholder_values,
)
from hpcncf.removed import drop_removed_settings

SCHEMA_VERSION: Final = 1


def _check_id(run_id: str) -> str:
    """Validate a run id, which must not lead out of the results folder.

    Others may write to the folder that holds the plan.
    """
    if not re.fullmatch(r"[0-9A-Za-z_-]{1,64}", run_id):
        raise ValueError(f"expected a run id, came {abbreviate(run_id)}")
    return run_id


class Run(Settings):
    """One grid point, one repeat: all that a rank needs to compute it."""

    id: Annotated[str, AfterValidator(_check_id)]
    """The first 12 hexadecimal digits of the SHA-256 of the run's identity."""
    repeat: int
    """0 is the first."""
    varied: dict[str, Any]
    """The settings that this job's grid and points vary, and their values here."""
    workload: Workload
    """`ncf`, or `{"command": [...]}`: with placeholders, unless it was typed."""
    by_hand: bool = False
    """Whether it is a `TypedCommand`."""
    parameters: Parameters = {}  # noqa: RUF012
    """Values of the placeholders of a job file's command."""
    remedies: Remedies = Remedies()
    """Changes that the probe makes to a command."""
    resources: Resources
    data: Data | None
    """`path` is absolute here. None for a command."""
    data_key: str | None
    """The key of the prepared folder's content; None if the data was not prepared yet."""
    model: Model | None
    training: Training | None
    baseline: bool = False
    """Belongs to the point that the others are compared with."""
    retired: bool = False
    """No longer in the job file; kept with its results."""
    code: str | None = None
    """SHA-256 of a command's own code at its last submission: scripts and modules of its user that
    it names or imports. None: it has none, or was submitted before this was recorded."""
    removed: dict[str, Any] = {}  # noqa: RUF012
    """Settings of an earlier version that are gone, dotted, and their values: results are still
    read, but such a run cannot be repeated."""

    @model_validator(mode="before")
    @classmethod
    def set_removed_settings_apart(cls, plain: Any) -> Any:
        """Move settings that no longer exist from an older plan's run to `removed`."""
        if not isinstance(plain, dict) or not isinstance(plain.get("training"), dict):
            return plain
        kept = plain | {
            section: dict(plain[section])
            for section in ("training", "data")
            if isinstance(plain.get(section), dict)
        }
        gone = drop_removed_settings(kept)
        return kept | {"removed": gone} if gone else kept

    @model_validator(mode="after")
    def is_of_its_kind(self) -> Self:
        if self.by_hand != isinstance(self, TypedCommand):
            raise ValueError("by_hand: true is of a typed command, and of no run of a job")
        return self

    @property
    def removed_training(self) -> dict[str, Any]:
        """Names and values of removed settings of `training`."""
        split = ((dotted.partition("."), value) for dotted, value in self.removed.items())
        return {name: value for (section, _, name), value in split if section == "training"}

    @property
    def words(self) -> list[str]:
        """Words of the command, without values known only at run time; empty for ncf."""
        if not isinstance(self.workload, Program):
            return []
        resources = self.resources.model_dump(mode="json")
        return build_command(
            self.workload, placeholder_values(self.parameters, resources, self.repeat)
        )

    @property
    def typed_name(self) -> str | None:
        """The name given to a typed command, or else its words; None for a job's run."""
        return None

    @property
    def requested(self) -> Resources | None:
        """Resources requested for it; None for a typed command, which took what its shell had."""
        return self.resources

    @property
    def template(self) -> Workload:
        """The run's workload in the form that a job file has."""
        return self.workload

    @property
    def point(self) -> dict[str, Any]:
        """The point of a job file that repeats this run: dotted settings, without the seed."""
        return {key: value for key, value in self.varied.items() if key != "training.seed"}


class TypedCommand(Run):
    """A command that was typed after `hpcncf run`: no point of a grid, and never started again.

    Its resources are those that its shell had, rounded.
    """

    workload: Program
    """Its words as they were typed: braces are braces."""
    by_hand: bool = True

    @property
    def words(self) -> list[str]:
        return list(self.workload.command or [])

    @property
    def typed_name(self) -> str:
        return str(self.varied.get("run.command") or shlex.join(self.words))

    @property
    def requested(self) -> None:
        return None

    @property
    def template(self) -> Workload:
        words = [word.replace("{", "{{").replace("}", "}}") for word in self.words]
        return self.workload.model_copy(update={"command": words})

    @property
    def point(self) -> dict[str, Any]:
        return {"resources.cpus_per_task": self.resources.cpus_per_task}


def _kind_of_run(value: Any) -> str:
    """Tell a typed command from a job's run; in the oldest plans every command was typed."""
    if isinstance(value, dict):
        is_typed = value.get("by_hand", value.get("workload") != "ncf")
    else:
        is_typed = isinstance(value, TypedCommand)
    return "typed" if is_typed else "planned"


PlannedRun = Annotated[
    Annotated[Run, Tag("planned")] | Annotated[TypedCommand, Tag("typed")],
    Discriminator(_kind_of_run),
]


class Plan(Settings):
    """All runs that a job file requests. The same input always gives the same plan."""

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["plan"] = "plan"
    job: str
    """The job's name."""
    runs: list[PlannedRun]
    """In submission order: rounds of repeats, random within a round, so that a machine's drift is
    spread over all points."""

    def active(self) -> list[Run]:
        return [run for run in self.runs if not run.retired]

    def run(self, run_id: str) -> Run:
        """Find the run whose id starts with `run_id`. Raises UsageError for none or several."""
        found = [run for run in self.runs if run.id.startswith(run_id)]
        if len(found) == 1:
            return found[0]
        known = found or self.runs
        ids = ", ".join(run.id for run in known[:10])
        more = f" and {len(known) - 10} more" if len(known) > 10 else ""
        problem = "matches several runs" if found else "is not in the plan, which has"
        raise UsageError(f"run {run_id!r}: {problem}: {ids}{more}")


def max_core_hours(runs: list[Run]) -> float:
    """Core-hours if every run takes its whole time limit; an incomplete pack costs a full one."""
    minutes = (
        -(-number // asked.side_by_side) * asked.nodes * asked.node_cores * asked.timeout_min
        for asked, number in Counter(run.resources for run in runs).items()
    )
    return sum(minutes) / 60


def merge_plans(old: Plan, new: Plan) -> Plan:
    """Merge two plans: runs that only the old one has are kept and marked as retired."""
    present = {run.id for run in new.runs}
    gone = [run.model_copy(update={"retired": True}) for run in old.runs if run.id not in present]
    return new.model_copy(update={"runs": new.runs + gone})
