"""What sbatch is asked for: its `#SBATCH` lines, and what its command line says instead."""

from __future__ import annotations

import argparse
import re
import shlex
from dataclasses import dataclass
from typing import Final, NoReturn


class Refused(Exception):
    """What the command says on stderr."""

    def __init__(self, said: str, code: int = 1) -> None:
        super().__init__(said)
        self.code = code


@dataclass(frozen=True)
class Request:
    script: str
    command: str | None
    """The script's path; none for `--wrap`."""
    arguments: tuple[str, ...]
    environment: dict[str, str]
    folder: str
    asked: argparse.Namespace

    @property
    def elements(self) -> list[int | None]:
        return list(array(self.asked.array)[0]) if self.asked.array else [None]

    @property
    def throttle(self) -> int | None:
        return array(self.asked.array)[1] if self.asked.array else None

    @property
    def nodes(self) -> int:
        return int(self.asked.nodes)

    @property
    def tasks(self) -> int:
        per_node = self.asked.ntasks_per_node or 1
        return int(self.asked.ntasks or per_node * self.nodes)

    @property
    def tasks_per_node(self) -> int:
        return -(-self.tasks // self.nodes)

    @property
    def cpus_per_node(self) -> int:
        return self.tasks_per_node * (self.asked.cpus_per_task or 1)

    @property
    def mem_mib(self) -> int:
        """Per node."""
        if self.asked.mem_per_cpu:
            return mebibytes(self.asked.mem_per_cpu) * self.cpus_per_node
        return mebibytes(self.asked.mem) if self.asked.mem else 500 * self.cpus_per_node

    @property
    def gpus(self) -> int:
        """Per node."""
        found = re.search(r"(\d+)$", self.asked.gpus_per_node or self.asked.gres or "0")
        return int(found[1]) if found else 1

    @property
    def warning(self) -> tuple[int, float, bool] | None:
        """The signal that is sent, how many seconds before the limit, and whether to the script."""
        found = re.fullmatch(r"(B:)?(?:SIG)?(\w+)(?:@(\d+))?", self.asked.signal or "")
        if not found:
            return None
        return signal_number(found[2]), float(found[3] or 60), bool(found[1])


def signal_number(name: str) -> int:
    import signal

    if name.isdigit():
        return int(name)
    return int(signal.Signals[f"SIG{name.removeprefix('SIG')}"])


class _Options(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Refused(f"sbatch: {message}\n")


def _options() -> _Options:
    options = _Options(prog="sbatch", add_help=False, allow_abbrev=False)
    for names in TEXTS:
        options.add_argument(*names)
    for names in NUMBERS:
        options.add_argument(*names, type=int)
    for names in FLAGS:
        options.add_argument(*names, action="store_true")
    options.add_argument("--exclusive", nargs="?", const="exclusive")
    options.add_argument("-N", "--nodes", type=lambda text: int(text.split("-")[0]), default=1)
    return options


TEXTS: Final = (
    *(("-J", "--job-name"), ("-p", "--partition"), ("-A", "--account"), ("-q", "--qos")),
    *(("-a", "--array"), ("-o", "--output"), ("-e", "--error"), ("-t", "--time"), ("--signal",)),
    *(("-d", "--dependency"), ("-C", "--constraint"), ("-w", "--nodelist"), ("-x", "--exclude")),
    *(("--mem",), ("--mem-per-cpu",), ("--mem-per-gpu",), ("--gpus-per-node",), ("--gres",)),
    *(("--wckey",), ("--open-mode",), ("--reservation",), ("--mail-user",), ("--mail-type",)),
    *(("--comment",), ("--export",), ("--wrap",), ("-b", "--begin"), ("-D", "--chdir")),
    *(("--gpus-per-task",), ("--kill-on-invalid-dep",), ("-i", "--input")),
)
NUMBERS: Final = (("-n", "--ntasks"), ("--ntasks-per-node",), ("-c", "--cpus-per-task"))
FLAGS: Final = (
    *(("--parsable",), ("-H", "--hold"), ("--requeue",), ("--no-requeue",), ("-W", "--wait")),
    *(("--test-only",), ("-Q", "--quiet"), ("-V", "--version")),
)


def read(words: list[str], environment: dict[str, str], folder: str, stdin: str) -> Request:
    """Raises Refused as sbatch does."""
    options = _options()
    options.add_argument("script", nargs=argparse.REMAINDER)
    given = options.parse_args(words)
    command, *arguments = given.script or [None]
    if given.wrap is not None:
        text = f"#!/bin/sh\n# This script was created by sbatch --wrap.\n\n{given.wrap}\n"
    else:
        text = _text(command, folder) if command else stdin
    if not text.startswith("#!"):
        raise Refused(NO_SCRIPT)
    lines = [word for line in text.splitlines() for word in directive(line)]
    asked = options.parse_args([*lines, *words])
    return Request(text, command, tuple(arguments), environment, asked.chdir or folder, asked)


NO_SCRIPT: Final = (
    "sbatch: error: This does not look like a batch script.  The first\n"
    "sbatch: error: line must start with #! followed by the path to an interpreter.\n"
    "sbatch: error: For instance: #!/bin/sh\n"
)


def _text(command: str, folder: str) -> str:
    from pathlib import Path

    try:
        return Path(folder, command).read_text()
    except OSError:
        raise Refused(f"sbatch: error: Unable to open file {command}\n") from None


def directive(line: str) -> list[str]:
    found = re.match(r"#SBATCH\s+(.*)", line)
    return shlex.split(found[1], comments=True) if found else []


def array(text: str) -> tuple[list[int], int | None]:
    """`3-7:2,9%4`: the indices and how many may run at a time."""
    spans, _, throttle = text.partition("%")
    indices: list[int] = []
    for span in spans.split(","):
        found = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", span)
        if not found:
            raise Refused(INVALID_ARRAY)
        first, last, step = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
        indices += range(first, last + 1, step)
    return indices, int(throttle) if throttle else None


INVALID_ARRAY: Final = (
    "sbatch: error: Batch job submission failed: Invalid job array specification\n"
)


def minutes(text: str) -> float:
    """`10`, `10:30`, `1:00:00`, `1-0`, `1-0:30`, `1-0:30:00`."""
    days, dash, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if dash:
        hours, mins, seconds = (*parts, 0, 0)[:3]
    elif len(parts) == 3:
        hours, mins, seconds = parts
    else:
        hours, (mins, seconds) = 0, (*parts, 0)[:2]
    return int(days or 0) * 1440 + hours * 60 + mins + seconds / 60


def mebibytes(text: str) -> int:
    found = re.fullmatch(r"(\d+)([KMGT]?)B?", text.upper())
    if not found:
        raise Refused("sbatch: error: Invalid --mem specification\n")
    factor = {"K": 2**-10, "": 1, "M": 1, "G": 2**10, "T": 2**20}[found[2]]
    return max(1, int(int(found[1]) * factor))
