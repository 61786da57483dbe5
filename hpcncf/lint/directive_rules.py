"""Rules for directives: which of them the scheduler reads, refuses or overrides."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from hpcncf.batch.directives import DASHES, PREFIXES, Directive
from hpcncf.batch.edits import Edit
from hpcncf.batch.options import COMMANDS, SLURM, SRUN_ONLY, Option, Scheduler
from hpcncf.batch.request import MEMORY_OPTIONS, memory_mib, parse_array
from hpcncf.lint.batch_context import Context, find, replace_value
from hpcncf.lint.rules import Complaint
from hpcncf.text import pluralize

# What people write for an option of sbatch.
MISTAKEN: Final = {
    "cpu-per-task": "cpus-per-task",
    "cpus-per-tasks": "cpus-per-task",
    "cpu-per-tasks": "cpus-per-task",
    "cores-per-task": "cpus-per-task",
    "cores": "cpus-per-task",
    "cpus": "cpus-per-task",
    "cpu": "cpus-per-task",
    "ncpus": "cpus-per-task",
    "threads": "cpus-per-task",
    "num-cpus": "cpus-per-task",
    "n-tasks": "ntasks",
    "num-tasks": "ntasks",
    "tasks": "ntasks",
    "ntask": "ntasks",
    "task": "ntasks",
    "task-per-node": "ntasks-per-node",
    "ntask-per-node": "ntasks-per-node",
    "ntasks-pernode": "ntasks-per-node",
    "node": "nodes",
    "nnodes": "nodes",
    "num-nodes": "nodes",
    "gpu": "gpus",
    "ngpus": "gpus",
    "num-gpus": "gpus",
    "gpu-per-node": "gpus-per-node",
    "gpus-per-nodes": "gpus-per-node",
    "gpu-per-task": "gpus-per-task",
    "memory": "mem",
    "mem-per-core": "mem-per-cpu",
    "mem-per-cpus": "mem-per-cpu",
    "mem-per-node": "mem",
    "mem-per-task": "mem-per-cpu",
    "walltime": "time",
    "wall-time": "time",
    "time-limit": "time",
    "timelimit": "time",
    "name": "job-name",
    "jobname": "job-name",
    "job": "job-name",
    "out": "output",
    "log": "output",
    "err": "error",
    "stdout": "output",
    "stderr": "error",
    "email": "mail-user",
    "mail": "mail-user",
    "queue": "partition",
    "workdir": "chdir",
    "work-dir": "chdir",
    "share": "oversubscribe",
    "arrays": "array",
    "parition": "partition",
    "partion": "partition",
}
TEXT_OPTIONS: Final = frozenset({"job-name", "comment", "output", "error", "chdir", "wckey"})
LIST_OPTIONS: Final = frozenset(
    {"array", "mail-type", "mail-user", "exclude", "nodelist", "dependency"}
)
SLURM_TIME: Final = re.compile(
    r"(?:\d+-\d+(?::\d+){0,2}|\d+(?::\d+){0,2}|UNLIMITED|INFINITE)", re.I
)
SLURM_MEMORY: Final = re.compile(r"\d+(?:[KMGTkmgt][Bb]?)?")
LSF_TIME: Final = re.compile(r"\d+(?::\d{1,2})?(?:/\S+)?")
SMALLEST_MIB: Final = 64
"""Python alone takes as much; a number below it was meant in gigabytes."""
VARIABLE: Final = re.compile(r"\$\{?[A-Za-z_(0-9@*]|`")
NAMED: Final = re.compile(r"\$(?:([A-Za-z_]\w*|[0-9@*])|\{([A-Za-z_]\w*|[0-9@*])\})")
# What a scheduler replaces in the names of logs.
OWN_MARKS: Final[dict[Scheduler, str]] = {
    "slurm": "Use %j, %x, %u, %A and %a in file names",
    "lsf": "Use %J and %I in file names",
    "pbs": "Write the value",
    "sge": "Use $JOB_ID, $JOB_NAME and $TASK_ID in file names",
}
_COUNTS = """
cpus-per-task ntasks nodes ntasks-per-node mem mem-per-cpu time partition gres gpus
gpus-per-node array
"""
COUNTS: Final = frozenset(_COUNTS.split())


def check_file(context: Context) -> Iterator[Complaint]:
    """Find faults of the file itself: DOS line ends, a byte order mark, a wrong `#!` line."""
    script = context.script
    text = script.text
    first_end = text.find("\r\n")
    if first_end >= 0:
        line = text.count("\n", 0, first_end) + 1
        yield find("dos-line-ends", line)
    if text.startswith("\ufeff"):
        yield find("byte-order-mark", 1, (Edit(1, (context.line(1)[1:],)),))
    elif context.is_slurm and not text.startswith("#!"):
        yield from _no_shebang(context)
    if "\0" in text and context.is_slurm:
        yield find("null-character", text.count("\n", 0, text.index("\0")) + 1)


def _no_shebang(context: Context) -> Iterator[Complaint]:
    later = next(
        (
            (number, line.strip())
            for number, line in enumerate(context.script.lines[:50], 1)
            if line.lstrip().startswith("#!")
        ),
        None,
    )
    edits: tuple[Edit, ...] = (Edit(1, (later[1] if later else "#!/bin/bash",), inserts=True),)
    if later and later[0] == 1:
        edits = (Edit(1, (later[1],)),)
    elif later:
        edits = (*edits, Edit(later[0], ()))
    yield find("no-shebang", 1, edits)


def check_directives(context: Context) -> Iterator[Complaint]:
    """Find directives that the scheduler does not read as they were meant."""
    script = context.script
    for directive in script.directives:
        if directive.scheduler != script.scheduler:
            continue
        yield from _ignored(context, directive)
        if directive.scheduler == "slurm":
            yield from _slurm_options(directive)
        else:
            yield from _own_variables(context, directive)
    if context.is_slurm:
        yield from _contradictions(context)
    yield from _limits(context)


def _own_variables(context: Context, directive: Directive) -> Iterator[Complaint]:
    """Find variables of the script in its directives, which bsub and qsub read before it runs.

    Variables of the environment are left alone: some versions replace them.
    """
    names = {each.name for each in context.script.assigned}
    for option in directive.options if directive.is_read else ():
        for bare, braced in NAMED.findall(option.value or ""):
            name = bare or braced
            if name in names or not name[0].isalpha():
                yield find(
                    "variable-in-directive", directive.line, value=option.value,
                    command=COMMANDS[directive.scheduler], mend=OWN_MARKS[directive.scheduler],
                )  # fmt: skip
                return


def _ignored(context: Context, directive: Directive) -> Iterator[Complaint]:
    line, text = directive.line, directive.text
    prefix = PREFIXES[directive.scheduler]
    command = COMMANDS[directive.scheduler]
    if directive.ignored == "after-command":
        first = context.script.first_command
        moved: tuple[Edit, ...] = (Edit(first, (text,), inserts=True), Edit(line, ()))
        if any(context.makes_log_folder(option) for option in directive.options):
            moved = ()  # once it is read, Slurm needs the folder before the script makes it
        yield find("after-command", line, moved, first=first, command=command)
    elif directive.ignored in ("spelling", "indented"):
        mended = re.sub(r"^\s*#\s*\w+", prefix, text)
        yield find("directive-spelling", line, (Edit(line, (mended,)),), prefix=prefix)
    elif directive.ignored == "commented-out" and _is_missed(context, directive):
        mended = re.sub(r"^\s*#[#!\s]*(?:\$|\w+)", prefix, text)
        yield find("commented-directive", line, (Edit(line, (mended,)),), prefix=prefix)
    elif directive.ignored == "dash":
        mended = _with_dashes(text, len(prefix))
        edits = (Edit(line, (mended,)),)
        yield find("wrong-dash", line, edits, word=directive.stray, command=command)
    elif directive.ignored in ("blank", "no-option") and not directive.quote:
        yield from _stray(directive)
    if directive.quote and directive.ignored not in ("after-command", "commented-out"):
        yield find("open-quote", line, quote=directive.quote, command=command)
    if text.rstrip().endswith("\\") and directive.is_read and directive.scheduler != "lsf":
        mended = text.rstrip().removesuffix("\\").rstrip()
        yield find("continued-directive", line, (Edit(line, (mended,)),), command=command)


def _is_missed(context: Context, directive: Directive) -> bool:
    """Return whether the request includes options of a directive that is not read.

    `read_batch_script` describes which directives are included.
    """
    options = context.request.options
    return any(options.get(option.name) is option for option in directive.options)


def _with_dashes(text: str, start: int) -> str:
    """Replace dash-like characters before options with `-`, and hard blanks with spaces."""
    body = text[start:].replace("\xa0", " ")

    def mend(found: re.Match[str]) -> str:
        letters = found[2]
        is_long = len(letters) > 1 and letters[1:2] not in "0123456789= "
        return f"{found[1]}{'--' if is_long else '-'}{letters}"

    return text[:start] + re.sub(rf"(^|\s)[-{DASHES}]+([A-Za-z][\w-]*)", mend, body)


def _is_placeholder(value: str) -> bool:
    """Return whether a value is a template's placeholder, such as `<account>` or `HH:MM:SS`."""
    is_words = re.search(r"[<\[{][^<>\[\]{}]*[A-Za-z ][^<>\[\]{}]*[>\]}]", value)
    return (
        bool(is_words)
        or re.fullmatch(r"[A-Z_:X-]*[A-Z]{2}[A-Z_:X-]*|\s*\.{2,}\s*", value) is not None
    )


def _stray(directive: Directive) -> Iterator[Complaint]:
    line, text = directive.line, directive.text
    if _is_placeholder(text[text.find(" ") :]):
        return
    stray = next(each for each in directive.tokens if each.text == directive.stray)
    last = directive.options[-1] if directive.options else None
    if directive.stray.startswith("=") or (last and (last.value or "").rstrip() in ("", "=")):
        mended = re.sub(r"\s*=\s*", "=", text)
        yield find("equals-sign", line, (Edit(line, (mended,)),))
        return
    if last is None:
        name = directive.stray.partition("=")[0]
        mended = text
        if name in SLURM.names:
            mended = f"{text[: stray.start]}--{text[stray.start :]}"
        yield find("stray-word", line, (Edit(line, (mended,)),), word=directive.stray)
        return
    rest = text[stray.start :].rstrip()
    value = text[last.value_start : last.value_end]
    before = text[: last.value_start]
    if last.name in LIST_OPTIONS:
        mended = before + value + re.sub(r"\s+", "", rest)
    elif last.name in TEXT_OPTIONS:
        mended = f'{before}"{value} {rest}"'
    elif re.fullmatch(r"[KMGTkmgt][Bb]?", rest):
        mended = before + value + rest
    else:
        mended = f"{text[: stray.start].rstrip()}  # {rest}"
    yield find("stray-word", line, (Edit(line, (mended,)),), word=directive.stray)


def _slurm_options(directive: Directive) -> Iterator[Complaint]:
    if directive.ignored == "commented-out":
        return
    line, text = directive.line, directive.text
    for token in directive.tokens:
        if directive.ignored in ("blank", "no-option") and token.text == directive.stray:
            break
        found = re.match(r"-([a-z][a-z-]{2,})(?:=|$)", token.text)
        if found and SLURM.complete(found[1]) == [found[1]]:
            mended = f"{text[: token.start]}-{text[token.start :]}"
            letter, rest = found[1][0], token.text[2:]
            yield find(
                "single-dash", line, (Edit(line, (mended,)),), word=token.text, letter=letter,
                rest=rest,
            )  # fmt: skip
            return
    # Of a value with a blank in it only the first word is known.
    whole = directive.options[: -1 if directive.stray and directive.options else None]
    for option in whole:
        yield from _slurm_option(directive, option)


def _slurm_option(directive: Directive, option: Option) -> Iterator[Complaint]:
    line, text = directive.line, directive.text
    value = option.value or ""
    if _is_placeholder(value):
        return
    is_long = option.spelled.startswith("--")
    if is_long and (option.name not in SLURM.names or option.name in SRUN_ONLY):
        meant = MISTAKEN.get(option.name) or _close(option.name)
        if meant:
            mended = text.replace(option.spelled, f"--{meant}", 1)
            yield find(
                "unknown-option", line, (Edit(line, (mended,)),), word=option.spelled, meant=meant
            )
        return
    if value.startswith("=") and not (is_long and value == "="):
        mended = f"{text[: option.value_start]} {text[option.value_start :].lstrip('=')}"
        if is_long:
            mended = re.sub(r"\s*=\s*=?", "=", text)
        yield find("equals-sign", line, (Edit(line, (mended,)),))
        return
    if value == "=" or (is_long and value == "" and text[option.value_start - 1 :][:1] == "="):
        return  # said of the stray word
    if VARIABLE.search(value) or value.startswith("~/"):
        name = option.name
        mended = replace_value(text, option, _literal_value(name, value))
        fixes: tuple[Edit, ...] = ()
        if mended != text and "$" not in mended:
            fixes = (Edit(line, (mended,)),)
        yield find(
            "variable-in-directive", line, fixes, value=value, command="sbatch",
            mend=OWN_MARKS["slurm"],
        )  # fmt: skip
        return
    if option.name in ("time", "time-min") and not SLURM_TIME.fullmatch(value):
        fixes = _time_fix(text, option)
        yield find("time-format", line, fixes, value=value, command="sbatch")
    if option.name in MEMORY_OPTIONS:
        yield from _memory(directive, option)
    if option.name == "array" and value and parse_array(value) is None:
        mended = replace_value(text, option, value.replace("..", "-"))
        fixes = (Edit(line, (mended,)),) if parse_array(value.replace("..", "-")) else ()
        mend = "It takes `0-9`, `0-9:2`, `1,3,5`, each with `%limit`"
        yield find("array-syntax", line, fixes, value=value, command="sbatch", mend=mend)


def _close(name: str) -> str:
    import difflib

    if "-" in name and name.startswith("container"):
        return ""  # Pyxis and other plugins
    near = difflib.get_close_matches(name, sorted(SLURM.names), n=1, cutoff=0.85)
    return near[0] if near else ""


def _literal_value(name: str, value: str) -> str:
    """Replace variables in a file name by sbatch's own marks, such as `%j` for the job id.

    Other marks are `%x` for the job's name and `%u` for the user.
    """
    if name not in ("output", "error", "input"):
        return value
    pairs = {
        "SLURM_JOB_ID": "%j", "SLURM_JOBID": "%j", "SLURM_ARRAY_TASK_ID": "%a",
        "SLURM_ARRAY_JOB_ID": "%A", "SLURM_JOB_NAME": "%x", "USER": "%u", "HOSTNAME": "%N",
    }  # fmt: skip
    for variable, mark in pairs.items():
        value = re.sub(rf"\$(?:{variable}\b|\{{{variable}\}})", mark, value)
    return value


def _time_fix(text: str, option: Option) -> tuple[Edit, ...]:
    found = re.fullmatch(
        r"(\d+)\s*(h|hr|hrs|hours?|d|days?|m|min|mins|minutes?)", (option.value or "").lower()
    )
    if not found:
        return ()
    number = int(found[1])
    unit = found[2][0]
    value = {"h": f"{number:02d}:00:00", "d": f"{number}-00:00:00", "m": str(number)}[unit]
    return (Edit(option.line, (replace_value(text, option, value),)),)


def _memory(directive: Directive, option: Option) -> Iterator[Complaint]:
    line, text, value = directive.line, directive.text, option.value or ""
    if not SLURM_MEMORY.fullmatch(value):
        mib = memory_mib(value)
        fixes: tuple[Edit, ...] = ()
        if mib:
            whole = f"{mib / 1024:.0f}G" if mib >= 1024 and not mib % 1024 else f"{mib:.0f}M"
            fixes = (Edit(line, (replace_value(text, option, whole),)),)
        yield find("memory-format", line, fixes, value=value)
    elif value.isdigit() and 0 < int(value) < SMALLEST_MIB:
        fixes = (Edit(line, (replace_value(text, option, f"{value}G"),)),)
        yield find("memory-unit", line, fixes, unit="megabytes", said=f"{value} MB")


def _contradictions(context: Context) -> Iterator[Complaint]:
    request = context.request
    directives = [each for each in context.script.directives if each.scheduler == "slurm"]
    if context.is_heterogeneous:
        return
    yield from _twice(directives)
    given = [request.options[name] for name in MEMORY_OPTIONS if name in request.options]
    if len(given) > 1:
        second = max(given, key=lambda each: each.line)
        others = " and ".join(f"--{each.name}" for each in given)
        smaller = _smaller_memory(context, given)
        fixes: tuple[Edit, ...] = ()
        if smaller is not None and _alone(directives, smaller.line):
            fixes = (Edit(smaller.line, ()),)
        yield find("exclusive-options", second.line, fixes, options=others)
    both = [request.options.get(name) for name in ("cpus-per-task", "cpus-per-gpu")]
    if both[0] is not None and both[1] is not None:
        line = max(both[0].line, both[1].line)
        yield find("exclusive-options", line, options="--cpus-per-task and --cpus-per-gpu")
    yield from _task_numbers(context)
    yield from _whole_node(context)


def _smaller_memory(context: Context, given: list[Option]) -> Option | None:
    """Return the option that asks for less memory on a node; None if that is unknown."""
    request = context.request
    cores = (request.cores_per_task or 1) * (request.tasks_on_node or 0)
    shares = {"mem": 1, "mem-per-cpu": cores, "mem-per-gpu": request.gpus_on_node or 0}
    amounts = [(memory_mib(each.value or "") or 0) * shares[each.name] for each in given]
    if len(given) != 2 or not all(amounts):
        return None
    return given[0] if amounts[0] < amounts[1] else given[1]


def _alone(directives: list[Directive], line: int) -> bool:
    return any(each.line == line and len(each.options) == 1 for each in directives)


def _twice(directives: list[Directive]) -> Iterator[Complaint]:
    first: dict[str, Option] = {}
    for directive in directives:
        if not directive.is_read:
            continue
        for option in directive.options:
            before = first.get(option.name)
            if before and before.value != option.value and option.name in COUNTS:
                fixes = (Edit(before.line, ()),) if _alone(directives, before.line) else ()
                yield find(
                    "option-twice", option.line, fixes, name=option.name, earlier=before.line,
                    before=before.value, value=option.value,
                )  # fmt: skip
            first[option.name] = option


def _task_numbers(context: Context) -> Iterator[Complaint]:
    """Find `--ntasks` and `--ntasks-per-node` that contradict each other.

    With both, the second is only an upper limit.
    """
    request = context.request
    tasks, per_node = request.number("ntasks"), request.number("ntasks-per-node")
    nodes = request.nodes
    if not tasks or not per_node or not nodes:
        return
    fits = tasks == nodes * per_node
    is_range = "-" in (request.value("nodes") or "")
    if fits or is_range or (tasks > per_node and tasks < nodes * per_node and tasks % nodes):
        return
    option = request.options["ntasks"]
    text = context.line(option.line)
    mended = replace_value(text, option, str(nodes * per_node))
    fixes = (Edit(option.line, (mended,)),) if option.line else ()
    yield find(
        "tasks-contradict",
        option.line,
        fixes,
        tasks=pluralize(tasks, "task"),
        per_node=per_node,
        nodes=pluralize(nodes, "node"),
    )


def _whole_node(context: Context) -> Iterator[Complaint]:
    """Find requests for a whole node, or all of its memory, by a job of a single core."""
    request = context.request
    whole = request.options.get("exclusive")
    if request.value("mem") == "0":
        whole = request.options["mem"]
    if whole is None or context.launches or request.has_gpus or context.nodes > 1:
        return
    if not context.pythons:  # it may measure the node
        return
    if request.value("exclusive") in ("user", "mcs", "topo"):
        return
    asked = request.number("cpus-per-task")
    if (asked or 1) > 1 or request.task_count > 1 or "hint" in request.options:
        return
    explicit = asked == 1 or (request.number("ntasks") == 1 and whole.name == "mem")
    if not explicit or ("exclusive" in request.options and asked != 1):
        return
    spelled = f"--{whole.name}" + (f"={whole.value}" if whole.value else "")
    yield find("whole-node", whole.line, option=spelled)


def _limits(context: Context) -> Iterator[Complaint]:
    """Find LSF time limits in a wrong format, amounts that PBS refuses, and missing limits."""
    request, script = context.request, context.script
    if script.scheduler == "lsf":
        option = request.options.get("W")
        value = (option.value if option else None) or ""
        if option and value and not LSF_TIME.fullmatch(value) and not _is_placeholder(value):
            found = re.fullmatch(r"(\d+):(\d\d):\d\d", value)
            mended = replace_value(
                context.line(option.line), option, f"{found[1]}:{found[2]}" if found else value
            )
            fixes = (Edit(option.line, (mended,)),) if found else ()
            yield find("time-format", option.line, fixes, value=value, command="bsub")
    if script.scheduler == "pbs":
        yield from _beside_select(context)
    has_limits = request.has_time or request.has_memory
    is_whole = request.options and not any(each.quote for each in script.directives)
    if context.pythons and is_whole and not has_limits:
        yield find("no-limits", 1, scheduler=COMMANDS[script.scheduler or "slurm"])


def _beside_select(context: Context) -> Iterator[Complaint]:
    """Find job-wide amounts beside PBS chunks, as in `-l select=1:ncpus=8,mem=16gb`.

    PBS refuses them.
    """
    if context.request.resources.get("chunks_by") != "select":
        return
    for directive in context.script.directives:
        for option in directive.options:
            found = option.name == "l" and re.search(
                r"(?:^|,)(ncpus|mem|vmem|ngpus|mpiprocs)=", option.value or ""
            )
            if found:
                text = directive.text
                mended = (
                    text.replace(f",{found[1]}=", f":{found[1]}=", 1)
                    if "select" in (option.value or "")
                    else text
                )
                fixes = (Edit(directive.line, (mended,)),) if mended != text else ()
                yield find("beside-select", directive.line, fixes, name=found[1])
