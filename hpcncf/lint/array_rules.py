"""Rules for job arrays: the index, the logs, the limits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from hpcncf.batch.edits import Edit
from hpcncf.batch.options import COMMANDS, Option
from hpcncf.batch.request import parse_array
from hpcncf.batch.script import ARRAY_VARIABLES
from hpcncf.lint.batch_context import Context, find, replace_value
from hpcncf.lint.rules import Complaint

MAX_ARRAY_SIZE: Final = 1001
"""Slurm's default: the largest index is one below it."""
TASKS_OWN: Final = re.compile(r"%\d*[ajJ]")
# Lines that only tell the index to the log; not those that write or pass it on.
ONLY_SAYS: Final = re.compile(r"\s*(?:echo|printf)\s[^|>&;`(\\]*")
LSF_TASKS_OWN: Final = re.compile(r"%I")


def check_arrays(context: Context) -> Iterator[Complaint]:
    array = context.request.array
    scheduler = context.script.scheduler
    if array is None or scheduler is None or "$" in array:
        return
    size = parse_array(array)
    if scheduler in ("lsf", "sge") and size is not None:
        yield from _from_zero(context, array)
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


def _array_option(context: Context) -> Option | None:
    options = context.request.options
    names = {"slurm": "array", "lsf": "J", "pbs": "J", "sge": "t"}
    return options.get(names[context.script.scheduler or "slurm"]) or options.get("t")


def _from_zero(context: Context, array: str) -> Iterator[Complaint]:
    """Find arrays that begin at 0, where bsub and Grid Engine's qsub take numbers from 1 on.

    bsub(1), -J: "positive integers"; qsub(1), -t: "an integer greater than 0".
    """
    option = _array_option(context)
    if option is None or not re.search(r"(?:^|,)0(?=$|[-,:%])", array):
        return
    # No correction: what the program does with the index must change, too.
    index = ARRAY_VARIABLES[context.script.scheduler or "lsf"][0]
    mend = f"Its numbers begin at 1; use $(({index} - 1)) where 0 is the first"
    command = COMMANDS[context.script.scheduler or "lsf"]
    yield find("array-syntax", option.line, value=array, command=command, mend=mend)


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
    # An index of another scheduler is another rule's.
    known = {each for group in ARRAY_VARIABLES.values() for each in group}
    used = "\n".join(
        line
        for line in context.script.lines
        if not line.lstrip().startswith("#") and not ONLY_SAYS.fullmatch(line)
    )
    index = rf"\b(?:{'|'.join(known)}|TASK_ID|SLURM_\w*ARRAY\w*)\b"
    if re.search(index, used) or not context.pythons:
        return
    if any(start.stages[-1].kind in ("shell", "program") and _is_own(start.stages[-1].name)
           for start in context.script.starts):  # fmt: skip
        return
    for _, stage in context.pythons:
        facts = context.facts(stage)
        if facts is not None and facts.reads_variables & set(names):
            return
    option = _array_option(context)
    yield find("array-index-unused", option.line if option else 1, variable=names[0])


def _grid_engine_logs(context: Context) -> Iterator[Complaint]:
    """Find `-o` and `-e` of an array that name one file, and not a folder."""
    for name in ("o", "e"):
        option = context.request.options.get(name)
        value = (option.value if option else None) or ""
        stem, dot, suffix = value.rpartition(".")
        is_file = dot and re.fullmatch(r"[A-Za-z]\w{0,8}", suffix) and not stem.endswith("/")
        if option is None or not is_file or "TASK_ID" in value:
            continue
        text = context.line(option.line)
        edits = (Edit(option.line, (replace_value(text, option, f"{stem}.$TASK_ID.{suffix}"),)),)
        yield find("array-one-log", option.line, edits, file=value)


def _is_own(name: str) -> bool:
    """Return whether a program is a shell script of the user, which may read the index itself."""
    return name.endswith((".sh", ".bash")) or name in ("bash", "sh")


def _logs(context: Context) -> Iterator[Complaint]:
    """Find arrays whose tasks all write their output into one file."""
    request = context.request
    names = {"slurm": ("output", "error"), "lsf": ("o", "oo", "e", "eo")}
    own = LSF_TASKS_OWN if context.script.scheduler == "lsf" else TASKS_OWN
    if context.script.scheduler == "sge":
        yield from _grid_engine_logs(context)
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
