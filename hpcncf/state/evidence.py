"""What a run is judged by: what its last attempt left, and what became of its submission."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hpcncf.plan import Run
from hpcncf.records import Claim, End, Progress, RankRecord
from hpcncf.slurm.states import JobState
from hpcncf.submissions import Submission, SubmittedJob

# A record that a node wrote reaches other machines within NFS's time for attributes of folders.
ARRIVING_S = 60.0


@dataclass(frozen=True)
class Attempt:
    """What the run's last attempt left so far."""

    number: int
    claim: Claim | None
    ranks: list[RankRecord]
    progress: Progress | None
    end: End | None
    alive: bool
    """Whether the process that claimed it lives; elsewhere, whether it still writes."""
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Sent:
    """The run's last submission, and what is seen of it now."""

    submission: Submission
    job: SubmittedJob | None
    started: bool
    """Whether the last attempt is this submission's."""
    alive: bool | None
    """Whether the local queue lives (before there is one: the submitter); None: cannot be seen."""
    ahead: str = ""
    """What a run in a living local queue waits for."""
    cancelled_by: str | None = None
    slurm: JobState | None = None
    """None where Slurm was not asked or does not know the job."""
    before: int = 0
    """Runs of its Slurm task that come before it and are not done."""
    passed: bool = False
    """Whether its Slurm task has gone on to a later run."""


def whole(ranks: Sequence[RankRecord]) -> bool:
    """Whether every rank left a record."""
    return bool(ranks) and {record.rank for record in ranks} == set(range(ranks[0].world_size))


def completed(ranks: Sequence[RankRecord]) -> bool:
    """Whether every rank left a record, and all of them say so."""
    return whole(ranks) and all(record.outcome == "completed" for record in ranks)


def complete(run: Run, attempt: Attempt) -> bool:
    return len(attempt.ranks) == run.resources.world_size and completed(attempt.ranks)


def missing(run: Run, attempt: Attempt) -> str:
    """`ranks 1, 3`: those that left no record."""
    left = {record.rank for record in attempt.ranks}
    gone = [str(rank) for rank in range(run.resources.world_size) if rank not in left]
    return f"rank{'s' if len(gone) > 1 else ''} {', '.join(gone)}"
