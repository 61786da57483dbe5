"""Why the runs were no faster: one answer for the whole job, and one for each configuration."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from hpcncf_analysis import words
from hpcncf_analysis.advice import cause
from hpcncf_analysis.diagnosis import CoreCounts, Diagnosis, Finding, telling
from hpcncf_analysis.labels import counted
from hpcncf_analysis.page.material import Material
from hpcncf_analysis.page.section import Grid, Part, Words
from hpcncf_analysis.summary import Configuration
from hpcncf_analysis.table import Table

Row = Mapping[str, Any]

TEXTS_CAUSES: Final = frozenset({"cause", "evidence", "predicted", "remedy"})
# So much of the evidence stands in the answer, the rest in the table.
TOLD: Final = 2


def answer(material: Material) -> list[tuple[str, str]]:
    """Cores, cause, cost and remedy of the cause that the conclusion names, else of the one that
    wastes most over all runs; empty: none was judged. No remedy that the conclusion has told.
    """
    above = material.conclusion
    judged = [row for row in material.runs if row["run_id"] in material.diagnoses]
    if not judged:
        return []
    by_cause: dict[str, list[tuple[Row, Finding]]] = defaultdict(list)
    for row in judged:
        finding = material.diagnoses[row["run_id"]].primary
        if finding:
            by_cause[finding.cause].append((row, finding))
    if not by_cause:
        largest = max(judged, key=lambda row: row["core_hours"] or 0.0)
        return [
            ("Cores", _counts(largest, material.diagnoses[largest["run_id"]].cores)),
            ("Cause", _no_cause([material.diagnoses[row["run_id"]] for row in judged])),
        ]
    told = [each for name, each in by_cause.items() if name != cause.TOO_SHORT]
    worst = max(
        told or by_cause.values(),
        key=lambda each: (each[0][1].cause == above.cause, sum(lost(*pair) for pair in each)),
    )
    row, finding = max(worst, key=lambda pair: lost(*pair))
    cores = material.diagnoses[row["run_id"]].cores
    return [
        ("Cores", _counts(row, cores)),
        ("Cause", _cause(row, finding, worst, judged)),
        *([("Cost", _cost(finding, worst, judged))] if told else []),
        *([] if cause.remedy(finding) == above.remedy else [("Remedy", _remedy(finding))]),
    ]


def lost(row: Row, finding: Finding) -> float:
    """Core-hours that the cause cost a run: its share of the time is that of all its cores."""
    return float(finding.share * (row["core_hours"] or 0.0))


def _cause(
    row: Row, finding: Finding, alike: Sequence[tuple[Row, Finding]], judged: Sequence[Row]
) -> str:
    evidence = "; ".join(finding.evidence[:TOLD])
    if len(judged) == 1:
        return f"{finding.cause}: {evidence}."
    where = f"in {len(alike)} of {counted(len(judged), 'run')}"
    return f"{finding.cause} {where}. {row['run_id']} lost most: {evidence}."


def _counts(row: Row, cores: CoreCounts) -> str:
    return f"{telling.counts(cores)} (run {row['run_id']})."


def _cost(finding: Finding, alike: Sequence[tuple[Row, Finding]], judged: Sequence[Row]) -> str:
    if len(judged) == 1:
        return f"{telling.cost(finding)}."
    spent = words.core_time(sum(row["core_hours"] or 0.0 for row in judged))
    wasted = words.core_time(sum(lost(*pair) for pair in alike))
    return f"{telling.cost(finding)} of that run; {wasted} of the {spent} that all runs took."


def _remedy(finding: Finding) -> str:
    settings = f" Settings: {telling.settings(finding.changes)}." if finding.changes else ""
    gain = f" Predicted: {telling.gain(finding.gain)}." if finding.gain else ""
    return f"{finding.remedy}{settings}{gain}"


def _no_cause(diagnoses: Sequence[Diagnosis]) -> str:
    healthy = sum(each.verdict == "healthy" for each in diagnoses)
    if healthy == len(diagnoses):
        return f"none: nothing costs much in any of {counted(healthy, 'run')}."
    return (
        f"unknown: nothing was found, but the records of {len(diagnoses) - healthy} of "
        f"{counted(len(diagnoses), 'run')} do not tell enough to call them healthy."
    )


def parts_causes(material: Material) -> list[Part]:
    """A row for each cause of each configuration's first run."""
    rows = [
        cells
        for one in material.shown
        if (found := material.diagnoses.get(one.rows[0]["run_id"]))
        for cells in _rows(one, found)
    ]
    if not rows:
        return []
    columns = ["configuration", "cause", "cost", "evidence", "predicted", "remedy"]
    note = "Of each configuration's first run, its primary cause first."
    return [Grid(Table(columns, rows, TEXTS_CAUSES)), Words(note, note=True)]


def _rows(one: Configuration, found: Diagnosis) -> list[list[str]]:
    if not found.findings:
        missing = f"not told: {'; '.join(found.missing)}" if found.missing else words.NONE
        return [[one.label, found.verdict, words.NONE, missing, words.NONE, words.NONE]]
    return [
        [
            one.label if finding is found.findings[0] else "",
            finding.cause,
            words.NONE if finding.cause == cause.TOO_SHORT else telling.cost(finding),
            "; ".join(finding.evidence),
            telling.gain(finding.gain) if finding.gain else words.NONE,
            " ".join(filter(None, (finding.remedy, telling.settings(finding.changes)))),
        ]
        for finding in found.findings
    ]
