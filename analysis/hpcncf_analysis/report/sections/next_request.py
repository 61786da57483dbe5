"""What to ask for next: all configurations judged, and the job files."""

from __future__ import annotations

from typing import Final

from hpcncf_analysis.advice.next_job import Purpose
from hpcncf_analysis.advice.text import CHOICE_NAMES, all_rows_note, all_rows_table
from hpcncf_analysis.report.section import (
    BulletList,
    CodeBlock,
    Paragraph,
    ReportData,
    Section,
    SectionPart,
)

PURPOSES: Final[dict[Purpose, str]] = {
    "repeat": "To repeat",
    "next": "Next",
    "fastest": "The fastest",
    "cheapest": "The least core-hours",
}


def build(data: ReportData) -> Section:
    """Section with the advised request; empty without advice."""
    parts: list[SectionPart] = []
    if data.table and (table := all_rows_table(data.table)):
        parts += [table, Paragraph(all_rows_note(data.table), note=True)]
    for written in data.written:
        advice = written.advice
        title = PURPOSES[advice.purpose]
        if advice.purpose == "cheapest" and data.table:
            title = f"The {CHOICE_NAMES['cheapest']}"
        parts += [
            Paragraph(f"{title}: {advice.chosen.label}"),
            BulletList(advice.reasons),
            CodeBlock(f"hpcncf submit {written.job}", "sh"),
        ]
    if data.written:
        first = data.written[0]
        parts += [
            Paragraph(f"The first job file, {first.job.name}:"),
            CodeBlock(first.advice.job_yaml.strip(), "yaml"),
            Paragraph("The same request for a batch script of your own:"),
            CodeBlock(first.advice.sbatch.strip(), "sh"),
        ]
    return Section("next", "What to ask for next", parts)
