"""Rules for job arrays: the index, the logs, the limits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from hpcncf.batch.edits import Edit
from hpcncf.batch.request import parse_array
from hpcncf.batch.script import ARRAY_VARIABLES
from hpcncf.lint.batch_context import Context, find, replace_value
from hpcncf.lint.rules import Complaint

MAX_ARRAY_SIZE: Final = 1001
"""Slurm's default: the largest index is one below it."""
TASKS_OWN: Final = re.compile(r"%\d*[ajJ]")
LSF_TASKS_OWN: Final = re.compile(r"%I")


def check_arrays(context: Context) -> Iterator[Complaint]:
    array = context.request.array
    scheduler = context.script.scheduler
    if array is None or scheduler is None or "$" in array:
        return
    size = parse_array(array)
    if size is not None and size[0] > 1:
        yield from _index(context)
        yield from _logs(context)
    if not context.is_slurm:
        return
    option = context.request.options["array"]
    if size is not None and size[1] >= MAX_ARRAY_SIZE:
        yield find("array-too-large", option.line, largest=size[1])
    throttle = re.search(r"%(\d+)$", array)
    if (
        size is not None
        and throttle
        and throttle[1] == "1"
        and size[0] > 1
        and _index_is_argument(context)
    ):
        text = context.line(option.line)
        mended = replace_value(text, option, array.replace("%1", "%10"))
        yield find("array-throttle", option.line, (Edit(option.line, (mended,)),), tasks=size[0])


def _index_is_argument(context: Context) -> bool:
    names = set(ARRAY_VARIABLES["slurm"])
    return any(
        argument.origins & names for _, stage in context.pythons for argument in stage.arguments
    )


def _index(context: Context) -> Iterator[Complaint]:
    """Find arrays that never use the task index, so that all tasks do the same work."""
    scheduler = context.script.scheduler
    assert scheduler is not None
    names = ARRAY_VARIABLES[scheduler]
    if context.script.uses(*names) or not context.pythons:
        return
    if any(start.stages[-1].kind in ("shell", "program") and _is_own(start.stages[-1].name)
           for start in context.script.starts):  # fmt: skip
        return
    for _, stage in context.pythons:
        facts = context.facts(stage)
        if facts is not None and facts.reads_variables & set(names):
            return
    option = context.request.options.get("array") or context.request.options.get(
        {"lsf": "J", "pbs": "J", "sge": "t"}.get(scheduler, "array")
    )
    yield find("array-index-unused", option.line if option else 1, variable=names[0])


def _is_own(name: str) -> bool:
    """Return whether a program is a shell script of the user, which may read the index itself."""
    return name.endswith((".sh", ".bash")) or name in ("bash", "sh")


def _logs(context: Context) -> Iterator[Complaint]:
    """Find arrays whose tasks all write their output into one file."""
    request = context.request
    names = {"slurm": ("output", "error"), "lsf": ("o", "oo", "e", "eo")}
    own = LSF_TASKS_OWN if context.script.scheduler == "lsf" else TASKS_OWN
    for name in names.get(context.script.scheduler or "", ()):
        option = request.options.get(name)
        if option is None or not option.value or option.value == "/dev/null" or "$" in option.value:
            continue
        if own.search(option.value):
            continue
        mark = "%J_%I" if context.script.scheduler == "lsf" else "%A_%a"
        stem, dot, suffix = option.value.rpartition(".")
        base = re.sub(r"[._-]?%[AJ]$", "", stem if dot and "/" not in suffix else option.value)
        value = f"{base}_{mark}.{suffix}" if dot and "/" not in suffix else f"{base}_{mark}"
        if context.script.scheduler == "lsf" and "%J" in option.value:
            value = option.value.replace("%J", mark)
        text = context.line(option.line)
        edits = (Edit(option.line, (replace_value(text, option, value),)),)
        yield find("array-one-log", option.line, edits, file=option.value)
