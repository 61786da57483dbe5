"""A report's sections and their parts, and the material they are made from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

from matplotlib.figure import Figure

from hpcncf.collect.collect import Collected
from hpcncf.paths import ResultPaths
from hpcncf.table import Table
from hpcncf_analysis.advice.judge import Judgement, Outcomes
from hpcncf_analysis.advice.next_job import WrittenAdvice
from hpcncf_analysis.advice.text import StudyConclusion
from hpcncf_analysis.configurations import Configuration, completed_runs
from hpcncf_analysis.diagnosis.evidence import Diagnosis
from hpcncf_analysis.formatting import format_interval, format_number
from hpcncf_analysis.report.figure_style import FORMATS, fix_layout, report_style, save_figure

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Paragraph:
    kind: ClassVar[str] = "words"
    text: str
    note: bool = False
    """Small print."""


@dataclass(frozen=True)
class BulletList:
    kind: ClassVar[str] = "points"
    items: Sequence[str]


@dataclass(frozen=True)
class DefinitionList:
    """Part of a report that lists names with their descriptions."""

    kind: ClassVar[str] = "pairs"
    items: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class CodeBlock:
    kind: ClassVar[str] = "code"
    text: str
    language: str


@dataclass(frozen=True)
class RenderedFigure:
    name: str
    title: str
    caption: str
    files: Mapping[str, bytes]
    """Format -> content of the file."""


@dataclass(frozen=True)
class FigureRow:
    """Drawings shown side by side if the page is wide enough."""

    kind: ClassVar[str] = "figures"
    drawn: Sequence[RenderedFigure]


SectionPart = Paragraph | BulletList | DefinitionList | Table | CodeBlock | FigureRow


@dataclass(frozen=True)
class Section:
    name: str
    """Its anchor."""
    title: str
    parts: Sequence[SectionPart]
    folded: bool = False
    """Closed until somebody asks for it; open on paper."""


@dataclass(frozen=True)
class Column:
    """Column with one figure of a configuration."""

    heading: str
    figure: str
    show: Callable[[float | None], str] = format_number
    has_range: bool = False
    """Whether the range of the repeats stands below the median."""

    def cell(self, one: Configuration) -> str:
        text = self.show(one.median(self.figure))
        if not self.has_range:
            return text
        low, high = (one.median(f"{self.figure}_{end}") for end in ("low", "high"))
        return f"{text}\n{format_interval(low, high, self.show)}".strip()


def figures_table(shown: Sequence[Configuration], columns: Sequence[Column]) -> Table:
    """Table with one row for each configuration, its label first."""
    return Table(
        ["configuration", *(column.heading for column in columns)],
        [[one.label, *(column.cell(one) for column in columns)] for one in shown],
        keys=[[None, *(one.median(column.figure) for column in columns)] for one in shown],
    )


def titled_table(table: Table | None, title: str) -> list[SectionPart]:
    return [replace(table, title=title)] if table else []


@dataclass(frozen=True)
class Drawing:
    """Figure that is drawn when the report is written."""

    name: str
    """Of its files."""
    title: str
    caption: str
    draw: Callable[[], Figure | None]
    """None if there is nothing to show."""


@contextmanager
def omit_failure(part: str) -> Iterator[list[str]]:
    """Suppress any error in the block and yield a list that then describes it.

    Impossible values of one record must not cost the rest of the report.
    """
    problems: list[str] = []
    try:
        yield problems
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error)[:200]}"
        problems.append(
            f"The {part} is left out: a record has values that it cannot use ({reason})."
        )


@dataclass(frozen=True)
class ReportData:
    found: Collected
    shown: Sequence[Configuration]
    conclusion: StudyConclusion
    alerts: Sequence[str]
    table: Judgement | None = None
    outcomes: Outcomes = field(default_factory=dict)
    """What each remedy did that the study has run."""
    diagnoses: Mapping[str, Diagnosis] = field(default_factory=dict)
    """By run."""
    written: Sequence[WrittenAdvice] = ()
    """What is advised, the first before the others."""
    paths: ResultPaths | None = None
    """Of the results folder, for what no table holds; None: records are not read."""
    quality: float | None = None
    """The HR@10 to which the time is asked for."""

    @cached_property
    def runs(self) -> list[Row]:
        """Completed runs that the job file still contains."""
        return completed_runs(self.found.runs)

    @cached_property
    def ranks_by_run(self) -> Mapping[str, list[Row]]:
        found: dict[str, list[Row]] = defaultdict(list)
        for row in self.found.ranks:
            found[row["run_id"]].append(row)
        return found

    @property
    def chosen(self) -> Configuration | None:
        """Recommended configuration, or else the one to improve; None if nothing was judged."""
        row = self.table.candidate if self.table else None
        return row.one if row else None

    @property
    def chosen_and_slowest(self) -> list[Configuration]:
        """Chosen configuration and the slowest one with step phases, each only once."""
        trained = [one for one in self.shown if one.speed and one.median("input_share") is not None]
        slowest = min(trained, key=lambda one: one.speed or 0.0, default=None)
        pair = [one for one in (self.chosen, slowest) if one in trained]
        return list({one.key: one for one in pair if one}.values())

    @property
    def front(self) -> list[Configuration]:
        """Configurations on the Pareto front, which no other beats in time and cost."""
        return [row.one for row in self.table.judged if not row.beaten_by] if self.table else []

    def trained_ranks(self, one: Configuration) -> list[Row]:
        """Rows of the ranks that counted steps, in the first run of a configuration."""
        ranks = self.ranks_by_run[one.rows[0]["run_id"]]
        return [row for row in ranks if row.get("counted_steps")]

    def draw(self, *drawings: Drawing) -> list[SectionPart]:
        """Draw the figures that have data, side by side; a failing one becomes a sentence."""
        drawn: list[RenderedFigure] = []
        problems: list[str] = []
        for drawing in drawings:
            with omit_failure(f"figure “{drawing.title}”") as failed, report_style():
                if figure := drawing.draw():
                    fix_layout(figure)
                    files = {each: save_figure(figure, drawing.name, each) for each in FORMATS}
                    drawn.append(
                        RenderedFigure(drawing.name, drawing.title, drawing.caption, files)
                    )
            problems += failed
        row: list[SectionPart] = [FigureRow(drawn)] if drawn else []
        return [*row, *(Paragraph(text, note=True) for text in problems)]
