"""A user's own program as a workload: its words, its parameters, and `{placeholders}`."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    model_validator,
)

from hpcncf.errors import UsageError, abbreviate, did_you_mean
from hpcncf.job.settings import Settings

PLACEHOLDER: Final = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
# Known only at run time, and not part of what a run computes.
RUNTIME_PLACEHOLDERS: Final = ("run_id", "output", "checkpoints")
RESERVED: Final = (*RUNTIME_PLACEHOLDERS, "repeat")
PARAMETER: Final = r"[A-Za-z](?:_?[A-Za-z0-9]){0,39}"


def placeholder_names(text: str) -> list[str]:
    """The placeholders in the text, each once. Raises ValueError for an unmatched brace."""
    found = [match for match in PLACEHOLDER.finditer(text) if match.group() not in ("{{", "}}")]
    if any(match.group(1) is None for match in found):
        raise ValueError(
            f"workload: unmatched brace in {abbreviate(text)}. Write a placeholder as {{name}}, "
            "and a brace itself as {{ or }}"
        )
    return list(dict.fromkeys(match.group(1) for match in found))


def fill_placeholders(text: str, values: Mapping[str, str]) -> str:
    """The text with each placeholder's value; `{{` and `}}` become braces."""

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        return match.group()[0] if name is None else values[name]

    return PLACEHOLDER.sub(value, text)


def quoted_placeholder(line: str) -> str | None:
    """The first placeholder inside quotes of a shell's line, or None."""
    quote = None
    at = 0
    while at < len(line):
        found = PLACEHOLDER.match(line, at)
        if found and found.group(1) is not None and quote:
            return found.group(1)
        if line[at] == "\\" and quote != "'":
            at += 1
        elif quote is None and line[at] in "'\"":
            quote = line[at]
        elif line[at] == quote:
            quote = None
        at = found.end() if found else at + 1
    return None


def _check_scalar(value: Any) -> Any:
    if not isinstance(value, bool | int | float | str):
        raise ValueError("expected a number, text or a truth value")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("expected a finite number")
    return value


def _check_argument(text: str) -> str:
    if "\0" in text:
        raise ValueError("a NUL byte cannot be passed to a program")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("contains characters that UTF-8 cannot encode") from None
    return text


def _as_word(value: Any) -> Any:
    """YAML reads the word 3 of `--epochs, 3` as a number."""
    if isinstance(value, dict):
        raise ValueError('expected a word; in YAML, quote a word with braces: "{lr}"')
    return scalar_text(value) if isinstance(value, bool | int | float) else value


def _check_words(value: Any) -> Any:
    if isinstance(value, str):
        raise ValueError(
            "expected a list of words, as [python, train.py]. Write a shell command as "
            "{shell: python train.py > log}"
        )
    if value == []:
        raise ValueError("expected the program and its arguments as a list of words")
    return value


def _check_line(line: str) -> str:
    if "\n" in line:
        raise ValueError("expected one line. Put longer scripts into a file, and run it as command")
    quoted = quoted_placeholder(line)
    if quoted is not None:
        raise ValueError(
            f"{{{quoted}}} is inside quotes, which its value could end. Write it outside: hpcncf "
            "quotes it for the shell"
        )
    return line


def _check_not_reserved(name: str) -> str:
    if name in RESERVED:
        raise ValueError(f"{{{name}}} is reserved. Rename the parameter")
    return name


Argument = Annotated[str, AfterValidator(_check_argument)]
Word = Annotated[Argument, BeforeValidator(_as_word)]
Line = Annotated[Argument, Field(min_length=1), AfterValidator(_check_line)]
Scalar = Annotated[bool | int | float | Argument, BeforeValidator(_check_scalar)]
ParameterName = Annotated[str, Field(pattern=f"^{PARAMETER}$"), AfterValidator(_check_not_reserved)]
Parameters = dict[ParameterName, Scalar]


class Program(Settings):
    """A user's own program, started as each rank of a run."""

    command: Annotated[list[Word], BeforeValidator(_check_words)] | None = None
    """The program and its arguments as a list of words, with placeholders: `[python, train.py,
    --lr, "{lr}"]`. No shell reads them."""
    shell: Line | None = None
    """Instead of `command`, one line for bash with pipes or redirections."""
    folder: str = "."
    """Working directory, relative to the job file. Not part of a run's identity."""
    probe: bool = True
    """Look into its Python processes: phases, lines, causes. Not part of a run's identity."""
    quality: Annotated[str, Field(pattern=r"^[A-Za-z]\w{0,39}$")] = "loss"
    """The reported figure that shows how good a result is: `hpcncf report` recommends no
    configuration in which it is worse. Not part of a run's identity."""
    better: Literal["lower", "higher"] = "lower"
    """Which values of `quality` are better."""
    trial: bool = False
    """End it as soon as the speed of its steps is known to 3 %, or after some 15 seconds of
    training: what `hpcncf tune` does."""

    @model_validator(mode="after")
    def one_of_the_two(self) -> Self:
        if (self.command is None) == (self.shell is None):
            raise ValueError("expected either command: [program, argument, ...] or shell: LINE")
        if self.command and not self.command[0]:
            raise ValueError("command: its first word, the program, is empty")
        if self.trial and not self.probe:
            raise ValueError("trial: is ended by the probe; remove probe: false")
        return self

    @property
    def templates(self) -> list[str]:
        """The texts that may contain placeholders."""
        return self.command if self.command is not None else [self.shell or ""]


class Remedies(Settings):
    """Changes to a program of your own that are made from outside, none of its lines changed.

    Each is applied where it can be; where not, the record has the reason.
    """

    rowwise: bool = False
    """Update embedding tables only in the rows that a batch reads, with the same results:
    `hpcncf.remedies.rowwise`."""
    threads: Annotated[int, Field(gt=0, lt=4096)] | None = None
    """Torch's threads, and OMP_NUM_THREADS and MKL_NUM_THREADS. None: as the program has it."""
    workers: Annotated[int, Field(ge=0, lt=4096)] | None = None
    """Processes of each DataLoader. None: as the program has it."""
    persistent_workers: bool = False
    """Keep them between epochs."""
    prefetch_factor: Annotated[int, Field(gt=0, lt=4096)] | None = None
    """Batches that each of them makes ahead. None: as the program has it."""
    pin_memory: bool = False
    """Keep batches in page-locked memory, if there is a GPU."""
    fused: bool = False
    """Have PyTorch's optimizers update all parameters in one kernel."""
    foreach: bool = False
    """Have PyTorch's optimizers update lists of parameters at once."""
    omp: Literal["passive", "active"] | None = None
    """OMP_WAIT_POLICY: whether threads without work sleep or spin. None: as the program has it."""

    @model_validator(mode="after")
    def exclude_each_other(self) -> Self:
        if self.fused and self.foreach:
            raise ValueError("fused and foreach exclude each other; give one")
        for name in ("persistent_workers", "prefetch_factor"):
            if self.workers == 0 and getattr(self, name):
                raise ValueError(f"{name}: needs workers, and workers is 0")
        return self

    @classmethod
    def parse(cls, text: str) -> Self:
        """Of `rowwise,threads=1`. Raises UsageError."""
        values: dict[str, Any] = {}
        for word in filter(None, (each.strip() for each in text.split(","))):
            name, equals, value = word.partition("=")
            if name not in cls.model_fields:
                known = list(cls.model_fields)
                raise UsageError(
                    f"--with: unknown remedy {name!r}.{did_you_mean(name, known)} "
                    f"Known: {', '.join(known)}"
                )
            values[name] = (int(value) if value.isdigit() else value) if equals else True
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            problem = error.errors()[0]
            name = "".join(f"{part}: " for part in problem["loc"][:1])
            message = problem["msg"].removeprefix("Value error, ")
            raise UsageError(f"--with: {name}{message[0].lower()}{message[1:]}") from None

    def __bool__(self) -> bool:
        return self != type(self)()

    def __str__(self) -> str:
        """As --with has it; empty without any."""
        values = self.model_dump(exclude_defaults=True)
        return ",".join(
            name if value is True else f"{name}={value}" for name, value in values.items()
        )

    @property
    def variables(self) -> dict[str, str]:
        """Of the program's environment."""
        found = {} if self.omp is None else {"OMP_WAIT_POLICY": self.omp.upper()}
        if self.threads is not None:
            found |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(self.threads))
        return found


def _workload_kind(value: Any) -> str | None:
    if isinstance(value, dict | Program):
        return "program"
    return "ncf" if value == "ncf" else None


Workload = Annotated[
    Annotated[Literal["ncf"], Tag("ncf")] | Annotated[Program, Tag("program")],
    Discriminator(
        _workload_kind,
        custom_error_type="workload",
        custom_error_message="expected ncf, or {command: [program, argument, ...]}",
    ),
]


def scalar_text(value: bool | int | float | str) -> str:
    """The value as YAML spells it: `true`, `0.001`, `adam`."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def placeholder_values(
    parameters: Mapping[str, Any], resources: Mapping[str, Any], repeat: int
) -> dict[str, str]:
    """Placeholder -> text. The placeholders known only at run time map to themselves."""
    named = {name: scalar_text(value) for name, value in parameters.items()}
    return {
        **named,
        "repeat": scalar_text(repeat),
        **{name: f"{{{name}}}" for name in RUNTIME_PLACEHOLDERS},
        **{f"resources.{name}": scalar_text(value) for name, value in resources.items()},
        **{f"parameters.{name}": value for name, value in named.items()},
    }


def build_command(program: Program, values: Mapping[str, str]) -> list[str]:
    """The words that start the program."""
    if program.shell is None:
        return [fill_placeholders(word, values) for word in program.templates]
    # Each value goes into a variable, so that the shell does not interpret it.
    line = program.shell
    variables = {name: f"hpcncf_{name.replace('.', '__')}" for name in placeholder_names(line)}
    assignments = [
        f"{variable}={shlex.quote(values[name])}" for name, variable in variables.items()
    ]
    references = {name: f'"${variable}"' for name, variable in variables.items()}
    return ["bash", "-c", "; ".join([*assignments, fill_placeholders(line, references)])]


def find_placeholder_problem(
    program: Program, parameters: Mapping[str, Any], known: Mapping[str, str]
) -> str:
    """The first placeholder that is not known, or parameter that is not used; empty if none."""
    used = [name for word in program.templates for name in placeholder_names(word)]
    for name in used:
        if name not in known:
            choices = [each for each in known if not each.startswith("parameters.")]
            return (
                f"workload: unknown placeholder {{{name}}}.{did_you_mean(name, choices)} Known: "
                f"{', '.join(choices)}. Write a brace itself as {{{{ or }}}}"
            )
    for name in parameters:
        if not {name, f"parameters.{name}"} & set(used):
            return (
                f"parameters.{name}: the command does not use it. Write {{{name}}} in its place "
                "in the command, or remove it"
            )
    return ""
