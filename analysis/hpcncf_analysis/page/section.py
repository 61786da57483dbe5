"""What a page consists of: sections with parts of a few kinds, told apart from their look. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from hpcncf_analysis.table import Table


@dataclass(frozen=True)
class Words:
    kind: ClassVar[str] = "words"
    text: str
    note: bool = False
    """Small print."""


@dataclass(frozen=True)
class Points:
    kind: ClassVar[str] = "points"
    items: Sequence[str]


@dataclass(frozen=True)
class Pairs:
    """Names, and what belongs to each."""

    kind: ClassVar[str] = "pairs"
    items: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Grid:
    kind: ClassVar[str] = "grid"
    table: Table
    sortable: bool = False
    title: str = ""
    in_markdown: int = 20
    """Rows that Markdown shows: GitHub takes 65,536 characters."""


@dataclass(frozen=True)
class Code:
    kind: ClassVar[str] = "code"
    text: str
    language: str


@dataclass(frozen=True)
class Drawn:
    """One figure, in every format that is asked for."""

    name: str
    title: str
    caption: str
    svg: str
    png: bytes
    pdf: bytes


@dataclass(frozen=True)
class Figures:
    """Drawings that stand side by side where the page is wide enough."""

    kind: ClassVar[str] = "figures"
    drawn: Sequence[Drawn]


Part = Words | Points | Pairs | Grid | Code | Figures


@dataclass(frozen=True)
class Section:
    name: str
    """Its anchor."""
    title: str
    parts: Sequence[Part]
    folded: bool = False
    """Closed until somebody asks for it; open on paper."""
