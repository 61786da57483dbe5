"""Why the runs were no faster, what each remedy did, and predictions beside results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from hpcncf_analysis import remedy_effects
from hpcncf_analysis.advice.judge import Outcomes
from hpcncf_analysis.advice.text import describe_gain
from hpcncf_analysis.configurations import Configuration, Table
from hpcncf_analysis.diagnosis import format
from hpcncf_analysis.diagnosis.evidence import Diagnosis
from hpcncf_analysis.diagnosis.format import settings
from hpcncf_analysis.formatting import (
    NONE,
    format_interval,
    format_ratio,
)
from hpcncf_analysis.report.section import (
    Paragraph,
    Part,
    ReportData,
    Section,
    TableBlock,
)

Row = Mapping[str, Any]

TEXTS: Final = frozenset({"cause", "evidence", "gain", "remedy"})


def cause_parts(data: ReportData) -> list[Part]:
    """A row for each cause of each configuration's first run."""
    rows = [
        cells
        for one in data.shown
        if (found := data.diagnoses.get(one.rows[0]["run_id"]))
        for cells in _rows(one, found, data.outcomes)
    ]
    if not rows:
        return []
    columns = ["configuration", "cause", "cost", "evidence", "gain", "remedy"]
    note = "Of each configuration's first run, its primary cause first."
    return [TableBlock(Table(columns, rows, TEXTS)), Paragraph(note, note=True)]


def _rows(one: Configuration, found: Diagnosis, outcomes: Outcomes) -> list[list[str]]:
    if not found.findings:
        missing = f"unknown: {'; '.join(found.missing)}" if found.missing else NONE
        return [[one.label, found.verdict, NONE, missing, NONE, NONE]]
    return [
        [
            one.label if finding is found.findings[0] else "",
            finding.cause,
            NONE if finding.cause == "too_short_to_judge" else format.cost(finding),
            "; ".join(finding.placed_evidence),
            "; ".join(describe_gain(one.key, finding, outcomes)) or NONE,
            " ".join(filter(None, (finding.remedy, format.settings(finding.changes)))),
        ]
        for finding in found.findings
    ]


# As many as jobs/remedies.yaml has, and some more.
MAX_REMEDY_ROWS: Final = 100


UNMEASURED = "No run of the job's baseline is complete: there is nothing to compare remedies with."


def remedy_parts(data: ReportData) -> list[Part]:
    effects = remedy_effects.measure_effects(data.shown)
    table = remedy_effects.remedies_table(effects)
    if table:
        return [
            TableBlock(table, in_markdown=MAX_REMEDY_ROWS),
            Paragraph(remedy_effects.describe_baseline(effects), note=True),
        ]
    named = any(row["baseline"] and not row["retired"] for row in data.found.runs)
    measured = any(one.rows[0].get("baseline") for one in data.shown)
    return [Paragraph(UNMEASURED)] if named and not measured else []


TEXTS_SCORED: Final = frozenset({"cause", "remedy", "of", "within 25\u202f%"})


GAIN_NAMES: Final = {"instances_per_s": "instances/s", "core_hours": "core-hours"}


NOTE_SCORED: Final = (
    "Each prediction was written down before its run; a figure is the ratio after over before, "
    "with what repeats make of it."
)


def prediction_parts(score: Sequence[Row], labels: Mapping[str, str]) -> list[Part]:
    """`labels`: of configurations. Empty where nothing was predicted."""
    if not score:
        return []
    columns = ["configuration", "cause", "remedy", "of", "predicted", "measured"]
    table = Table(
        [*columns, "within 25\u202f%"],
        [_prediction_row(one, labels) for one in score],
        TEXTS_SCORED,
    )
    return [Paragraph(_summary(score)), TableBlock(table), Paragraph(NOTE_SCORED, note=True)]


def _prediction_row(one: Row, labels: Mapping[str, str]) -> list[str]:
    return [
        labels.get(one["base"], one["base"]),
        one["cause"],
        settings(one["changes"]),
        GAIN_NAMES[one["what"]],
        _ratio(one["predicted"], one["low"], one["high"]),
        _ratio(one["measured"], one["measured_low"], one["measured_high"]),
        {True: "yes", False: "no", None: "not measured yet"}[one["within"]],
    ]


def _ratio(value: float | None, low: float | None, high: float | None) -> str:
    return f"{format_ratio(value)}\n{format_interval(low, high, format_ratio)}".strip()


def _summary(score: Sequence[Row]) -> str:
    measured = [one for one in score if one["within"] is not None]
    right = sum(one["within"] for one in measured)
    if not measured:
        return f"None of {len(score)} predictions was measured yet."
    return f"{right} of {len(measured)} measured predictions were right within 25\u202f%."


def build(data: ReportData) -> Section:
    return Section("causes", "Why the runs were no faster", cause_parts(data))


def build_remedies(data: ReportData) -> Section:
    return Section("remedies", "What each remedy did", remedy_parts(data))


def build_predictions(data: ReportData) -> Section:
    labels = {one.key: one.label for one in data.shown}
    return Section("predicted", "Predicted against measured", prediction_parts(data.score, labels))
