"""What the diagnoses predicted, beside what the runs that tried it measured. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from hpcncf_analysis import words
from hpcncf_analysis.diagnosis import telling
from hpcncf_analysis.page.section import Grid, Part, Words
from hpcncf_analysis.table import Table

Row_scored = Mapping[str, Any]

TEXTS_SCORED: Final = frozenset({"cause", "remedy", "of", "within 25\u202f%"})
WHAT: Final = {"instances_per_s": "instances/s", "core_hours": "core-hours"}
NOTE_SCORED: Final = (
    "Each prediction was written down before its run; a figure is the ratio after over before, "
    "with what repeats make of it."
)


def parts_scored(score: Sequence[Row_scored], labels: Mapping[str, str]) -> list[Part]:
    """`labels`: of configurations. Empty where nothing was predicted."""
    if not score:
        return []
    columns = ["configuration", "cause", "remedy", "of", "predicted", "measured"]
    table = Table([*columns, "within 25\u202f%"], [_row_scored(one, labels) for one in score], TEXTS_SCORED)
    return [Words(_summary(score)), Grid(table), Words(NOTE_SCORED, note=True)]


def _row_scored(one: Row_scored, labels: Mapping[str, str]) -> list[str]:
    return [
        labels.get(one["base"], one["base"]),
        one["cause"],
        telling.settings(one["changes"]),
        WHAT[one["what"]],
        _ratio(one["predicted"], one["low"], one["high"]),
        _ratio(one["measured"], one["measured_low"], one["measured_high"]),
        {True: "yes", False: "no", None: "not measured yet"}[one["within"]],
    ]


def _ratio(value: float | None, low: float | None, high: float | None) -> str:
    return f"{words.times(value)}\n{words.interval(low, high, words.times)}".strip()


def _summary(score: Sequence[Row_scored]) -> str:
    measured = [one for one in score if one["within"] is not None]
    right = sum(one["within"] for one in measured)
    if not measured:
        return f"None of {len(score)} predictions was measured yet."
    return f"{right} of {len(measured)} measured predictions were right within 25\u202f%."
