"""What hpcncf takes for granted of Slurm's commands: one list of cases for the fake and a real one.

A case gets a `Slurm` that its commands reach in this process's environment. It holds its jobs, so
that none starts.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hpcncf.launch import job_arrays
from hpcncf.slurm import preflight, query
from hpcncf.slurm.query import SACCT, SQUEUE

SCRIPT: Final = "#!/bin/bash\n#SBATCH --hold\n#SBATCH --output=/dev/null\n{more}\ntrue\n"


@dataclass(frozen=True)
class Slurm:
    folder: Path
    limit: Callable[[int], None]
    """Let this account have so many jobs in the queue; -1: any number."""
    eventually: Callable[[Callable[[], bool]], None]
    """Accounting is seconds late on a real one."""

    def attempt(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, cwd=self.folder, capture_output=True, text=True, timeout=60, check=False
        )

    def run(self, *words: str) -> str:
        done = self.attempt(*words)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def send(self, more: str = "", *options: str) -> subprocess.CompletedProcess[str]:
        script = self.folder / "held.sh"
        script.write_text(SCRIPT.format(more=more))
        return self.attempt("sbatch", *options, str(script))

    def submit(self, more: str = "") -> str:
        """The job's id."""
        return self.send(more, "--parsable").stdout.strip()

    def array(self) -> str:
        return self.submit("#SBATCH --array=0-3%2")

    def rows(self, command: Sequence[str], job: str) -> list[list[str]]:
        lines = self.run(*command, "-j", job).splitlines()
        return sorted([cell.strip() for cell in line.split("|")] for line in lines)

    def states(self, *jobs: str) -> dict[str, str]:
        problems = list[str]()
        found = query.job_states(jobs, problems)
        assert not problems
        return {job: found[job].state for job in jobs if job in found}


def sbatch_prints_the_id(slurm: Slurm) -> None:
    assert re.fullmatch(r"Submitted batch job \d+\n", slurm.send().stdout)
    assert re.fullmatch(r"\d+", slurm.submit())


def squeue_has_a_row_for_each_element(slurm: Slurm) -> None:
    job = slurm.array()
    rows = slurm.rows(SQUEUE, job)
    assert [row[:3] for row in rows] == [[f"{job}_{n}", "PENDING", "JobHeldUser"] for n in range(4)]
    assert {len(row) for row in rows} == {len(query.SQUEUE_FIELDS) + 1}, "a bar behind the last"
    assert slurm.states(f"{job}_3") == {f"{job}_3": "pending"}


def squeue_shows_an_array_as_one_row(slurm: Slurm) -> None:
    job = slurm.array()
    text = slurm.run("squeue", "--noheader", f"--user={os.environ.get('USER', 'root')}",
                     "--format=%F|%o|%T|%r")  # fmt: skip
    (row,) = [line.split("|") for line in text.splitlines() if line.startswith(f"{job}|")]
    assert row == [job, str(slurm.folder / "held.sh"), "PENDING", "JobHeldUser"]


def an_element_is_cancelled_alone(slurm: Slurm) -> None:
    job = slurm.array()
    query.cancel([f"{job}_0", f"{job}_1"])
    # Neither command lists it any more.
    slurm.eventually(lambda: slurm.states(f"{job}_0") == {f"{job}_0": "lost"})
    assert slurm.states(f"{job}_2") == {f"{job}_2": "pending"}
    assert job_arrays.query_queued([f"{job}_{n}" for n in range(4)]) == {f"{job}_2", f"{job}_3"}


def sacct_has_the_fields_of_a_cancelled_job(slurm: Slurm) -> None:
    job = slurm.submit()
    slurm.run("scancel", job)
    slurm.eventually(lambda: bool(slurm.rows(SACCT, job)))
    slurm.eventually(lambda: slurm.rows(SACCT, job)[0][1].startswith("CANCELLED"))
    (row,) = slurm.rows(SACCT, job)
    assert (len(row), row[0], row[2]) == (len(query.SACCT_FIELDS), job, "0:0")
    assert query.read_sacct("|".join(row))[job].state == "cancelled"


def an_unknown_job_is_no_problem(slurm: Slurm) -> None:
    assert slurm.states("999999") == {}
    done = slurm.attempt("scontrol", "show", "job", "--oneliner", "999999")
    assert done.returncode == 1
    assert "Invalid job id specified" in done.stderr


def an_array_beyond_the_limit_is_refused(slurm: Slurm) -> None:
    most = int(query.parse_config(slurm.run("scontrol", "show", "config"))["MaxArraySize"])
    done = slurm.send(f"#SBATCH --array=0-{most}")
    assert done.returncode == 1
    assert "sbatch: error: Batch job submission failed: Invalid job array" in done.stderr
    assert slurm.send(f"#SBATCH --array={most - 1}").returncode == 0


def a_full_queue_is_refused_as_full(slurm: Slurm) -> None:
    slurm.limit(2)
    try:
        assert slurm.send("#SBATCH --array=0-1").returncode == 0
        done = slurm.send()
        assert done.returncode == 1
        assert job_arrays.NO_ROOM.search(done.stderr)
    finally:
        slurm.limit(-1)


def nodes_and_partitions_are_shown(slurm: Slurm) -> None:
    nodes = preflight.parse_nodes(slurm.run(*preflight.SHOW, "node"))
    partitions = preflight.parse_partitions(slurm.run(*preflight.SHOW, "partition"))
    assert len(nodes) == 4
    assert all(node.cpus >= 2 and node.mem_mib >= 4000 for node in nodes)
    assert {each.name for each in partitions} == {"cpu", "short", "gpu"}
    assert set(slurm.run("sinfo", "--noheader", "--format=%R").split()) == {"cpu", "short", "gpu"}


def qos_are_listed(slurm: Slurm) -> None:
    text = slurm.run(*preflight.LIST, "qos", "format=name,flags,maxwall")
    assert "normal" in preflight.parse_qos(text)


CASES: Final[tuple[Callable[[Slurm], None], ...]] = (
    sbatch_prints_the_id,
    squeue_has_a_row_for_each_element,
    squeue_shows_an_array_as_one_row,
    an_element_is_cancelled_alone,
    sacct_has_the_fields_of_a_cancelled_job,
    an_unknown_job_is_no_problem,
    an_array_beyond_the_limit_is_refused,
    a_full_queue_is_refused_as_full,
    nodes_and_partitions_are_shown,
    qos_are_listed,
)
