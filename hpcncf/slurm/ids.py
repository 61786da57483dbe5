"""Slurm's names of jobs: `12_3` is element 3 of the array 12, `12` a job of its own. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def master(job_id: str) -> str:
    """What names all of an array: Slurm is asked by it, not by each of thousands of elements."""
    return job_id.partition("_")[0]


def masters(job_ids: Iterable[str]) -> list[str]:
    """Each once."""
    return sorted({master(job_id) for job_id in job_ids})


def elements(job_id: str) -> list[str]:
    """`66_[2-4,7%2]` -> 66_2, 66_3, 66_4, 66_7: those that never started share a row."""
    found = re.fullmatch(r"(\d+)_\[([\d,-]+)(?:%\d+)?\]", job_id)
    if not found:
        return [job_id]
    spans = [span.partition("-") for span in found.group(2).split(",") if span]
    return [
        f"{found.group(1)}_{number}"
        for first, _, last in spans
        for number in range(int(first), int(last or first) + 1)
    ]


def together(job_ids: Sequence[str]) -> list[str]:
    """`12_[0-3,7]` for the elements of an array: few words for thousands of jobs."""
    arrays: dict[str, list[int]] = {}
    for job_id in dict.fromkeys(job_ids):
        array, _, element = job_id.partition("_")
        arrays.setdefault(array, []).extend([int(element)] if element.isdecimal() else [])
    return [
        word
        for array, numbers in arrays.items()
        for word in (_of_array(array, sorted(numbers)) if numbers else [array])
    ]


def _of_array(array: str, numbers: Sequence[int]) -> list[str]:
    spans: list[tuple[int, int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in spans]
    return [f"{array}_{texts[0]}"] if len(numbers) == 1 else [f"{array}_[{','.join(texts)}]"]
