"""One short job that checks a compute node before the runs are submitted."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeVar
from uuid import uuid4

from hpcncf.data.manifest import content_key
from hpcncf.errors import HpcncfError
from hpcncf.job.plan import Run
from hpcncf.job.spec import JobSpec, Program, Resources
from hpcncf.launch.job_arrays import raise_refusals
from hpcncf.launcher.allocation import allocated_cores
from hpcncf.monitor.cgroup import memory_limit, usable
from hpcncf.paths import ResultPaths
from hpcncf.records.host import package_versions
from hpcncf.records.schema import (
    Number,
    Record,
    RecordError,
    read_record,
    write_record,
)
from hpcncf.records.submissions import user
from hpcncf.slurm import batch_script
from hpcncf.slurm.batch_script import make_private_folder
from hpcncf.slurm.query import cancel, job_states
from hpcncf.slurm.site import load_site
from hpcncf.slurm.states import NOT_OVER, JobState

ANSWER: Final = "answer.json"
# The first import of torch from a slow file system is slow.
IMPORT_S: Final = 180
# These decide what a run computes; other versions may differ.
SAME: Final = ("hpcncf", "torch", "numpy", "submitit", "pydantic")
POLL_S: Final = 1.0
# A file written on a node may appear here this long after the job ended (NFS caches folders).
VISIBLE_S: Final = 15
LIMIT_MIN: Final = 10
MOST_WORDS: Final = 200
ACTIVE: Final = (*NOT_OVER, "unknown")
T = TypeVar("T")


@dataclass(frozen=True)
class Question:
    data: dict[str, str | None]
    """Prepared folder -> its key."""
    programs: list[str]
    """First words of commands."""
    files: list[str]
    """Words of commands that are files here."""
    torch: bool
    """Whether a run needs it."""


class Answer(Record):
    kind: Literal["answer"] = "answer"
    node: str
    python: str
    executable: str
    versions: dict[str, str | None]
    torch_problem: str | None
    """Why torch cannot be imported there."""
    data: dict[str, str | None]
    """Prepared folder -> its key there; None if it does not exist."""
    missing: list[str]
    """Programs and files that do not exist there."""
    allocated: Number | None
    usable: Number
    limit_mib: Number | None


def answer(folder: str, question: Question) -> None:
    """Called on the node by the check's job; leaves an Answer in the folder."""
    limit = memory_limit()
    programs = [name for name in question.programs if shutil.which(name) is None]
    reply = Answer(
        node=os.uname().nodename,
        python=platform.python_version(),
        executable=sys.executable,
        versions=package_versions(),
        torch_problem=_torch_problem() if question.torch else None,
        data={path: _key(Path(path)) for path in question.data},
        missing=[*programs, *(name for name in question.files if not Path(name).exists())],
        allocated=allocated_cores(),
        usable=usable(),
        limit_mib=limit.value if limit else None,
    )
    write_record(Path(folder) / ANSWER, reply)


def _torch_problem() -> str | None:
    """Import torch in another process: a build for another CPU would kill this one."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", "import torch"],
            capture_output=True,
            text=True,
            timeout=IMPORT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"not within {IMPORT_S} s"
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]


def _key(folder: Path) -> str | None:
    try:
        return content_key(folder)
    except HpcncfError as error:
        return str(error)


def differences(
    question: Question, answer: Answer, versions: Mapping[str, str | None]
) -> Iterator[str]:
    """Why runs would fail on the node, or compute something else; `versions` of this machine."""
    node = f"the node {answer.node}"
    if answer.python != platform.python_version():
        yield f"{node} runs Python {answer.python}, here it is {platform.python_version()}"
    for name in SAME:
        there, here = answer.versions.get(name), versions.get(name)
        if there != here:
            yield (
                f"{node} has {name} {there or 'not installed'}, here it is "
                f"{here or 'not installed'}: its Python is {answer.executable}"
            )
    if answer.torch_problem:
        yield f"{node} cannot import torch: {answer.torch_problem}"
    missing = []
    for path, key in question.data.items():
        there = answer.data.get(path)
        if there is None:
            missing.append(path)
        elif there != key:
            yield f"{node} sees other data in {path} (key {there[:60]}, here {key})"
    for path in [*missing, *answer.missing]:
        yield f"{node} does not see {path}: is it on a file system that compute nodes share?"
    if answer.allocated is not None and answer.usable < answer.allocated:
        yield (
            f"{node} allocated {answer.allocated:g} cores, but the job may use {answer.usable:g}"
        )


def check(paths: ResultPaths, job: JobSpec, runs: list[Run], wait_s: float) -> Answer:
    """A node's answer. Raises HpcncfError if it differs from this machine, or never comes."""
    question = build_question(runs)
    logs = paths.submitit(user())
    make_private_folder(logs)
    folder = logs / f"check-{uuid4().hex[:12]}"
    make_private_folder(folder)
    with raise_refusals():
        executor = batch_script.build_executor(
            folder, job, load_site(job.site), single_rank(runs[0].resources)
        )
        job_id = str(executor.submit(answer, str(folder), question).job_id)
    try:
        reply = _wait(folder, job_id, wait_s)
    except BaseException:  # Ctrl-C, too: the job is of no use any more
        with contextlib.suppress(HpcncfError):
            cancel([job_id])
        raise
    if _poll(lambda: _has_ended(job_id), VISIBLE_S):  # submitit writes there until then
        shutil.rmtree(folder, ignore_errors=True)
    problems = list(differences(question, reply, package_versions()))
    if problems:
        raise HpcncfError("\n".join([*problems, "nothing is submitted"]))
    return reply


def build_question(runs: list[Run]) -> Question:
    programs, files = dict[str, None](), dict[str, None]()
    for run in runs:
        if isinstance(run.workload, Program):
            folder, (first, *words) = Path(run.workload.folder), run.words
            programs[str(folder / first) if "/" in first else first] = None
            readable = [str(folder / word) for word in words if os.access(folder / word, os.R_OK)]
            files |= dict.fromkeys([str(folder), *readable])
    return Question(
        data={run.data.path: run.data_key for run in runs if run.data},
        programs=list(programs)[:MOST_WORDS],
        files=list(files)[:MOST_WORDS],
        torch=any(run.training for run in runs),
    )


def single_rank(resources: Resources) -> Resources:
    """One rank of these resources, for some minutes."""
    kept = resources.model_dump(include={"cpus_per_task", "gpus_per_node", "mem_gb"})
    return Resources(**kept, timeout_min=min(resources.timeout_min, LIMIT_MIN))


def _wait(folder: Path, job_id: str, wait_s: float) -> Answer:
    deadline = time.monotonic() + wait_s
    state: JobState | None = None
    while time.monotonic() < deadline:
        if reply := _read_answer(folder):
            return reply
        state = job_states([job_id], []).get(job_id)
        if state and state.state not in ACTIVE:
            # The job has ended; its file may be on its way.
            delay_s = VISIBLE_S if state.state == "completed" else 2 * POLL_S
            if reply := _poll(lambda: _read_answer(folder), delay_s):
                return reply
            log = "".join(
                log.read_text(errors="replace") for log in sorted(folder.glob("*_log.err"))
            )
            raise HpcncfError(f"{describe_failure(state, log, folder)} (job {job_id})")
        time.sleep(POLL_S)
    why = f": {state.reason}" if state and state.reason else ""
    raise HpcncfError(
        f"no node answered within {wait_s:g} s; job {job_id} is "
        f"{state.state if state else 'unknown to Slurm'}{why}. It is cancelled and nothing is "
        "submitted. Wait longer with --check-node SECONDS, or submit without a check."
    )


def _has_ended(job_id: str) -> bool:
    state = job_states([job_id], []).get(job_id)
    return state is None or state.state not in ACTIVE


def _read_answer(folder: Path) -> Answer | None:
    list(folder.iterdir())  # makes NFS read the folder again
    try:
        return read_record(folder / ANSWER, Answer)
    except RecordError:
        return None


def _poll(read: Callable[[], T], seconds: float) -> T:
    """The first true result, or the last one after these seconds."""
    deadline = time.monotonic() + seconds
    while True:
        result = read()
        if result or time.monotonic() > deadline:
            return result
        time.sleep(POLL_S)


# Messages of slurmstepd, and of the shells that start Python, for a program that does not exist.
_NO_PROGRAM: Final = re.compile(
    r"(?:execve\(\): |^sh: \d+: exec: |^sh: line \d+: (?:exec: )?)"
    r"(.+?): (?:No such file or directory|not found)"
)


def describe_failure(state: JobState, log: str, folder: Path) -> str:
    """Why the check's job ended without an answer, as far as its log shows."""
    lines = log.strip().splitlines()
    node = f"the node {state.node}" if state.node else "the node"
    missing = next((match[1] for line in lines if (match := _NO_PROGRAM.search(line))), None)
    if missing:
        return (
            f"{node} cannot start Python: {missing}: No such file or directory. Is the "
            "environment on a file system that compute nodes share? Or name another with venv in "
            "the site file. Nothing is submitted"
        )
    if not lines:
        return (
            f"{node} does not see {folder}, or not the same folder: its job ended ({state.reason}) "
            "and left no log here. Put the results on a file system that compute nodes share, with "
            "--results DIR. Nothing is submitted"
        )
    return f"{node} ended the check ({state.reason}): {lines[-1]}; log in {folder}"
