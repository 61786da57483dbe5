"""Build a report: collect, analyse, render, write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from hpcncf.collect.collect import Collected
from hpcncf.paths import ResultPaths
from hpcncf.records.schema import (
    NodeRecord,
    RankRecord,
    RecordError,
    TrainingRecord,
    read_record,
    write_text,
)
from hpcncf_analysis.advice.next_job import (
    Advice,
    WrittenAdvice,
    judge_job,
    measured_remedies,
    read_request,
    write_advice,
)
from hpcncf_analysis.advice.text import Conclusion, conclude
from hpcncf_analysis.alerts import find_alerts
from hpcncf_analysis.configurations import Configuration, completed_runs, group_configurations
from hpcncf_analysis.diagnosis.diagnose import diagnose_results
from hpcncf_analysis.diagnosis.evidence import Diagnosis
from hpcncf_analysis.diagnosis.predictions import score
from hpcncf_analysis.formatting import format_percent
from hpcncf_analysis.report import html as rendering
from hpcncf_analysis.report import timeline
from hpcncf_analysis.report.figures.cores import CoreTrace
from hpcncf_analysis.report.figures.draw import draw_figures, recommended_and_slowest
from hpcncf_analysis.report.section import RenderedFigure, ReportData, omit_failure
from hpcncf_analysis.report.sections import build_sections, terminal_sentences
from hpcncf_analysis.report.timeline import Timeline

Row = Mapping[str, Any]

INCOMPLETE = (
    "Not all runs are complete; the figures are of those that are. The others stand under “Runs "
    "that are not complete”."
)


@dataclass(frozen=True)
class Report:
    conclusion: Conclusion
    html: Path
    markdown: Path
    figures: list[Path]
    advised: Sequence[WrittenAdvice]
    """The job files; empty if nothing can be advised."""
    peaks: Sequence[str]
    """For a terminal: the sizes at which speed peaks, and the first to reach the quality."""


def write_report(
    found: Collected,
    paths: ResultPaths,
    quality: float | None = None,
    diagnoses: Mapping[str, Diagnosis] | None = None,
) -> Report:
    """Write the report of what was collected, each file whole.

    `quality`: the HR@10 to which the time is told. `diagnoses`: by run, where they were made while
    the records were read; else the records are read once more.
    """
    if diagnoses is None:
        diagnoses = diagnose_results(paths, found.runs)
    material = gather_data(found, paths, diagnoses, quality)
    page = template_context(material)
    html, markdown = paths.report / "report.html", paths.report / "report.md"
    folder = paths.report / "figures"
    figures = [path for each in material.figures.values() for path in _write_figure(each, folder)]
    write_text(html, rendering.render_html(page))
    write_text(markdown, rendering.render_markdown(page))
    peaks = terminal_sentences(material)
    return Report(material.conclusion, html, markdown, figures, material.written, peaks)


def gather_data(
    found: Collected,
    paths: ResultPaths,
    diagnoses: Mapping[str, Diagnosis],
    quality: float | None = None,
) -> ReportData:
    """What the analysis finds in the tables and, for what no table holds, in the records."""
    shown = group_configurations(found.runs)
    frame = found.frames()["runs"]
    counted = [row["run_id"] for row in completed_runs(found.runs)]
    said = find_alerts(frame[frame["run_id"].isin(counted)], shown)
    planned = read_request(paths)
    outcomes = measured_remedies(shown, planned, diagnoses)
    table = judge_job(shown, planned, diagnoses)
    written = write_advice(table, planned, paths, diagnoses)
    base = next((one.key for one in shown if planned.of(one) == planned.base), None)
    advised: dict[str, tuple[Advice, str]] = {
        each.advice.purpose: (each.advice, shown_path(each.job)) for each in written
    }
    front = [row.one for row in table.judged if row.beaten_by is None] if table else []
    chosen = table.candidate.one if table and table.candidate else None
    watched = busiest_and_idlest(found.runs, shown, paths)
    over_time: dict[str, Timeline] = {}
    with omit_failure("timeline") as failed:
        over_time = build_timelines(shown, chosen, paths)
    figures, not_drawn = draw_figures(found, shown, watched, over_time, chosen, front)
    return ReportData(
        found=found,
        shown=shown,
        conclusion=conclude(shown, found.counts(), table, diagnoses, outcomes, base, advised),
        table=table,
        outcomes=outcomes,
        alerts=[
            *said,
            *([INCOMPLETE] if shown and not found.complete else []),
            *failed,
            *not_drawn,
        ],
        diagnoses=diagnoses,
        written=written,
        score=score(paths, found.runs),
        figures=figures,
        timelines=over_time,
        quality=quality,
    )


def shown_path(path: Path) -> str:
    """The path as a user would type it here."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def busiest_and_idlest(
    runs: Sequence[Row], shown: Sequence[Configuration], paths: ResultPaths
) -> list[CoreTrace]:
    """The busiest and the idlest completed run by CPU efficiency; one where they are the same."""
    labels = {one.key: one.label for one in shown}
    ordered = sorted(
        (row for row in completed_runs(runs) if row["cpu_efficiency"] is not None),
        key=lambda row: (row["cpu_efficiency"], row["run_id"]),
    )
    named = list(zip(("Busiest", "Idlest"), ordered[:-2:-1] + ordered[:1], strict=False))
    if len(ordered) == 1:
        named = [("The run", ordered[0])]
    return [
        CoreTrace(
            f"{name}: {labels[row['config']]}, CPU efficiency "
            f"{format_percent(row['cpu_efficiency'])}",
            _nodes(paths, row),
        )
        for name, row in named
    ]


def build_timelines(
    shown: Sequence[Configuration], chosen: Configuration | None, paths: ResultPaths
) -> dict[str, Timeline]:
    """By label; without those of too few steps. `chosen` is recommended."""
    rows = timeline.select_runs(recommended_and_slowest(shown, chosen), shown)
    found = {label: _first_rank(paths, row) for label, row in rows.items()}
    told = {label: timeline.build_timeline(part) for label, part in found.items() if part}
    return {label: each for label, each in told.items() if each}


def _first_rank(paths: ResultPaths, row: Row) -> TrainingRecord | None:
    record = paths.run(row["run_id"]).attempt(row["attempt"]).rank(0)
    try:
        return read_record(record, RankRecord).training
    except RecordError:
        return None  # collect has named it among the skipped


def _nodes(paths: ResultPaths, row: Row) -> list[NodeRecord]:
    found = []
    for path in paths.run(row["run_id"]).attempt(row["attempt"]).node_records():
        try:
            found.append(read_record(path, NodeRecord))
        except RecordError:
            continue  # collect has named it among the skipped
    return found


def template_context(material: ReportData) -> dict[str, Any]:
    """Everything that the templates show, under the names they use."""
    found = material.found
    titles = {row["data_title"] for row in found.runs if row["data_title"]}
    counts = ", ".join(f"{number} {state}" for state, number in sorted(found.counts().items()))
    return {
        "job": found.job,
        "data": "; ".join(sorted(titles)) or _no_title(found.runs),
        "counts": counts or "no runs",
        "conclusion": material.conclusion,
        "alerts": material.alerts,
        "sections": build_sections(material),
    }


def _no_title(runs: Sequence[Row]) -> str:
    if all(row["workload"] == "command" for row in runs):
        return "a command"
    return "the prepared data is not here any more: its title is not known"


def _write_figure(drawn: RenderedFigure, folder: Path) -> list[Path]:
    svg = folder / f"{drawn.name}.svg"
    write_text(svg, drawn.svg)
    others = {"png": drawn.png, "pdf": drawn.pdf}
    return [svg, *(_write_bytes(svg.with_suffix(f".{end}"), what) for end, what in others.items())]


def _write_bytes(path: Path, content: bytes) -> Path:
    with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as partial:
        partial.write(content)
    Path(partial.name).chmod(path.with_suffix(".svg").stat().st_mode)
    Path(partial.name).replace(path)
    return path
