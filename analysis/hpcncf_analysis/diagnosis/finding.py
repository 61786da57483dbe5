"""What a diagnosis consists of: causes, findings with their numbers, and what a remedy brings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

Cause = Literal[
    "one_core_confinement",
    "oversubscribed",
    "neighbour_load",
    "python_input",
    "input_io",
    "worker_overhead",
    "dense_optimizer",
    "serial_step",
    "sync_bound",
    "straggler",
    "load_imbalance",
    "evaluation_bound",
    "startup_bound",
    "checkpoint_bound",
    "memory_pressure",
    "too_short_to_judge",
    "gpu_underused",
]
CAUSES: Final[tuple[Cause, ...]] = get_args(Cause)

Verdict = Literal["cause", "healthy", "unknown"]


@dataclass(frozen=True)
class Gain:
    """What a remedy is expected to do to one figure: a ratio, after over before."""

    factor: float
    low: float
    high: float
    what: Literal["instances_per_s", "core_hours"] = "instances_per_s"
    """`instances_per_s` grows by the factor; `core_hours`, of the same work, shrink to it."""


@dataclass(frozen=True)
class Finding:
    """One cause with the numbers that speak for it."""

    cause: Cause
    share: float
    """What it costs: 0.0 to 1.0 of the elapsed time, or of the cores allocated."""
    of: Literal["time", "cores"]
    evidence: tuple[str, ...]
    remedy: str
    """One sentence."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Dotted settings of a job file that apply the remedy; empty where no setting does."""
    gain: Gain | None = None
    """None where the record gives no ground for a figure."""


@dataclass(frozen=True)
class CoreCounts:
    """Cores of all ranks together: what was granted, what could be used, what was used."""

    allocated: float | None
    usable: float | None
    used: float | None
    """CPU seconds over elapsed seconds."""


@dataclass(frozen=True)
class Diagnosis:
    """Why one run was no faster."""

    run_id: str
    verdict: Verdict
    primary: Finding | None
    """None unless the verdict is `cause`."""
    secondary: tuple[Finding, ...]
    """What else was found, the costliest first; of a `healthy` run nothing."""
    cores: CoreCounts
    missing: tuple[str, ...] = ()
    """What the records do not tell, and so could not be judged."""
    alerts: tuple[str, ...] = ()
    """What costs no time yet, and will end the run."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        return (*([self.primary] if self.primary else []), *self.secondary)
