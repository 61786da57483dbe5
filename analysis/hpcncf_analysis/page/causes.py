"""Why the runs were no faster: one answer for the whole job, and one for each configuration."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from hpcncf_analysis import words
from hpcncf_analysis.diagnosis import Diagnosis, Finding, Gain
from hpcncf_analysis.labels import counted
from hpcncf_analysis.page.material import Material
from hpcncf_analysis.page.section import Grid, Part, Words
from hpcncf_analysis.summary import Configuration
from hpcncf_analysis.table import Table

Row = Mapping[str, Any]

TEXTS: Final = frozenset({"cause", "evidence", "predicted", "remedy"})
COST: Final = {"time": "time", "cores": "cores"}
TOLD: Final = 2


def answer(material: Material) -> list[tuple[str, str]]:
    """Cause, cost and remedy of what wastes most, over all runs; empty where none was judged."""
    judged = [row for row in material.runs if row["run_id"] in material.diagnoses]
    if not judged:
        return []
    by_cause: dict[str, list[tuple[Row, Finding]]] = defaultdict(list)
    for row in judged:
        finding = material.diagnoses[row["run_id"]].primary
        if finding:
            by_cause[finding.cause].append((row, finding))
    if not by_cause:
        return [("Cause", _no_cause([material.diagnoses[row["run_id"]] for row in judged]))]
    worst = max(by_cause.values(), key=lambda each: sum(lost(*pair) for pair in each))
    return _worst(worst, judged)


def _worst(found: Sequence[tuple[Row, Finding]], judged: Sequence[Row]) -> list[tuple[str, str]]:
    row, finding = max(found, key=lambda pair: lost(*pair))
    core_h = sum(lost(*pair) for pair in found)
    allocated = sum(each["core_hours"] or 0.0 for each in judged)
    where = "" if len(judged) == 1 else f" in {len(found)} of {counted(len(judged), 'run')}"
    evidence = "; ".join(finding.evidence[:TOLD])
    whose = "" if len(judged) == 1 else f", run {row['run_id']}"
    return [
        ("Cause", f"{finding.cause}{where}: {evidence}{whose}."),
        (
            "Cost",
            f"{words.percent(finding.share)} of the {COST[finding.of]}"
            f"{'' if len(judged) == 1 else ' of that run'}; {words.core_time(core_h)} of the "
            f"{words.core_time(allocated)} that {'it' if len(judged) == 1 else 'all runs'} took.",
        ),
        ("Remedy", f"{finding.remedy}{_brings(finding.gain)}"),
    ]


def lost(row: Row, finding: Finding) -> float:
    """Core-hours that the cause cost a run: its share of the time is that of all its cores."""
    return float(finding.share * (row["core_hours"] or 0.0))


def _brings(gain: Gain | None) -> str:
    return f" Predicted: {predicted(gain)}." if gain else ""


def predicted(gain: Gain) -> str:
    ends = words.interval(gain.low, gain.high, words.times)
    what = "as fast" if gain.what == "instances_per_s" else "the core-hours"
    return f"{words.times(gain.factor)} {what} {ends}"


def _no_cause(diagnoses: Sequence[Diagnosis]) -> str:
    healthy = sum(each.verdict == "healthy" for each in diagnoses)
    if healthy == len(diagnoses):
        return f"none: {counted(healthy, 'run')}, and nothing to mend in any."
    return (
        f"unknown: nothing wrong was found, but of {len(diagnoses) - healthy} of "
        f"{counted(len(diagnoses), 'run')} the records do not tell enough to call them healthy."
    )


def parts(material: Material) -> list[Part]:
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
    return [Grid(Table(columns, rows, TEXTS)), Words(note, note=True)]


def _rows(one: Configuration, found: Diagnosis) -> list[list[str]]:
    if not found.findings:
        missing = "; ".join(found.missing)
        return [[one.label, found.verdict, words.NONE, missing, "", ""]]
    return [
        [
            one.label if finding is found.findings[0] else "",
            finding.cause,
            f"{words.percent(finding.share)} of the {COST[finding.of]}",
            "; ".join(finding.evidence),
            predicted(finding.gain) if finding.gain else words.NONE,
            finding.remedy,
        ]
        for finding in found.findings
    ]
