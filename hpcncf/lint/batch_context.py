"""What the rules for batch scripts share: the script, its programs, and how a finding is made."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from hpcncf.batch.edits import Edit
from hpcncf.batch.launchers import ExpandedWord, Stage
from hpcncf.batch.options import Option
from hpcncf.batch.request import EffectiveOptions
from hpcncf.batch.script import BatchScript, Start
from hpcncf.lint.program_facts import ProgramFacts, Reader, read_nothing
from hpcncf.lint.rules import Complaint, complain

# A program whose name says that it is one rank of several.
RANKED_NAME: Final = re.compile(
    r"(?<![a-z])(?:ddp|fsdp|dist|distributed|mpi|mpi4py|horovod|hvd|multi_?node|multi_?gpu|pmi)"
    r"(?![a-z])",
    re.IGNORECASE,
)
# Modules and scripts that prepare, and train nothing.
HELPER_MODULES: Final = frozenset(
    {"venv", "pip", "ensurepip", "zipfile", "json.tool", "http.server"}
)
# Programs of one process that take whatever cores they see.
INTERACTIVE: Final = frozenset(
    {"jupyter", "jupyter-lab", "jupyter-notebook", "rserver", "rstudio", "code-server"}
)
FARMING: Final = frozenset(
    {"parallel", "xargs", "dask", "dask-scheduler", "dask-worker", "ray", "snakemake", "nextflow"}
)
# Commands that end at once, or do not keep a script from its end.
_SHORT = """
echo printf date exit cd ls rm mkdir pwd deactivate set unset true : export hostname env
printenv module ml source . conda cat touch cp mv trap return scontrol sacct seff
"""
SHORT: Final = frozenset(_SHORT.split())
LAUNCHERS: Final = ("srun", "mpirun", "torchrun", "accelerate", "deepspeed")


@dataclass(frozen=True)
class Context:
    """A batch script to check, with the facts about its programs that the rules can read."""

    script: BatchScript
    read: Reader = read_nothing

    @property
    def request(self) -> EffectiveOptions:
        return self.script.request

    @property
    def is_slurm(self) -> bool:
        return self.script.scheduler == "slurm"

    @cached_property
    def is_heterogeneous(self) -> bool:
        """Whether the job has several parts (`#SBATCH hetjob`), each with options of its own."""
        return any(
            token.text in ("hetjob", "packjob")
            for directive in self.script.directives
            for token in directive.tokens
        )

    @cached_property
    def made_folders(self) -> frozenset[str]:
        """Folders that the script itself makes, by mkdir."""
        return frozenset(
            each.shown.rstrip("/").removeprefix("./")
            for start in self.script.starts
            if start.stages[-1].name == "mkdir"
            for each in start.stages[-1].arguments
            if not each.shown.startswith("-")
        )

    def makes_log_folder(self, option: Option) -> bool:
        """Return whether a log lies in a folder that the script makes, and so after its start."""
        folder = (option.value or "").rpartition("/")[0].removeprefix("./")
        return bool(folder) and option.name in ("output", "error") and folder in self.made_folders

    @cached_property
    def nodes(self) -> int:
        return self.request.nodes or 1

    @cached_property
    def pythons(self) -> list[tuple[Start, Stage]]:
        """Python programs that the script starts, except those that only prepare something."""
        return [
            (start, stage)
            for start, stage in self.script.pythons()
            if not (stage.is_module and stage.script in HELPER_MODULES)
            and not (stage.code and start.stage(*LAUNCHERS) is None)
            and stage.script
        ]

    @cached_property
    def plain_pythons(self) -> list[tuple[Start, Stage]]:
        """Python programs that the script starts directly, without a launcher such as srun."""
        return [(start, stage) for start, stage in self.pythons if not start.stage(*LAUNCHERS)]

    @cached_property
    def launches(self) -> bool:
        """Whether anything in the script may start several processes."""
        for start in self.script.starts:
            if start.stage(*LAUNCHERS):
                return True
            last = start.stages[-1]
            if last.kind in ("shell", "program") and _may_launch(last):
                return True
        return False

    def facts(self, stage: Stage) -> ProgramFacts | None:
        return None if stage.is_module else self.read(stage.script)

    def may_be_ranks(self, stage: Stage) -> bool | None:
        """Return whether the program can be one of several ranks; None if nothing shows it."""
        facts = self.facts(stage)
        if facts is not None:
            return facts.is_distributed
        words = " ".join((stage.script, *(each.shown for each in stage.arguments)))
        return True if RANKED_NAME.search(words) else None

    def step_nodes(self, srun: Stage) -> int:
        return srun.number("nodes") or self.nodes

    def step_tasks(self, srun: Stage) -> int:
        """Return the number of tasks that an srun of this job starts."""
        given = srun.number("ntasks")
        if given is not None:
            return given
        per_node = srun.number("ntasks-per-node")
        if per_node is not None:
            return per_node * self.step_nodes(srun)
        if srun.has("nodes") and self.request.tasks_on_node:
            return self.step_nodes(srun) * self.request.tasks_on_node
        return self.request.task_count

    def step_tasks_on_node(self, srun: Stage) -> int:
        return -(-self.step_tasks(srun) // max(self.step_nodes(srun), 1))

    def is_unknown_step(self, srun: Stage) -> bool:
        """Return whether the size of an srun step is unknown from the script."""
        return any(
            argument is not None and argument.number is None
            for name in ("ntasks", "nodes", "ntasks-per-node")
            if srun.has(name)
            for argument in (srun.options[name],)
        )

    def line(self, number: int) -> str:
        lines = self.script.lines
        return lines[number - 1].removesuffix("\r") if 0 < number <= len(lines) else ""


def _may_launch(last: Stage) -> bool:
    name = last.name
    if name in FARMING:
        return True
    if last.kind == "shell":  # `bash train.sh` may do anything
        return bool(last.script)
    typed = last.place.shown if last.place else ""
    return "/" in typed or name.endswith((".sh", ".bash"))


@dataclass(frozen=True)
class ArgumentOf:
    """A program's option with its value, however it is written."""

    name: str
    """Without dashes, underscores as `-`."""
    value: ExpandedWord | None
    shown: str
    line: int


def options_of(stage: Stage) -> Iterator[ArgumentOf]:
    """Yield a program's options with their values.

    Known forms are `--num-workers 4`, `--num_workers=4` and `num_workers=4` (of Hydra).
    """
    arguments = stage.arguments
    for index, argument in enumerate(arguments):
        text = argument.word.text
        if not re.match(r"--?[A-Za-z]|[A-Za-z_][\w.]*=", text):
            continue
        spelled, equals, _ = text.partition("=")
        name = spelled.lstrip("-").replace("_", "-").lower()
        if equals:
            skipped = len(spelled) + 1
            given = None if argument.text is None else argument.text[skipped:]
            value = ExpandedWord(argument.word, given, argument.origins, skipped)
            yield ArgumentOf(name, value, value.shown, argument.word.line)
            continue
        following = arguments[index + 1] if index + 1 < len(arguments) else None
        if following is not None and following.word.text.startswith("--"):
            following = None
        shown = following.shown if following else ""
        yield ArgumentOf(name, following, shown, argument.word.line)


def replace_value(text: str, option: Option, value: str) -> str:
    """Return the directive's line with the option's value replaced."""
    if option.value is None:
        return text
    return f"{text[: option.value_start]}{value}{text[option.value_end :]}"


def find(
    rule: str, line: int, edits: tuple[Edit, ...] = (), is_note: bool = False, **values: object
) -> Complaint:
    """Build a complaint that carries edits which fix the script's lines."""
    made = complain(line, rule, **values)
    return Complaint(made.line, made.rule, made.message, edits, is_note)
