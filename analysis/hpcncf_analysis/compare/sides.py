"""What is compared: a results folder, one run of it, or a rank's record file, read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hpcncf import records
from hpcncf.collect import Datasets, collect
from hpcncf.errors import UsageError
from hpcncf.paths import AttemptPaths, ResultPaths
from hpcncf.plan import Run
from hpcncf.records import NodeRecord, RankRecord, RecordError
from hpcncf.state.evidence import whole
from hpcncf.state.status import RunState
from hpcncf.tables import rows
from hpcncf_analysis.summary import completed

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Side:
    name: str
    rows: Sequence[Row]
    """Completed runs, as in the table of runs."""
    environments: Sequence[Mapping[str, Any]]
    """What the first rank of each says of software and machine."""
    left_out: int
    """Runs that are not complete, or retired."""


def of_results(
    name: str, paths: ResultPaths, run_id: str | None = None, repeats: bool = False
) -> Side:
    """All complete runs of a folder; or the one asked for, with `repeats` those of its
    configuration. UsageError where there is none."""
    found = _asked(collect(paths).runs, run_id, repeats)
    counting = completed(found) if run_id is None else found  # one asked for may be retired
    complete = [row for row in counting if row["state"] == "completed" and row["elapsed_s"]]
    if not complete:
        states = ", ".join(sorted({row["state"] for row in found})) or "no runs"
        raise UsageError(f"{name}: no complete run to compare ({states})")
    environments = [_environment(paths, row) for row in complete]
    return Side(name, complete, [each for each in environments if each], len(found) - len(complete))


def _asked(runs: Sequence[Row], run_id: str | None, repeats: bool) -> Sequence[Row]:
    if run_id is None:
        return runs
    one = [row for row in runs if row["run_id"] == run_id]
    alike = {row["config"] for row in one}
    return [row for row in runs if row["config"] in alike] if repeats else one


def _environment(paths: ResultPaths, row: Row) -> Mapping[str, Any]:
    with suppress(RecordError):  # `collect` named it
        attempt = paths.run(row["run_id"]).attempt(row["attempt"])
        return records.read_records(attempt.rank(0), RankRecord).environment
    return {}


def of_record(name: str, path: Path) -> Side:
    """The run whose record this is, with its other ranks' from the same folder.

    Raises RecordError where it is none, UsageError where the run has no figures.
    """
    first = records.read_records(path, RankRecord)
    run = _run(path, first)
    siblings = AttemptPaths(path.parent)
    others = [_same_run(each, first) for each in siblings.ranks() if each.name != path.name]
    ranks = sorted([first, *(o for o in others if o)], key=lambda record: record.rank)
    if not whole(ranks):
        raise UsageError(
            f"{name}: rank {first.rank} of {first.world_size}; the other ranks' records do not lie "
            "beside it, and a run's speed is all its ranks'"
        )
    nodes = [node for each in siblings.nodes() if (node := _node(each, first))]
    state = RunState(run, "completed", "", first.attempt, ranks, None, [])
    row = rows.of_run(state, ranks, nodes, Datasets().of(run))
    if not row["elapsed_s"]:
        raise UsageError(f"{name}: it took no time that could be compared")
    return Side(name, [row], [first.environment], 0)


def _run(path: Path, record: RankRecord) -> Run:
    try:
        return Run.model_validate(record.run)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ": ".join(str(part) for part in problem["loc"])
        raise RecordError(f"{path}: run: {where}: {problem['msg']}") from None


def _same_run(path: Path, first: RankRecord) -> RankRecord | None:
    with suppress(RecordError):
        record = records.read_records(path, RankRecord)
        if (record.run_id, record.attempt) == (first.run_id, first.attempt):
            return record
    return None


def _node(path: Path, first: RankRecord) -> NodeRecord | None:
    with suppress(RecordError):
        record = records.read_records(path, NodeRecord)
        if record.run_id == first.run_id:
            return record
    return None
