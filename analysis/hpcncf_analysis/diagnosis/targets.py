"""What a user points at, a record, a run or a whole results folder, and its diagnoses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hpcncf import records
from hpcncf.errors import UsageError
from hpcncf.paths import AttemptPaths, RunPaths
from hpcncf.records import NodeRecord, RankRecord
from hpcncf_analysis.diagnosis.finding import Diagnosis
from hpcncf_analysis.diagnosis.reading import of_attempt
from hpcncf_analysis.diagnosis.verdict import diagnose


def of_file(path: Path) -> Diagnosis:
    """A rank's record, with those that lie beside it; or what `hpcncf run --json` wrote.

    Raises RecordError where it is neither.
    """
    whole = _of_run_json(path)
    if whole is not None:
        return whole
    record = records.read_records(path, RankRecord)
    beside = of_attempt(AttemptPaths(path.parent), record.run_id)
    return beside or diagnose([record], [])


def _of_run_json(path: Path) -> Diagnosis | None:
    """None where it is another file."""
    try:
        plain: Any = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None  # what is wrong with it is told where it is read as a record
    if not isinstance(plain, dict) or not {"rank", "node"} <= set(plain) or "kind" in plain:
        return None
    try:
        rank = RankRecord.model_validate(plain["rank"])
        return diagnose([rank], [NodeRecord.model_validate(plain["node"])])
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise UsageError(f"{path}: {where}: {error.errors()[0]['msg']}") from None


def of_folder(folder: Path) -> Diagnosis:
    """A run's folder (its last attempt that left a record), or one attempt's.

    Raises UsageError where no rank left one.
    """
    attempts = RunPaths(folder).attempts() or [AttemptPaths(folder)]
    for attempt in reversed(attempts):
        told = of_attempt(attempt)
        if told is not None:
            return told
    raise UsageError(
        f"{folder}: no record of a rank here; expected a results folder (it has a plan.json), a "
        "run's folder, an attempt's, or a file rank-0.json"
    )
