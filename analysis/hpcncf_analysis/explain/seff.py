"""seff's summary. Pure.

Source: contribs/seff/seff in Slurm's repository, its print statements. `Cores per node` is cut to a
whole number there, so the cores come from core-walltime over wall-clock time where both are told.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from hpcncf_analysis.explain.amounts import mebibytes, seconds, share, whole
from hpcncf_analysis.explain.job import Job

ONLY_ENDED: Final = (
    "seff reads Slurm's accounting, which counts the steps that have ended: of a running job "
    "it tells too little, and that is left out"
)

LONGEST: Final = 300


def read_seff(text: str) -> list[Job]:
    """Every `Job ID:` block that says more than its id."""
    return [_job(told) for told in _blocks(text) if len(told) > 2]


def _blocks(text: str) -> Iterator[dict[str, str]]:
    told: dict[str, str] = {}
    for line in text.splitlines():
        # A longer line is none of seff's, and matching it would take its length squared.
        found = re.match(r"\s*([A-Z][A-Za-z/ -]*?)\s*:\s+(\S.*?)\s*$", line[:LONGEST])
        if found and found[1] == "Job ID":
            yield told
            told = {"Job ID": found[2]}
        elif found and told:
            told.setdefault(found[1], found[2])
        elif told and "Efficiency not available" in line:
            told["CPU Efficiency"] = "not available"
    yield told


def _job(told: Mapping[str, str]) -> Job:
    state = told.get("State", "").split()
    elapsed_s = seconds(told.get("Job Wall-clock time", ""))
    _, _, asked = told.get("Memory Efficiency", "").partition(" of ")
    estimated = "estimated" in told.get("Memory Utilized", "")
    word = state[0] if state else ""
    used = Used() if word == "RUNNING" else _used(told)
    return Job(
        source="seff",
        id=told.get("Array Job ID", told["Job ID"]),
        state=word,
        exit_code=whole(_exit(told.get("State", ""))),
        nodes=whole(told.get("Nodes", "1")),
        cores=_cores(told, elapsed_s),
        elapsed_s=elapsed_s,
        cpu_s=used.cpu_s,
        told_efficiency=used.efficiency,
        memory_mib=used.memory_mib,
        memory_asked_mib=mebibytes(asked.split("(")[0]),
        told_memory_efficiency=used.memory_efficiency,
        notes=(
            *([ONLY_ENDED] if word == "RUNNING" else []),
            *(["seff calls its memory an estimate"] if estimated else []),
        ),
    )


def _exit(state: str) -> str:
    found = re.search(r"\(exit code (\d+)\)", state)
    return found[1] if found else ""


class Used(NamedTuple):
    cpu_s: float | None = None
    efficiency: float | None = None
    memory_mib: float | None = None
    memory_efficiency: float | None = None


def _used(told: Mapping[str, str]) -> Used:
    return Used(
        seconds(told.get("CPU Utilized", "")),
        share(told.get("CPU Efficiency", "")),
        mebibytes(told.get("Memory Utilized", "").split("(")[0]),
        share(told.get("Memory Efficiency", "")),
    )


def _cores(told: Mapping[str, str], elapsed_s: float | None) -> int | None:
    walltime = re.search(r"of (\S+) core-walltime", told.get("CPU Efficiency", ""))
    reserved_s = seconds(walltime[1]) if walltime else None
    if reserved_s and elapsed_s:
        return round(reserved_s / elapsed_s)
    if "Cores" in told:
        return whole(told["Cores"])
    nodes, each = whole(told.get("Nodes", "1")), whole(told.get("Cores per node", ""))
    return nodes * each if nodes and each else None
