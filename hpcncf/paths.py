"""File names of a results folder, and permissions that its group shares."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final, Literal
from uuid import uuid4

UMASK_LOCK: Final = Lock()


def make_folder(folder: Path) -> None:
    """The folder and those above it that are missing."""
    if folder.is_dir():
        return
    if folder.exists() and not folder.is_dir():  # asked again: another may just have made it
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    make_folder(folder.parent)
    if not is_shared(folder.parent, _group_in(folder.parent)):
        folder.mkdir(exist_ok=True)
        return
    # With its mode from the first moment: another's process may be about to write there.
    made = folder.with_name(f".{uuid4().hex}")
    made.mkdir()
    made.chmod(stat.S_IMODE(made.stat().st_mode) | stat.S_IRWXG)
    try:
        made.rename(folder)
    except OSError:  # somebody was faster, and uses it already
        made.rmdir()
        if not folder.is_dir():
            raise


def _group_in(folder: Path) -> int:
    """Of what this process makes there."""
    found = folder.stat()
    return found.st_gid if found.st_mode & stat.S_ISGID else os.getegid()


def is_shared(folder: Path, group: int) -> bool:
    """Whether the folder is for this group to write to, and not for everybody, as /tmp is."""
    found = folder.stat()
    group_only = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) == stat.S_IWGRP
    return group_only and found.st_gid == group


def set_shared_mode(descriptor: int, folder: Path) -> None:
    """A new file's mode: as the umask says, and for the group of a shared folder."""
    mode = 0o666 & ~current_umask()
    if is_shared(folder, os.fstat(descriptor).st_gid):
        mode |= stat.S_IRGRP | stat.S_IWGRP
    os.fchmod(descriptor, mode)


def open_lock(path: Path) -> int:
    """A descriptor to lock; to read another's is enough for that, but not on NFS."""
    try:
        return os.open(path, os.O_RDWR)
    except FileNotFoundError:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        if os.fstat(descriptor).st_uid == os.geteuid():  # two may make it at once
            set_shared_mode(descriptor, path.parent)
        return descriptor
    except PermissionError:
        return os.open(path, os.O_RDONLY)


def current_umask() -> int:
    """To ask for it is to set it: two threads at once (the monitor writes, too) would mix it up."""
    with UMASK_LOCK:
        mask = os.umask(0o022)
        os.umask(mask)
    return mask


@dataclass(frozen=True)
class AttemptPaths:
    """Where one attempt at a run keeps its files."""

    folder: Path

    @property
    def number(self) -> int:
        return int(self.folder.name.removeprefix("attempt-"))

    @property
    def claim(self) -> Path:
        return self.folder / "claim.json"

    @property
    def progress(self) -> Path:
        return self.folder / "progress.json"

    @property
    def end(self) -> Path:
        return self.folder / "end.json"

    def rank(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.json"

    def first(self, outcome: Literal["failed", "stopped"]) -> Path:
        """A link to the record of the first rank that ended so for a reason of its own: what the
        others look at in place of all records."""
        return self.folder / f"first-{outcome}.json"

    def node(self, index: int) -> Path:
        return self.folder / f"node-{index}.json"

    def log(self, rank: int) -> Path:
        """What a locally launched rank printed; under Slurm, logs are submitit's."""
        return self.folder / f"rank-{rank}.log"

    def trace(self, rank: int) -> Path:
        """Steps that torch's profiler watched."""
        return self.folder / f"trace-{rank}.json.gz"

    def flame_graph(self, rank: int) -> Path:
        return self.folder / f"flame-graph-{rank}.svg"

    @property
    def output(self) -> Path:
        """Where a user's own program may leave files."""
        return self.folder / "output"

    def names(self) -> set[str]:
        """Of all files that are there; empty for a folder that cannot be looked into."""
        with contextlib.suppress(OSError), os.scandir(self.folder) as there:
            return {entry.name for entry in there}
        return set()

    def ranks(self, there: set[str] | None = None) -> list[Path]:
        """`there`: the names, where they are known already."""
        return self._numbered("rank", self.names() if there is None else there)

    def recorded(self) -> set[int]:
        """The ranks that left a record: one look at the folder, however many they are."""
        return {_number_in_name(path) for path in self.ranks()}

    def nodes(self) -> list[Path]:
        return self._numbered("node", self.names())

    def _numbered(self, kind: str, there: set[str]) -> list[Path]:
        pattern = re.compile(rf"{kind}-.*\.json")
        found = (self.folder / name for name in there if pattern.fullmatch(name))
        return sorted(found, key=_number_in_name)


def _number_in_name(path: Path) -> int:
    digits = re.search(r"(\d+)(?:\.\w+)?$", path.name)
    return int(digits.group(1)) if digits else -1


@dataclass(frozen=True)
class RunPaths:
    """Where one run keeps its files."""

    folder: Path

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint.pt"

    @property
    def checkpoint_before(self) -> Path:
        """The one before it, for when that one is torn."""
        return self.folder / "checkpoint-before.pt"

    def partial(self) -> list[Path]:
        """What a process that was killed left half made, if nobody works at the run now: files
        that it was writing, folders of attempts that it had not yet taken."""
        places = (self.folder, *(attempt.folder for attempt in self.attempts()))
        return [path for place in places for path in place.glob(".*")]

    @property
    def checkpoints(self) -> Path:
        """Where a user's own program may leave what its next attempt goes on from."""
        return self.folder / "checkpoints"

    def attempt(self, number: int) -> AttemptPaths:
        return AttemptPaths(self.folder / f"attempt-{number}")

    def attempts(self) -> list[AttemptPaths]:
        """Oldest first; the first is number 1."""
        return [AttemptPaths(folder) for folder in sorted(self._folders(), key=_number_in_name)]

    def _folders(self) -> Iterator[Path]:
        # Not glob: `status` looks into thousands of these.
        with contextlib.suppress(OSError), os.scandir(self.folder) as there:
            for entry in there:
                if re.fullmatch(r"attempt-[1-9]\d{0,5}", entry.name) and entry.is_dir():
                    yield Path(entry.path)


@dataclass(frozen=True)
class ResultPaths:
    """Where a job keeps its results. The only place that spells these names."""

    folder: Path

    @property
    def job(self) -> Path:
        return self.folder / "job.yaml"

    @property
    def plan(self) -> Path:
        return self.folder / "plan.json"

    @property
    def lock(self) -> Path:
        """Held by whoever changes plan or submissions; a file, for NFS locks no folders."""
        return self.folder / ".lock"

    @property
    def submissions(self) -> Path:
        return self.folder / "submissions"

    def code(self, submission: Path) -> Path:
        """What a submission's file keeps of the code: only its submitter may read that."""
        return submission.with_suffix(".code")

    @property
    def tuning(self) -> Path:
        """What `hpcncf tune` asked for so far."""
        return self.folder / "tuning.json"

    @property
    def best(self) -> Path:
        """The job file that a tuning ends with."""
        return self.folder / "best.yaml"

    @property
    def tables(self) -> Path:
        return self.folder / "tables"

    @property
    def report(self) -> Path:
        return self.folder / "report"

    @property
    def predictions(self) -> Path:
        """What `hpcncf diagnose --predict` expected of remedies before they were tried."""
        return self.folder / "predictions"

    def submitit(self, user: str) -> Path:
        return self.folder / f"slurm-{user}"

    def run(self, run_id: str) -> RunPaths:
        return RunPaths(self.folder / "runs" / run_id)
