"""What a command starts: srun, mpirun, torchrun and the like, wrappers, and the Python program."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from hpcncf.batch.options import SLURM
from hpcncf.batch.shell import Word

StageKind = Literal[
    "srun", "mpirun", "torchrun", "accelerate", "deepspeed", "wrapper", "shell", "python", "program"
]


@dataclass(frozen=True)
class ExpandedWord:
    """A word of a command, with what is known of its value when the shell has expanded it."""

    word: Word
    text: str | None
    """Its value; None if it is not known."""
    origins: frozenset[str] = frozenset()
    """Variables and commands (`nproc()`) that it comes from."""
    skipped: int = 0
    """Characters of the word before the value: those of `--nnodes=`."""

    @property
    def shown(self) -> str:
        return self.text if self.text is not None else self.word.text[self.skipped :]

    @property
    def number(self) -> int | None:
        found = self.text is not None and re.fullmatch(r"\s*(\d{1,9})\s*", self.text)
        return int(found[1]) if found else None


@dataclass(frozen=True)
class Stage:
    """One program of a command and its own options: srun of `srun -n 2 python train.py`."""

    kind: StageKind
    name: str
    """As it is typed, without its folder."""
    options: Mapping[str, ExpandedWord | None] = field(default_factory=dict)
    """Names without dashes, underscores as `-`; None for a flag."""
    arguments: tuple[ExpandedWord, ...] = ()
    """What comes after the options: of Python the program's arguments."""
    place: ExpandedWord | None = None
    """The word that names the program."""
    script: str = ""
    """Of Python and shells: the file, or the module after `-m`."""
    is_module: bool = False
    code: str = ""
    """Of `-c`."""

    def number(self, *names: str) -> int | None:
        for name in names:
            argument = self.options.get(name)
            if argument is not None:
                return argument.number
        return None

    def get(self, *names: str) -> ExpandedWord | None:
        return next((self.options[name] for name in names if self.options.get(name)), None)

    def has(self, *names: str) -> bool:
        return any(name in self.options for name in names)


# Wrappers -> number of words that they take before the command, besides options and assignments.
WRAPPERS: Final = {
    "time": 0,
    "exec": 0,
    "nohup": 0,
    "command": 0,
    "env": 0,
    "nice": 0,
    "ionice": 0,
    "stdbuf": 0,
    "setsid": 0,
    "numactl": 0,
    "unbuffer": 0,
    "xvfb-run": 0,
    "catchsegv": 0,
    "timeout": 1,
    "taskset": 1,
    "chrt": 1,
    "nsys": 1,
    "ncu": 0,
    "strace": 0,
    "ltrace": 0,
    "py-spy": 1,
    "poetry": 1,
    "uv": 1,
    "pixi": 1,
    "pdm": 1,
    "pipenv": 1,
    "rye": 1,
    "hpcncf": 1,
    "kernprof": 0,
    "scalene": 0,
    "likwid-pin": 0,
    "likwid-perfctr": 0,
    "perf": 1,
    "valgrind": 0,
    "memusage": 0,
    "psrecord": 0,
    "firejail": 0,
    "proxychains": 0,
    "dplace": 0,
    "omplace": 0,
}
CONTAINERS: Final = frozenset({"singularity", "apptainer", "docker", "podman", "shifter"})
SHELLS: Final = frozenset({"bash", "sh", "zsh", "dash", "ksh"})
# Options of wrappers whose value is the next word.
WRAPPER_VALUES: Final = frozenset(
    {
        "-n", "-c", "-o", "-e", "-i", "-s", "-k", "-u", "-m", "-C", "-N", "-B", "-H", "-p", "-t",
        "--bind", "-W", "--signal", "--kill-after", "--pwd", "--env", "--env-file", "--home",
        "--workdir", "-D", "--delay", "--output", "--trace", "--python", "--with", "--rate",
        "--format", "--results", "--name", "--with-requirements", "--cpunodebind", "--membind",
        "--physcpubind", "--interleave", "--localalloc", "--overlay", "--scratch", "--mount",
        "--volume", "-v", "-w", "--image", "--entrypoint", "--prefix", "--json",
    }
)  # fmt: skip
WRAPPER_FLAGS: Final[Mapping[str, frozenset[str]]] = {
    "env": frozenset({"-i"}),
    "time": frozenset({"-p", "-v"}),
    "singularity": frozenset({"-c", "-C", "-e", "-u", "-i", "-p", "-s"}),
    "apptainer": frozenset({"-c", "-C", "-e", "-u", "-i", "-p", "-s"}),
    "taskset": frozenset({"-c", "-p", "-a"}),
    "docker": frozenset({"-i", "-t", "-it"}),
}
MPI_NAMES: Final = frozenset(
    {"mpirun", "mpiexec", "orterun", "prun", "prterun", "mpiexec.hydra", "jsrun", "ibrun", "aprun"}
)
# Number of words that each option takes, where it is not one; Open MPI, MPICH, Intel, jsrun, aprun.
MPI_WORDS: Final[Mapping[str, int]] = {
    "genv": 2, "env": 2, "mca": 2, "pmca": 2, "gmca": 2, "oversubscribe": 0, "bynode": 0,
    "bycore": 0, "byslot": 0, "bysocket": 0, "report-bindings": 0, "tag-output": 0, "verbose": 0,
    "v": 0, "q": 0, "quiet": 0, "display-map": 0, "allow-run-as-root": 0, "bind-to-core": 0,
    "bind-to-none": 0, "bind-to-socket": 0, "nolocal": 0, "l": 0, "prepend-rank": 0, "genvall": 0,
    "genvnone": 0, "use-hwthread-cpus": 0, "nooversubscribe": 0, "do-not-launch": 0, "pernode": 0,
    "enable-recovery": 0, "get-stage-dir": 0, "timestamp-output": 0, "xterm": 1, "smpiargs": 1,
}  # fmt: skip
TORCHRUN_FLAGS: Final = frozenset({"standalone", "no-python", "run-path", "m", "module", "help"})
_ACCELERATE_FLAGS = """
multi-gpu cpu tpu ipex use-deepspeed use-fsdp use-megatron-lm same-network m module no-python
debug quiet use-xpu use-mps-device no-tpu-cluster use-parallelism-config
"""
ACCELERATE_FLAGS: Final = frozenset(_ACCELERATE_FLAGS.split())
_DEEPSPEED_FLAGS = """
force-multi no-local-rank no-python module no-ssh no-ssh-check save-pid bind-cores-to-rank
"""
DEEPSPEED_FLAGS: Final = frozenset(_DEEPSPEED_FLAGS.split())
PYTHON: Final = re.compile(r"(?:i?python[\d.]*|pypy3?)")
PYTHON_VALUES: Final = frozenset("WXQ")
OLD_LAUNCHERS: Final = ("torch.distributed.launch", "torch.distributed.run")


def split_stages(words: Sequence[ExpandedWord]) -> list[Stage]:
    """Split a command into the programs that it starts, the outermost launcher first."""
    stages: list[Stage] = []
    remaining = list(words)
    while remaining and len(stages) < 12:
        head = remaining[0]
        name = (head.text or head.word.text).rpartition("/")[2]
        taken = _take(name, head, remaining[1:])
        stages.append(taken[0])
        remaining = taken[1]
    return stages


def _take(
    name: str, head: ExpandedWord, words: list[ExpandedWord]
) -> tuple[Stage, list[ExpandedWord]]:
    """Parse the stage that a program's name begins; also return the words of the next stage."""
    if name == "srun":
        options, rest = _slurm_options(words)
        return Stage("srun", name, options, place=head), rest
    if name in MPI_NAMES:
        options, rest = _mpi_options(words)
        return Stage("mpirun", name, options, place=head), rest
    if name == "torchrun":
        return _torchrun(name, head, words)
    if name == "accelerate" and words and words[0].text == "launch":
        options, rest = _long_options(words[1:], ACCELERATE_FLAGS)
        return Stage("accelerate", name, options, place=head), _as_python(options, rest)
    if name == "deepspeed":
        options, rest = _long_options(words, DEEPSPEED_FLAGS)
        return Stage("deepspeed", name, options, place=head), _as_python(options, rest)
    if PYTHON.fullmatch(name):
        return _python(name, head, words)
    if name in SHELLS:
        return _shell(name, head, words)
    if name in CONTAINERS or (name == "conda" and words and words[0].text == "run"):
        return _container(name, head, words)
    if name in ("mamba", "micromamba") and words and words[0].text == "run":
        return _container(name, head, words)
    if name in WRAPPERS:
        return _wrapper(name, head, words)
    if head.text and head.text.endswith(".py"):  # started by its own `#!` line
        return Stage("python", name, {}, tuple(words), head, head.text), []
    return Stage("program", name, {}, tuple(words), head), []


def _is_option(argument: ExpandedWord) -> bool:
    return argument.word.raw.startswith("-") and len(argument.word.raw) > 1


def _inner(argument: ExpandedWord, start: int) -> ExpandedWord:
    """Return the part of an argument behind an offset, such as the value after `=`."""
    text = None if argument.text is None else argument.text[start:]
    return ExpandedWord(argument.word, text, argument.origins, start)


def _slurm_options(
    words: list[ExpandedWord],
) -> tuple[dict[str, ExpandedWord | None], list[ExpandedWord]]:
    options: dict[str, ExpandedWord | None] = {}
    index = 0
    while index < len(words) and _is_option(words[index]):
        word = words[index]
        raw = word.word.text
        index += 1
        if raw == "--":
            break
        if raw.startswith("--"):
            spelled, equals, _ = raw.partition("=")
            fits = SLURM.complete(spelled[2:])
            name = fits[0] if len(fits) == 1 else spelled[2:]
            if equals:
                options[name] = _inner(word, len(spelled) + 1)
            elif name in SLURM.values and index < len(words):
                options[name] = words[index]
                index += 1
            else:
                options[name] = None
            continue
        letters = raw[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            name = SLURM.shorts.get(letter, letter)
            if name not in SLURM.values:
                options[name] = None
                continue
            if letters:
                options[name] = _inner(word, len(raw) - len(letters))
            elif index < len(words):
                options[name] = words[index]
                index += 1
            break
    return options, words[index:]


def _mpi_options(
    words: list[ExpandedWord],
) -> tuple[dict[str, ExpandedWord | None], list[ExpandedWord]]:
    options: dict[str, ExpandedWord | None] = {}
    index = 0
    while index < len(words) and _is_option(words[index]):
        word = words[index]
        spelled, equals, _ = word.word.text.lstrip("-").partition("=")
        index += 1
        if equals and word.word.text.startswith("--"):
            options[spelled] = _inner(word, word.word.text.index("=") + 1)
            continue
        attached = re.fullmatch(r"(n|np|a|c|r|N)(\d+)", spelled)  # jsrun -n2
        if attached:
            options[attached[1]] = _inner(word, len(word.word.text) - len(attached[2]))
            continue
        takes = MPI_WORDS.get(spelled, 1)
        options[spelled] = words[index] if takes and index < len(words) else None
        index += takes
    return options, words[index:]


def _long_options(
    words: list[ExpandedWord], flags: frozenset[str]
) -> tuple[dict[str, ExpandedWord | None], list[ExpandedWord]]:
    """Parse long options up to the program; return the options and the remaining words.

    Known forms: `--nnodes 2`, `--nnodes=2`, `--nproc_per_node 4`.
    """
    options: dict[str, ExpandedWord | None] = {}
    index = 0
    while index < len(words) and _is_option(words[index]):
        word = words[index]
        spelled, equals, _ = word.word.text.partition("=")
        name = spelled.lstrip("-").replace("_", "-")
        index += 1
        if equals:
            options[name] = _inner(word, len(spelled) + 1)
        elif name in flags or index >= len(words):
            options[name] = None
        else:
            options[name] = words[index]
            index += 1
    return options, words[index:]


def _torchrun(
    name: str, head: ExpandedWord, words: list[ExpandedWord]
) -> tuple[Stage, list[ExpandedWord]]:
    options, rest = _long_options(words, TORCHRUN_FLAGS)
    stage = Stage("torchrun", name, options, place=head)
    return stage, _as_python(options, rest)


def _as_python(
    options: Mapping[str, ExpandedWord | None], words: list[ExpandedWord]
) -> list[ExpandedWord]:
    """Rewrite a launcher's words as the Python command that the launcher starts.

    With `--no-python` they are unchanged.
    """
    if "no-python" in options or not words:
        return words
    first = words[0].word
    python = Word("python", first.start, first.line, ())
    given = [ExpandedWord(python, "python")]
    if "m" in options or "module" in options:
        given.append(ExpandedWord(Word("-m", first.start, first.line, ()), "-m"))
    return given + words


def _python(
    name: str, head: ExpandedWord, words: list[ExpandedWord]
) -> tuple[Stage, list[ExpandedWord]]:
    options: dict[str, ExpandedWord | None] = {}
    index = 0
    while index < len(words) and _is_option(words[index]):
        word = words[index]
        text = word.word.text
        index += 1
        if text.startswith("--"):
            options[text[2:]] = None
            continue
        letters = text[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            if letter in "mc":
                given = _inner(word, len(text) - len(letters)) if letters else None
                if given is None and index < len(words):
                    given = words[index]
                    index += 1
                rest = words[index:]
                value = given.shown if given else ""
                if letter == "c":
                    return Stage("python", name, options, tuple(rest), head, code=value), []
                return _module(name, head, options, value, rest)
            if letter in PYTHON_VALUES:
                if not letters:
                    index += 1
                letters = ""
            options[letter] = None
    script = words[index].shown if index < len(words) else ""
    arguments = tuple(words[index + 1 :])
    return Stage("python", name, options, arguments, head, script), []


def _module(
    name: str,
    head: ExpandedWord,
    options: dict[str, ExpandedWord | None],
    module: str,
    rest: list[ExpandedWord],
) -> tuple[Stage, list[ExpandedWord]]:
    if module in OLD_LAUNCHERS:
        stage, words = _torchrun(module, head, rest)
        return stage, words
    if module in ("accelerate.commands.launch", "accelerate"):
        words = rest[1:] if rest and rest[0].text == "launch" else rest
        given, left = _long_options(words, ACCELERATE_FLAGS)
        return Stage("accelerate", module, given, place=head), _as_python(given, left)
    if module in ("cProfile", "scalene", "viztracer", "coverage", "kernprof", "pdb", "hpcncf"):
        left = rest
        while left and (_is_option(left[0]) or left[0].text in ("run", "--")):
            left = left[2 if left[0].text in ("-o", "-s") else 1 :]
        python = ExpandedWord(Word("python", head.word.start, head.word.line, ()), "python")
        return Stage("wrapper", module, {}, place=head), [python, *left] if left else []
    return Stage("python", name, options, tuple(rest), head, module, is_module=True), []


def _shell(
    name: str, head: ExpandedWord, words: list[ExpandedWord]
) -> tuple[Stage, list[ExpandedWord]]:
    options: dict[str, ExpandedWord | None] = {}
    for index, word in enumerate(words):
        if not _is_option(word):
            return Stage("shell", name, options, tuple(words[index + 1 :]), head, word.shown), []
        if word.word.raw.lstrip("-").endswith("c") and not word.word.raw.startswith("--"):
            code = words[index + 1] if index + 1 < len(words) else None
            given = (code,) if code else ()
            return Stage("shell", name, {"c": code}, given, head, code="c"), []
        options[word.word.raw.lstrip("-")] = None
    return Stage("shell", name, options, (), head), []


def _wrapper(
    name: str, head: ExpandedWord, words: list[ExpandedWord]
) -> tuple[Stage, list[ExpandedWord]]:
    skipped, index = WRAPPERS[name], 0
    options: dict[str, ExpandedWord | None] = {}
    if skipped and name in ("poetry", "uv", "pixi", "pdm", "pipenv", "rye", "hpcncf", "nsys"):
        # Only `poetry run` and the like start a command.
        if not words or words[0].text not in ("run", "profile"):
            return Stage("program", name, {}, tuple(words), head), []
        words, skipped = words[1:], 0
    flags = WRAPPER_FLAGS.get(name, frozenset())
    while index < len(words):
        raw = words[index].word.raw
        if raw == "--":
            index += 1
            break
        if _is_option(words[index]):
            takes_next = raw in WRAPPER_VALUES and raw not in flags
            options[raw.lstrip("-").partition("=")[0]] = (
                words[index + 1] if takes_next and index + 1 < len(words) else None
            )
            index += 1 + takes_next
        elif name == "env" and re.match(r"[A-Za-z_]\w*=", raw):
            variable, _, _ = words[index].word.text.partition("=")
            options[variable] = _inner(words[index], len(variable) + 1)
            index += 1
        elif skipped:
            skipped -= 1
            index += 1
        else:
            break
    return Stage("wrapper", name, options, place=head), words[index:]


def _container(
    name: str, head: ExpandedWord, words: list[ExpandedWord]
) -> tuple[Stage, list[ExpandedWord]]:
    """Parse a wrapper such as `apptainer exec` or `conda run`; return stage and other words."""
    index = 0
    if words and words[0].text in ("exec", "run", "shell"):
        index = 1
    options: dict[str, ExpandedWord | None] = {}
    flags = WRAPPER_FLAGS.get(name, frozenset())
    while index < len(words) and _is_option(words[index]):
        raw = words[index].word.raw
        takes_next = "=" not in raw and raw in WRAPPER_VALUES and raw not in flags
        options[raw.lstrip("-").partition("=")[0]] = (
            words[index + 1] if takes_next and index + 1 < len(words) else None
        )
        index += 1 + takes_next
    if name not in ("conda", "mamba", "micromamba"):
        index += 1  # the image
    return Stage("wrapper", name, options, place=head), words[index:]
