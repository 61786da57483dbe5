"""Options of sbatch, srun, bsub and qsub: names, short forms, whether they take a value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

Scheduler = Literal["slurm", "lsf", "pbs", "sge"]
COMMANDS: Final[dict[Scheduler, str]] = {
    "slurm": "sbatch",
    "lsf": "bsub",
    "pbs": "qsub",
    "sge": "qsub",
}

# sbatch(1) and srun(1) of 22.05 to 26.05; short form after the name, `?` for an optional value.
SLURM_VALUES: Final = """
accel-bind bcast-exclude cluster consolidate-segments context environment ignore-signals
oom-kill-step msg-timeout pack-group resources send-libs? spread-segments treewidth
account-A acctg-freq array-a batch bb bbf begin-b bcast? chdir-D cluster-constraint clusters-M
comment compress? constraint-C container container-id core-spec-S cores-per-socket cpu-bind
cpu-freq cpus-per-gpu cpus-per-task-c deadline delay-boot dependency-d distribution-m epilog
error-e exclude-x exclusive? export export-file extra extra-node-info-B get-user-env? gid
gpu-bind gpu-freq gpus-G gpus-per-node gpus-per-socket gpus-per-task gres gres-flags het-group
hint input-i job-name-J jobid kill-on-bad-exit-K? licenses-L mail-type mail-user max-threads
mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus mpi multi-prog? network nice? nodefile-F
nodelist-w nodes-N ntasks-n ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket
ntasks-per-tres open-mode output-o partition-p power prefer priority profile prolog propagate?
qos-q relative-r reservation resv-ports? segment signal slurmd-debug sockets-per-node switches
task-epilog task-prolog thread-spec threads-per-core threads-T time-t time-min tmp tree-width
tres-bind tres-per-job tres-per-node tres-per-task uid wait-all-nodes wckey wrap
"""
SLURM_FLAGS: Final = """
async debugger-test external-launcher interactive quit-on-interrupt wait-for-children whole
contiguous disable-status-X exact external help-h hold-H ignore-pbs immediate-I
kill-on-invalid-dep label-l no-allocate-Z no-kill-k no-requeue overcommit-O overlap
oversubscribe-s parsable preserve-env-E pty quiet-Q reboot requeue spread-job stepmgr test-only
unbuffered-u usage use-min-nodes verbose-v version-V wait-W x11
"""
# Deprecated names that are still taken.
ALIASES: Final = {
    "tasks-per-node": "ntasks-per-node",
    "cpu_bind": "cpu-bind",
    "mem_bind": "mem-bind",
}
# Of other launchers and plugins that many sites add: Pyxis, X11.
SLURM_PLUGINS: Final = (
    "container-image",
    "container-mounts",
    "container-name",
    "container-workdir",
)


@dataclass(frozen=True)
class OptionTable:
    """The options of one command: full names, short letters, and which of them take a value."""

    shorts: dict[str, str]
    """Letter -> name."""
    values: frozenset[str]
    """Names that take a value, which may be the next word."""
    optional: frozenset[str]
    """Names that take a value after `=` only."""
    flags: frozenset[str]

    @property
    def names(self) -> frozenset[str]:
        return self.values | self.optional | self.flags

    def complete(self, name: str) -> list[str]:
        """Return the full names that a long option may abbreviate, as getopt does.

        The option is valid if there is exactly one.
        """
        name = ALIASES.get(name, name)
        if name in self.names:
            return [name]
        return sorted(each for each in self.names if each.startswith(name)) if name else []


def _slurm_table() -> OptionTable:
    shorts: dict[str, str] = {}
    names: dict[str, list[str]] = {"values": [], "optional": [], "flags": []}
    for kind, words in (("values", SLURM_VALUES), ("flags", SLURM_FLAGS)):
        for word in words.split():
            name = word.removesuffix("?")
            if name[-2] == "-":
                name, letter = name[:-2], name[-1]
                shorts[letter] = name
            names["optional" if word.endswith("?") else kind].append(name)
    names["values"] += SLURM_PLUGINS
    return OptionTable(
        shorts,
        frozenset(names["values"]),
        frozenset(names["optional"]),
        frozenset(names["flags"]),
    )


SLURM: Final = _slurm_table()
# sbatch has no option of these names; srun has.
SRUN_ONLY: Final = frozenset(
    {"exact", "label", "unbuffered", "overlap", "multi-prog", "mpi", "pty", "kill-on-bad-exit"}
)
# bsub(1): options without a value; every other one takes the next word.
_LSF_FLAGS = """
x N B H K I Ip Is IS ISp ISs IX r rn XF hl ul h V cn_cu cn_mem
"""
LSF_FLAGS: Final = frozenset(_LSF_FLAGS.split())
PBS_FLAGS: Final = frozenset(["I", "V", "X", "h", "z", "f", "x"])
SGE_FLAGS: Final = frozenset(["cwd", "V", "notify", "h", "terse", "help", "verify", "hard", "soft"])
SGE_TWO_VALUES: Final = frozenset({"pe"})
# Short for a name, so that rules need one spelling; qsub's own are kept.
LSF_NAMES: Final = {"J": "job-name", "n": "ntasks", "W": "time", "o": "output", "oo": "output"}


@dataclass(frozen=True)
class Option:
    """An option of a directive or a command."""

    name: str
    """In full, without dashes: `cpus-per-task` of `-c 4`."""
    value: str | None
    spelled: str
    """As it is written: `-c`."""
    line: int = 0
    start: int = 0
    """Column of the option, from 0."""
    value_start: int = 0
    """Column of the value, from 0."""
    value_end: int = 0


@dataclass(frozen=True)
class Token:
    """A word of a directive, as the scheduler's own parser splits it."""

    text: str
    start: int
    end: int


def split_directive(line: str, start: int, comments: bool = True) -> tuple[list[Token], str]:
    """Split a directive into words from a column on; also return a quote that is not closed.

    As sbatch does: blanks separate, quotes and backslashes keep, `#` begins a comment.
    """
    tokens: list[Token] = []
    text: list[str] = []
    quote, began, position = "", -1, start
    while position < len(line):
        char = line[position]
        if quote:
            if char == quote:
                quote = ""
            else:
                text.append(char)
        elif char in "\"'":
            quote, began = char, position if began < 0 else began
        elif char == "\\":
            position += 1
            text.append(line[position : position + 1])
            began = position - 1 if began < 0 else began
        elif char in " \t\r\f\v":
            if began >= 0:
                tokens.append(Token("".join(text), began, position))
            text, began = [], -1
        elif char == "#" and comments:
            break
        else:
            text.append(char)
            began = position if began < 0 else began
        position += 1
    if began >= 0 and (text or quote or position > began):
        tokens.append(Token("".join(text), began, min(position, len(line))))
    return [each for each in tokens if each.text or each.end > each.start + 1], quote


def parse_slurm(
    tokens: Sequence[Token], line: int, table: OptionTable = SLURM
) -> tuple[list[Option], int]:
    """Parse the options of an sbatch directive or an srun command, up to the first other word.

    Returns them and the number of words that were read.
    """
    options: list[Option] = []
    index = 0
    while index < len(tokens):
        token = tokens[index]
        word = token.text
        if not word.startswith("-") or word == "-":
            break
        index += 1
        if word == "--":
            break
        if word.startswith("--"):
            spelled, equals, value = word.partition("=")
            fits = table.complete(spelled[2:])
            name = fits[0] if len(fits) == 1 else spelled[2:]
            at = token.start + len(spelled) + 1
            given: str | None = value if equals else None
            end = token.end
            if not equals and name in table.values and index < len(tokens):
                given, at, end = tokens[index].text, tokens[index].start, tokens[index].end
                index += 1
            options.append(Option(name, given, spelled, line, token.start, at, end))
            continue
        letters = word[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            name = table.shorts.get(letter, letter)
            if name not in table.values and name not in table.optional:
                options.append(Option(name, None, f"-{letter}", line, token.start))
                continue
            at, end = token.end - len(letters), token.end
            given = letters
            if not letters and name in table.values and index < len(tokens):
                given, at, end = tokens[index].text, tokens[index].start, tokens[index].end
                index += 1
            options.append(Option(name, given or None, f"-{letter}", line, token.start, at, end))
            break
    return options, index


def parse_qsub(tokens: Sequence[Token], line: int, scheduler: Scheduler) -> list[Option]:
    """Parse the options of a bsub or qsub directive; words without an option are skipped."""
    flags = {"lsf": LSF_FLAGS, "pbs": PBS_FLAGS, "sge": SGE_FLAGS}.get(scheduler, frozenset())
    options: list[Option] = []
    index = 0
    while index < len(tokens):
        token = tokens[index]
        index += 1
        if not token.text.startswith("-") or len(token.text) < 2:
            continue
        name = token.text.lstrip("-")
        spelled = token.text
        value: str | None = None
        at = end = token.end
        if (scheduler == "pbs" and len(name) > 1 and not token.text.startswith("--")) or (
            scheduler == "lsf" and name[:1] in "nW" and name[1:2].isdigit()
        ):
            name, value = name[0], name[1:]
            spelled, at = f"-{name}", token.start + 2
        elif name not in flags and index < len(tokens):
            value, at, end = tokens[index].text, tokens[index].start, tokens[index].end
            index += 1
            if name in SGE_TWO_VALUES and scheduler == "sge" and index < len(tokens):
                value, end = f"{value} {tokens[index].text}", tokens[index].end
                index += 1
        options.append(Option(name, value, spelled, line, token.start, at, end))
    return options
