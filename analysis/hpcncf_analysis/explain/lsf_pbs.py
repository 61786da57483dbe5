"""Read summaries of LSF and PBS."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from hpcncf_analysis.explain.parsers import Job, mebibytes, number, parse_count, seconds, share

# Source: IBM Spectrum LSF 10.1 command reference, bjobs ("CPU AVERAGE EFFICIENCY", since Fix Pack
# 14) and lsb.params, CPU_PEAK_SAMPLE_DURATION (a peak is of 60 s unless the site says otherwise).
# The report is what LSF mails or appends to the output file: "Resource usage summary:".

NOTHING_ASKED: Final = "LSF writes MEM Efficiency 0.00% where the job asked for no memory"
NOT_YET: Final = "LSF has not looked at it yet: its CPU peak is over 0 seconds"
DERIVED: Final = "the number of cores is CPU PEAK over CPU PEAK EFFICIENCY: the text has none"

_JOB: Final = re.compile(r"^[ \t]*(?:Subject: )?Job <?(\d+(?:\[\d+\])?)[>:]", re.MULTILINE)
_AVERAGE: Final = r"CPU average efficiency\s*:\s*(\d+(?:\.\d+)?\s?%)"
_PEAK: Final = r"CPU peak efficiency\s*:\s*(\d+(?:\.\d+)?\s?%)"
# As people quote it: without "average", and beside the two times alone.
_QUOTED: Final = r"CPU efficiency\s*:?\s*(\d+(?:\.\d+)?\s?%)"
_SECONDS: Final = r"\s*:?\s*(\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?)\s*s(?:ec(?:onds?|\.)?)?\b"
_CPU_TIME: Final = rf"CPU time{_SECONDS}"
_RUN_TIME: Final = rf"Run time{_SECONDS}"
_MARKS: Final = (_AVERAGE, r"Resource usage summary:", r"The CPU time used is", _CPU_TIME)
# Where the number of cores stands, the most certain first.
_SLOTS: Final = (
    r"Allocated (\d+) Slot",
    r"Started (\d+) (?:Task|Processor)",
    r"#BSUB\s+-n\s+(\d+)",
    r"\b(\d+) (?:Task\(s\)|Processors Requested)",
    r"\b(\d+) (?:cores|slots|CPUs|processors)\b",
)
_STATES_S: Final = r"PEND\s+PSUSP\s+RUN\s+USUSP\s+SSUSP\s+UNKWN\s+TOTAL\s+\d+\s+\d+\s+(\d+)"
_LIMIT: Final = (r"RUNLIMIT\s+(\d+(?:\.\d+)?) min", r"#BSUB\s+-W\s+(\d+(?::\d+)?)")
_STATES: Final = (
    (r"\b(TERM_[A-Z]+)\b", ""),
    (r"Status <(\w+)>", ""),
    (r"Successfully completed", "DONE"),
    (r"Done successfully", "DONE"),
    (r"Exited with exit code", "EXIT"),
)


def read_lsf(text: str) -> list[Job]:
    # bjobs -l breaks lines anywhere, and begins their rest with 21 blanks.
    unfolded = re.sub(r"\r?\n {21}(?=\S)", "", text)
    return [
        _job(job_id, block)
        for job_id, block in _blocks(unfolded, _JOB)
        if any(re.search(mark, block, re.IGNORECASE) for mark in _MARKS)
    ]


def _blocks(text: str, start: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """Id and text of each job, and first what stands before them, without an id."""
    parts = start.split(text)
    yield "", parts[0]
    yield from zip(parts[1::2], parts[2::2], strict=True)


def _job(job_id: str, block: str) -> Job:
    average = share(_first(block, _AVERAGE) or _first(block, _QUOTED))
    peak = share(_first(block, _PEAK))
    cores, how = _cores(block, peak)
    watched_s = number(_first(block, r"CPU peak duration\s*:\s*(\d+)"))
    memory_mib = _memory(block, "Max Mem(?:ory)?")
    of_asked = share(_first(block, r"MEM Efficiency\s*:\s*(\d+(?:\.\d+)?\s?%)"))
    notes = (
        how,
        watched_s == 0 and NOT_YET,
        of_asked == 0 and bool(memory_mib) and NOTHING_ASKED,
    )
    # The report's run time, or bhist's column RUN.
    elapsed = _first(block, _RUN_TIME).replace(",", "") or _first(block, _STATES_S)
    cpu = _first(block, _CPU_TIME) or _first(block, r"The CPU time used is (\S+) seconds")
    states = (word or found[1] for pattern, word in _STATES if (found := re.search(pattern, block)))
    return Job(
        source="LSF",
        id=job_id,
        state=next(states, ""),
        exit_code=parse_count(_first(block, r"Exited with exit code (\d+)")),
        cores=cores,
        elapsed_s=number(elapsed),
        limit_s=_limit(block),
        cpu_s=number(cpu.replace(",", "")),
        printed_efficiency=None if watched_s == 0 and not average else average,
        peak_efficiency=peak or None,
        memory_mib=memory_mib,
        memory_asked_mib=_memory(block, "Total Requested Memory"),
        printed_memory_efficiency=of_asked or None,
        notes=tuple(note for note in notes if note),
    )


def _first(text: str, pattern: str) -> str:
    found = re.search(pattern, text, re.IGNORECASE)
    return found[1] if found else ""


def _cores(block: str, peak: float | None) -> tuple[int | None, str]:
    for pattern in _SLOTS:
        if cores := parse_count(_first(block, pattern)):
            return cores, ""
    ran_on = block.partition("executed on host(s)")[2].partition("Your job looked like")[0]
    if slots := sum(map(int, re.findall(r"<(\d{1,6})\*[\w.-]+>", ran_on))):
        return slots, ""
    at_once = number(_first(block, r"CPU peak\s*:\s*(\d+(?:\.\d+)?)"))
    if at_once and peak:
        return max(round(at_once / peak), 1), DERIVED
    return None, ""


def _limit(block: str) -> float | None:
    """Minutes, or hours and minutes."""
    for pattern in _LIMIT:
        text = _first(block, pattern)
        if text:
            return seconds(f"{text}:00") if ":" in text else 60 * (number(text) or 0) or None
    return None


def _memory(block: str, name: str) -> float | None:
    return mebibytes(_first(block, rf"{name}\s*:\s*(\d+(?:\.\d+)?\s*[KMGT]\w*)"))


# Source: the PBS Professional user's guide, `qstat(1B)`, `pbs_job_attributes(7B)`; Torque's manual
# (`nodes=1:ppn=16`). `cpupercent` is left out: each host's PBS smooths it, and it is no mean.

_JOB_PBS: Final = re.compile(r"^[ \t]*Job Id:[ \t]*(\S+)", re.MULTILINE)
ONLY_MOTHER: Final = (
    "PBS counts what runs under its own daemons: processes that ssh or another launcher started "
    "on further nodes are missing"
)


def read_pbs(text: str) -> list[Job]:
    return [
        _job_pbs(job_id, block)
        for job_id, block in _blocks(text.replace("\n\t", ""), _JOB_PBS)
        if "resources_used" in block
    ]


def _job_pbs(job_id: str, block: str) -> Job:
    # Resource -> its value, of `resources_used.mem = 5944kb` and the like.
    used, asked = (
        dict(re.findall(rf"\b{attribute}\.(\w+)\s*=\s*([^\s,]+)", block))
        for attribute in ("resources_used", "Resource_List")
    )
    nodes = parse_count(asked.get("nodect", ""))
    chunks = re.split(r"\+", asked.get("select", "") or asked.get("nodes", ""))
    return Job(
        source="PBS",
        id=job_id,
        state=_first(block, r"\bjob_state\s*=\s*(\w)"),
        # Below 0 it is PBS's own reason, and no exit code.
        exit_code=parse_count(_first(block, r"\bExit_status\s*=\s*(\d+)")),
        nodes=nodes,
        cores=parse_count(asked.get("ncpus", ""))
        or parse_count(used.get("ncpus", ""))
        or sum(map(_cores_of_chunk, chunks))
        or None,
        elapsed_s=seconds(used.get("walltime", "")),
        limit_s=seconds(asked.get("walltime", "")),
        cpu_s=seconds(used.get("cput", "")),
        memory_mib=mebibytes(used.get("mem", "")),
        memory_asked_mib=mebibytes(asked.get("mem", "")),
        notes=(ONLY_MOTHER,) if nodes and nodes > 1 else (),
    )


def _cores_of_chunk(chunk: str) -> int:
    """`2:ncpus=16`, `1:ppn=16`, `node07:ppn=4`, `3`; 0 for one that has neither."""
    each = re.search(r"(?:ncpus|ppn)=(\d{1,6})", chunk)
    count = re.match(r"(\d{1,6})(?::|$)", chunk)
    if not each and not count:
        return 0
    return (int(count[1]) if count else 1) * (int(each[1]) if each else 1)
