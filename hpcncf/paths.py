"""The layout of a results folder: no other module spells the names of its files and folders."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

ATTEMPT: Final = re.compile(r"attempt-[1-9]\d{0,5}")


def hash_identity(identity: Mapping[str, Any]) -> str:
    """Hash what identifies a run, which is its folder's name: 12 digits of the SHA-256."""
    import hashlib  # these two take 3 ms, which the start of a command spares
    import json

    text = json.dumps(identity, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class _Inside:
    """Descriptor: the path of this name inside an object's `folder`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, paths: AttemptPaths | RunPaths | ResultPaths, _: object) -> Path:
        return paths.folder / self._name


class _Folder:
    """Base class of a folder's paths: a value, equal to others of the same folder.

    No dataclass: their module takes 5 ms to load, of the 60 within which a command starts.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash(self.folder)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.folder)!r})"


class AttemptPaths(_Folder):
    """The files of one attempt at a run."""

    @property
    def number(self) -> int:
        return int(self.folder.name.removeprefix("attempt-"))

    claim = _Inside("claim.json")
    progress = _Inside("progress.json")
    end = _Inside("end.json")
    early = _Inside("early.json")
    """The lines of the verdict that a batch job's log got after some minutes."""

    def rank(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.json"

    def first(self, outcome: Literal["failed", "stopped"]) -> Path:
        """Link to the record of the first rank that failed or stopped for a reason of its own.

        The other ranks read it in place of all records.
        """
        return self.folder / f"first-{outcome}.json"

    def node(self, index: int) -> Path:
        return self.folder / f"node-{index}.json"

    def log(self, rank: int) -> Path:
        """Output of a rank that was started locally; under Slurm, logs are submitit's."""
        return self.folder / f"rank-{rank}.log"

    def trace(self, rank: int) -> Path:
        """Trace of steps recorded by torch's profiler."""
        return self.folder / f"trace-{rank}.json.gz"

    def flame_graph(self, rank: int) -> Path:
        return self.folder / f"flame-graph-{rank}.svg"

    output = _Inside("output")
    """Where a user's own program may write files."""

    def probe(self, rank: int) -> Path:
        """File that the probe inside a rank's program writes until the record contains it."""
        return self.folder / "probe" / str(rank)

    trial = _Inside("trial.json")
    """The speed and the first losses of a trial."""

    def file_names(self) -> set[str]:
        """All names in the folder; empty if it cannot be read."""
        with contextlib.suppress(OSError), os.scandir(self.folder) as there:
            return {entry.name for entry in there}
        return set()

    def rank_records(self, names: set[str] | None = None) -> list[Path]:
        """Paths of rank records by rank; `names` are the folder's `file_names`, if known."""
        return self._numbered("rank", self.file_names() if names is None else names)

    def recorded_ranks(self) -> set[int]:
        """The ranks that left a record, by reading the folder once."""
        return {_number_in_name(path) for path in self.rank_records()}

    def node_records(self) -> list[Path]:
        return self._numbered("node", self.file_names())

    def _numbered(self, kind: str, names: set[str]) -> list[Path]:
        found = [
            self.folder / name
            for name in names
            if name.startswith(f"{kind}-") and name.endswith(".json")
        ]
        return sorted(found, key=_number_in_name) if len(found) > 1 else found


def _number_in_name(path: Path) -> int:
    digits = re.search(r"(\d+)(?:\.\w+)?$", path.name)
    return int(digits.group(1)) if digits else -1


class RunPaths(_Folder):
    """The files of one run."""

    checkpoint = _Inside("checkpoint.pt")
    previous_checkpoint = _Inside("checkpoint-before.pt")
    """Read if the latest checkpoint is torn."""

    def partial_files(self) -> list[Path]:
        """Files and attempt folders that a killed process left unfinished.

        Another process may be writing them while the run is active.
        """
        places = (self.folder, *(attempt.folder for attempt in self.attempts()))
        return [path for place in places for path in place.glob(".*")]

    checkpoints = _Inside("checkpoints")
    """Where a user's own program may write what its next attempt resumes from."""

    def attempt(self, number: int) -> AttemptPaths:
        return AttemptPaths(self.folder / f"attempt-{number}")

    def attempts(self) -> list[AttemptPaths]:
        """Attempts, the oldest first; the first has number 1."""
        return [self.attempt(number) for number in sorted(self._numbers())]

    def _numbers(self) -> Iterator[int]:
        # Not glob: `status` reads thousands of these.
        with contextlib.suppress(OSError), os.scandir(self.folder) as there:
            for entry in there:
                if ATTEMPT.fullmatch(entry.name) and entry.is_dir():
                    yield int(entry.name[len("attempt-") :])


class ResultPaths(_Folder):
    """The files of one job."""

    def __init__(self, folder: Path, output: Path | None = None) -> None:
        super().__init__(folder)
        self.output = output
        """Where tables and report go instead: the folder may be read-only."""

    job = _Inside("job.yaml")
    plan = _Inside("plan.json")
    lock = _Inside(".lock")
    """Locked by whoever changes plan or submissions; a file, since NFS locks no folders."""
    submissions = _Inside("submissions")

    functions = _Inside("functions")
    """Functions that `hpcncf.submit` was called with, pickled."""
    snapshots = _Inside("code")
    """Copies of programs' code, for runs that were submitted with `code: snapshot`."""
    tuning = _Inside("tuning.json")
    """The runs that `hpcncf tune` has requested so far."""
    best = _Inside("best.yaml")
    """The job file that a tuning ends with."""

    @property
    def tables(self) -> Path:
        return self.output or self.folder / "tables"

    @property
    def report(self) -> Path:
        return self.output or self.folder / "report"

    def submitit(self, user: str) -> Path:
        return self.folder / f"slurm-{user}"

    def run(self, run_id: str) -> RunPaths:
        return RunPaths(self.folder.joinpath("runs", run_id))
