"""`tuning.json`: what a tuning asked for so far; all else is in the runs' records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from hpcncf import records
from hpcncf.errors import UsageError
from hpcncf.paths import ResultPaths
from hpcncf.records import SCHEMA_VERSION, Part
from hpcncf.spec import JobSpec
from hpcncf.tune.values import Ask


class Asked(Part):
    """One run: a point of the grid, by its place there, and its length."""

    point: int
    steps: int | None
    """None: whole, as the job file has it."""
    repeat: int


class Round(Part):
    why: str
    asks: list[Asked]


class Tuning(Part):
    """A job's grid, and the rounds of runs that were asked for."""

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["tuning"] = "tuning"
    job: dict[str, Any]
    """The job file's settings, resolved, but those at their defaults, which a later version may
    have more of: the grid whose places the asks name."""
    rounds: list[Round] = []  # noqa: RUF012  pydantic copies it

    def asks(self) -> list[Ask]:
        return [
            Ask(each.point, each.steps, each.repeat) for one in self.rounds for each in one.asks
        ]

    def then(self, why: str, asks: Sequence[Ask]) -> Tuning:
        """With a round more."""
        more = Round(why=why, asks=[Asked(**vars(ask)) for ask in asks])
        return self.model_copy(update={"rounds": [*self.rounds, more]})


def read_saved(paths: ResultPaths, job: JobSpec) -> Tuning:
    """What was asked for so far, nothing where the folder has no tuning yet.

    Raises UsageError where it has another grid's.
    """
    plain = job.model_dump(mode="json", exclude_defaults=True)
    if not paths.tuning.exists():
        return Tuning(job=plain)
    found = records.read_records(paths.tuning, Tuning)
    if found.job != plain:
        keys = found.job.keys() | plain.keys()
        changed = sorted(key for key in keys if found.job.get(key) != plain.get(key))
        raise UsageError(
            f"{paths.tuning}: of a job with other settings ({', '.join(changed)}): the tuning "
            "that is there goes on with the same job file only; give another folder with --results"
        )
    return found


def write(paths: ResultPaths, tuning: Tuning) -> None:
    records.write(paths.tuning, tuning)
