"""Collect the records of a results folder into tables."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from operator import mul
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hpcncf.collect.attempt_table import (
    ATTEMPT,
    TOTALS,
    attempt_row,
    error_text,
    silent,
    step_of,
    totals,
    was_killed,
)
from hpcncf.collect.node_means import ratio
from hpcncf.collect.resource_columns import MEASURED, measure, warnings
from hpcncf.collect.training_columns import PHASES_TRAINED, TRAINED, Row, reports
from hpcncf.data.manifest import DataError, Outline, is_prepared, read_outline
from hpcncf.errors import printable
from hpcncf.files import write_text
from hpcncf.job.identity import configuration_id
from hpcncf.job.plan import Run
from hpcncf.job.spec import Model, Resources, Training
from hpcncf.paths import ResultPaths
from hpcncf.records.plan_file import locked, read_plan
from hpcncf.records.schema import (
    Cores,
    Cpu,
    Epoch,
    Io,
    Memory,
    NodeRecord,
    Progress,
    RankRecord,
    RecordError,
    RecordPart,
    Sync,
    TrainingRecord,
    read_record,
)
from hpcncf.slurm.accounting import accounts
from hpcncf.state import status
from hpcncf.state.decide import Attempt, has_all_ranks, read_attempts, read_claim, whole_records
from hpcncf.state.status import RunState

if TYPE_CHECKING:
    import pandas as pd

IDENTITY: Final = (
    "run_id",
    "repeat",
    "state",
    "reason",
    "stale",
    "retired",
    "baseline",
    "attempt",
    "progress",
    "config",
    "varied",
    "workload",
    "command",
    "remedies",
    "by_hand",
    "quality",
)
DATA: Final = ("data_title", "data_key", "test_rows")
RANK: Final = (
    "run_id",
    "attempt",
    "rank",
    "local_rank",
    "world_size",
    "node",
    "node_index",
    "launched_by",
    "slurm_job_id",
    "outcome",
    "exit_code",
    "error",
    "started_at",
    "ended_at",
    "elapsed_s",
)
NODE: Final = ("run_id", "attempt", "node", "node_index")
WHOSE: Final = ("busy", "ours", "others")
RANK_PARTS: Final[dict[str, type[RecordPart]]] = {
    "cores": Cores,
    "cpu": Cpu,
    "memory": Memory,
    "io": Io,
}
TRAINING_LISTS: Final = {"phases", "sync", "epochs", "batches", "baseline"}
TRAINING_SCALARS: Final = [n for n in TrainingRecord.model_fields if n not in TRAINING_LISTS]
SYNC: Final = [name for name in Sync.model_fields if name != "seconds"]
# What an attempt's folder may hold; any other JSON file there is foreign.
KNOWN: Final = re.compile(r"(claim|progress|trial|end|rank-\d+|node-\d+)\.json")
# Text that a spreadsheet would take for a formula.
FORMULA: Final = re.compile(r"[=@\t]|[+-](?!\d*\.?\d+([eE][+-]?\d+)?$)")
COLUMNS: Final[dict[str, list[str]]] = {
    "runs": [
        *IDENTITY,
        *dict.fromkeys(
            [
                *("nodes", "tasks_per_node", "cpus_per_task", "gpus_per_node", "world_size"),
                *Resources.model_fields,
                *Training.model_fields,
                "batch",
                *Model.model_fields,
            ]
        ),
        *DATA,
        *MEASURED,
        *TOTALS,
        *TRAINED,
        "warnings",
    ],
    "attempts": list(ATTEMPT),
    "ranks": [
        *RANK,
        *(f"{part}_{name}" for part, kind in RANK_PARTS.items() for name in kind.model_fields),
        *TRAINING_SCALARS,
        *(f"{phase}_s" for phase in PHASES_TRAINED),
        *(f"sync_{name}" for name in SYNC),
        "warnings",
    ],
    "cores": [
        *NODE,
        *("cpu", "elapsed_s"),
        *(f"{whose}_{what}" for whose in WHOSE for what in ("mean", "peak")),
    ],
    "epochs": ["run_id", "attempt", *Epoch.model_fields],
}


def run_row(
    state: RunState,
    ranks: Sequence[RankRecord],
    nodes: Sequence[NodeRecord],
    data: Outline | None,
    tried: Sequence[Row] = (),
) -> Row:
    """Build the row of one planned run: settings, state, and figures as far as known.

    `tried`: a row for each of its attempts.
    """
    run = state.run
    epoch = data.train_rows * (1 + run.training.negatives) if data and run.training else None
    figures = measure(run, ranks, epoch, nodes)
    return (
        {
            "run_id": run.id,
            "repeat": run.repeat,
            "state": state.state,
            "reason": state.reason,
            "stale": state.stale,
            "retired": run.retired,
            "baseline": run.baseline,
            "attempt": state.attempt,
            "progress": _progress(state.progress) if state.state == "running" else None,
            "config": configuration_id(run),
            "varied": run.varied,
            "workload": run.workload if isinstance(run.workload, str) else "command",
            "command": " ".join(run.words) or None,
            "remedies": str(run.remedies) or None,
            "by_hand": run.by_hand,
            "quality": (
                None
                if isinstance(run.workload, str)
                else f"{run.workload.quality}:{run.workload.better}"
            ),
        }
        | settings(run, ranks)
        | {
            "data_title": data.title if data else None,
            "data_key": run.data_key,
            "test_rows": data.test_rows if data else None,
        }
        | figures
        | totals(tried)
        | {"warnings": warnings(ranks, figures) + silent(tried)}
    )


def settings(run: Run, ranks: Sequence[RankRecord]) -> Row:
    """Columns of all settings of a run.

    The number of threads is the one that the ranks report, if known.
    """
    resources: Row = run.resources.model_dump(mode="json")
    row = resources | {"world_size": run.resources.world_size}
    if run.requested is None:  # these are the plan's defaults
        row |= {"mem_gb": None, "timeout_min": None}
    if run.training is None:
        return row
    row |= run.training.model_dump(mode="json")
    row |= run.removed_training
    threads = {record.training.threads for record in ranks if record.training}
    asked = run.training.threads
    return (
        row
        | {
            "device": run.training.device_for(run.resources),
            "backend": run.training.backend_for(run.resources),
            "threads": max(threads, default=None if asked == "auto" else asked),
            "batch": run.training.batch_over_ranks(run.resources.world_size),
        }
        | (run.model.model_dump(mode="json") if run.model else {})
    )


def _progress(progress: Progress | None) -> str | None:
    if progress is None:
        return None
    if progress.phase == "command":
        return ", ".join([f"{progress.elapsed_s:.0f} s", *reports(progress)])
    steps = f"step {progress.step} of {progress.steps_per_epoch}"
    return f"epoch {progress.epoch + 1} of {progress.epochs}, {progress.phase}, {steps}"


def rank_row(record: RankRecord) -> Row:
    """Build the row of one rank; columns are prefixed by their part, as in `cpu_user_s`."""
    row = {name: getattr(record, name) for name in RANK} | {"error": error_text(record)}
    for part, kind in RANK_PARTS.items():
        values = getattr(record, part)
        row |= {f"{part}_{name}": getattr(values, name) for name in kind.model_fields}
    if training := record.training:
        row |= {name: getattr(training, name) for name in TRAINING_SCALARS}
        row |= {f"{phase}_s": getattr(training.phases, f"{phase}_s") for phase in PHASES_TRAINED}
        row |= {f"sync_{name}": getattr(training.sync, name, None) for name in SYNC}
    return row | {"warnings": record.warnings}


def epoch_rows(ranks: Sequence[RankRecord]) -> Iterator[Row]:
    """Yield a row for each epoch of a run, with the times of the slowest rank."""
    trained = [record.training for record in ranks if record.training]
    for epochs in zip(*(training.epochs for training in trained), strict=False):
        row = {name: getattr(epochs[0], name) for name in Epoch.model_fields}
        slowest = {
            name: max(getattr(epoch, name) for epoch in epochs)
            for name in Epoch.model_fields
            if name.endswith("_s")
        }
        yield {"run_id": ranks[0].run_id, "attempt": ranks[0].attempt} | row | slowest


def core_rows(node: NodeRecord) -> Iterator[Row]:
    """Yield a row for each CPU of a node: its busy share, mean and peak.

    There are shares of all processes, of this run and of others. Means are weighted by the
    windows' lengths, because windows widen as a run grows; a peak is the highest window.
    """
    elapsed_s = sum(node.length_s)
    for cpu, busy, ours in zip(node.cpus, node.busy, node.ours, strict=False):
        # No max(): of thousands of cores with hundreds of windows its call took half of `collect`.
        others = [b - own if b > own else 0.0 for b, own in zip(busy, ours, strict=False)]
        row: Row = {name: getattr(node, name) for name in NODE}
        row |= {"cpu": cpu, "elapsed_s": elapsed_s}
        for whose, shares in zip(WHOSE, (busy, ours, others), strict=True):
            row[f"{whose}_mean"] = ratio(sum(map(mul, shares, node.length_s)), elapsed_s)
            row[f"{whose}_peak"] = max(shares, default=None)
        yield row


@dataclass(frozen=True)
class Collected:
    """The tables as plain rows, and what could not be read."""

    job: str
    runs: list[Row]
    """One for every planned run, retired ones too, in the plan's order."""
    attempts: list[Row]
    """Every start of every run, oldest first."""
    ranks: list[Row]
    cores: list[Row]
    epochs: list[Row]
    skipped: list[str]
    """Each file left out, with the reason."""
    unaccounted: list[str]
    """Why Slurm's own accounting has no figures."""

    def counts(self) -> dict[str, int]:
        """Number of runs by state, without retired runs."""
        return dict(Counter(row["state"] for row in self.runs if not row["retired"]))

    def frames(self) -> dict[str, pd.DataFrame]:
        """Build a pandas data frame of each table, by table name; unknown values are NaN."""
        import pandas as pd

        frames = {}
        for name, table in self.tables().items():
            frame = pd.DataFrame(table, columns=_columns(COLUMNS[name], table))
            unknown = frame.columns[frame.isna().all()]
            frames[name] = frame.astype(dict.fromkeys(unknown, float))  # None alone has no type
        return frames

    def tables(self) -> dict[str, list[Row]]:
        return {name: getattr(self, name) for name in COLUMNS}

    @property
    def complete(self) -> bool:
        """Whether all runs that are not retired are completed.

        A command that `hpcncf run` started is over once it ended, however: nothing starts it again.
        """
        return all(
            row["state"] == "completed"
            or (row["by_hand"] and row["state"] not in ("running", "unknown"))
            for row in self.runs
            if not row["retired"]
        )


Seen = Callable[[Run, Sequence[RankRecord], Sequence[NodeRecord]], None]


def collect(paths: ResultPaths, seen: Seen | None = None) -> Collected:
    """Read all records of a job into tables. Raises UsageError if there is no plan.

    `seen` gets the records of each run's last attempt while they are at hand: they are not kept,
    and to read them again takes as long as once.
    """
    plan = read_plan(paths)
    planned = {run.id for run in plan.runs}
    folders = sorted((paths.folder / "runs").glob("*"))
    foreign = [f"{path}: not a run of this plan" for path in folders if path.name not in planned]
    known, problems = Datasets(), list[str]()
    found = Collected(plan.job, [], [], [], [], [], foreign, problems)
    states = status.states(paths, plan)
    attempts = {state.run.id: _attempts(paths, state) for state in states}
    claims = [attempt.claim for each in attempts.values() for attempt in each]
    jobs = [claim.slurm_job_id for claim in claims if claim and claim.slurm_job_id]
    slurm = accounts(jobs, problems)
    for state in states:
        run = state.run
        tried = []
        for one in attempts[run.id]:
            files = paths.run(run.id).attempt(one.number).node_records() if was_killed(one) else []
            tried.append(attempt_row(run, one, step_of(one, slurm), _nodes(files, run.id, [])))
        ranks, nodes = _add(found, paths, state, known, tried)
        if seen and ranks:
            seen(run, ranks, nodes)
    return replace(found, skipped=[*found.skipped, *known.unread])


def _attempts(paths: ResultPaths, state: RunState) -> list[Attempt]:
    """List all attempts of the run, the last one from its state, which has read it."""
    if state.attempt is None:
        return []
    *earlier, last = paths.run(state.run.id).attempts()
    known = Attempt(
        number=state.attempt,
        claimed=read_claim(last),
        ranks=_own(state)[0],
        progress=state.progress,
        end=None,
        alive=state.state == "running",
    )
    # Whatever signs of life they left: a later one began.
    return [*(replace(read_attempts(files, RankRecord), alive=False) for files in earlier), known]


class Datasets:
    """Cache of manifests of prepared folders, so that each folder is read once."""

    def __init__(self) -> None:
        self._read: dict[str, Outline | None] = {}
        self.unread: list[str] = []
        """Why a folder that is there could not be read."""

    def of(self, run: Run) -> Outline | None:
        """Return the manifest of a run's data; None if the data is gone or has changed."""
        if run.data is None:
            return None
        if run.data.path not in self._read:
            self._read[run.data.path] = None
            try:
                if is_prepared(Path(run.data.path)):
                    self._read[run.data.path] = read_outline(Path(run.data.path))
            except DataError as error:
                self.unread.append(str(error))
        found = self._read[run.data.path]
        return found if found and run.data_key in (None, found.key) else None


def _add(
    found: Collected, paths: ResultPaths, state: RunState, known: Datasets, tried: list[Row]
) -> tuple[list[RankRecord], list[NodeRecord]]:
    ranks, skipped = _own(state)
    if skipped and state.state == "completed" and not has_all_ranks(ranks):
        state = replace(state, state="unknown", reason="the records in its folder are not its own")
    skipped += state.problems
    nodes: list[NodeRecord] = []
    if state.attempt is not None:
        attempt = paths.run(state.run.id).attempt(state.attempt)
        nodes = _nodes(attempt.node_records(), state.run.id, skipped)
        skipped += [
            f"{path}: not a file of a run"
            for path in sorted(attempt.folder.glob("*.json"))
            if not KNOWN.fullmatch(path.name) and not path.name.startswith(".")
        ]
    found.skipped.extend(skipped)
    found.runs.append(run_row(state, ranks, nodes, known.of(state.run), tried))
    found.attempts.extend(tried)
    found.ranks.extend(rank_row(record) for record in ranks)
    found.epochs.extend(epoch_rows(ranks))
    found.cores.extend(row for node in nodes for row in core_rows(node))
    return ranks, nodes


def _own(state: RunState) -> tuple[list[RankRecord], list[str]]:
    """Return the run's rank records, one per rank, and why other records were left out."""
    own: dict[int, RankRecord] = {}
    skipped = []
    for record in whole_records(state.ranks):
        if record.run_id != state.run.id:
            skipped.append(f"run {state.run.id}: a rank's record of another run, {record.run_id}")
        elif record.rank in own:
            skipped.append(f"run {state.run.id}: a second record of rank {record.rank}")
        else:
            own[record.rank] = record
    return [own[rank] for rank in sorted(own)], skipped


def _nodes(files: Sequence[Path], run_id: str, skipped: list[str]) -> list[NodeRecord]:
    found = []
    for path in files:
        try:
            record = read_record(path, NodeRecord)
        except RecordError as error:
            skipped.append(str(error))
            continue
        if record.run_id == run_id:
            found.append(record)
        else:
            skipped.append(f"{path}: of another run, {record.run_id}")
    return found


def write(found: Collected, paths: ResultPaths) -> list[Path]:
    """Write every table as a CSV file and return the paths; each file is replaced atomically.

    All are from one snapshot, and equal rows give equal bytes.
    """
    written = []
    with nullcontext() if paths.output else locked(paths):
        for name, table in found.tables().items():
            path = paths.tables / f"{name}.csv"
            write_text(path, as_csv(table, COLUMNS[name]))
            written.append(path)
    return written


def merge(several: Sequence[Collected]) -> Collected:
    """Merge the tables of several jobs; every row gets a first column `job`."""

    def rows(name: str) -> list[Row]:
        return [{"job": each.job, **row} for each in several for row in getattr(each, name)]

    return Collected(
        job=", ".join(each.job for each in several),
        runs=rows("runs"),
        attempts=rows("attempts"),
        ranks=rows("ranks"),
        cores=rows("cores"),
        epochs=rows("epochs"),
        skipped=[reason for each in several for reason in each.skipped],
        unaccounted=list(dict.fromkeys(why for each in several for why in each.unaccounted)),
    )


def _columns(always: Sequence[str], table: Sequence[Row]) -> list[str]:
    """List a table's columns: `job` if present, the fixed ones, then others by name."""
    others = {key for row in table for key in row} - set(always)
    job = ["job"] if "job" in others else []
    return [*job, *always, *sorted(others.difference(job))]


def as_csv(table: Sequence[Row], columns: Sequence[str]) -> str:
    """Format a table as CSV: None is empty, lists are joined with `; `, mappings are JSON.

    Text that a spreadsheet would take for a formula begins with an apostrophe.
    """
    columns = _columns(columns, table)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(row.get(name)) for name in columns] for row in table)
    return text.getvalue()


def _cell(value: Any) -> Any:
    if value is None or type(value) in (float, int):  # nearly all of very many
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        value = json.dumps(value, sort_keys=True)
    elif isinstance(value, list | tuple):
        value = "; ".join(str(part) for part in value)
    text = printable(str(value))
    return f"'{text}" if FORMULA.match(text) else text
