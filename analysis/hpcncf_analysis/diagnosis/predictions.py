"""Predicted gains: write them down, and score them when they were measured."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal

import yaml
from pydantic import ValidationError

from hpcncf.collect.collect import collect
from hpcncf.errors import UsageError
from hpcncf.job import plan
from hpcncf.job.load import load_job, read_data_keys, read_datasets
from hpcncf.job.plan import configuration_id, expand_job
from hpcncf.job.spec import JobSpec
from hpcncf.paths import AttemptPaths, ResultPaths, RunPaths
from hpcncf.records import schema
from hpcncf.records.plan_file import JobDumper, writing
from hpcncf.records.schema import (
    Moment,
    NodeRecord,
    Number,
    RankRecord,
    RecordError,
    RecordPart,
    read_record,
)
from hpcncf_analysis.diagnosis.diagnose import diagnose, diagnose_attempt, diagnose_results
from hpcncf_analysis.diagnosis.evidence import Cause, Diagnosis, Finding, Gain


def diagnose_file(path: Path) -> Diagnosis:
    """Of a rank's record with those that lie beside it, or of what `hpcncf run --json` wrote.

    Raises RecordError if it is neither.
    """
    diagnosis = _diagnose_run_json(path)
    if diagnosis is not None:
        return diagnosis
    record = read_record(path, RankRecord)
    beside = diagnose_attempt(AttemptPaths(path.parent), record.run_id)
    return beside or diagnose([record], [])


def _diagnose_run_json(path: Path) -> Diagnosis | None:
    """None if it is another file."""
    try:
        plain: Any = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None  # its problem is named when it is read as a record
    if not isinstance(plain, dict) or not {"rank", "node"} <= set(plain) or "kind" in plain:
        return None
    try:
        rank = RankRecord.model_validate(plain["rank"])
        return diagnose([rank], [NodeRecord.model_validate(plain["node"])])
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise UsageError(f"{path}: {where}: {error.errors()[0]['msg']}") from None


def diagnose_folder(folder: Path) -> Diagnosis:
    """Of a run's folder (its last attempt that left a record), or of one attempt's.

    Raises UsageError if no rank left one.
    """
    attempts = RunPaths(folder).attempts() or [AttemptPaths(folder)]
    for attempt in reversed(attempts):
        diagnosis = diagnose_attempt(attempt)
        if diagnosis is not None:
            return diagnosis
    raise UsageError(
        f"{folder}: no record of a rank here; expected a results folder (it has a plan.json), a "
        "run's folder, an attempt's, or a file rank-0.json"
    )


REPEATS: Final = 3
"""Fewer give no interval that means anything."""

Row = Mapping[str, Any]


class Prediction(RecordPart):
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
    factor: Number
    """After over before."""
    low: Number
    high: Number

    @property
    def name(self) -> str:
        return f"{self.base}-{self.after}"


@dataclass(frozen=True)
class Remedy:
    """A change of settings, its expected gain, and the grid point it is made at."""

    cause: Cause
    base: str
    point: Mapping[str, Any]
    changes: Mapping[str, Any]
    gain: Gain


def predict_remedies(paths: ResultPaths, path: Path) -> list[Prediction]:
    """Diagnose the folder's runs, write the job with their remedies to `path`, and the predictions.

    Nothing is written if there is no remedy to try. Raises UsageError without a job file.
    """
    if not paths.job.exists():
        raise UsageError(f"{paths.folder}: no job.yaml here: only a job's settings can be changed")
    rows = collect(paths).runs
    wanted = remedies(rows, diagnose_results(paths, rows))
    begun = frozenset(row["config"] for row in rows if row["attempt"] is not None)
    job, made = with_remedies(load_job(paths.job), wanted, begun, schema.utc_now())
    known = {each.name: each for each in read_predictions(paths)}
    predictions = [known.get(each.name, each) for each in made]
    if predictions:
        write(paths, path, job, predictions)
    return predictions


def remedies(rows: Iterable[Row], diagnoses: Mapping[str, Diagnosis]) -> list[Remedy]:
    """Of every configuration with completed runs: a remedy for each of its causes that has one.

    The gain is the median over the repeats, from the lowest end of their intervals to the highest.
    """
    grouped: dict[tuple[str, str], list[tuple[Row, Finding]]] = {}
    for row in rows:
        diagnosis = diagnoses.get(row["run_id"])
        if diagnosis is not None and row["state"] == "completed" and not row["retired"]:
            for finding in diagnosis.findings:
                if finding.changes and finding.gain:
                    grouped.setdefault((row["config"], finding.cause), []).append((row, finding))
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

    `measured`: configurations of which runs began, for which a prediction would come too late. They
    are left out, and so are remedies whose settings contradict the point's own.
    """
    points = list(job.points) if job.points or job.grid else [{}]
    made: dict[str, Prediction] = {}
    for remedy in wanted:
        point = {**remedy.point, **remedy.changes}
        after = _configuration(job, point)
        if after is None or after in measured:
            continue
        gain = remedy.gain
        prediction = Prediction(
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
        if prediction.name not in made:
            made[prediction.name] = prediction
            points.append(point)
    distinct = [point for at, point in enumerate(points) if point not in points[:at]]
    repeats = max(job.repeats, REPEATS)
    return job.model_copy(update={"points": distinct, "repeats": repeats}), list(made.values())


def _configuration(job: JobSpec, point: Mapping[str, Any]) -> str | None:
    """The id of the point's configuration; None if its settings contradict one another."""
    alone = job.model_copy(
        update={"grid": {}, "exclude": [], "points": [dict(point)], "repeats": 1}
    )
    try:
        served = plan.with_engine_fallback(alone, plan.missing_native_engine(alone))
        keys, datasets = read_data_keys(alone), read_datasets(alone)
        return configuration_id(expand_job(served, keys, datasets).runs[0])
    except UsageError:
        return None


def write(paths: ResultPaths, path: Path, job: JobSpec, made: Sequence[Prediction]) -> None:
    """Write the predictions, then the job file; predictions that exist stay as they were made."""
    with writing(paths.predictions):
        for each in made:
            file = paths.predictions / f"{each.name}.json"
            if not file.exists():
                schema.write_record(file, each)
    plain = job.model_dump(mode="json", exclude_defaults=True)
    text = yaml.dump(plain, Dumper=JobDumper, sort_keys=False, allow_unicode=True)
    head = "# The job as it was, with a point for each remedy that a setting applies.\n"
    with writing(path.parent):
        schema.write_text(path, head + text)


def read_predictions(paths: ResultPaths) -> list[Prediction]:
    """The folder's predictions by name, without files that are none."""
    found = []
    for path in sorted(paths.predictions.glob("*.json")):
        with suppress(RecordError):
            found.append(schema.read_record(path, Prediction))
    return found


WITHIN: Final = 0.25
"""A prediction is right if it is off by this share of the measured factor at most."""

Score = dict[str, Any]


def score(paths: ResultPaths, runs: Iterable[Row]) -> list[Score]:
    """`score_predictions` of the predictions that the results folder keeps."""
    return score_predictions(read_predictions(paths), runs)


def score_predictions(made: Sequence[Prediction], runs: Iterable[Row]) -> list[Score]:
    """One row a prediction: `predicted` with `low` and `high`, `measured` with `measured_low` and
    `measured_high` (None unless both sides have repeats), and whether it is `within` 25 %.

    `runs`: of the table `runs`. Figures that are not measured yet are None.
    """
    by_config: dict[str, list[Row]] = {}
    for row in runs:
        if row["state"] == "completed":
            by_config.setdefault(row["config"], []).append(row)
    found = []
    for each in made:
        before, after = (
            [row[each.what] for row in by_config.get(key, []) if row[each.what]]
            for key in (each.base, each.after)
        )
        measured, low, high = ratio(before, after)
        found.append(
            {
                "cause": each.cause,
                "base": each.base,
                "after": each.after,
                "changes": each.changes,
                "what": each.what,
                "predicted": each.factor,
                "low": each.low,
                "high": each.high,
                "measured": measured,
                "measured_low": low,
                "measured_high": high,
                "within": None if measured is None else abs(each.factor / measured - 1) <= WITHIN,
            }
        )
    return found


def ratio(
    before: Sequence[float], after: Sequence[float]
) -> tuple[float | None, float | None, float | None]:
    """Median over median, and its lowest and highest value by the repeats' extremes."""
    if not before or not after:
        return None, None, None
    middle = median(after) / median(before)
    if len(before) < 2 or len(after) < 2:
        return middle, None, None
    return middle, min(after) / max(before), max(after) / min(before)
