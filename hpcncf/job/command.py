"""A user's own program: its words, parameters and placeholders."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from hpcncf.errors import abbreviate, did_you_mean
from hpcncf.job.settings import Settings

PLACEHOLDER: Final = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


def placeholder_names(text: str) -> list[str]:
    """Those in the text, each once. Raises ValueError where a brace stands alone."""
    found = [match for match in PLACEHOLDER.finditer(text) if match.group() not in ("{{", "}}")]
    if any(match.group(1) is None for match in found):
        raise ValueError(
            f"workload: unmatched brace in {abbreviate(text)}. Write a placeholder as {{name}}, "
            "a literal brace as {{ or }}."
        )
    return list(dict.fromkeys(match.group(1) for match in found))


def fill_placeholders(text: str, values: Mapping[str, str]) -> str:
    """The text with each placeholder's value; `{{` and `}}` are braces."""

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        return match.group()[0] if name is None else values[name]

    return PLACEHOLDER.sub(value, text)


def quoted_placeholder(line: str) -> str | None:
    """The first placeholder of a shell's line that stands inside its quotes; None: none does."""
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


# What a run of a command is told only when it runs, and is no part of what it computes.
RUNTIME_PLACEHOLDERS: Final = ("run_id", "output", "checkpoints")
RESERVED: Final = (*RUNTIME_PLACEHOLDERS, "repeat")
PARAMETER: Final = r"[A-Za-z](?:_?[A-Za-z0-9]){0,39}"


def _scalar(value: Any) -> Any:
    if not isinstance(value, bool | int | float | str):
        raise ValueError("expected a number, text or a truth value")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("expected a finite number")
    return value


def _passable(text: str) -> str:
    """What can be an argument of a program."""
    if "\0" in text:
        raise ValueError("a NUL byte cannot be passed to a program")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("not all of it is text that UTF-8 can write") from None
    return text


def _as_word(value: Any) -> Any:
    """YAML takes `--epochs, 3` for a number, which is a word all the same."""
    if isinstance(value, dict):
        raise ValueError('expected a word; in YAML one with braces needs quotes: "{lr}"')
    return scalar_text(value) if isinstance(value, bool | int | float) else value


def _as_words(value: Any) -> Any:
    if isinstance(value, str):
        raise ValueError(
            "expected a list of words, as [python, train.py]; a line for a shell is written "
            "{shell: python train.py > log}"
        )
    if value == []:
        raise ValueError("expected the program and its arguments, a word each")
    return value


def _one_line(line: str) -> str:
    if "\n" in line:
        raise ValueError("expected one line; put more into a script and give its name as command")
    quoted = quoted_placeholder(line)
    if quoted is not None:
        raise ValueError(
            f"{{{quoted}}} stands inside quotes, where a value would end them: write it outside "
            "(it is quoted for the shell by itself)"
        )
    return line


def _not_reserved(name: str) -> str:
    if name in RESERVED:
        raise ValueError(f"{{{name}}} has a meaning of its own; call the parameter otherwise")
    return name


Passable = Annotated[str, AfterValidator(_passable)]
Word = Annotated[Passable, BeforeValidator(_as_word)]
Line = Annotated[Passable, Field(min_length=1), AfterValidator(_one_line)]
Scalar = Annotated[bool | int | float | Passable, BeforeValidator(_scalar)]
ParameterName = Annotated[str, Field(pattern=f"^{PARAMETER}$"), AfterValidator(_not_reserved)]
Parameters = dict[ParameterName, Scalar]


class Program(Settings):
    """A program of one's own, run as each rank of a run."""

    command: Annotated[list[Word], BeforeValidator(_as_words)] | None = None
    """The program and its arguments, a word each, with placeholders: `[python, train.py, --lr,
    "{lr}"]`. No shell reads them."""
    shell: Line | None = None
    """In its stead one line for bash, where pipes or redirections are wanted."""
    folder: str = "."
    """Where it is started, relative to the job file. Not part of a run's identity."""

    @model_validator(mode="after")
    def one_of_the_two(self) -> Self:
        if (self.command is None) == (self.shell is None):
            raise ValueError("expected either command: [program, argument, ...] or shell: LINE")
        if self.command and not self.command[0]:
            raise ValueError("command: its first word, the program, is empty")
        return self

    @property
    def texts(self) -> list[str]:
        """What may hold placeholders."""
        return self.command if self.command is not None else [self.shell or ""]


def _kind(value: Any) -> str | None:
    if isinstance(value, dict | Program):
        return "program"
    return "ncf" if value == "ncf" else None


Workload = Annotated[
    Annotated[Literal["ncf"], Tag("ncf")] | Annotated[Program, Tag("program")],
    Discriminator(
        _kind,
        custom_error_type="workload",
        custom_error_message="expected ncf, or {command: [program, argument, ...]}",
    ),
]


def check_braces(program: Program) -> None:
    """What holds for one of a job file: braces mean something. Raises ValueError."""
    for words in program.texts:
        placeholder_names(words)


def scalar_text(value: bool | int | float | str) -> str:
    """As YAML spells it: `true`, `0.001`, `adam`."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def placeholder_values(
    parameters: Mapping[str, Any], resources: Mapping[str, Any], repeat: int
) -> dict[str, str]:
    """Placeholder -> text. What is known later stands for itself."""
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
        return [fill_placeholders(word, values) for word in program.texts]
    return ["bash", "-c", _shell_line(program.shell, values)]


def _shell_line(line: str, values: Mapping[str, str]) -> str:
    """Each value in a variable, so that the shell reads none of it as its own language."""
    variables = {name: f"hpcncf_{name.replace('.', '__')}" for name in placeholder_names(line)}
    given = [f"{variable}={shlex.quote(values[name])}" for name, variable in variables.items()]
    used = {name: f'"${variable}"' for name, variable in variables.items()}
    return "; ".join([*given, fill_placeholders(line, used)])


def find_placeholder_problem(program: Program, parameters: Mapping[str, Any], known: Mapping[str, str]) -> str:
    """Which placeholder means nothing, or which parameter changes nothing; empty: all is well."""
    used = [name for word in program.texts for name in placeholder_names(word)]
    for name in used:
        if name not in known:
            shown = [each for each in known if not each.startswith("parameters.")]
            return (
                f"workload: unknown placeholder {{{name}}}.{did_you_mean(name, shown)} Known: "
                f"{', '.join(shown)}; a brace itself is written {{{{ or }}}}"
            )
    idle = [name for name in parameters if not {name, f"parameters.{name}"} & set(used)]
    return (
        f"parameters.{idle[0]}: no word of the command uses it: write {{{idle[0]}}} where its "
        "value belongs, or remove it"
        if idle
        else ""
    )
