"""All cases: a list for each kind of cause."""

from __future__ import annotations

from typing import Final

from pathology import healthy, of_cores, of_gpus, of_input, of_ranks, of_time
from pathology.case import Case

CASES: Final[list[Case]] = [
    *of_cores.CASES,
    *of_input.CASES,
    *of_ranks.CASES,
    *of_time.CASES,
    *of_gpus.CASES,
    *healthy.CASES,
]
