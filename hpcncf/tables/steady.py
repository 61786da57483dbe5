"""Whether a run's steps kept their pace: drift and pauses among them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final

from hpcncf.records import TrainingRecord
from hpcncf.tables import watched

STEADY: Final = ("step_drift", "pause_share")
# As pyperf calls results unstable whose standard deviation is 10 % of the mean.
DRIFTED: Final = 0.1
PAUSED: Final = 0.05
# Thirds of fewer entries say nothing.
FEWEST: Final = 9


def figures_steady(trained: Sequence[TrainingRecord]) -> dict[str, Any]:
    """STEADY, of the rank in which each is furthest from 0; None where too little is known."""
    drifts = [drift(part) for part in trained]
    pauses = [pause_share(part) for part in trained]
    return {
        "step_drift": max((one for one in drifts if one is not None), key=abs, default=None),
        "pause_share": max((one for one in pauses if one is not None), default=None),
    }


def drift(part: TrainingRecord) -> float | None:
    """The median step of the last third over that of the first, less 1; warm-up steps left out."""
    seconds = part.batches.seconds[-(-part.warmup_steps // part.batches.every) :]
    if len(seconds) < FEWEST:
        return None
    third = len(seconds) // 3
    first = median(seconds[:third])
    return median(seconds[-third:]) / first - 1 if first > 0 else None


def pause_share(part: TrainingRecord) -> float | None:
    """Of the counted time, what steps over ten times the median (and over 50 ms) took."""
    return watched.ratio(sum(each["seconds"] for each in part.batches.pauses), part.counted_s)


def pace(drifted: float | None) -> str:
    """What a drift beyond `DRIFTED` says; nothing of a smaller one."""
    if drifted is None or abs(drifted) <= DRIFTED:
        return ""
    how = "longer" if drifted > 0 else "shorter"
    return f"steps took {abs(drifted):.0%} {how} in the last third than in the first"


def unsteady(row: Mapping[str, Any]) -> list[str]:
    """What a run's figures say against its one speed; nothing of a steady run."""
    drifted, paused = row["step_drift"], row["pause_share"]
    told = [f"unsteady: {pace(drifted)}"] if pace(drifted) else []
    if paused is not None and paused > PAUSED:
        told.append(
            f"unsteady: {paused:.0%} of the steps' time went to single steps of over ten times the "
            "median"
        )
    return told
