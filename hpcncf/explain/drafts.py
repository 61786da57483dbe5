"""Collect the values that a text gives for each job, while it is read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Draft:
    """Values read so far about one job; of two for one field the heavier wins, then the first."""

    id: str = ""
    at: int = 0
    """The line that mentions it first."""
    values: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, int] = field(default_factory=dict)
    labels: set[str] = field(default_factory=set)
    first_label: str = ""
    notes: list[str] = field(default_factory=list)
    source: str = ""
    is_row: bool = False
    """Whether it was read from a table, so that sentences around it need not mean it."""
    is_aside: bool = False
    """Whether it is only what sentences around a table say."""
    text: list[str] = field(default_factory=list)
    """The lines it was read from, for its dialect."""

    def see(self, name: str, value: object, weight: int = 1) -> None:
        if name not in self.values or weight > self.weights[name]:
            self.values[name] = value
            self.weights[name] = weight


class Drafts:
    """The jobs of a text, by id; figures before the first id belong to the first job."""

    def __init__(self) -> None:
        self.all: list[Draft] = []
        self._by_id: dict[str, Draft] = {}
        self.current: Draft | None = None
        self.line = 0
        """The line that is read."""
        self.of_request = False
        """Whether the lines below a heading are what was requested."""
        self.nameless: dict[int, dict[str, Any]] = {}
        """Rows of tables without an id, by line: they belong to the job around them."""

    def in_order(self) -> list[Draft]:
        return sorted(self.all, key=lambda draft: draft.at)

    def aside(self) -> Draft:
        """Return the draft of the job that a sentence is about, which is no row of a table."""
        if self.current is not None and self.current.is_row:
            self.current = next((draft for draft in self.all if draft.is_aside), None)
            if self.current is None:
                self.fresh().is_aside = True
        return self.here()

    def of(self, job_id: str) -> Draft:
        """Return the draft of the job with this id, and make it the current one."""
        if job_id not in self._by_id:
            nameless = self.current if self.current and not self.current.id else None
            draft = nameless or self._new()
            draft.id = job_id
            self._by_id[job_id] = draft
        self.current = self._by_id[job_id]
        self.current.at = min(self.current.at, self.line)
        return self.current

    def rename(self, job_id: str) -> None:
        """Give the current job another id, such as an array element's; the old one stays valid."""
        draft = self.here()
        draft.id = job_id
        self._by_id.setdefault(job_id, draft)

    def of_task(self, job_id: str, task: str) -> Draft:
        """Return the draft of a task of an array; the first gets what was seen of the job."""
        name = f"{job_id}.{task}"
        if name not in self._by_id and (first := self._by_id.get(job_id)) and first.id == job_id:
            first.id = name
            self._by_id[name] = first
        return self.of(name)

    def here(self) -> Draft:
        if self.current is None:
            self.current = self._new()
        return self.current

    def fresh(self) -> Draft:
        """Begin a draft of a job without an id, and make it the current one."""
        self.current = self._new()
        return self.current

    def _new(self) -> Draft:
        draft = Draft(at=self.line)
        self.all.append(draft)
        return draft
