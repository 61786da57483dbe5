"""Outliers among the repeats of a configuration."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final

Row = dict[str, Any]

# Iglewicz and Hoaglin, How to Detect and Handle Outliers (1993): modified z-scores above 3.5.
FAR: Final = 3.5
# So that the MAD of normal values estimates their standard deviation: its 0.75 quantile.
NORMAL: Final = 0.6745
# Repeats that agree to a per cent have a tiny MAD: nearer than this to the median is no outlier.
NEAR: Final = 0.05
# Of two repeats either may be the odd one.
FEWEST: Final = 3


def outliers(values: Mapping[str, float]) -> dict[str, float]:
    """Run -> its value over the median, of the runs far from it; values are above 0.

    Far is a modified z-score, 0.6745 (x - median) / MAD, beyond 3.5 and more than 5 % away. None of
    fewer than three.
    """
    if len(values) < FEWEST:
        return {}
    middle = median(values.values())
    spread = median(abs(value - middle) for value in values.values())
    return {
        run: value / middle
        for run, value in values.items()
        if NORMAL * abs(value - middle) > FAR * spread and abs(value / middle - 1) > NEAR
    }


def mark_outliers(runs: Sequence[Row]) -> list[Row]:
    """The runs, with `outlier` and a warning on those whose speed is far from their repeats'.

    Of commands that report no speed, the elapsed time counts.
    """
    grouped: dict[str, list[Row]] = defaultdict(list)
    for row in runs:
        if row["state"] == "completed" and not row["retired"]:
            grouped[row["config"]].append(row)
    found: dict[str, tuple[float, str]] = {}
    for repeats in grouped.values():
        for column, figure in (("instances_per_s", "speed"), ("elapsed_s", "elapsed time")):
            if all((row.get(column) or 0.0) > 0 for row in repeats):
                far = outliers({row["run_id"]: row[column] for row in repeats})
                found |= {run: (ratio, figure) for run, ratio in far.items()}
                break
    return [_marked(row, *found.get(row["run_id"], (None, ""))) for row in runs]


def _marked(row: Row, ratio: float | None, figure: str) -> Row:
    if ratio is None:
        return row | {"outlier": None}
    warning = (
        f"an outlier: its {figure} is {ratio:.2f} times the median of its repeats (modified "
        f"z-score beyond {FAR:g})"
    )
    return row | {"outlier": ratio, "warnings": [*row["warnings"], warning]}
