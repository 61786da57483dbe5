"""Rules for amounts of time and memory that are written in another unit than was meant."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from hpcncf.batch.edits import Edit
from hpcncf.batch.options import Option, Scheduler
from hpcncf.batch.request import memory_mib
from hpcncf.lint.batch_context import LAUNCHERS, Context, find, replace_value
from hpcncf.lint.rules import Complaint
from hpcncf.text import pluralize

# `# 12 hours`, `# 12h` or `# hours`, but not `# hours:minutes:seconds`
HOURS: Final = re.compile(
    r"(?:\b(\d+)[ -]*(?:h|hrs?|hours?|stunden|heures)|\b(?:hrs|hours|stunden|heures))\b(?![:/])",
    re.IGNORECASE,
)
# `# runs about 10 hours`
DURATION: Final = re.compile(
    r"\b(?:runs?|takes?|needs?|lasts?)\b[^.\n]{0,30}?\b(\d{1,3})\s*(?:h|hrs?|hours?)\b", re.I
)
# Slurm and LSF count a single number in minutes, PBS and Grid Engine in seconds.
SINGLE_S: Final[dict[Scheduler, int]] = {"slurm": 60, "lsf": 60, "pbs": 1, "sge": 1}
SHORTEST_S: Final = 60
QSUB_TIMES: Final = ("walltime", "h_rt", "s_rt")
QSUB_MEMORY: Final[dict[Scheduler, tuple[str, ...]]] = {
    "pbs": ("mem", "vmem", "pmem", "pvmem"),
    "sge": ("h_vmem", "s_vmem", "mem_free", "virtual_free", "h_data", "tmem", "rmem"),
}
PER_SLOT: Final = ("h_vmem", "s_vmem", "tmem", "rmem", "mem_per_core")
LARGEST_MIB: Final = 1000 * 1024
"""Few nodes have as much; who needs it asks for the node's memory, not for a share per core."""
LARGE_SHARE_MIB: Final = 24 * 1024
SMALL_FOR_GPU_MIB: Final = 512


@dataclass(frozen=True)
class WrittenLimit:
    """A time limit that the script requests."""

    value: str
    line: int
    option: Option


def check_amounts(context: Context) -> Iterator[Complaint]:
    yield from _times(context)
    yield from _sizes_without_unit(context)
    yield from _small_for_gpu(context)
    yield from _shares(context)


def _times(context: Context) -> Iterator[Complaint]:
    """Find limits of minutes or seconds of which the script says that hours were meant."""
    scheduler = context.script.scheduler
    limit = _limit(context)
    if scheduler is None or limit is None:
        return
    numbers = limit.value.split(":")
    is_short_form = len(numbers) == 1 or (len(numbers) == 2 and scheduler != "lsf")
    if not is_short_form or not all(each.isdigit() and len(each) < 7 for each in numbers):
        return
    unit = SINGLE_S[scheduler]
    seconds = int(numbers[0]) * (unit if len(numbers) == 1 else 60)
    seconds += int(numbers[1]) if len(numbers) == 2 else 0
    in_hours = f"{limit.value}:00:00" if len(numbers) == 1 else f"{limit.value}:00"
    if scheduler == "lsf":
        in_hours = f"{limit.value}:00"
    is_tiny = unit == 1 and len(numbers) == 1 and 0 < seconds < SHORTEST_S
    means_hours = _says_hours(context, limit, int(numbers[0]), seconds)
    if not is_tiny and not means_hours:
        return
    text = context.line(limit.line)
    mended = _with_limit(text, limit, in_hours)
    edits = (Edit(limit.line, (mended,)),) if means_hours and mended != text else ()
    really = pluralize(seconds, "second") if seconds < 60 else pluralize(seconds // 60, "minute")
    yield find("time-unit", limit.line, edits, value=limit.value, really=really, hours=in_hours)


def _limit(context: Context) -> WrittenLimit | None:
    """Return the job's time limit as it is written; None if there is none."""
    request = context.request
    name = {"slurm": "time", "lsf": "W"}.get(request.scheduler)
    if name is not None:
        option = request.options.get(name)
        return WrittenLimit(option.value or "", option.line, option) if option else None
    for directive in context.script.directives:
        for option in directive.options if directive.is_read else ():
            for each in QSUB_TIMES if option.name == "l" else ():
                if found := re.search(rf"(?:^|,){each}=([\d:]+)(?=,|$)", option.value or ""):
                    return WrittenLimit(found[1], directive.line, option)
    return None


def _with_limit(text: str, limit: WrittenLimit, value: str) -> str:
    if limit.option.name != "l":
        return replace_value(text, limit.option, value)
    pattern = rf"\b((?:{'|'.join(QSUB_TIMES)})=){re.escape(limit.value)}(?![\d:])"
    return re.sub(pattern, rf"\g<1>{value}", text, count=1)


def _says_hours(context: Context, limit: WrittenLimit, number: int, seconds: int) -> bool:
    """Return whether a comment says that the limit, or the work, takes hours."""
    _, _, remark = context.line(limit.line)[limit.option.start :].partition("#")
    if said := HOURS.search(remark):
        return said[1] is None or int(said[1]) == number
    return any(
        int(found[1]) * 3600 > seconds and int(found[1]) <= number
        for line in context.script.lines
        if line.lstrip().startswith("#") and (found := DURATION.search(line))
    )


def _sizes_without_unit(context: Context) -> Iterator[Complaint]:
    """Find sizes of PBS and Grid Engine without a unit, which are in bytes."""
    scheduler = context.script.scheduler
    names = QSUB_MEMORY.get(scheduler or "slurm", ())
    for directive in context.script.directives:
        for option in directive.options if names and directive.is_read else ():
            if option.name != "l":
                continue
            for name, number in re.findall(
                rf"(?<![\w-])({'|'.join(names)})=(\d{{1,9}})(?=[,:+]|$)", option.value or ""
            ):
                if not int(number):
                    continue
                unit = "gb" if int(number) < 1000 else "mb"
                unit = unit if scheduler == "pbs" else unit[0].upper()
                mended = re.sub(
                    rf"\b({name}={number})(?=[,:+\s]|$)", rf"\g<1>{unit}", directive.text, count=1
                )
                yield find(
                    "memory-unit", directive.line, (Edit(directive.line, (mended,)),),
                    unit="bytes", said=f"{number} bytes",
                )  # fmt: skip


def _small_for_gpu(context: Context) -> Iterator[Complaint]:
    """Find `--mem=128` of jobs with GPUs, whose libraries alone take more."""
    option = context.request.options.get("mem") if context.is_slurm else None
    value = (option.value if option else "") or ""
    if option is None or not value.isdigit() or not 64 <= int(value) < SMALL_FOR_GPU_MIB:
        return
    starts_ranks = any(start.stage(*LAUNCHERS[2:]) for start in context.script.starts)
    if starts_ranks or (context.request.has_gpus and context.pythons):
        mended = replace_value(context.line(option.line), option, f"{value}G")
        edits = (Edit(option.line, (mended,)),)
        yield find("memory-unit", option.line, edits, unit="megabytes", said=f"{value} MB")


def _shares(context: Context) -> Iterator[Complaint]:
    """Find memory per core or slot that was meant for the whole job."""
    request = context.request
    line, value, name, count = 0, "", "", 1
    if context.is_slurm and (option := request.options.get("mem-per-cpu")):
        line, value, name = option.line, option.value or "", "--mem-per-cpu"
        count = (request.cores_per_task or 1) * (request.tasks_on_node or 1)
    elif context.script.scheduler == "sge":
        count = request.cores or 1
        for directive in context.script.directives:
            for option in directive.options if directive.is_read else ():
                given = re.search(
                    rf"(?:^|,)({'|'.join(PER_SLOT)})=([\d.]+[kKmMgGtT])", option.value or ""
                )
                if option.name == "l" and given:
                    line, name, value = directive.line, given[1], given[2]
    mib = memory_mib(value) or 0
    if mib >= LARGE_SHARE_MIB and count > 1 and mib * count >= LARGEST_MIB * 0.95:
        yield find(
            "memory-per-core", line, name=name, value=value, cores=pluralize(count, "core"),
            total=f"{mib * count / 1024:,.0f} GiB", each=f"{max(mib / count / 1024, 1):.0f}G",
        )  # fmt: skip
