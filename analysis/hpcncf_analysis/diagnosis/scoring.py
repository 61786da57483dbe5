"""Predictions against what was measured later: how often was the diagnosis right?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, Final

from hpcncf.paths import ResultPaths
from hpcncf_analysis.diagnosis import predictions
from hpcncf_analysis.diagnosis.predictions import Prediction

WITHIN: Final = 0.25
"""A prediction is right where it is off by this share of the measured factor at most."""

Row_scoring = dict[str, Any]


def score(paths: ResultPaths, runs: Iterable[Mapping[str, Any]]) -> list[Row_scoring]:
    """`scored` of the predictions that the results folder keeps."""
    return scored(predictions.read_predictions(paths), runs)


def scored(made: Sequence[Prediction], runs: Iterable[Mapping[str, Any]]) -> list[Row_scoring]:
    """One row a prediction: `predicted` with `low` and `high`, `measured` with `measured_low` and
    `measured_high` (None unless both sides have repeats), and whether it is `within` 25 %.

    `runs`: of the table `runs`. What is not measured yet is None.
    """
    by_config: dict[str, list[Mapping[str, Any]]] = {}
    for row in runs:
        if row["state"] == "completed":
            by_config.setdefault(row["config"], []).append(row)
    return [
        _row(each, by_config.get(each.base, []), by_config.get(each.after, [])) for each in made
    ]


def _row(
    told: Prediction, before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]
) -> Row_scoring:
    measured, low, high = ratio(_figures(told, before), _figures(told, after))
    return {
        "cause": told.cause,
        "base": told.base,
        "after": told.after,
        "changes": told.changes,
        "what": told.what,
        "predicted": told.factor,
        "low": told.low,
        "high": told.high,
        "measured": measured,
        "measured_low": low,
        "measured_high": high,
        "within": None if measured is None else abs(told.factor / measured - 1) <= WITHIN,
    }


def _figures(told: Prediction, rows: Sequence[Mapping[str, Any]]) -> list[float]:
    if told.what == "instances_per_s":
        return [row["instances_per_s"] for row in rows if row["instances_per_s"]]
    return [row["core_hours"] for row in rows if row["core_hours"]]


def ratio(
    before: Sequence[float], after: Sequence[float]
) -> tuple[float | None, float | None, float | None]:
    """Median over median, and from the repeats' extremes how low and how high it may be."""
    if not before or not after:
        return None, None, None
    middle = median(after) / median(before)
    if len(before) < 2 or len(after) < 2:
        return middle, None, None
    return middle, min(after) / max(before), max(after) / min(before)
