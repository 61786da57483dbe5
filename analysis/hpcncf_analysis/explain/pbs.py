"""PBS's resource summary: `qstat -f`, `tracejob`, a job's epilogue. Pure.

Source: the PBS Professional user's guide and `qstat(1B)`, `pbs_job_attributes(7B)`; Torque's manual
(`nodes=1:ppn=16`). `cpupercent` is left out: each host's PBS smooths it, and it is no mean.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from hpcncf_analysis.explain.amounts import mebibytes, seconds, whole
from hpcncf_analysis.explain.job import Job

ONLY_MOTHER: Final = (
    "PBS counts what runs under its own daemons: processes that ssh or another launcher started "
    "on further nodes are missing"
)


def read_pbs(text: str) -> list[Job]:
    return [
        _job_pbs(job_id, _told(block, "resources_used"), _told(block, "Resource_List"), block)
        for job_id, block in _blocks_pbs(text.replace("\n\t", ""))
        if "resources_used" in block
    ]


def _blocks_pbs(text: str) -> Iterator[tuple[str, str]]:
    parts = re.split(r"^[ \t]*Job Id:[ \t]*(\S+)", text, flags=re.MULTILINE)
    yield "", parts[0]
    yield from zip(parts[1::2], parts[2::2], strict=True)


def _told(block: str, attribute: str) -> dict[str, str]:
    """Resource -> its value, of `resources_used.mem = 5944kb` and the like."""
    return dict(re.findall(rf"\b{attribute}\.(\w+)\s*=\s*([^\s,]+)", block))


def _job_pbs(job_id: str, used: Mapping[str, str], asked: Mapping[str, str], block: str) -> Job:
    state = re.search(r"\bjob_state\s*=\s*(\w)", block)
    nodes = whole(asked.get("nodect", ""))
    return Job(
        source="PBS",
        id=job_id,
        state=state[1] if state else "",
        exit_code=whole(_exit(block)),
        nodes=nodes,
        cores=_cores_pbs(used, asked),
        elapsed_s=seconds(used.get("walltime", "")),
        limit_s=seconds(asked.get("walltime", "")),
        cpu_s=seconds(used.get("cput", "")),
        memory_mib=mebibytes(used.get("mem", "")),
        memory_asked_mib=mebibytes(asked.get("mem", "")),
        notes=(ONLY_MOTHER,) if nodes and nodes > 1 else (),
    )


def _exit(block: str) -> str:
    """Below 0 it is PBS's own reason, and no exit code."""
    found = re.search(r"\bExit_status\s*=\s*(\d+)", block)
    return found[1] if found else ""


def _cores_pbs(used: Mapping[str, str], asked: Mapping[str, str]) -> int | None:
    for told in (asked.get("ncpus", ""), used.get("ncpus", "")):
        if cores := whole(told):
            return cores
    chunks = re.split(r"\+", asked.get("select", "") or asked.get("nodes", ""))
    return sum(map(_of_chunk, chunks)) or None


def _of_chunk(chunk: str) -> int:
    """`2:ncpus=16`, `1:ppn=16`, `node07:ppn=4`, `3`; 0 for one that has neither."""
    each = re.search(r"(?:ncpus|ppn)=(\d{1,6})", chunk)
    count = re.match(r"(\d{1,6})(?::|$)", chunk)
    if not each and not count:
        return 0
    return (int(count[1]) if count else 1) * (int(each[1]) if each else 1)
