"""Write what a job needs into the lines of its batch script that ask for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil
from typing import Final, Literal

from hpcncf.batch.directives import PREFIXES, Directive
from hpcncf.batch.edits import Edit
from hpcncf.batch.options import Option
from hpcncf.batch.request import memory_mib
from hpcncf.batch.script import BatchScript
from hpcncf.text import pluralize

NUMBER: Final = re.compile(r"\d{1,9}")
AMOUNT: Final = re.compile(r"(\d{1,12}(?:\.\d+)?)\s*([kKmMgGtT])(i?[bB])?")
OWN_CORES: Final = re.compile(r"\bsrun\b[^;|&]*\s(?:-c\s?|--cpus-per-task[=\s])[1-9]")
# Options of sbatch that fix a number of cores whatever --cpus-per-task says.
DECISIVE: Final = ("exclusive", "cpus-per-gpu", "mincpus", "tres-per-task")
ONE_HOST: Final = ("smp", "omp", "openmp", "shm", "sharedmem", "threaded", "single", "local")


@dataclass(frozen=True)
class RequestedAmount:
    """An amount to request, and the evidence for it in one sentence."""

    value: float
    evidence: str
    is_least: bool = False
    """Whether the job needs this or more, as after an end at a limit: a script may ask for more."""


@dataclass(frozen=True)
class Target:
    """Needs of a job; None where nothing is known or today's request is right."""

    cores: RequestedAmount | None = None
    """Of each task."""
    memory_mib: RequestedAmount | None = None
    """Of each node."""
    limit_s: RequestedAmount | None = None
    nodes: RequestedAmount | None = None
    had_cores: int | None = None
    """Cores of the job that the evidence is of, all tasks together."""


@dataclass
class Resized:
    """The changes of a script, and what was left alone and why."""

    edits: list[Edit] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def resize(script: BatchScript, target: Target) -> Resized:
    """Change a script's directives to request the target's amounts.

    A line that is not understood is left as it is, and the result names it.
    """
    done = Resized()
    if script.scheduler is None:
        done.left.append("no directives of Slurm, LSF, PBS or Grid Engine: nothing to change")
        return done
    lines = _Lines(script, done)
    if part := next((each for each in script.directives if each.starts_part), None):
        done.left.append(f"line {part.line}: parts of a heterogeneous job are changed by hand")
        return done
    if not _is_of_this_script(script, target, done):
        return done
    if target.nodes is not None:
        _resize_nodes(lines, target.nodes)
    if target.cores is not None:
        _resize_cores(lines, target.cores, target.memory_mib)
    if target.memory_mib is not None and _is_news(lines, target.memory_mib, "memory"):
        _resize_memory(lines, target.memory_mib)
    if target.limit_s is not None and _is_news(lines, target.limit_s, "time"):
        _resize_time(lines, target.limit_s)
    done.edits += lines.edits()
    return done


def _is_of_this_script(script: BatchScript, target: Target, done: Resized) -> bool:
    """Return whether the measured job had as many cores as the script requests."""
    request, had = script.request, target.had_cores
    cores = request.cores
    asked = cores * (request.task_count if script.scheduler == "slurm" else 1) if cores else None
    if had is None or asked is None or had == asked:
        return True
    done.left.append(
        f"the evidence is of a job with {had} cores, and the script asks for {asked}: it may be of "
        "another script, or of an earlier version of this one"
    )
    return False


def _is_news(lines: _Lines, amount: RequestedAmount, what: Literal["memory", "time"]) -> bool:
    """Return False, with a note, if the script already asks for an amount that is a minimum."""
    now = limit_of(lines.script) if what == "time" else _memory_now(lines)
    if not amount.is_least or now is None or now < amount.value:
        return True
    lines.done.left.append(
        f"{what}: the script asks for as much or more already; {amount.evidence}"
    )
    return False


class _Lines:
    """Lines of a script while they are being changed."""

    def __init__(self, script: BatchScript, done: Resized) -> None:
        self.script, self.done = script, done
        self.changed: dict[int, str] = {}
        self.added: list[str] = []
        self.reasons: dict[int, list[str]] = {}
        self.added_reasons: list[str] = []

    def text(self, line: int) -> str:
        return self.changed.get(line, self.script.lines[line - 1].removesuffix("\r"))

    def replace(self, line: int, text: str, reason: str) -> None:
        if text != self.text(line):
            self.changed[line] = text
            if reason not in self.reasons.setdefault(line, []):
                self.reasons[line].append(reason)

    def directive(self, line: int) -> Directive | None:
        return next((each for each in self.script.directives if each.line == line), None)

    def value(self, name: str, what: str) -> Option | None:
        """Return an option whose value can be changed; None, and a note of why, if it cannot."""
        option = self.script.request.options.get(name)
        if option is None:
            return None
        directive = self.directive(option.line)
        if directive is None or directive.ignored or directive.quote:
            self.done.left.append(
                f"{what}: line {option.line} is not read as it is written: see hpcncf lint"
            )
            return None
        return option

    def set_value(self, option: Option, value: str, reason: str) -> None:
        """Replace the option's value in its line; other options are left as they are."""
        text = self.text(option.line)
        old = option.value or ""
        spelled = re.escape(option.spelled)
        pattern = re.compile(rf"({spelled}(?:\s*=\s*|\s+|))(['\"]?){re.escape(old)}\2(?=\s|$|#)")
        changed, count = pattern.subn(lambda found: f"{found[1]}{found[2]}{value}{found[2]}", text)
        if count == 1:
            self.replace(option.line, changed, reason)
        else:
            self.done.left.append(f"line {option.line}: not understood, and left as it is")

    def add(self, directive: str, reason: str) -> None:
        self.added.append(f"{PREFIXES[self.script.scheduler or 'slurm']} {directive}")
        self.added_reasons.append(reason)

    def edits(self) -> Iterator[Edit]:
        for line, text in self.changed.items():
            yield Edit(line, (text,), "; ".join(self.reasons[line]))
        if self.added:
            read = [each.line for each in self.script.directives if each.is_read]
            at = max(read, default=1) + 1
            yield Edit(at, tuple(self.added), "; ".join(self.added_reasons), inserts=True)


def _plain_number(option: Option, lines: _Lines, what: str) -> int | None:
    if option.value is not None and NUMBER.fullmatch(option.value):
        return int(option.value)
    lines.done.left.append(f"{what}: {option.spelled} {option.value or ''} is no plain number")
    return None


def _resize_nodes(lines: _Lines, figure: RequestedAmount) -> None:
    if lines.script.scheduler != "slurm":
        lines.done.left.append(f"nodes: {figure.evidence}: change them by hand")
        return
    option = lines.value("nodes", "nodes")
    if option is not None and _plain_number(option, lines, "nodes") is not None:
        if "ntasks" in lines.script.request.options:
            lines.done.left.append("nodes: --ntasks is given, too: which ranks are to go?")
            return
        lines.set_value(option, str(int(figure.value)), figure.evidence)


# Cores.


def _resize_cores(lines: _Lines, figure: RequestedAmount, memory: RequestedAmount | None) -> None:
    cores = int(figure.value)
    change = {
        "slurm": _slurm_cores,
        "lsf": _lsf_cores,
        "pbs": _pbs_cores,
        "sge": _sge_cores,
    }[lines.script.scheduler or "slurm"]
    before = lines.script.request.cores
    if change(lines, cores, figure.evidence, memory):
        _resize_threads(lines, cores, before, figure.evidence)


def _slurm_cores(lines: _Lines, cores: int, reason: str, memory: RequestedAmount | None) -> bool:
    request = lines.script.request
    name = next((each for each in ("cpus-per-task", "ntasks") if each in request.options), None)
    several_tasks = request.task_count > 1
    if several_tasks and (request.nodes or 1) > 1:
        lines.done.left.append("cores: several nodes: hpcncf run under srun shows each rank's")
        return False
    has_launcher = any(start.stage("srun", "mpirun", "torchrun") for start in lines.script.starts)
    if several_tasks and has_launcher and "cpus-per-task" not in request.options:
        lines.done.left.append("cores: each task has one core already")
        return False
    decisive = [each for each in DECISIVE if each in request.options]
    if decisive:
        lines.done.left.append(f"cores: --{decisive[0]} decides about them")
        return False
    if hidden := _hidden_srun(lines):
        lines.done.left.append(
            f"cores: line {hidden} has an srun with cores of its own that is not understood, and "
            "would ask for more than the job has"
        )
        return False
    if not _keeps_memory(lines, cores, memory):
        return False
    if several_tasks and not has_launcher:
        return _one_task(lines, cores, reason)
    if name != "cpus-per-task":
        if cores > 1:
            lines.add(f"--cpus-per-task={cores}", reason)
        return cores > 1
    option = lines.value("cpus-per-task", "cores")
    if option is None or _plain_number(option, lines, "cores") is None:
        return False
    lines.set_value(option, str(cores), reason)
    for start in lines.script.starts:
        srun = next((each for each in start.stages if each.kind == "srun"), None)
        own = srun.get("cpus-per-task") if srun else None
        if own is not None and own.number == request.cores_per_task and not own.origins:
            text = lines.text(own.word.line)
            changed = re.sub(
                rf"((?:--cpus-per-task[= ]|(?<=\s)-c ?)){own.number}\b", rf"\g<1>{cores}", text
            )
            lines.replace(own.word.line, changed, reason)
    return True


def _hidden_srun(lines: _Lines) -> int | None:
    """Return the line of an srun with `-c` that would not follow the change; None without one."""
    given = [
        own
        for start in lines.script.starts
        for stage in start.stages
        if stage.kind == "srun" and (own := stage.get("cpus-per-task"))
    ]
    known = {own.word.line for own in given}
    first = lines.script.first_command or 1
    for number in range(first, len(lines.script.lines) + 1):
        text = lines.text(number)
        if number not in known and not text.lstrip().startswith("#") and OWN_CORES.search(text):
            return number
    for own in given:
        # `srun $OPTIONS`: the number is not in the line that uses it.
        is_fixed = own.number is not None and not own.origins
        text = lines.text(own.word.line)
        if is_fixed and not re.search(rf"(?<!\d){own.number}(?!\d)", text):
            return own.word.line
    return None


def _one_task(lines: _Lines, cores: int, reason: str) -> bool:
    """Request one task with its cores in place of several tasks, for a single process."""
    request = lines.script.request
    for name in ("ntasks", "ntasks-per-node"):
        if name in request.options:
            option = lines.value(name, "tasks")
            if option is None or _plain_number(option, lines, "tasks") is None:
                return False
            lines.set_value(option, "1", f"one process: tasks are processes; {reason}")
    option = request.options.get("cpus-per-task")
    if option is None:
        lines.add(f"--cpus-per-task={cores}", reason)
    else:
        lines.set_value(option, str(cores), reason)
    return True


def _keeps_memory(lines: _Lines, cores: int, memory: RequestedAmount | None) -> bool:
    """Keep the job's memory while its cores are reduced; return whether that was possible.

    Memory that Slurm counts per core would shrink with the cores.
    """
    request = lines.script.request
    if "mem" in request.options or "mem-per-gpu" in request.options:
        return True
    tasks = request.task_count if (request.nodes or 1) == 1 else 1
    before = (request.cores_per_task or 1) * request.task_count
    option = request.options.get("mem-per-cpu")
    if memory is not None:
        return True  # it is written anyway
    if option is None:
        lines.done.left.append(
            "cores: no memory is requested, so that Slurm's default per core would shrink with "
            "them, and the job's peak is not known"
        )
        return False
    each = memory_mib(option.value or "")
    if each is None:
        lines.done.left.append(f"cores: --mem-per-cpu={option.value}: not understood")
        return False
    is_one = tasks > 1 and not any(
        start.stage("srun", "mpirun", "torchrun") for start in lines.script.starts
    )
    after = cores if is_one else cores * request.task_count
    needed = ceil(each * before / max(after, 1))
    lines.set_value(option, _slurm_memory(needed), "the same memory on fewer cores")
    return True


def _lsf_cores(lines: _Lines, cores: int, reason: str, memory: RequestedAmount | None) -> bool:
    request = lines.script.request
    option = lines.value("n", "cores")
    if option is None or _plain_number(option, lines, "cores") is None:
        return False
    if any(start.stage("mpirun", "torchrun") for start in lines.script.starts):
        lines.done.left.append("cores: slots are ranks here: hpcncf run shows each rank's cores")
        return False
    amount = re.search(r"mem=(\d+(?:\.\d+)?)([KMGTkmgt]?)", request.value("R") or "")
    if amount:
        slot_mib = memory_mib(f"{amount[1]}{amount[2] or 'M'}") or 0.0
        if memory is None or slot_mib * cores < memory.value:
            lines.done.left.append(
                "cores: rusage[mem=...] is per slot at some sites (bparams -a), and would shrink "
                "with the slots below what the job needs, or its peak is not known"
            )
            return False
    lines.set_value(option, str(cores), reason)
    return True


def _pbs_cores(lines: _Lines, cores: int, reason: str, memory: RequestedAmount | None) -> bool:  # noqa: ARG001
    request = lines.script.request
    ranks = request.resources.get("mpiprocs", "1")
    if (request.nodes or 1) > 1 or ranks != "1":
        lines.done.left.append("cores: several chunks or ranks: hpcncf run shows each rank's cores")
        return False
    by_process = [name for name in ("pmem", "pvmem") if name in request.resources]
    if by_process:
        lines.done.left.append(f"cores: {by_process[0]} is memory by core, and would shrink too")
        return False
    if not _pbs_resource(lines, ("ncpus", "ppn"), str(cores), reason, "cores"):
        return False
    threads = request.resources.get("ompthreads", "")
    if threads.isdecimal() and int(threads) > cores:
        _pbs_resource(lines, ("ompthreads",), str(cores), reason, "cores")
    return True


def _pbs_resource(
    lines: _Lines, names: tuple[str, ...], value: str, reason: str, what: str
) -> bool:
    """Replace `name=value` in every `-l` option of the script."""
    # `-l walltime=...` or, glued, `-lwalltime=...`; a value of time has colons of its own.
    name = rf"(?:(?<!\w)|(?<=-l))({'|'.join(names)})="
    value_and_end = r"([\d:.]+)(?=[,\s]|$)" if what == "time" else r"([\w:.]+?)(?=[:,\s+]|$)"
    pattern = re.compile(name + value_and_end, re.IGNORECASE)
    for directive in lines.script.directives:
        if directive.ignored or not any(each.name == "l" for each in directive.options):
            continue
        text = lines.text(directive.line)
        if "$" in text.removeprefix("#$"):
            continue
        changed, count = pattern.subn(rf"\g<1>={value}", text)
        if count == 1:
            lines.replace(directive.line, changed, reason)
            return True
    lines.done.left.append(f"{what}: no directive with {' or '.join(names)} that can be changed")
    return False


def _sge_cores(lines: _Lines, cores: int, reason: str, memory: RequestedAmount | None) -> bool:
    request = lines.script.request
    option = lines.value("pe", "cores")
    name = request.resources.get("pe", "")
    if option is None:
        lines.done.left.append("cores: no -pe: the job has one slot")
        return False
    if not name.lower().startswith(ONE_HOST):
        lines.done.left.append(f"cores: slots of {name} may be ranks")
        return False
    before = request.cores or 1
    amount = AMOUNT.fullmatch(request.resources.get("h_vmem", ""))
    if amount and memory is None:  # it is per slot
        mib = (memory_mib(amount[0]) or 0.0) * before
        _pbs_resource(
            lines, ("h_vmem",), f"{ceil(mib / cores)}M", "the same memory on fewer slots", "memory"
        )
    text = lines.text(option.line)
    changed = re.sub(rf"(-pe\s+{re.escape(name)}\s+)\d+(?:-\d+)?", rf"\g<1>{cores}", text)
    lines.replace(option.line, changed, reason)
    return True


def _resize_threads(lines: _Lines, cores: int, before: int | None, reason: str) -> None:
    """Reduce numbers of threads in the script that exceed the cores that are left."""
    for assigned in lines.script.assigned:
        number = assigned.value.number
        if not re.fullmatch(r"(?:OMP|MKL|OPENBLAS)_NUM_THREADS", assigned.name):
            continue
        if number is None or number <= cores:
            continue
        if assigned.value.origins:
            lines.done.left.append(
                f"threads: line {assigned.line} sets {assigned.name} to {number} by a variable, "
                f"more than {pluralize(cores, 'core')}: change it by hand"
            )
            continue
        if before is not None and number > before:
            continue  # it was wrong before: lint's matter
        text = lines.text(assigned.line)
        changed, count = re.subn(rf"(\b{assigned.name}=[\"']?){number}\b", rf"\g<1>{cores}", text)
        if count == 1:
            lines.replace(assigned.line, changed, reason)


# Memory.


def _slurm_memory(mib: float) -> str:
    whole = ceil(mib)
    return f"{whole // 1024}G" if not whole % 1024 else f"{whole}M"


def _resize_memory(lines: _Lines, figure: RequestedAmount) -> None:
    request, scheduler = lines.script.request, lines.script.scheduler
    mib, reason = figure.value, figure.evidence
    if scheduler == "slurm":
        _resize_slurm_memory(lines, mib, reason)
    elif scheduler == "pbs":
        if any(name in request.resources for name in ("mem", "pmem")):
            value = f"{ceil(mib / 1024)}gb"
            _pbs_resource(lines, ("mem",), value, reason, "memory")
        else:
            lines.done.left.append(f"memory: none is requested; {reason}")
    elif scheduler == "sge":
        slots = _slots_after(lines)
        value = f"{ceil(mib / slots)}M"
        if AMOUNT.fullmatch(request.resources.get("h_vmem", "")):
            _pbs_resource(lines, ("h_vmem",), value, f"{reason} (per slot)", "memory")
        else:
            lines.done.left.append(f"memory: no h_vmem to change; {reason}")
    else:
        lines.done.left.append(
            f"memory: LSF counts it per slot, per process or per job, as the site has it; {reason}"
        )


def _memory_now(lines: _Lines) -> float | None:
    """Return the memory on a node that the script asks for, in MiB; None if unknown."""
    request = lines.script.request
    if lines.script.scheduler == "slurm":
        if each := request.value("mem-per-cpu"):
            mib = memory_mib(each)
            cores = (request.cores_per_task or 1) * request.task_count
            return None if mib is None or (request.nodes or 1) > 1 else mib * cores
        return memory_mib(request.value("mem") or "")
    if lines.script.scheduler == "sge":
        mib = memory_mib(request.resources.get("h_vmem", ""))
        return None if mib is None else mib * _slots_after(lines)
    return memory_mib(request.resources.get("mem", ""))


def _slots_after(lines: _Lines) -> int:
    option = lines.script.request.options.get("pe")
    text = lines.text(option.line) if option else ""
    found = re.search(r"-pe\s+\S+\s+(\d+)", text)
    return int(found[1]) if found else 1


def _resize_slurm_memory(lines: _Lines, mib: float, reason: str) -> None:
    request = lines.script.request
    if "mem-per-gpu" in request.options:
        lines.done.left.append(f"memory: --mem-per-gpu; {reason}")
        return
    if "mem-per-cpu" in request.options:
        option = lines.value("mem-per-cpu", "memory")
        cores = _slurm_cores_after(lines)
        if option is not None and cores:
            lines.set_value(option, f"{ceil(mib / cores)}M", f"{reason} (on {cores} cores)")
        return
    if "mem" not in request.options:
        lines.add(f"--mem={_slurm_memory(mib)}", reason)
        return
    option = lines.value("mem", "memory")
    if option is None:
        return
    if option.value == "0" or memory_mib(option.value or "") is None:
        lines.done.left.append(f"memory: --mem={option.value} is no amount that can be changed")
        return
    lines.set_value(option, _slurm_memory(mib), reason)


def _slurm_cores_after(lines: _Lines) -> int | None:
    """Return the number of cores on a node after the changes; None if unknown."""
    from hpcncf.batch.script import read_batch_script

    end = lines.script.first_command or len(lines.script.lines) + 1
    text = "\n".join([*(lines.text(number) for number in range(1, end)), *lines.added])
    after = read_batch_script(text).request
    if (after.nodes or 1) > 1 and after.tasks_on_node is None:
        return None
    on_node = after.tasks_on_node or after.task_count
    return on_node * (after.cores_per_task or 1)


# Time.


def format_limit(seconds: float, scheduler: str) -> str:
    """Format a time limit for a scheduler, rounded up to whole minutes.

    For example `2-06:00:00` for sbatch, `54:00` for bsub and `54:00:00` for qsub.
    """
    minutes = max(ceil(seconds / 60), 1)
    hours, rest = divmod(minutes, 60)
    if scheduler == "lsf":
        return f"{hours}:{rest:02}"
    if scheduler == "slurm" and hours >= 24:
        return f"{hours // 24}-{hours % 24:02}:{rest:02}:00"
    return f"{hours:02}:{rest:02}:00"


def _resize_time(lines: _Lines, figure: RequestedAmount) -> None:
    scheduler = lines.script.scheduler or "slurm"
    value, reason = format_limit(figure.value, scheduler), figure.evidence
    if scheduler in ("slurm", "lsf"):
        name = "time" if scheduler == "slurm" else "W"
        if name not in lines.script.request.options:
            lines.add(f"--time={value}" if scheduler == "slurm" else f"-W {value}", reason)
            return
        option = lines.value(name, "time")
        if option is None:
            return
        if limit_of(lines.script) is None or "/" in (option.value or ""):  # 4:00/host of LSF
            lines.done.left.append(f"time: {option.spelled} {option.value}: not understood")
            return
        lines.set_value(option, value, reason)
        return
    _pbs_resource(lines, ("walltime", "h_rt"), value, reason, "time")


def limit_of(script: BatchScript) -> float | None:
    """Return the script's time limit in seconds; None if it has none, or an unknown format."""
    request = script.request
    if script.scheduler == "slurm":
        return _seconds(request.value("time") or "", "slurm")
    if script.scheduler == "lsf":
        return _seconds((request.value("W") or "").partition("/")[0], "lsf")
    return _seconds(request.resources.get("walltime") or request.resources.get("h_rt") or "", "pbs")


def _seconds(text: str, scheduler: str) -> float | None:
    found = re.fullmatch(r"(?:(\d{1,5})-)?(\d{1,7})(?::(\d{1,3}))?(?::(\d{1,3}))?", text)
    if not found:
        return None
    days, *parts = (int(each) if each is not None else None for each in found.groups())
    numbers = [each for each in parts if each is not None]
    if days is not None:  # days-hours[:minutes[:seconds]]
        hours, minutes, seconds = (*numbers, 0, 0)[:3]
        return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    if len(numbers) == 3:
        return float((numbers[0] * 60 + numbers[1]) * 60 + numbers[2])
    if len(numbers) == 2:  # minutes:seconds, for LSF hours:minutes
        return float(numbers[0] * 60 + numbers[1]) * (60 if scheduler == "lsf" else 1)
    return float(numbers[0]) * (1 if scheduler == "pbs" else 60)
