"""What to ask for next: all configurations judged, the job file, and other choices as settings."""

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
        parts.append(Paragraph(f"{title}: {advice.chosen.label}"))
        if not written.overrides or advice.purpose == "repeat":
            parts.append(BulletList(advice.reasons))
        parts.append(CodeBlock(written.command(str(written.job)), "sh"))
    for written in data.written:
        if not written.overrides:
            parts += [
                Paragraph(f"The job file, {written.job.name}:"),
                CodeBlock(written.advice.job_yaml.strip(), "yaml"),
                Paragraph("The same request for a batch script of your own:"),
                CodeBlock(written.advice.sbatch.strip(), "sh"),
            ]
    return Section("next", "What to ask for next", parts)
