"""Outliers among the repeats of a configuration."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import inf
from statistics import median
from typing import Any, Final

Row = dict[str, Any]

# Iglewicz and Hoaglin, How to Detect and Handle Outliers (1993): modified z-scores above 3.5.
FAR: Final = 3.5
# So that the MAD of normal values estimates their standard deviation: its 0.75 quantile.
NORMAL: Final = 0.6745
# Repeats that agree to a per cent have a tiny MAD: nearer than this to the median is no outlier.
NEAR: Final = 0.05
# Of two repeats nobody can say which is the odd one.
FEWEST: Final = 3


def scores(values: Sequence[float]) -> list[float]:
    """Modified z-score of each: 0.6745 (x - median) / MAD; infinite beside a MAD of 0."""
    middle = median(values)
    spread = median(abs(value - middle) for value in values)
    return [_score(value - middle, spread) for value in values]


def _score(deviation: float, spread: float) -> float:
    if deviation == 0:
        return 0.0
    return NORMAL * deviation / spread if spread > 0 else inf * deviation


def outliers(values: Mapping[str, float]) -> dict[str, float]:
    """Run -> its value over the median, of the runs far from it; values are above 0.

    Far is a modified z-score beyond 3.5 and more than 5 % away. None of fewer than three.
    """
    if len(values) < FEWEST:
        return {}
    middle = median(values.values())
    told = zip(values.items(), scores(list(values.values())), strict=True)
    return {
        run: value / middle
        for (run, value), score in told
        if abs(score) > FAR and abs(value / middle - 1) > NEAR
    }


def marked(runs: Sequence[Row]) -> list[Row]:
    """The runs, with `outlier` and a warning on those whose speed is far from their repeats'.

    Of commands that report no speed, the elapsed time counts.
    """
    told: dict[str, tuple[float, str]] = {}
    for repeats in _repeats(runs):
        speeds = [("instances_per_s", "speed"), ("elapsed_s", "elapsed time")]
        column, what = next((pair for pair in speeds if _known(repeats, pair[0])), ("", ""))
        if column:
            far = outliers({row["run_id"]: row[column] for row in repeats})
            told |= {run: (ratio, what) for run, ratio in far.items()}
    return [_marked(row, told.get(row["run_id"])) for row in runs]


def _repeats(runs: Sequence[Row]) -> list[list[Row]]:
    grouped: dict[str, list[Row]] = defaultdict(list)
    for row in runs:
        if row["state"] == "completed" and not row["retired"]:
            grouped[row["config"]].append(row)
    return list(grouped.values())


def _known(repeats: Sequence[Row], column: str) -> bool:
    return all((row.get(column) or 0.0) > 0 for row in repeats)


def _marked(row: Row, told: tuple[float, str] | None) -> Row:
    if told is None:
        return row | {"outlier": None}
    ratio, what = told
    warning = (
        f"an outlier: its {what} is {ratio:.2f} times the median of its repeats (modified z-score "
        f"beyond {FAR:g})"
    )
    return row | {"outlier": ratio, "warnings": [*row["warnings"], warning]}
