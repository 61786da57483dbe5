"""One job as a scheduler's summary tells it, whichever scheduler that was. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# Words of Slurm, LSF and PBS (qstat's letters) for a job that has not ended.
WAITING: Final = ("PENDING", "PEND", "Q", "H", "W")
AT_WORK: Final = ("RUNNING", "RUN", "R", "COMPLETING", "SUSPENDED", "SSUSP", "USUSP", "S", "E")
# Words for one that ended because something was too small.
OUT_OF_MEMORY: Final = ("OUT_OF_MEMORY", "TERM_MEMLIMIT")
OUT_OF_TIME: Final = ("TIMEOUT", "TERM_RUNLIMIT")
# qstat's letters (qstat(1B), "Job states"; C is Torque's).
LETTERS: Final = {
    "B": "begun",
    "C": "completed",
    "E": "exiting",
    "F": "finished",
    "H": "held",
    "Q": "queued",
    "R": "running",
    "S": "suspended",
    "W": "waiting",
    "X": "finished",
}


@dataclass(frozen=True)
class Job:
    """None is what the text does not say."""

    source: str
    """`seff`, `reportseff`, `sacct`, `LSF`, `PBS` or `log`."""
    id: str = ""
    state: str = ""
    """The scheduler's own word, without what follows it."""
    exit_code: int | None = None
    """As the scheduler tells it; of one that a signal ended, its number and 128 (PBS: 256)."""
    nodes: int | None = None
    cores: int | None = None
    elapsed_s: float | None = None
    limit_s: float | None = None
    cpu_s: float | None = None
    """User and system, of all its processes."""
    told_efficiency: float | None = None
    """As the text says it, 0 to 1."""
    peak_efficiency: float | None = None
    """Of its busiest moment; only LSF tells."""
    memory_mib: float | None = None
    memory_asked_mib: float | None = None
    told_memory_efficiency: float | None = None
    told_time_efficiency: float | None = None
    notes: tuple[str, ...] = ()
    """What makes these figures worth less, in words."""

    @property
    def efficiency(self) -> float | None:
        """CPU seconds / (elapsed x cores), as seff; as the text tells it where it does."""
        if self.told_efficiency is not None:
            return self.told_efficiency
        if self.cpu_s is None or not self.elapsed_s or not self.cores:
            return None
        return self.cpu_s / (self.elapsed_s * self.cores)

    @property
    def cores_used(self) -> float | None:
        """CPU seconds / elapsed, on average."""
        if self.cpu_s is not None and self.elapsed_s:
            return self.cpu_s / self.elapsed_s
        if self.told_efficiency is not None and self.cores:
            return self.told_efficiency * self.cores
        return None

    @property
    def cores_at_peak(self) -> float | None:
        if self.peak_efficiency is None or not self.cores:
            return None
        return self.peak_efficiency * self.cores

    @property
    def memory_efficiency(self) -> float | None:
        if self.told_memory_efficiency is not None:
            return self.told_memory_efficiency
        if self.memory_mib is None or not self.memory_asked_mib:
            return None
        return self.memory_mib / self.memory_asked_mib

    @property
    def time_efficiency(self) -> float | None:
        if self.told_time_efficiency is not None:
            return self.told_time_efficiency
        return self.elapsed_s / self.limit_s if self.elapsed_s and self.limit_s else None

    @property
    def core_hours_idle(self) -> float | None:
        """Core-hours reserved and not used, at least 0."""
        if self.efficiency is None or not self.cores or not self.elapsed_s:
            return None
        return max(1 - self.efficiency, 0.0) * self.cores * self.elapsed_s / 3600

    @property
    def state_told(self) -> str:
        """In a word that a reader knows."""
        return LETTERS.get(self.state, self.state)

    @property
    def is_waiting(self) -> bool:
        return self.state in WAITING

    @property
    def is_at_work(self) -> bool:
        return self.state in AT_WORK
