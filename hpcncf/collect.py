"""Plan, records and states become tables: runs, ranks, cores and epochs."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcncf import records, results
from hpcncf.ncf.data import manifest
from hpcncf.ncf.data.manifest import DataError, Outline
from hpcncf.paths import ResultPaths
from hpcncf.plan import Plan, Run
from hpcncf.records import NodeRecord, RankRecord, RecordError
from hpcncf.slurm import accounting
from hpcncf.slurm.accounting import Account
from hpcncf.state import attempts, status
from hpcncf.state.evidence import Attempt, whole
from hpcncf.state.status import RunState
from hpcncf.tables import history, outliers, rows
from hpcncf.tables.trained import Row

if TYPE_CHECKING:
    import pandas as pd

# What an attempt's folder may hold; any other JSON file there is foreign.
KNOWN = re.compile(r"(claim|progress|end|rank-\d+|node-\d+)\.json")


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
    """Why Slurm's own accounting says nothing."""

    def counts(self) -> dict[str, int]:
        """State -> runs, retired ones left out."""
        return dict(Counter(row["state"] for row in self.runs if not row["retired"]))

    def frames(self) -> dict[str, pd.DataFrame]:
        """The same tables for a notebook; what is not known is NaN."""
        import pandas as pd

        frames = {}
        for name, table in self.tables().items():
            frame = pd.DataFrame(table, columns=_columns(rows.COLUMNS[name], table))
            unknown = frame.columns[frame.isna().all()]
            frames[name] = frame.astype(dict.fromkeys(unknown, float))  # None alone has no type
        return frames

    def tables(self) -> dict[str, list[Row]]:
        return {name: getattr(self, name) for name in rows.COLUMNS}

    @property
    def complete(self) -> bool:
        """Whether nothing is missing that could still come.

        A command that `hpcncf run` started has told all once it ended, however: nothing sends it
        once more.
        """
        return all(_told(row) for row in self.runs if not row["retired"])


def _told(row: Row) -> bool:
    ended = row["by_hand"] and row["state"] not in ("running", "unknown")
    return ended or row["state"] == "completed"


Seen = Callable[[Run, Sequence[RankRecord], Sequence[NodeRecord]], None]


def collect(paths: ResultPaths, seen: Seen | None = None) -> Collected:
    """Read everything that the job has left so far. Raises UsageError where there is no plan.

    `seen` gets the records of each run's last attempt while they are at hand: they are not kept,
    and to read them again takes as long as once.
    """
    plan = results.read_plan(paths)
    known, problems = Datasets(), list[str]()
    found = Collected(plan.job, [], [], [], [], [], _strangers(paths, plan), problems)
    states = status.states(paths, plan)
    tried = {state.run.id: _tried(paths, state) for state in states}
    slurm = accounting.accounts(_slurm_jobs(tried), problems)
    for state in states:
        made = _of_attempts(paths, state.run, tried[state.run.id], slurm)
        ranks, nodes = _add(found, paths, state, known, made)
        if seen and ranks:
            seen(state.run, ranks, nodes)
    skipped = [*found.skipped, *known.unread]
    return replace(found, runs=outliers.marked(found.runs), skipped=skipped)


def _tried(paths: ResultPaths, state: RunState) -> list[Attempt]:
    """All attempts at the run; the last one's records are read already."""
    if state.attempt is None:
        return []
    *earlier, last = paths.run(state.run.id).attempts()
    known = Attempt(
        number=state.attempt,
        claim=attempts.claim(last),
        ranks=_own(state)[0],
        progress=state.progress,
        end=None,
        alive=state.state == "running",
    )
    # Whatever signs of life they left: a later one began.
    return [*(replace(attempts.read_attempts(files), alive=False) for files in earlier), known]


def _slurm_jobs(tried: Mapping[str, Sequence[Attempt]]) -> list[str]:
    claims = [attempt.claim for made in tried.values() for attempt in made]
    return [claim.slurm_job_id for claim in claims if claim and claim.slurm_job_id]


def _of_attempts(
    paths: ResultPaths,
    run: Run,
    tried: Sequence[Attempt],
    slurm: Mapping[str, Sequence[Account]],
) -> list[Row]:
    return [
        history.of_attempt(run, one, history.step_of(one, slurm), _seen_of(paths, run, one))
        for one in tried
    ]


def _seen_of(paths: ResultPaths, run: Run, attempt: Attempt) -> list[NodeRecord]:
    if not history.killed(attempt):
        return []
    return _nodes(paths.run(run.id).attempt(attempt.number).nodes(), run.id, [])


class Datasets:
    """What the prepared folders say of themselves, each read once."""

    def __init__(self) -> None:
        self._read: dict[str, Outline | None] = {}
        self.unread: list[str] = []
        """Why a folder that is there does not tell."""

    def of(self, run: Run) -> Outline | None:
        """None where the folder is gone or holds other data by now."""
        if run.data is None:
            return None
        if run.data.path not in self._read:
            self._read[run.data.path] = self._outline(Path(run.data.path))
        found = self._read[run.data.path]
        return found if found and run.data_key in (None, found.key) else None

    def _outline(self, folder: Path) -> Outline | None:
        try:
            return manifest.outline(folder) if manifest.is_there(folder) else None
        except DataError as error:
            self.unread.append(str(error))
            return None


def _strangers(paths: ResultPaths, plan: Plan) -> list[str]:
    """Folders among the runs that the plan does not know."""
    planned = {run.id for run in plan.runs}
    folders = sorted((paths.folder / "runs").glob("*"))
    return [f"{path}: not a run of this plan" for path in folders if path.name not in planned]


def _add(
    found: Collected, paths: ResultPaths, state: RunState, known: Datasets, tried: list[Row]
) -> tuple[list[RankRecord], list[NodeRecord]]:
    ranks, skipped = _own(state)
    if skipped and state.state == "completed" and not whole(ranks):
        state = replace(state, state="unknown", reason="the records in its folder are not its own")
    skipped += state.problems
    nodes: list[NodeRecord] = []
    if state.attempt is not None:
        attempt = paths.run(state.run.id).attempt(state.attempt)
        nodes = _nodes(attempt.nodes(), state.run.id, skipped)
        skipped += _foreign(attempt.folder)
    found.skipped.extend(skipped)
    found.runs.append(rows.of_run(state, ranks, nodes, known.of(state.run), tried))
    found.attempts.extend(tried)
    found.ranks.extend(rows.of_rank(record) for record in ranks)
    found.epochs.extend(rows.of_epochs(ranks))
    found.cores.extend(row for node in nodes for row in rows.of_cores(node))
    return ranks, nodes


def _own(state: RunState) -> tuple[list[RankRecord], list[str]]:
    """The run's own rank records, each rank once; and why the others were left out."""
    own: dict[int, RankRecord] = {}
    skipped = []
    for record in state.ranks:
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
            record = records.read_records(path, NodeRecord)
        except RecordError as error:
            skipped.append(str(error))
            continue
        if record.run_id == run_id:
            found.append(record)
        else:
            skipped.append(f"{path}: of another run, {record.run_id}")
    return found


def _foreign(folder: Path) -> list[str]:
    return [
        f"{path}: not a file of a run"
        for path in sorted(folder.glob("*.json"))
        if not KNOWN.fullmatch(path.name) and not path.name.startswith(".")
    ]


def write(found: Collected, paths: ResultPaths) -> list[Path]:
    """Write the tables as CSV, each whole, all of them of one look: equal rows, equal bytes."""
    written = []
    with results.locked(paths):
        for name, table in found.tables().items():
            path = paths.tables / f"{name}.csv"
            records.write_text(path, as_csv(table, rows.COLUMNS[name]))
            written.append(path)
    return written


def _columns(always: Sequence[str], table: Sequence[Row]) -> list[str]:
    """With those that only the rows know: what a command was told, and tells."""
    return [*always, *sorted({key for row in table for key in row} - set(always))]


def as_csv(table: Sequence[Row], columns: Sequence[str]) -> str:
    """Undefined is empty, lists are joined with `; `, mappings are JSON."""
    columns = _columns(columns, table)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(row.get(name)) for name in columns] for row in table)
    return text.getvalue()


def _cell(value: Any) -> Any:
    if value is None or type(value) in (float, str, int):  # nearly all of very many
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return json.dumps(value, sort_keys=True)
    if isinstance(value, list | tuple):
        return "; ".join(str(part) for part in value)
    return value
