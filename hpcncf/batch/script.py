"""A batch script as a whole: its directives, what they request, and what its commands start."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from hpcncf.batch.directives import (
    STOPS_AT_COMMAND,
    Directive,
    find_directives,
    main_scheduler,
)
from hpcncf.batch.launchers import ExpandedWord, Stage, split_stages
from hpcncf.batch.options import Scheduler
from hpcncf.batch.request import EffectiveOptions, build_request
from hpcncf.batch.shell import (
    DEEPEST,
    Command,
    Part,
    ShellText,
    Word,
    parse_shell,
    split_value,
)

# Of a large script: each start keeps the variables that it would have.
MOST_STARTS: Final = 1_000
MOST_VARIABLES: Final = 500
# Of the text in which the numbers of commented directives are looked for.
LONGEST_BODY: Final = 200_000
MOST_PATTERNS: Final = 20
# A variable's value is read again at each use: longer ones stay one word.
LONGEST_SPLIT: Final = 2_000
MOST_SPLIT: Final = 5_000
NUMBERS: Final = re.compile(r"\s*(\d{1,9})\s*(?:([-+*/%])\s*(\d{1,9})\s*)?")
NAME: Final = re.compile(r"\$\{?([A-Za-z_]\w*)|(?<![\w$])([A-Za-z_]\w{2,})")
SHELL_SCRIPT: Final = re.compile(r"#!\s*\S*?(?:bash|/sh|zsh|ksh|dash|env\s+sh)\b")
OTHER_LANGUAGE: Final = re.compile(r"python|perl|/R\b|Rscript|julia|csh")
# Variables that a job has only if the option of the same meaning was given.
SLURM_VARIABLES: Final = {
    "SLURM_CPUS_PER_TASK": "cpus-per-task",
    "SLURM_NTASKS_PER_NODE": "ntasks-per-node",
    "SLURM_GPUS": "gpus",
    "SLURM_GPUS_PER_NODE": "gpus-per-node",
    "SLURM_GPUS_PER_TASK": "gpus-per-task",
    "SLURM_CPUS_PER_GPU": "cpus-per-gpu",
    "SLURM_MEM_PER_CPU": "mem-per-cpu",
}
# `--n-jobs 16`, `OMP_NUM_THREADS=16`, `-j16`; `mpirun -np 16`
THREADS_OF: Final = (
    r"(?:threads|jobs|workers|cpus|cores|procs|nproc|processes|(?:^|\s)-[jtp])"
    r"(?:\s*=\s*|\s+|(?<=\s-[jtp]))[\"']?{}(?![\w.])"
)
RANKS_OF: Final = (
    r"\b(?:mpirun|mpiexec|srun)\b[^\n]{{0,200}}?\s(?:-np?|--ntasks|-n)[ =]?{}(?![\w.])"
)
EACH_TASKS_OWN: Final = frozenset({"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"})
ARRAY_VARIABLES: Final[Mapping[Scheduler, tuple[str, ...]]] = {
    "slurm": ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_JOB_ID"),
    "lsf": ("LSB_JOBINDEX",),
    "pbs": ("PBS_ARRAY_INDEX", "PBS_ARRAYID"),
    "sge": ("SGE_TASK_ID",),
}


@dataclass(frozen=True)
class VariableValue:
    """Known facts about a variable's value."""

    text: str | None
    origins: frozenset[str] = frozenset()
    word: Word | None = field(default=None, compare=False)
    """As the script assigns it."""


@dataclass(frozen=True)
class Start:
    """A command that starts something, with the variables that it gets."""

    command: Command
    line: int
    stages: tuple[Stage, ...]
    variables: Mapping[str, VariableValue]
    """Of the environment and the shell, as far as the script sets them."""
    exported: frozenset[str] = frozenset()
    in_task: bool = False
    """Whether the shell that expands its words runs in each task, not in the batch script."""
    by: tuple[Stage, ...] = ()
    """The launchers around the shell that runs it."""

    @property
    def chain(self) -> tuple[Stage, ...]:
        """All programs that start this one, and its own stages, the outermost launcher first."""
        return (*self.by, *self.stages)

    def stage(self, *kinds: str) -> Stage | None:
        return next((stage for stage in self.chain if stage.kind in kinds), None)

    @property
    def python(self) -> Stage | None:
        return next((each for each in reversed(self.stages) if each.kind == "python"), None)


@dataclass(frozen=True)
class Assignment:
    """A variable that the script sets, and where."""

    command: Command
    name: str
    value: ExpandedWord
    in_task: bool

    @property
    def line(self) -> int:
        return self.value.word.line if self.value.word.raw else self.command.line


@dataclass
class BatchScript:
    """A batch script of a scheduler, or a shell script without directives."""

    text: str
    scheduler: Scheduler | None
    directives: list[Directive]
    first_command: int
    """Its line; 0 if there is none."""
    request: EffectiveOptions
    commands: list[Command] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    assigned: list[Assignment] = field(default_factory=list)
    empty_uses: list[tuple[Command, str]] = field(default_factory=list)
    """Commands that use a variable that the job does not have."""
    is_cut: bool = False

    @cached_property
    def lines(self) -> list[str]:
        return self.text.split("\n")

    @cached_property
    def _body(self) -> str:
        """Text of the script without its comment lines."""
        return "\n".join(line for line in self.lines if not line.lstrip().startswith("#"))

    @property
    def shebang(self) -> str:
        first = self.text.partition("\n")[0].removeprefix("\ufeff").rstrip("\r")
        return first if first.startswith("#!") else ""

    def pythons(self) -> Iterator[tuple[Start, Stage]]:
        """Yield each start of a Python program, with the stage that is Python."""
        for start in self.starts:
            if start.python is not None:
                yield start, start.python

    def uses(self, *names: str) -> bool:
        """Return whether the script mentions one of these variables outside its comments."""
        return any(re.search(rf"\b{name}\b", self._body) for name in names)


def is_batch_script(text: str) -> bool:
    """Return whether the text has directives of a scheduler, even if they are faulty."""
    return main_scheduler(find_directives(text)[0]) is not None


def is_shell_script(text: str) -> bool:
    return bool(SHELL_SCRIPT.match(text.removeprefix("\ufeff").lstrip()))


def read_batch_script(text: str) -> BatchScript:
    """Parse a script's directives and commands; it accepts any text without an exception."""
    directives, first_command = find_directives(text)
    shell = None
    shebang = text.partition("\n")[0]
    if not (shebang.startswith("#!") and OTHER_LANGUAGE.search(shebang)):
        shell = parse_shell(text.replace("\r\n", "\n"))
    directives = [each for each in directives if not _is_text(each, shell)]
    scheduler = main_scheduler(directives)
    missed = _MissedDirectives(directives, text, first_command)
    request = build_request(
        [each for each in directives if each.is_read or each in missed], scheduler or "slurm"
    )
    script = BatchScript(text, scheduler, directives, first_command, request)
    if shell is not None:
        script.commands, script.is_cut = shell.commands, shell.is_cut
        _Walk(script).follow(shell.commands)
    return script


def _is_text(directive: Directive, shell: ShellText | None) -> bool:
    """Return whether a directive below the first command is only text.

    It then belongs to a here document, or to a string of another language, in a script that
    writes batch scripts.
    """
    if directive.ignored != "after-command" and directive.scheduler in STOPS_AT_COMMAND:
        return False
    if shell is None:
        return True
    return any(
        document.line <= directive.line < document.line + document.text.count("\n")
        for command in shell.commands
        if (document := command.here_document) is not None
    )


class _MissedDirectives:
    """Tell which of the directives that a scheduler ignores were meant to be read.

    Later checks then assume that they are read, so that one slip causes one complaint.
    """

    def __init__(self, directives: Sequence[Directive], text: str, first_command: int) -> None:
        self.read = [each for each in directives if each.is_read]
        self.text = text
        self.first_command = first_command
        self.schedulers = {each.scheduler for each in self.read}
        self.names = {option.name for each in self.read for option in each.options}
        self.requests: dict[Scheduler, EffectiveOptions] = {}
        self.found: dict[str, bool] = {}
        """Whether the text has what this pattern finds."""

    def __contains__(self, one: Directive) -> bool:
        if one.ignored != "commented-out":
            return True
        for option in one.options:
            used = [name for name, by in SLURM_VARIABLES.items() if by == option.name]
            if option.name == "array":
                used += ARRAY_VARIABLES["slurm"]
            if option.name not in self.names and any(name in self.text for name in used):
                return True
        if one.scheduler not in self.schedulers:
            return True
        is_above = not self.first_command or one.line < self.first_command
        return is_above and self._is_number_used(one)

    @cached_property
    def body(self) -> str:
        lines = self.text[:LONGEST_BODY].split("\n")
        return "\n".join(line for line in lines if not line.lstrip().startswith("#"))

    def _has(self, pattern: str) -> bool:
        if pattern not in self.found:
            if len(self.found) >= MOST_PATTERNS:
                return False
            self.found[pattern] = re.search(pattern, self.body, re.IGNORECASE) is not None
        return self.found[pattern]

    def _is_number_used(self, one: Directive) -> bool:
        """Return whether the script starts as many processes or threads as a comment requests.

        That is, more than the directives request that are read.
        """
        if one.scheduler not in self.requests:
            self.requests[one.scheduler] = build_request(self.read, one.scheduler)
        request, alone = self.requests[one.scheduler], build_request([one], one.scheduler)
        if request.is_exclusive or not request.asks_for_cores or request.cores is None:
            return False
        if one.scheduler == "slurm" and request.has_gpus and "ntasks" not in request.options:
            return False  # sites give cores with a GPU (DefCpuPerGPU)
        cores, ranks = alone.cores or 1, alone.task_count
        if cores > request.cores == 1:
            return self._has(THREADS_OF.format(cores))
        return ranks > request.task_count == 1 and self._has(RANKS_OF.format(ranks))


class _Walk:
    """Walk through a script's commands in order, and track the values of its variables."""

    def __init__(self, script: BatchScript) -> None:
        self.script = script
        self.variables: dict[str, VariableValue] = dict(_scheduler_variables(script.request))
        self.exported: set[str] = set(self.variables)
        self.unset: set[str] = _unset_variables(script.request)
        self.empty: list[str] = []
        self.pieces = 0
        """Words so far that came out of variables."""

    def follow(
        self,
        commands: Sequence[Command],
        in_task: bool = False,
        by: tuple[Stage, ...] = (),
        depth: int = 0,
    ) -> None:
        for command in commands:
            for block in command.blocks:
                if block.kind == "for" and block.name:
                    self.set(block.name, VariableValue(None, frozenset({block.name})))
            given: dict[str, VariableValue] = {}
            for name, word in command.assignments:
                value = self.expand(word)
                self.script.assigned.append(Assignment(command, name, value, in_task))
                known = VariableValue(value.text, value.origins, word)
                if command.words and not command.exports and command.words[0].raw != "setenv":
                    given[name] = known
                    continue
                if command.is_conditional and self.variables.get(name) != known:
                    known = VariableValue(None, known.origins | {name})
                self.set(name, known)
                if command.exports:
                    self.exported.add(name)
            words = [each for word in command.words for each in self.split(word)]
            if self.empty:
                self.script.empty_uses += [(command, name) for name in self.empty]
                self.empty = []
            if not words:
                continue
            if words[0].text == "export":
                self.exported |= {
                    each.text for each in words[1:] if each.text and "=" not in each.text
                }
            if words[0].text in ("export", "declare", "local", "readonly", "typeset", "setenv"):
                continue
            if words[0].text == "unset":
                for each in words[1:]:
                    self.variables.pop(each.shown, None)
                    self.unset.add(each.shown)
            self.start(command, words, given, in_task, by, depth)

    def set(self, name: str, known: VariableValue) -> None:
        if len(self.variables) < MOST_VARIABLES or name in self.variables:
            self.variables[name] = known
            self.unset.discard(name)

    def start(
        self,
        command: Command,
        words: list[ExpandedWord],
        given: Mapping[str, VariableValue],
        in_task: bool,
        by: tuple[Stage, ...],
        depth: int,
    ) -> None:
        starts = self.script.starts
        if len(starts) >= MOST_STARTS:
            self.script.is_cut = True
            return
        stages = tuple(split_stages(words))
        if not stages:
            return
        exported = frozenset(self.exported | set(given))
        starts.append(
            Start(
                command,
                command.line,
                stages,
                {**self.variables, **given},
                exported,
                in_task,
                by,
            )
        )
        last = stages[-1]
        if last.kind != "shell" or depth >= DEEPEST:
            return
        launchers = (*by, *stages[:-1])
        tasks = in_task or any(each.kind in ("srun", "mpirun") for each in launchers)
        code = last.options.get("c")
        if code is not None:
            # What the outer shell has expanded is no longer there for the inner one.
            inner = parse_shell(_inner_text(code, self.variables), code.word.line)
        elif command.here_document and not last.script:
            inner = parse_shell(command.here_document.text, command.here_document.line)
            tasks = tasks and command.here_document.quoted
        else:
            return
        before, exports = dict(self.variables), set(self.exported)
        if tasks and not in_task:
            # In a task these differ from rank to rank.
            for name in EACH_TASKS_OWN:
                self.variables[name] = VariableValue(None, frozenset({name}))
        self.follow(inner.commands, tasks, launchers, depth + 1)
        self.variables, self.exported = before, exports

    def split(self, word: Word, depth: int = 0) -> list[ExpandedWord]:
        """Expand a word to the words that the shell makes of it.

        These are several for `$ARGUMENTS` without quotes, and for `"${ARGUMENTS[@]}"`.
        """
        parts = [part for part in word.parts if part.kind != "text" or part.text]
        part = parts[0] if len(parts) == 1 else None
        is_variable = part is not None and part.kind == "variable"
        if part is None or not is_variable or depth > 1 or self.pieces > MOST_SPLIT:
            return [self.expand(word)]
        is_array = part.operation in ("[@]", "[*]")
        known = self.variables.get(part.text)
        if known is None or known.word is None or (part.quoted and not is_array):
            return [self.expand(word)]
        value = known.word
        is_plain = not part.operation or is_array
        if not is_plain or len(value.raw) > LONGEST_SPLIT or is_array != value.raw.startswith("("):
            return [self.expand(word)]
        pieces = split_value(value, word.line)
        if len(pieces) < 2:
            return [self.expand(word)]
        self.pieces += len(pieces)
        return [each for piece in pieces for each in self.split(piece, depth + 1)]

    def expand(self, word: Word) -> ExpandedWord:
        """Expand a word to its value, as far as the script determines it."""
        texts: list[str] = []
        origins: set[str] = set()
        is_known = True
        for part in word.parts:
            known = self._expand_part(part)
            origins |= known.origins
            if known.text is None:
                is_known = False
            else:
                texts.append(known.text)
        return ExpandedWord(word, "".join(texts) if is_known else None, frozenset(origins))

    def _expand_part(self, part: Part) -> VariableValue:
        if part.kind == "text":
            return VariableValue(part.text)
        if part.kind == "variable":
            return self._expand_variable(part)
        if part.kind == "arithmetic":
            return self._calculate(part.text)
        origins: set[str] = set()
        text = part.text[:2000]
        for variable, word in NAME.findall(text):
            if variable:
                origins.add(variable)
                origins |= self.variables.get(variable, VariableValue(None)).origins
            elif not origins or word in ("nproc", "hostname", "lscpu", "getconf", "cpuinfo"):
                origins.add(f"{word}()")
        return VariableValue(None, frozenset(origins))

    def _expand_variable(self, part: Part) -> VariableValue:
        name = part.text
        known = self.variables.get(name)
        default = re.match(r":?[-=](.*)", part.operation, re.DOTALL)
        if default and known is None and name in self.unset:
            text = default[1]
            if re.fullmatch(r"[\w./:-]*", text):
                return VariableValue(text, frozenset({name}))
        if known is None:
            if name in self.unset and not part.operation:
                self.empty.append(name)
                return VariableValue("", frozenset({name}))
            return VariableValue(None, frozenset({name}))
        text_or_none = known.text if not part.operation or default else None
        return VariableValue(text_or_none, known.origins | {name})

    def _calculate(self, text: str) -> VariableValue:
        """Evaluate an expansion such as `$((SLURM_NTASKS * 2))`, of at most two numbers."""
        origins: set[str] = set()

        def value(found: re.Match[str]) -> str:
            name = found[1] or found[2]
            known = self.variables.get(name, VariableValue(None))
            origins.update({name}, known.origins)
            return known.text if known.text is not None else "?"

        numbers = NUMBERS.fullmatch(re.sub(r"\$?\{?\b([A-Za-z_]\w*)\b\}?()", value, text[:200]))
        if not numbers:
            return VariableValue(None, frozenset(origins))
        left, sign, right = int(numbers[1]), numbers[2], int(numbers[3] or 0)
        if sign in ("/", "%") and not right:
            return VariableValue(None, frozenset(origins))
        results = {
            None: left,
            "+": left + right,
            "-": left - right,
            "*": left * right,
            "/": left // (right or 1),
            "%": left % (right or 1),
        }
        return VariableValue(str(results[sign]), frozenset(origins))


def _inner_text(code: ExpandedWord, variables: Mapping[str, VariableValue]) -> str:
    """Return the text that `bash -c` runs, with known variables in double quotes replaced.

    Text in single quotes is kept.
    """
    pieces = []
    for part in code.word.parts:
        if part.kind == "text":
            pieces.append(part.text)
        elif part.kind == "variable":
            known = variables.get(part.text, VariableValue(None))
            # What differs from task to task is judged where it is written.
            is_known = known.text is not None and not known.origins & EACH_TASKS_OWN
            pieces.append(known.text or "" if is_known else f"__{part.text}__")
        else:
            pieces.append("__")
    return "".join(pieces)


def _scheduler_variables(request: EffectiveOptions) -> Iterator[tuple[str, VariableValue]]:
    """Yield the scheduler's variables with their values in the script's shell."""
    values: dict[str, int | None] = {}
    if request.scheduler == "slurm":
        values = {
            "SLURM_NNODES": request.nodes,
            "SLURM_JOB_NUM_NODES": request.nodes,
            "SLURM_CPUS_PER_TASK": request.number("cpus-per-task"),
            "SLURM_NTASKS_PER_NODE": request.number("ntasks-per-node"),
            "SLURM_GPUS_ON_NODE": request.gpus_on_node,
            "SLURM_GPUS_PER_NODE": request.gpus_on_node
            if "gpus-per-node" in request.options
            else None,
            # The batch script runs on the first node, as if it were the first task.
            "SLURM_NODEID": 0,
            "SLURM_PROCID": 0,
            "SLURM_LOCALID": 0,
        }
        if request.tasks is not None:
            values |= {"SLURM_NTASKS": request.tasks, "SLURM_NPROCS": request.tasks}
    elif request.scheduler == "lsf":
        values = {"LSB_DJOB_NUMPROC": request.number("n") or 1}
    elif request.scheduler == "sge":
        values = {"NSLOTS": request.number("pe") or request.cores}
    elif request.scheduler == "pbs":
        values = {"NCPUS": request.cores_per_task}
    for name, number in values.items():
        if number is not None:
            yield name, VariableValue(str(number), frozenset({name}))


def _unset_variables(request: EffectiveOptions) -> set[str]:
    """Return the names of Slurm's variables that stay unset, because no option sets them."""
    if request.scheduler != "slurm" or not request.options:
        return set()
    unset = {name for name, option in SLURM_VARIABLES.items() if option not in request.options}
    if not {"ntasks", "ntasks-per-node", "ntasks-per-gpu", "exclusive"} & set(request.options):
        unset |= {"SLURM_NTASKS", "SLURM_NPROCS"}
    if request.array is None:
        unset |= {"SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_JOB_ID"}
    return unset
