"""Why the runs were no faster, and what each remedy did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from hpcncf.table import Table
from hpcncf_analysis import remedy_effects
from hpcncf_analysis.advice.text import describe_gain
from hpcncf_analysis.diagnosis import format
from hpcncf_analysis.formatting import NONE
from hpcncf_analysis.report.section import Paragraph, ReportData, Section

Row = Mapping[str, Any]

COLUMNS: Final = ("configuration", "cause", "cost", "evidence", "gain", "remedy")
TEXTS: Final = frozenset({"cause", "evidence", "gain", "remedy"})
# As many as jobs/remedies.yaml has, and some more.
MAX_REMEDY_ROWS: Final = 100
UNMEASURED: Final = (
    "No run of the job's baseline is complete: there is nothing to compare remedies with."
)


def build(data: ReportData) -> Section:
    """Section with a table of the causes found in each configuration's first run."""
    rows = []
    for one in data.shown:
        found = data.diagnoses.get(one.rows[0]["run_id"])
        if not found:
            continue
        if not found.findings:
            missing = f"unknown: {'; '.join(found.missing)}" if found.missing else NONE
            rows.append([one.label, found.verdict, NONE, missing, NONE, NONE])
        for finding in found.findings:
            cells = [
                one.label if finding is found.findings[0] else "",
                finding.cause,
                NONE if finding.cause == "too_short_to_judge" else format.cost(finding),
                "; ".join(finding.placed_evidence),
                "; ".join(describe_gain(one.key, finding, data.outcomes)) or NONE,
                " ".join(filter(None, (finding.remedy, format.settings(finding.changes)))),
            ]
            rows.append(cells)
    table = Table(list(COLUMNS), rows, TEXTS)
    note = Paragraph("Of each configuration's first run, its primary cause first.", note=True)
    return Section("causes", "Why the runs were no faster", [table, note] if rows else [])


def build_remedies(data: ReportData) -> Section:
    title = "What each remedy did"
    effects = remedy_effects.measure_effects(data.shown)
    if table := remedy_effects.remedies_table(effects):
        note = Paragraph(remedy_effects.describe_baseline(effects), note=True)
        return Section("remedies", title, [replace(table, max_markdown_rows=MAX_REMEDY_ROWS), note])
    named = any(row["baseline"] and not row["retired"] for row in data.found.runs)
    measured = any(one.rows[0].get("baseline") for one in data.shown)
    return Section("remedies", title, [Paragraph(UNMEASURED)] if named and not measured else [])
