"""Runs cases one after another: a failing one is reported and does not stop the rest."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from benchmarks.programs import CorpusResult
from benchmarks.verbs import VerbFailed
from pathology.case import CASES, Case, Need
from pathology.start import Bench, Said

TRIES: Final = 3
DISTURBED: Final = 0.15
"""Share of a case's cores: so much lost to others makes the job another one than was meant."""
STILL_S: Final = 5.0
"""For so long the machine may stand still, and the job is still the one that was meant."""


@dataclass(frozen=True)
class Result:
    """What came of a case."""

    case: Case
    said: Said | None
    problem: str | None = None
    """Why nothing was said."""
    tries: int = 1

    @property
    def verdict(self) -> str:
        return self.said.verdict if self.said else "failed"

    @property
    def right(self) -> bool:
        return self.verdict == self.case.label

    def row(self) -> CorpusResult:
        notes = [self.problem.replace("|", "/")] if self.problem else []
        if self.tries > 1:
            notes.append(f"try {self.tries}: the machine was disturbed")
        if self.disturbed and not self.right:
            notes.append(f"disturbed: {self.disturbed}")
        return CorpusResult(
            program="; ".join([f"{self.case.name}: {self.case.why}", *notes]),
            expected=(self.case.label,),
            found=self.verdict,
            line="",
            right_cause=self.right,
            right_line=None,
            seconds=self.said.took_s if self.said else 0.0,
        )

    @property
    def disturbed(self) -> str | None:
        """By what, where the machine made the job another one than was meant."""
        if self.said is None:
            return None
        if self.said.longest_s > STILL_S:
            return f"the machine stood still for {self.said.longest_s:.0f} s"
        others = self.said.others_cores
        # no one can separate others from its own neighbour.
        if not self.case.beside.neighbour and others > DISTURBED * self.case.cores:
            return f"others or the hypervisor used {others:.1f} cores"
        return None


def named(words: Sequence[str]) -> list[Case]:
    """The cases of these causes or names; of no words, all."""
    return [
        case
        for case in CASES
        if not words or any(f"{case.name}.".startswith(f"{word}.") for word in words)
    ]


def possible(cases: Iterable[Case], here: set[Need]) -> tuple[list[Case], list[Case]]:
    """Those that can be made with what the machine allows, and the others."""
    cases = list(cases)
    can = [case for case in cases if case.required <= here]
    return can, [case for case in cases if case not in can]


def settled(case: Case, bench: Bench, tries: int = TRIES) -> Result:
    """Tried again where the machine was disturbed, and the diagnosis another than the label: it
    may then be the truth. What the last try says counts."""
    for number in range(1, max(1, tries) + 1):
        result = replace(once(case, bench), tries=number)
        if result.right or not result.disturbed:
            break
    return result


def once(case: Case, bench: Bench) -> Result:
    shutil.rmtree(bench.results(case), ignore_errors=True)
    try:
        bench.prepare(case)
        return Result(case, bench.start(case))
    except (VerbFailed, OSError) as problem:
        return Result(case, None, f"{type(problem).__name__}: {problem}")


def again(case: Case, bench: Bench) -> Result:
    """The diagnosis of the results that an earlier start of the case left."""
    try:
        return Result(case, bench.said(bench.results(case), 0.0))
    except (VerbFailed, OSError) as problem:
        return Result(case, None, f"{type(problem).__name__}: {problem}")
