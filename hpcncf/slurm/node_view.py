"""What a compute node sees of the files and packages that runs need; asked and told as files."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Literal

from hpcncf import environment, records
from hpcncf.errors import HpcncfError
from hpcncf.monitor import cores
from hpcncf.ncf.data import manifest
from hpcncf.rank import launcher
from hpcncf.records import SCHEMA_VERSION, Part

QUESTION: Final = "question.json"
ANSWER: Final = "answer.json"
# Loading torch from a slow file system for the first time takes its time.
IMPORT_S: Final = 180
# These decide what a run computes; others may differ.
SAME: Final = ("hpcncf", "torch", "numpy", "submitit", "pydantic")


class Question(Part):
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


class Answer(Part):
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
    asked = records.read_records(Path(folder) / QUESTION, Question)
    limit = cores.memory_limit()
    files = [name for name in asked.files if not Path(name).exists()]
    told = Answer(
        nonce=asked.nonce,
        node=os.uname().nodename,
        python=platform.python_version(),
        executable=sys.executable,
        versions=environment.versions(),
        torch_problem=_torch_problem() if asked.torch else None,
        data={path: _key(Path(path)) for path in asked.data},
        missing=[*(name for name in asked.programs if shutil.which(name) is None), *files],
        allocated=launcher.granted_cores(),
        usable=cores.usable(),
        limit_mib=limit.value if limit else None,
    )
    records.write(Path(folder) / ANSWER, told)


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
        return manifest.key(folder)
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
    for path, key in asked.data.items():
        yield from _data_differs(node, path, key, told.data.get(path))
    for name in told.missing:
        yield f"{node} does not see {name}: is it on a file system that compute nodes share?"
    if told.allocated is not None and told.usable < told.allocated:
        yield f"{node} allocated {told.allocated:g} cores, but the job may use {told.usable:g}"


def _data_differs(node: str, path: str, key: str | None, there: str | None) -> Iterator[str]:
    if there is None:
        yield f"{node} does not see {path}: is it on a file system that compute nodes share?"
    elif there != key:
        yield f"{node} sees other data in {path} than this machine (key {there[:60]}, here {key})"
