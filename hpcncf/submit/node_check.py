"""One short job that checks a compute node before the many."""

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
from pathlib import Path
from typing import Final, Literal, TypeVar
from uuid import uuid4

from hpcncf.errors import HpcncfError
from hpcncf.job.command import Program
from hpcncf.job.plan import Run
from hpcncf.job.spec import JobSpec, Resources
from hpcncf.monitor.cgroup import memory_limit, usable
from hpcncf.ncf.data.manifest import content_key
from hpcncf.paths import ResultPaths
from hpcncf.records.host import package_versions
from hpcncf.records.schema import SCHEMA_VERSION, RecordError, RecordPart, read_record, write_record
from hpcncf.records.submissions import user
from hpcncf.slurm import batch_script
from hpcncf.slurm.batch_script import make_private_folder
from hpcncf.slurm.query import cancel, job_states
from hpcncf.slurm.states import NOT_OVER, JobState
from hpcncf.submit.arrays import raise_refusals
from hpcncf.worker.environment import granted_cores

QUESTION: Final = "question.json"
ANSWER: Final = "answer.json"
# Loading torch from a slow file system for the first time takes its time.
IMPORT_S: Final = 180
# These decide what a run computes; others may differ.
SAME: Final = ("hpcncf", "torch", "numpy", "submitit", "pydantic")


class Question(RecordPart):
    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["question"] = "question"
    nonce: str
    """Told again in the answer, so that both are of the same folder."""
    data: dict[str, str | None]
    """Prepared folder -> its key."""
    programs: list[str]
    """First words of commands."""
    files: list[str]
    """Words of commands that are files here."""
    torch: bool
    """Whether a run needs it."""


class Answer(RecordPart):
    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["answer"] = "answer"
    nonce: str
    node: str
    python: str
    executable: str
    versions: dict[str, str | None]
    torch_problem: str | None
    """Why it does not import there."""
    data: dict[str, str | None]
    """Prepared folder -> its key there; None: there is none."""
    missing: list[str]
    """Programs and files that are not there."""
    allocated: float | None
    usable: float
    limit_mib: float | None


def answer(folder: str) -> None:
    """What the check's job calls on its node."""
    asked = read_record(Path(folder) / QUESTION, Question)
    limit = memory_limit()
    files = [name for name in asked.files if not Path(name).exists()]
    told = Answer(
        nonce=asked.nonce,
        node=os.uname().nodename,
        python=platform.python_version(),
        executable=sys.executable,
        versions=package_versions(),
        torch_problem=_torch_problem() if asked.torch else None,
        data={path: _key(Path(path)) for path in asked.data},
        missing=[*(name for name in asked.programs if shutil.which(name) is None), *files],
        allocated=granted_cores(),
        usable=usable(),
        limit_mib=limit.value if limit else None,
    )
    write_record(Path(folder) / ANSWER, told)


def _torch_problem() -> str | None:
    """In a process of its own: one that was built for another CPU dies of it."""
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


def differences(asked: Question, told: Answer, here: Mapping[str, str | None]) -> Iterator[str]:
    """Why runs would fail on that node, or not compute what they would here; `here`: versions."""
    node = f"the node {told.node}"
    if told.python != platform.python_version():
        yield f"{node} runs Python {told.python}, here it is {platform.python_version()}"
    for name in SAME:
        there, ours = told.versions.get(name), here.get(name)
        if there != ours:
            yield (
                f"{node} has {name} {there or 'not installed'}, here it is {ours or 'not there'}: "
                f"its Python is {told.executable}"
            )
    if told.torch_problem:
        yield f"{node} cannot import torch: {told.torch_problem}"
    for path, data_key in asked.data.items():
        yield from _data_differs(node, path, data_key, told.data.get(path))
    for name in told.missing:
        yield f"{node} does not see {name}: is it on a file system that compute nodes share?"
    if told.allocated is not None and told.usable < told.allocated:
        yield f"{node} allocated {told.allocated:g} cores, but the job may use {told.usable:g}"


def _data_differs(node: str, path: str, key: str | None, there: str | None) -> Iterator[str]:
    if there is None:
        yield f"{node} does not see {path}: is it on a file system that compute nodes share?"
    elif there != key:
        yield f"{node} sees other data in {path} than this machine (key {there[:60]}, here {key})"


POLL_S: Final = 1.0
# How long a file may take from a node to here after its job has ended (NFS caches folders).
VISIBLE_S: Final = 15
LIMIT_MIN: Final = 10
MOST_WORDS: Final = 200
GOING: Final = (*NOT_OVER, "unknown")
T = TypeVar("T")


def check(paths: ResultPaths, job: JobSpec, runs: list[Run], wait_s: float) -> Answer:
    """What a node answers. Raises HpcncfError where it sees something else, or never answers."""
    asked = question(runs)
    logs = paths.submitit(user())
    make_private_folder(logs)
    folder = logs / f"check-{asked.nonce}"
    make_private_folder(folder)
    write_record(folder / QUESTION, asked)
    job_id = _send(folder, job, shape(runs[0].resources))
    try:
        told = _wait(folder, job_id, wait_s)
    except BaseException:  # Ctrl-C, too: the job is of use to nobody
        with contextlib.suppress(HpcncfError):
            cancel([job_id])
        raise
    if _first(lambda: _ended(job_id), VISIBLE_S):  # until then, submitit writes there
        shutil.rmtree(folder, ignore_errors=True)
    problems = list(differences(asked, told, package_versions()))
    if problems:
        raise HpcncfError("\n".join([*problems, "nothing is submitted"]))
    return told


def question(runs: list[Run]) -> Question:
    programs = [run for run in runs if isinstance(run.workload, Program)]
    return Question(
        nonce=uuid4().hex[:12],
        data={run.data.path: run.data_key for run in runs if run.data},
        programs=list(dict.fromkeys(_program(run) for run in programs))[:MOST_WORDS],
        files=list(dict.fromkeys(file for run in programs for file in _files(run)))[:MOST_WORDS],
        torch=any(run.training for run in runs),
    )


def _folder(run: Run) -> Path:
    assert isinstance(run.workload, Program)
    return Path(run.workload.folder)


def _program(run: Run) -> str:
    first = run.words[0]
    return str(_folder(run) / first) if "/" in first else first


def _files(run: Run) -> list[str]:
    """Where the program runs, and those of its words that are files there."""
    words = (_folder(run) / word for word in run.words[1:])
    return [str(_folder(run)), *(str(path) for path in words if os.access(path, os.R_OK))]


def shape(resources: Resources) -> Resources:
    """One rank of it, for some minutes."""
    one = {"nodes": 1, "tasks_per_node": 1, "runs_per_task": 1, "launcher": "srun"}
    one |= {"runs_per_node": 1, "runs_per_gpu": 1, "ranks_per_gpu": 1, "mps": False}
    shorter = min(resources.timeout_min, LIMIT_MIN)
    return resources.model_copy(update=one | {"timeout_min": shorter})


def _send(folder: Path, job: JobSpec, resources: Resources) -> str:
    with raise_refusals():
        executor = batch_script.executor(folder, job, resources)
        return str(executor.submit(answer, str(folder)).job_id)


def _wait(folder: Path, job_id: str, wait_s: float) -> Answer:
    deadline = time.monotonic() + wait_s
    state: JobState | None = None
    while time.monotonic() < deadline:
        told = _answer(folder)
        if told:
            return told
        state = job_states([job_id], []).get(job_id)
        if state and state.state not in GOING:
            return _last(folder, state, job_id)
        time.sleep(POLL_S)
    why = f": {state.reason}" if state and state.reason else ""
    raise HpcncfError(
        f"no node answered within {wait_s:g} s; job {job_id} is "
        f"{state.state if state else 'unknown to Slurm'}{why}. It is cancelled and nothing is "
        "submitted: --check-node SECONDS waits longer, without it the runs are queued unchecked"
    )


def _ended(job_id: str) -> bool:
    state = job_states([job_id], []).get(job_id)
    return state is None or state.state not in GOING


def _answer(folder: Path) -> Answer | None:
    list(folder.iterdir())  # NFS: look at the folder anew
    try:
        return read_record(folder / ANSWER, Answer)
    except RecordError:
        return None


def _last(folder: Path, state: JobState, job_id: str) -> Answer:
    """The job has ended; its file may be on its way."""
    seconds = VISIBLE_S if state.state == "completed" else 2 * POLL_S
    told = _first(lambda: _answer(folder), seconds)
    if told is None:
        raise HpcncfError(f"{explained(state, _log(folder), folder)} (job {job_id})")
    return told


def _first(found: Callable[[], T], seconds: float) -> T:
    """As soon as there is something, or whatever there is in the end."""
    deadline = time.monotonic() + seconds
    while True:
        told = found()
        if told or time.monotonic() > deadline:
            return told
        time.sleep(POLL_S)


def _log(folder: Path) -> str:
    logs = sorted(folder.glob("*_log.err"))
    return "".join(log.read_text(errors="replace") for log in logs)


# What slurmstepd says of a program that is not there, and the shells that start Python for it.
_NO_PROGRAM: Final = re.compile(
    r"(?:execve\(\): |^sh: \d+: exec: |^sh: line \d+: (?:exec: )?)"
    r"(.+?): (?:No such file or directory|not found)"
)


def explained(state: JobState, log: str, folder: Path) -> str:
    """Why the check's job ended without an answer, as far as its traces tell."""
    lines = log.strip().splitlines()
    node = f"the node {state.node}" if state.node else "the node"
    missing = next((found[1] for line in lines if (found := _NO_PROGRAM.search(line))), None)
    if missing:
        return (
            f"{node} cannot start Python: {missing}: No such file or directory. Is the "
            "environment on a file system that compute nodes share? Or name one there: venv in "
            "the site file. Nothing is submitted"
        )
    if not lines:
        return (
            f"{node} does not see {folder}, or not the same folder: its job ended ({state.reason}) "
            "and left no log here. Results must lie on a file system that compute nodes share: "
            "--results DIR. Nothing is submitted"
        )
    return f"{node} ended the check ({state.reason}): {lines[-1]}; log in {folder}"
