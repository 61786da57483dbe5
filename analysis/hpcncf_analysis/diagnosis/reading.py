"""Diagnoses of all runs of a results folder, from the records that are there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from hpcncf import records
from hpcncf.paths import AttemptPaths, ResultPaths
from hpcncf.records import NodeRecord, RankRecord, RecordError
from hpcncf_analysis.diagnosis.finding import Diagnosis
from hpcncf_analysis.diagnosis.verdict import diagnose

R = TypeVar("R", RankRecord, NodeRecord)


def of_results(paths: ResultPaths, rows: Iterable[Mapping[str, Any]]) -> dict[str, Diagnosis]:
    """Run id -> diagnosis of its last attempt. `rows`: of the table `runs`.

    A run of which no rank has left a record is not among them; files that are no records are passed
    over, for `collect` names them.
    """
    found = {}
    for row in rows:
        if row["attempt"] is not None:
            attempt = paths.run(row["run_id"]).attempt(int(row["attempt"]))
            told = of_attempt(attempt, row["run_id"])
            if told is not None:
                found[row["run_id"]] = told
    return found


def of_attempt(attempt: AttemptPaths, run_id: str | None = None) -> Diagnosis | None:
    """None where no rank's record is there, or none of this run."""
    ranks = _read(attempt.ranks(), RankRecord, run_id)
    if not ranks:
        return None
    return diagnose(ranks, _read(attempt.nodes(), NodeRecord, ranks[0].run_id))


def _read(files: Sequence[Path], kind: type[R], run_id: str | None) -> list[R]:
    read = []
    for path in files:
        try:
            record = records.read_records(path, kind)
        except RecordError:
            continue
        if run_id in (None, record.run_id):
            read.append(record)
    return read
