"""How jobs end, and what the accounting then says of them and their steps.

All are submitted at once: the accounting of the real one tells of them some seconds later.
"""

from __future__ import annotations

import os
import re

import pytest

from slurm.conformance.conftest import Slurm, wait

ME = os.getuid()
# Script, options, and the rows: what follows the job's id, state and exit code.
Case = tuple[str, list[str], list[str]]
DONE, KEPT = "COMPLETED|0:0", ".extern|COMPLETED|0:0"
CASES: dict[str, Case] = {
    "succeeds": ("true", [], [f"|{DONE}", f".batch|{DONE}", KEPT]),
    "exits with 3": ("exit 3", [], ["|FAILED|3:0", ".batch|FAILED|3:0", KEPT]),
    "is killed by a signal": ("kill -9 $$", [], ["|FAILED|0:9", ".batch|CANCELLED|0:9", KEPT]),
    "goes on after a step that failed": (
        "srun sh -c 'exit 4'; true",
        [],
        [f"|{DONE}", f".batch|{DONE}", KEPT, ".0|FAILED|4:0"],
    ),
    "has two steps": (
        "srun true; srun true",
        [],
        [f"|{DONE}", f".batch|{DONE}", KEPT, f".0|{DONE}", f".1|{DONE}"],
    ),
    "ends with its step's code": (
        "srun sh -c 'exit 5'",
        [],
        ["|FAILED|5:0", ".batch|FAILED|5:0", KEPT, ".0|FAILED|5:0"],
    ),
    "loses one rank and kills the other": (
        "srun --kill-on-bad-exit=1 sh -c 'test $SLURM_PROCID = 0 || exit 5; exec sleep 60'",
        ["--ntasks=2", "--nodes=1"],
        # The step's own row is `FAILED|5:0` or `CANCELLED|0:15`: which rank's end is told last.
        ["|FAILED|15:0", ".batch|FAILED|15:0", KEPT],
    ),
    "names no program that there is": (
        "srun /no/such/program",
        [],
        ["|FAILED|2:0", ".batch|FAILED|2:0", KEPT, ".0|FAILED|2:0"],
    ),
    "cannot write its log": (
        "true",
        ["--output=/no/such/folder/log"],
        ["|FAILED|0:53", ".batch|CANCELLED|0:53", KEPT],
    ),
}


@pytest.fixture(scope="module")
def jobs(slurm: Slurm) -> dict[str, str]:
    submitted = {
        case: slurm.submit(script, *options) for case, (script, options, _) in CASES.items()
    }
    for job in submitted.values():
        wait(lambda job=job: slurm.queued(job, "%T") in (["COMPLETED"], ["FAILED"]))
    return submitted


@pytest.mark.parametrize("case", CASES)
def test_a_job_that(slurm: Slurm, jobs: dict[str, str], case: str) -> None:
    job, wanted = jobs[case], CASES[case][2]
    rows = [f"{job}{row}" for row in wanted]
    # Since 23.11 srun passes on the death by SIGTERM that --kill-on-bad-exit was, and a script runs
    # though its log cannot be opened.
    later = [row.replace("FAILED|15:0", "FAILED|143:0") for row in rows]
    if case == "cannot write its log":
        later = [f"{job}|{DONE}", f"{job}.batch|{DONE}", f"{job}{KEPT}"]
    wait(lambda: slurm.accounted(job)[: len(rows)] in (rows, later), lambda: slurm.accounted(job))


def test_srun_names_the_rank_and_the_node_that_failed(slurm: Slurm, jobs: dict[str, str]) -> None:
    said = "\n".join(slurm.said(jobs["loses one rank and kills the other"]))
    assert re.search(r"^srun: error: node\d: task 1: Exited with exit code 5$", said, re.M)


def test_squeue_gives_the_exit_code_as_wait_does(slurm: Slurm, jobs: dict[str, str]) -> None:
    asked = ["squeue", "--noheader", "--states=all", "--Format=State:|,Reason:|,exit_code:|"]
    shown = slurm.run(*asked, "-j", jobs["exits with 3"]).strip()
    assert shown in ("FAILED|NonZeroExitCode|768|", "FAILED|NonZeroExitCode|3:0|")  # since 23.11


def test_a_job_cancelled_before_its_start_has_no_step(slurm: Slurm) -> None:
    job = slurm.submit("true", "--hold")
    slurm.soon(job, f"{job}|PENDING|JobHeldUser", form="%i|%T|%r")
    slurm.run("scancel", job)
    rows = [f"{job}|CANCELLED by {ME}|0:0"]
    wait(lambda: slurm.accounted(job) == rows, lambda: slurm.accounted(job))


def test_cancelling_tells_the_tasks_and_the_script_before_it_kills(slurm: Slurm) -> None:
    """To a file of its own: srun, which is told as well, may pass nothing on any more."""
    task = "trap 'echo task >> told; exit' TERM; echo began; while :; do sleep 0.1; done"
    job = slurm.submit(f"trap 'echo script >> told' TERM; srun sh -c \"{task}\"")
    wait(lambda: "began" in slurm.said(job))
    slurm.run("scancel", job)
    told = slurm.folder / "told"
    wait(lambda: told.exists() and set(told.read_text().split()) == {"task", "script"})
    rows = [f"{job}|CANCELLED by {ME}|0:0"]
    wait(lambda: slurm.accounted(job, "-X") == rows, lambda: slurm.accounted(job))
    wait(lambda: not slurm.run("squeue", "--noheader", "--format=%i").split().count(job))
    assert slurm.run("scancel", job) == "", "a second time there is nothing to say"


def test_a_signal_goes_to_the_tasks_and_not_to_the_script(slurm: Slurm) -> None:
    task = "trap 'echo USR2; exit 0' USR2; echo began; while :; do sleep 0.1; done"
    job = slurm.submit(f'srun sh -c "{task}"; echo after')
    wait(lambda: "began" in slurm.said(job))
    slurm.run("scancel", "--signal=USR2", job)
    wait(lambda: slurm.said(job) == ["began", "USR2", "after"], lambda: slurm.said(job))
    slurm.soon(job, "COMPLETED")
