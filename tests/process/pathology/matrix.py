"""What was made against what was said, as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from benchmarks.results import fold
from hpcncf_analysis.diagnosis.evidence import CAUSES
from pathology.case import Case
from pathology.suite import Result

OTHERWISE: Final = ("healthy", "unknown", "failed")


def page(results: Sequence[Result], left_out: Sequence[Case]) -> Iterator[str]:
    """Lines: the score, the misses, then folded the matrix and every job, and what was not made."""
    yield score(results)
    yield ""
    if missed := [each for each in results if not each.right]:
        yield from (*jobs(missed), "")
    yield from fold(
        "All jobs, and which cause was called what", [*confusion(results), "", *jobs(results)]
    )
    yield ""
    yield from not_made(left_out)


def score(results: Sequence[Result]) -> str:
    ill = [each for each in results if each.case.label != "healthy"]
    well = [each for each in results if each.case.label == "healthy"]
    made = {each.case.label for each in ill}
    found = {each.case.label for each in ill if each.right}
    alarms = sum(not each.right for each in well)
    return (
        f"Right as primary cause: {seen(ill)} jobs with a cause. {len(made)} causes were made, "
        f"{len(found)} of them named in one way or more. False alarms: {alarms} of {len(well)} "
        "healthy jobs."
    )


def seen(results: Sequence[Result]) -> str:
    """`9 of 10 (90 %)`."""
    right = sum(each.right for each in results)
    return f"{right} of {len(results)} ({right / len(results):.0%})" if results else "0 of 0"


def confusion(results: Sequence[Result]) -> Iterator[str]:
    """A row for each label that was made; its columns are numbered as the rows are."""
    labels = [*CAUSES, "healthy"]
    number = {label: place for place, label in enumerate(CAUSES, 1)}
    heads = [*(str(number[cause]) for cause in CAUSES), *OTHERWISE]
    yield f"| made | jobs | {' | '.join(heads)} |"
    yield f"|---|---:|{'---:|' * len(heads)}"
    for label in labels:
        said = Counter(each.verdict for each in results if each.case.label == label)
        if said:
            cells = [_cell(said[name], name == label) for name in (*CAUSES, *OTHERWISE)]
            named = f"{number[label]} {label}" if label in number else label
            yield f"| {named} | {said.total()} | {' | '.join(cells)} |"


def _cell(jobs: int, right: bool) -> str:
    if not jobs:
        return ""
    return f"**{jobs}**" if right else str(jobs)


def jobs(results: Sequence[Result]) -> Iterator[str]:
    yield "| job | made by | said | s |"
    yield "|---|---|---|---:|"
    for each in results:
        took = f"{each.said.took_s:.0f}" if each.said else ""
        yield f"| {each.case.name} | {each.case.why} | {_said(each)} | {took} |"


def _said(result: Result) -> str:
    words = "right" if result.right else f"**{result.verdict}**"
    if result.problem:
        words += f": {result.problem.replace('|', '/')}"
    if not result.right and result.said and result.case.label in result.said.secondary:
        words += ", and the cause after it"
    if result.tries > 1:
        words += f" (try {result.tries}: the machine was disturbed)"
    if result.disturbed and not result.right:
        words += f" (disturbed: {result.disturbed})"
    return words


def not_made(left_out: Sequence[Case]) -> Iterator[str]:
    for case in left_out:
        yield f"- Not made here: {case.name}: it needs {' and '.join(sorted(case.required))}."
