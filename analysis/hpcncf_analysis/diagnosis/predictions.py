"""Remedies become points of a job file, and what is expected of each is written down beforehand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal

import yaml

from hpcncf import jobfile, records, serving
from hpcncf import plan as planning
from hpcncf.collect import collect
from hpcncf.errors import UsageError
from hpcncf.paths import ResultPaths
from hpcncf.records import Moment, Part, RecordError
from hpcncf.results import JobDumper, writing
from hpcncf.spec import JobSpec
from hpcncf_analysis.diagnosis.finding import Cause, Diagnosis, Finding, Gain
from hpcncf_analysis.diagnosis.reading import of_results

REPEATS: Final = 3
"""Fewer give no interval that means anything."""

Row = Mapping[str, Any]


class Prediction(Part):
    """What one remedy is expected to do to one configuration."""

    schema_version: Literal[1] = 1
    kind: Literal["prediction"] = "prediction"
    made_at: Moment
    cause: str
    base: str
    """Configuration (`config` of the table `runs`) that was diagnosed."""
    after: str
    """Configuration that the remedy makes of it."""
    changes: dict[str, Any]
    what: Literal["instances_per_s", "core_hours"]
    factor: float
    """After over before."""
    low: float
    high: float

    @property
    def name(self) -> str:
        return f"{self.base}-{self.after}"


@dataclass(frozen=True)
class Remedy:
    """A change that settings can make, its expected gain, and the point it is made at."""

    cause: Cause
    base: str
    point: Mapping[str, Any]
    changes: Mapping[str, Any]
    gain: Gain


def make(paths: ResultPaths, path: Path) -> list[Prediction]:
    """Diagnose the folder's runs, write the job with their remedies to `path`, and the predictions.

    Nothing is written where there is no remedy to try. Raises UsageError where the folder is not of
    a job file.
    """
    if not paths.job.exists():
        raise UsageError(f"{paths.folder}: no job.yaml here: only a job's settings can be changed")
    rows = collect(paths).runs
    wanted = remedies(rows, of_results(paths, rows))
    begun = frozenset(row["config"] for row in rows if row["attempt"] is not None)
    job, made = with_remedies(jobfile.load_jobfile(paths.job), wanted, begun, records.now())
    known = {each.name: each for each in read_predictions(paths)}
    made = [known.get(each.name, each) for each in made]
    if made:
        write(paths, path, job, made)
    return made


def remedies(rows: Iterable[Row], diagnoses: Mapping[str, Diagnosis]) -> list[Remedy]:
    """Of every configuration with completed runs: a remedy for each of its causes that has one.

    The gain is the median over the repeats, from the lowest end of their intervals to the highest.
    """
    grouped: dict[tuple[str, str], list[tuple[Row, Finding]]] = {}
    for row in rows:
        told = diagnoses.get(row["run_id"])
        if told is not None and row["state"] == "completed" and not row["retired"]:
            for found in told.findings:
                if found.changes and found.gain:
                    grouped.setdefault((row["config"], found.cause), []).append((row, found))
    return [_remedy(base, found) for (base, _), found in grouped.items()]


def _remedy(base: str, found: Sequence[tuple[Row, Finding]]) -> Remedy:
    row, first = found[0]
    gains = [finding.gain for _, finding in found if finding.gain]
    expected = Gain(
        median(gain.factor for gain in gains),
        min(gain.low for gain in gains),
        max(gain.high for gain in gains),
        gains[0].what,
    )
    return Remedy(first.cause, base, row["varied"], first.changes, expected)


def with_remedies(
    job: JobSpec, wanted: Sequence[Remedy], measured: frozenset[str], made_at: str
) -> tuple[JobSpec, list[Prediction]]:
    """The job with a point for every remedy, and what is expected of each.

    `measured`: configurations of which runs began: a prediction of those would come too late.
    Left out with them is a remedy whose settings do not go together with the point's own.
    """
    points = list(job.points) if job.points or job.grid else [{}]
    made: dict[str, Prediction] = {}
    for remedy in wanted:
        point = {**remedy.point, **remedy.changes}
        after = _configuration(job, point)
        if after is None or after in measured:
            continue
        told = _prediction(remedy, after, made_at)
        if told.name not in made:
            made[told.name] = told
            points.append(point)
    distinct = [point for at, point in enumerate(points) if point not in points[:at]]
    repeats = max(job.repeats, REPEATS)
    return job.model_copy(update={"points": distinct, "repeats": repeats}), list(made.values())


def _configuration(job: JobSpec, point: Mapping[str, Any]) -> str | None:
    alone = job.model_copy(
        update={"grid": {}, "exclude": [], "points": [dict(point)], "repeats": 1}
    )
    try:
        served = serving.served(alone, serving.problem(alone))
        return planning.configuration(planning.expand(served, jobfile.data_keys(alone)).runs[0])
    except UsageError:
        return None


def _prediction(remedy: Remedy, after: str, made_at: str) -> Prediction:
    gain = remedy.gain
    return Prediction(
        made_at=made_at,
        cause=remedy.cause,
        base=remedy.base,
        after=after,
        changes=dict(remedy.changes),
        what=gain.what,
        factor=gain.factor,
        low=gain.low,
        high=gain.high,
    )


def write(paths: ResultPaths, path: Path, job: JobSpec, made: Sequence[Prediction]) -> None:
    """The predictions first; those that are there already stay as they were made."""
    with writing(paths.predictions):
        for each in made:
            file = paths.predictions / f"{each.name}.json"
            if not file.exists():
                records.write(file, each)
    plain = job.model_dump(mode="json", exclude_defaults=True)
    text = yaml.dump(plain, Dumper=JobDumper, sort_keys=False, allow_unicode=True)
    head = "# The job as it was, with a point for each remedy that a setting applies.\n"
    with writing(path.parent):
        records.write_text(path, head + text)


def read_predictions(paths: ResultPaths) -> list[Prediction]:
    """Those that were made, by name; what is no prediction is passed over."""
    found = []
    for path in sorted(paths.predictions.glob("*.json")):
        try:
            found.append(records.read_records(path, Prediction))
        except RecordError:
            continue
    return found
