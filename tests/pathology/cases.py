"""All cases, and the causes of which there is none."""

from __future__ import annotations

from typing import Final

from hpcncf_analysis.diagnosis import CAUSES, Cause
from pathology import healthy, of_cores, of_input, of_ranks, of_time
from pathology.case import Case

CASES: Final[list[Case]] = [
    *of_cores.CASES,
    *of_input.CASES,
    *of_ranks.CASES,
    *of_time.CASES,
    *healthy.CASES,
]

NOT_MADE: Final[dict[Cause, str]] = {
    "gpu_underused": "it needs a GPU, and a program that leaves it idle",
}
"""Cause -> why no case makes it."""

MADE: Final = [cause for cause in CAUSES if cause not in NOT_MADE]
