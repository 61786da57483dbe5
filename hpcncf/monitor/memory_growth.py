"""Whether memory grows as long as a program runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

from hpcncf.records.plain import GROWTH_HINT

# What is loaded at the start is no growth.
START: Final = 0.2
# Quarters of fewer samples, or of a shorter time, say nothing.
FEWEST: Final = 6
SHORTEST_S: Final = 4.5
# Each quarter's growth over the mean of all: below, it levels off or came in one piece.
EVEN: Final = 0.4
LEAST_MIB: Final = 64.0
LEAST_SHARE: Final = 0.1


@dataclass(frozen=True)
class Growth:
    """Steady growth of memory, measured after the start."""

    mib: float
    seconds: float

    def __str__(self) -> str:
        return (
            f"memory grew steadily, by {self.mib:,.0f} MiB in {self.seconds:,.0f} s: {GROWTH_HINT}"
        )


def steady(at_s: Sequence[float], mib: Sequence[float], begun_s: float = 0.0) -> Growth | None:
    """Measure steady growth of memory over time; None if memory does not grow steadily.

    Steady means in each quarter of the time, and about evenly.

    Medians over quarters: what one evaluation takes and gives back is no growth. `begun_s`: when
    the start was over, if that is known; beside neighbours it may take most of the time.
    """
    seen = [(at, each) for at, each in zip(at_s, mib, strict=True) if each > 0]  # 0: it has ended
    late = [(at, each) for at, each in seen if at >= max(begun_s, START * seen[-1][0])]
    if len(late) < FEWEST or late[-1][0] - late[0][0] < SHORTEST_S:
        return None
    size = len(late) // 4
    quarters = [median(each for _, each in late[-size * n :][:size]) for n in (4, 3, 2, 1)]
    steps = [after - before for before, after in pairwise(quarters)]
    grown = 4 / 3 * sum(steps)  # from the middle of the first to that of the last
    if grown < max(LEAST_MIB, LEAST_SHARE * quarters[0]) or min(steps) < EVEN * sum(steps) / 3:
        return None
    return Growth(grown, late[-1][0] - late[0][0])
