"""Slurm's compressed lists: of hosts, and of a number per node."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

# A host name's parts: plain text, or numbers in brackets.
PART = re.compile(r"\[([^\]]*)\]|([^\[\],]+)")


def hosts(nodelist: str) -> list[str]:
    """`rack[1-2]n[03-04],login` -> rack1n03, rack1n04, rack2n03, rack2n04, login."""
    return [host for name in _names(nodelist) for host in _expanded(name)]


def first_host(nodelist: str) -> str:
    """`cpu[03-05,9],gpu1` -> `cpu03`."""
    found = hosts(nodelist)
    assert found, nodelist
    return found[0]


def per_node(compressed: str) -> list[int]:
    """`2(x3),1` -> [2, 2, 2, 1]; empty where it is none of Slurm's."""
    found: list[int] = []
    for part in compressed.split(","):
        number = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if number is None:
            return []
        found += [int(number[1])] * int(number[2] or 1)
    return found


def _names(nodelist: str) -> list[str]:
    """Cut at the commas outside of brackets."""
    return re.findall(r"(?:\[[^\]]*\]|[^\[\],])+", nodelist)


def _expanded(name: str) -> list[str]:
    parts = [list(_numbers(numbers)) if numbers else [text] for numbers, text in PART.findall(name)]
    return ["".join(chosen) for chosen in itertools.product(*parts)]


def _numbers(ranges: str) -> Iterator[str]:
    """`01-03,7` -> 01, 02, 03, 7: the first number's zeros tell the width."""
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        for number in range(int(first), int(last or first) + 1):
            yield str(number).zfill(len(first))
