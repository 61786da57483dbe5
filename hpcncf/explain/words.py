"""Numbers, signals and exit codes in words."""

from __future__ import annotations

import signal
from typing import Final

THIN: Final = "\u202f"


def format_share(value: float) -> str:
    """Format a fraction as a percentage with about two significant digits: `2.1 %`, `43 %`."""
    percent = 100 * value
    digits = 0 if percent >= 9.95 or percent < 0.005 else 1 if percent >= 0.95 else 2
    return f"{percent:.{digits}f}{THIN}%"


def format_memory(mib: float) -> str:
    if mib < 1000:
        return f"{mib:.0f}{THIN}MiB" if mib >= 10 or mib == 0 else f"{mib:.2g}{THIN}MiB"
    gib = mib / 1024
    if gib >= 1000:
        return f"{gib / 1024:.1f}{THIN}TiB"
    return f"{gib:.0f}{THIN}GiB" if gib >= 100 or gib == round(gib) else f"{gib:.1f}{THIN}GiB"


def format_core_hours(hours: float) -> str:
    if hours < 0.1:
        return f"{3600 * hours:.0f} core-seconds"
    return f"{hours:,.0f} core-hours" if hours >= 9.95 else f"{hours:.1f} core-hours"


_SIGNALS: Final = {
    1: "its terminal or its parent process ended",
    2: "Ctrl-C, scancel or the scheduler interrupted it",
    3: "it was told to quit",
    4: "an instruction that this CPU lacks: the program was built for another one",
    6: "it aborted itself: a failed assertion, an uncaught C++ exception, a damaged heap",
    7: "a page could not be read: /dev/shm was full (DataLoader workers), or a mapped file shrank",
    8: "an arithmetic error such as a division by zero of whole numbers",
    9: "it was killed: most often for memory, or by the scheduler after a limit",
    10: "nothing handled a warning that the scheduler or the job script sent",
    11: "it touched memory that is not its own: an error in native code",
    12: "nothing handled a warning that the scheduler or the job script sent",
    13: "what it wrote to had closed",
    15: "it was asked to end: at a limit, by preemption, or by scancel, qdel or bkill",
    24: "it used up its limit of CPU time",
    25: "a file grew beyond its limit",
    53: "Slurm could not open its output file or enter its folder",
    125: "Slurm ended it for its memory",
}


def describe_signal(number: int) -> str:
    names = {each.value: each.name for each in signal.Signals}
    name = f" ({names[number]})" if number in names and number < 32 else ""
    meaning = _SIGNALS.get(number)
    return f"It ended by signal {number}{name}" + (f": {meaning}." if meaning else ".")


_CODES: Final = {
    1: "an error of the program: the last lines of its log name it",
    2: "wrong arguments, or a mistake in the shell script",
    126: "the command is not executable",
    127: "a command was not found: the module or the environment was not loaded",
}


def describe_exit_code(code: int) -> str:
    meaning = _CODES.get(code, "an error of the program: the last lines of its log name it")
    return f"It ended with exit code {code}: {meaning}."
