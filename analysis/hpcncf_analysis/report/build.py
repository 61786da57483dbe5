"""Build a report: collect, analyse, render, write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Final

from hpcncf.collect.collect import Collected
from hpcncf.files import make_folder, set_shared_mode, write_text
from hpcncf.paths import ResultPaths
from hpcncf_analysis.advice.next_job import (
    Advice,
    WrittenAdvice,
    judge_job,
    measured_remedies,
    write_advice,
)
from hpcncf_analysis.advice.text import conclude
from hpcncf_analysis.configurations import completed_runs, group_configurations
from hpcncf_analysis.diagnosis.evidence import Diagnosis
from hpcncf_analysis.planned_job import read_planned_job
from hpcncf_analysis.quality import at_equal_epochs
from hpcncf_analysis.report import render as rendering
from hpcncf_analysis.report.alerts import find_alerts
from hpcncf_analysis.report.section import FigureRow, Paragraph, ReportData, Section, omit_failure
from hpcncf_analysis.report.sections import (
    causes,
    compared,
    conditions,
    cores,
    model_quality,
    next_request,
    ranks,
    resources,
    runs,
    side_by_side,
    speed_up,
    step,
)
from hpcncf_analysis.scaling import describe_peaks

Row = Mapping[str, Any]

INCOMPLETE: Final = (
    "Not all runs are complete; the figures are of those that are. The others stand under “Runs "
    "that are not complete”."
)
# More sentences about where speed peaks are on the page.
MAX_PEAKS: Final = 3
# In reading order.
BUILDERS: Final[dict[str, Callable[[ReportData], Section]]] = {
    "compared": compared.build,
    "speed": speed_up.build,
    "causes": causes.build,
    "remedies": causes.build_remedies,
    "packing": side_by_side.build,
    "step": step.build,
    "cores": cores.build,
    "gpus": resources.build_gpus,
    "ranks": ranks.build,
    "quality": model_quality.build,
    "epochs": model_quality.build_epochs,
    "memory": resources.build_memory,
    "unfinished": runs.build_unfinished,
    "attempts": runs.build_attempts,
    "runs": runs.build,
    "warnings": runs.build_warnings,
    "environment": conditions.build,
    "definitions": conditions.build_definitions,
    "next": next_request.build,
}


def write_report(
    found: Collected,
    paths: ResultPaths,
    diagnoses: Mapping[str, Diagnosis],
    quality: float | None = None,
) -> ReportData:
    """Write the report of the collected tables; every file is written atomically.

    `diagnoses`: by run. `quality`: the HR@10 to which the time is shown.
    """
    data = gather_data(found, paths, diagnoses, quality)
    sections = build_sections(data)
    figures = paths.report / "figures"
    for part in (part for section in sections for part in section.parts):
        for drawn in part.drawn if isinstance(part, FigureRow) else ():
            for file_format, content in drawn.files.items():
                _write_bytes(figures / f"{drawn.name}.{file_format}", content)
    page = template_context(data, sections)
    write_text(paths.report / "report.html", rendering.render_html(page))
    write_text(paths.report / "report.md", rendering.render_markdown(page))
    return data


def terminal_sentences(data: ReportData) -> list[str]:
    """Sentences for a terminal: where speed peaks, and which setup reaches the quality first."""
    parts = model_quality.time_to_quality_parts(data)
    reached = [part.text for part in parts if isinstance(part, Paragraph)]
    return [*describe_peaks(data.shown)[:MAX_PEAKS], *reached]


def gather_data(
    found: Collected,
    paths: ResultPaths,
    diagnoses: Mapping[str, Diagnosis],
    quality: float | None = None,
) -> ReportData:
    """Analyse the collected tables, write the advised job files, and return the report's data."""
    complete = completed_runs(found.runs)
    shown = group_configurations(at_equal_epochs(complete, found.epochs))
    alerts: list[str] = []
    with omit_failure("comparison of the runs with each other") as failed:
        alerts += find_alerts(complete, shown)
    planned = read_planned_job(paths)
    outcomes = measured_remedies(shown, planned, diagnoses)
    table = judge_job(shown, planned, diagnoses)
    written = write_advice(table, planned, paths, diagnoses)
    base = next((one.key for one in shown if planned.of(one) == planned.base), None)
    advised: dict[str, tuple[Advice, str]] = {
        each.advice.purpose: (each.advice, how_to_submit(each)) for each in written
    }
    return ReportData(
        found=found,
        shown=shown,
        conclusion=conclude(
            shown, found.counts(), table, diagnoses, outcomes, base, advised, planned.of_trials
        ),
        table=table,
        outcomes=outcomes,
        alerts=[*alerts, *failed, *([INCOMPLETE] if shown and not found.complete else [])],
        diagnoses=diagnoses,
        written=written,
        paths=paths,
        quality=quality,
    )


def build_sections(data: ReportData) -> list[Section]:
    """Build the sections that have something to show; a failing one becomes a sentence."""
    built = []
    for name, build in BUILDERS.items():
        with omit_failure(f"section “{name}”") as problems:
            built.append(build(data))
        built += [Section(name, "Left out", [Paragraph(text, True)]) for text in problems]
    return [section for section in built if section.parts]


def how_to_submit(written: WrittenAdvice) -> str:
    """Sentence on how to submit advice; a command of many settings is at the end of the report."""
    if written.overrides:
        return "Its command is at the end."
    return f"Submit it with `{written.command(shown_path(written.job))}`."


def shown_path(path: Path) -> str:
    """Path relative to the current folder if it is inside that folder, else unchanged."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def template_context(data: ReportData, sections: Sequence[Section]) -> dict[str, Any]:
    """Everything that the report's templates show, by the name they use."""
    found = data.found
    title = "; ".join(sorted({row["data_title"] for row in found.runs if row["data_title"]}))
    if not title and all(row["workload"] == "command" for row in found.runs):
        title = "a command"
    counts = ", ".join(f"{number} {state}" for state, number in sorted(found.counts().items()))
    return {
        "job": found.job,
        "data": title or "the prepared data is not here any more: its title is not known",
        "counts": counts or "no runs",
        "conclusion": data.conclusion,
        "alerts": data.alerts,
        "sections": sections,
        "lead": next(
            (
                part.drawn[0]
                for section in sections
                for part in section.parts
                if isinstance(part, FigureRow) and part.drawn and not section.folded
            ),
            None,
        ),
    }


def _write_bytes(path: Path, content: bytes) -> None:
    make_folder(path.parent)
    with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as partial:
        partial.write(content)
        set_shared_mode(partial.fileno(), path.parent)
    Path(partial.name).replace(path)
