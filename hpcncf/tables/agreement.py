"""Whether Slurm's own accounting of a run says what its records say. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hpcncf.records import RankRecord
from hpcncf.slurm.accounting import Account

# Below it, a step's start and end weigh more than what is measured.
SHORTEST_S: Final = 60.0
CPU_SHARE: Final = 0.02
CPU_S: Final = 1.0
MEMORY_SHARE: Final = 0.10
# A command's record is of the command alone; Slurm counts our process beside it, on every rank.
BESIDE_S: Final = 2.0
BESIDE_MIB: Final = 64.0


def disagreements(ranks: Sequence[RankRecord], slurm: Account) -> list[str] | None:
    """A sentence for each figure that differs; None where the two cannot be compared."""
    if not ranks or slurm.elapsed_s < SHORTEST_S or slurm.cpu_s is None:
        return None
    said = []
    cpu_s = sum(record.cpu.user_s + record.cpu.system_s for record in ranks)
    beside = sum(record.training is None for record in ranks)
    if abs(cpu_s - slurm.cpu_s) > max(CPU_SHARE * slurm.cpu_s, CPU_S) + BESIDE_S * beside:
        said.append(_differ("CPU seconds", cpu_s, slurm.cpu_s))
    ours, theirs = anonymous_mib(ranks), slurm.max_rss_mib
    allowed = MEMORY_SHARE * (theirs or 0.0) + (BESIDE_MIB if beside else 0.0)
    # More in the records is no difference: Slurm looks seldom, and misses short peaks.
    if ours is not None and theirs is not None and theirs - ours > allowed:
        said.append(_differ("MiB of memory", ours, theirs))
    return said


def _differ(what: str, ours: float, theirs: float) -> str:
    return f"{ours:,.1f} {what} in the records, {theirs:,.1f} in Slurm's accounting"


def anonymous_mib(ranks: Sequence[RankRecord]) -> float | None:
    """The largest rank's, as Slurm's MaxRSS: mapped files count in neither."""
    known = [record.memory.anonymous_peak_mib for record in ranks]
    return max((each for each in known if each is not None), default=None)
