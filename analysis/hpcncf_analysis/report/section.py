"""A report's sections and their parts, and the material they are made from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from hpcncf.collect.collect import Collected
from hpcncf_analysis.advice.judge import Judgement, Outcomes
from hpcncf_analysis.advice.next_job import WrittenAdvice
from hpcncf_analysis.advice.text import Conclusion
from hpcncf_analysis.configurations import Configuration, Table, completed_runs
from hpcncf_analysis.diagnosis.evidence import Diagnosis
from hpcncf_analysis.report.timeline import Timeline


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
    """Names, and what belongs to each."""

    kind: ClassVar[str] = "pairs"
    items: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class TableBlock:
    kind: ClassVar[str] = "grid"
    table: Table
    sortable: bool = False
    title: str = ""
    in_markdown: int = 20
    """Rows that Markdown shows: GitHub takes 65,536 characters."""


@dataclass(frozen=True)
class CodeBlock:
    kind: ClassVar[str] = "code"
    text: str
    language: str


@dataclass(frozen=True)
class RenderedFigure:
    """One figure, in every format that is asked for."""

    name: str
    title: str
    caption: str
    svg: str
    png: bytes
    pdf: bytes


@dataclass(frozen=True)
class FigureRow:
    """Drawings that stand side by side where the page is wide enough."""

    kind: ClassVar[str] = "figures"
    drawn: Sequence[RenderedFigure]


Part = Paragraph | BulletList | DefinitionList | TableBlock | CodeBlock | FigureRow


@dataclass(frozen=True)
class Section:
    name: str
    """Its anchor."""
    title: str
    parts: Sequence[Part]
    folded: bool = False
    """Closed until somebody asks for it; open on paper."""


Row = Mapping[str, Any]


@contextmanager
def omit_failure(part: str) -> Iterator[list[str]]:
    """Leave out a part whose block fails, and put a sentence about it in the list: impossible
    values of one record must not cost the rest of the report."""
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
    conclusion: Conclusion
    alerts: Sequence[str]
    table: Judgement | None = None
    outcomes: Outcomes = field(default_factory=dict)
    """What each remedy did that the study has run."""
    diagnoses: Mapping[str, Diagnosis] = field(default_factory=dict)
    """By run."""
    written: Sequence[WrittenAdvice] = ()
    """What is advised, the first before the others."""
    score: Sequence[Row] = ()
    """Predictions, beside what was measured."""
    figures: Mapping[str, RenderedFigure] = field(default_factory=dict)
    timelines: Mapping[str, Timeline] = field(default_factory=dict)
    """By label, of the runs whose steps are shown over time."""
    quality: float | None = None
    """The HR@10 to which the time is asked for."""

    @cached_property
    def runs(self) -> list[Row]:
        """Those that count."""
        return completed_runs(self.found.runs)

    def drawn(self, *names: str) -> list[RenderedFigure]:
        return [self.figures[name] for name in names if name in self.figures]
