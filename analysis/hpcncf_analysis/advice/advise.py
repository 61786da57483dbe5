"""What to ask for next, what it costs and saves, and how sure that is. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hpcncf_analysis.advice.front import Front, Standing
from hpcncf_analysis.advice.request import Request

Sure = Literal["settled", "likely", "open", "unproven", "alone"]


@dataclass(frozen=True)
class Saving:
    """What the choice saves against another for a unit of work; negative where it costs more."""

    against: str
    """The label of what was asked for."""
    core_h: float
    gpu_h: float
    seconds: float


@dataclass(frozen=True)
class Advice:
    """The next request, ready to be submitted."""

    choices: Front
    chosen: Standing
    request: Request
    """What `job_yaml` and `sbatch` ask of Slurm, with the reasons for memory and time."""
    job_yaml: str
    """A whole job file."""
    sbatch: str
    """The same request as #SBATCH lines."""
    saves: Saving | None
    """None where the choice is what was asked for."""
    sure: Sure
    sureness: str
    """How sure it is, in whole sentences."""
    changed: str
    """What in the job file was not measured so: a remedy, fewer cores; empty where all was."""

    @property
    def fastest(self) -> Standing:
        return self.choices.fastest

    @property
    def cheapest(self) -> Standing:
        return self.choices.cheapest

    @property
    def knee(self) -> Standing:
        return self.choices.knee

    @property
    def front(self) -> tuple[Standing, ...]:
        return self.choices.front

    @property
    def cost_core_h_per_epoch(self) -> float | None:
        """None where the unit of work is no epoch."""
        return self.chosen.core_h if self.choices.unit == "epoch" else None
