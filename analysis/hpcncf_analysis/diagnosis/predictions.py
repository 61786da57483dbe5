"""Predicted gains: write them down before the runs, and score them when they were measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal

import yaml

from hpcncf import files
from hpcncf.collect.collect import collect
from hpcncf.errors import UsageError
from hpcncf.job.engine_fallback import missing_native_engine, with_engine_fallback
from hpcncf.job.expand import expand_job
from hpcncf.job.identity import configuration_id
from hpcncf.job.load import load_job, read_data_keys, read_datasets
from hpcncf.job.spec import JobSpec
from hpcncf.paths import ResultPaths
from hpcncf.records import schema
from hpcncf.records.plan_file import JobDumper, writing
from hpcncf.records.schema import Moment, Number, RecordError, RecordPart
from hpcncf_analysis.diagnosis.diagnose import diagnose_results
from hpcncf_analysis.diagnosis.evidence import Diagnosis, Finding

REPEATS: Final = 3
"""Fewer give no interval that means anything."""
WITHIN: Final = 0.25
"""A prediction is right if it is off by this share of the measured factor at most."""

Row = Mapping[str, Any]
Score = dict[str, Any]


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
    """After over before: the median over the repeats, whose lowest and highest ends follow."""
    low: Number
    high: Number

    @property
    def name(self) -> str:
        return f"{self.base}-{self.after}"


def predict_remedies(paths: ResultPaths, path: Path) -> list[Prediction]:
    """Diagnose the folder's runs, write the job with their remedies to `path`, and the predictions;
    those that exist stay as they were made.

    Nothing is written if there is no remedy to try. Raises UsageError without a job file.
    """
    if not paths.job.exists():
        raise UsageError(f"{paths.folder}: no job.yaml here: only a job's settings can be changed")
    job, rows = load_job(paths.job), collect(paths).runs
    remedies = predict(job, rows, diagnose_results(paths, rows))
    if not remedies:
        return []
    kept = {each.name: each for each in read_predictions(paths)}
    with writing(paths.predictions):
        for name in set(remedies) - set(kept):
            schema.write_record(paths.predictions / f"{name}.json", remedies[name][1])
    plain = with_points(job, [point for point, _ in remedies.values()]).model_dump(
        mode="json", exclude_defaults=True
    )
    text = yaml.dump(plain, Dumper=JobDumper, sort_keys=False, allow_unicode=True)
    head = "# The job as it was, with a point for each remedy that a setting applies.\n"
    with writing(path.parent):
        files.write_text(path, head + text)
    return [kept.get(name, made) for name, (_, made) in remedies.items()]


def predict(
    job: JobSpec, rows: Iterable[Row], diagnoses: Mapping[str, Diagnosis]
) -> dict[str, tuple[dict[str, Any], Prediction]]:
    """Name -> the point and the prediction of each remedy that a setting applies.

    Configurations of which runs began are left out, for a prediction would come too late, and so
    are remedies whose settings contradict the point's own.
    """
    rows = list(rows)
    begun = {row["config"] for row in rows if row["attempt"] is not None}
    grouped: dict[tuple[str, str], list[tuple[Row, Finding]]] = {}
    for row in rows:
        diagnosis = diagnoses.get(row["run_id"])
        if diagnosis is not None and row["state"] == "completed" and not row["retired"]:
            for finding in diagnosis.findings:
                if finding.changes and finding.gain:
                    grouped.setdefault((row["config"], finding.cause), []).append((row, finding))
    made: dict[str, tuple[dict[str, Any], Prediction]] = {}
    for (base, cause), found in grouped.items():
        row, first = found[0]
        point = {**row["varied"], **first.changes}
        after = _configuration(job, point)
        if after is None or after in begun:
            continue
        gains = [finding.gain for _, finding in found if finding.gain]
        prediction = Prediction(
            made_at=schema.utc_now(),
            cause=cause,
            base=base,
            after=after,
            changes=dict(first.changes),
            what=gains[0].what,
            factor=median(gain.factor for gain in gains),
            low=min(gain.low for gain in gains),
            high=max(gain.high for gain in gains),
        )
        made.setdefault(prediction.name, (point, prediction))
    return made


def _configuration(job: JobSpec, point: Mapping[str, Any]) -> str | None:
    """The id of the point's configuration; None if its settings contradict one another."""
    alone = job.model_copy(
        update={"grid": {}, "exclude": [], "points": [dict(point)], "repeats": 1}
    )
    try:
        served = with_engine_fallback(alone, missing_native_engine(alone))
        keys, datasets = read_data_keys(alone), read_datasets(alone)
        return configuration_id(expand_job(served, keys, datasets).runs[0])
    except UsageError:
        return None


def with_points(job: JobSpec, more: Sequence[dict[str, Any]]) -> JobSpec:
    points = [*(job.points if job.points or job.grid else [{}]), *more]
    distinct = [point for at, point in enumerate(points) if point not in points[:at]]
    return job.model_copy(update={"points": distinct, "repeats": max(job.repeats, REPEATS)})


def read_predictions(paths: ResultPaths) -> list[Prediction]:
    """The folder's predictions by name, without files that are none."""
    found = []
    for path in sorted(paths.predictions.glob("*.json")):
        with suppress(RecordError):
            found.append(schema.read_record(path, Prediction))
    return found


def score(made: Iterable[Prediction], runs: Iterable[Row]) -> list[Score]:
    """One row a prediction: `predicted` with `low` and `high`, `measured` with `measured_low` and
    `measured_high` (None unless both sides have repeats), and whether it is `within` 25 %.

    `runs`: of the table `runs`. Figures that are not measured yet are None.
    """
    by_config: dict[str, list[Row]] = {}
    for row in runs:
        if row["state"] == "completed":
            by_config.setdefault(row["config"], []).append(row)
    return [_score(each, by_config) for each in made]


def _score(made: Prediction, by_config: Mapping[str, Sequence[Row]]) -> Score:
    before, after = (
        [row[made.what] for row in by_config.get(key, []) if row[made.what]]
        for key in (made.base, made.after)
    )
    measured = median(after) / median(before) if before and after else None
    repeated = len(before) > 1 and len(after) > 1
    return made.model_dump(include={"cause", "base", "after", "changes", "what", "low", "high"}) | {
        "predicted": made.factor,
        "measured": measured,
        "measured_low": min(after) / max(before) if repeated else None,
        "measured_high": max(after) / min(before) if repeated else None,
        "within": None if measured is None else abs(made.factor / measured - 1) <= WITHIN,
    }
