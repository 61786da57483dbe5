"""Facts of a run in one shape, whether our own training counted them or the probe saw them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from hpcncf_analysis.diagnosis.source_lines import CodeLocation

PHASES: Final = (
    "input",
    "forward",
    "backward",
    "optimizer",
    "sync",
    "evaluation",
    "checkpoint",
    "workers",
    "loop",
)


@dataclass(frozen=True)
class RankTimes:
    """One rank's share of the work, in seconds of its counted steps."""

    rank: int
    node: str
    steps_s: float | None = None
    """All phases together."""
    sync_s: float | None = None
    instances: int | None = None
    cpu_s: float | None = None
    """CPU seconds of its whole life."""
    runqueue_s: float = 0.0
    """Of the steps, in which its training thread was ready and had no core."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Phase -> seconds; empty if they are not known of each rank."""
    samples: int | None = None
    batches: int | None = None
    steps: int | None = None

    @property
    def useful_s(self) -> float | None:
        """Seconds of counted steps without waits for other ranks or cores; None if unknown.

        This is POP's useful time, input included. A wait for a core that a neighbour held makes
        no straggler.
        """
        if self.steps_s is None or self.sync_s is None:
            return None
        return max(0.0, self.steps_s - self.sync_s - self.runqueue_s)


@dataclass(frozen=True)
class Startup:
    """The time until the first step ended."""

    seconds: float
    own_s: float
    """Without the waits for cores that neighbours used."""
    share: float
    """`own_s` as a share of all the time that neighbours did not take."""
    imports: float | None = None
    """Share of the seconds that went into imports; None if it is not known."""
    places: tuple[CodeLocation, ...] = ()


@dataclass(frozen=True)
class LoaderFacts:
    """Facts about the loaders that make the batches."""

    workers: int
    starts: float
    """Share of the time in which workers start and stop, and the first batches are waited for."""
    waits: float
    """Share of the time in which steps wait for batches besides."""
    is_costly: bool
    """Whether the workers' batches cost more waiting than making them would take."""
    computed: float | None = None
    """The workers' CPU time as a share of the steps; None if it is not known."""
    busy: float | None = None
    """Share of a worker's time in which it made batches; None if no worker was looked at."""
    epochs: int = 0
    persistent: bool = True
    whole_batches: bool | None = None
    """Whether the data set can be indexed by many rows at once; None if it is not known."""
    places: tuple[CodeLocation, ...] = ()
    """Where the batches are made, by their share of `waits` and `starts`."""
    made_at: tuple[CodeLocation, ...] = ()
    """Where the DataLoader is made."""


@dataclass(frozen=True)
class Tables:
    """Embedding tables of which a step reads few rows, and whose optimizer walks all."""

    rows: float
    touched: float
    """Rows that a step reads, or that have a gradient."""
    of_parameters: float = 1.0
    """Share of all trainable numbers that are in these tables."""
    numbers: float | None = None
    """Numbers in the largest of them; None if it is not known."""
    fused: bool = False
    """Whether one kernel updates all parameters."""
    optimizer: str | None = None
