"""Prepare the environment in which a program is observed by the probe."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hpcncf.job.spec import Remedies

FOLDER: Final = "HPCNCF_PROBE"
REMEDIES: Final = "HPCNCF_WITH"
TRIAL: Final = "HPCNCF_TRIAL"
GUARD: Final = "HPCNCF_GUARD"
"""Folders in which a trial may write; with it, what would be written elsewhere ends the trial."""
GUARD_KERNEL: Final = "HPCNCF_GUARD_KERNEL"
"""Whether the kernel watches, too: 1 or 0."""
GUARD_UNSET: Final = "HPCNCF_GUARD_UNSET"
"""Variables of a trial, separated by commas, that the program's real run will not have."""
LAUNCHERS: Final = frozenset(
    {"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed"}
)
"""Modules that start the ranks of a program."""
INJECTED: Final = Path(__file__).with_name("inject")
# A copy of it that all nodes of a job see, which need not see where hpcncf is installed.
COPY: Final = "HPCNCF_PROBE_COPY"
# Which variables `srun` passes on to its tasks; NONE in a job of `sbatch --export=NONE`.
EXPORTED: Final = "SLURM_EXPORT_ENV"
# Options of Python that keep it from reading PYTHONPATH or from importing sitecustomize.
DEAF: Final = frozenset("EIS")


def observed(
    environment: Mapping[str, str],
    folder: Path,
    remedies: Remedies | None = None,
    trial: Path | None = None,
) -> dict[str, str]:
    """Return an environment that loads the probe into Python; it writes its files to `folder`.

    `remedies`: what the probe applies to the program. `trial`: the file for the speed of the
    program's steps; as soon as it is known, the program is ended.
    """
    given, copy = environment.get("PYTHONPATH"), environment.get(COPY)
    inject = Path(copy) if copy and Path(copy).is_dir() else INJECTED
    # The separator says that there was none: see inject/sitecustomize.py.
    path = f"{inject}{os.pathsep}{given}" if given else f"{inject}{os.sep}"
    variables = {**environment, "PYTHONPATH": path, FOLDER: str(folder.absolute())}
    variables.pop(COPY, None)
    if exported := _export_too(environment.get(EXPORTED), ("PYTHONPATH", FOLDER)):
        variables[EXPORTED] = exported
    for name in (REMEDIES, TRIAL):
        variables.pop(name, None)
    if trial:
        variables |= {TRIAL: str(trial.absolute()), "PYTHONHASHSEED": "0"}
    if remedies:
        variables |= remedies.variables
        variables[REMEDIES] = str(remedies)
    return variables


def _export_too(exported: str | None, names: Sequence[str]) -> str | None:
    """Return what `srun` is to pass on so that its tasks get these variables, too.

    None if it passes on everything.
    """
    words = [word for word in (exported or "ALL").split(",") if word]
    if "ALL" in words:
        return None
    return ",".join([*(word for word in words if word not in ("NONE", "NIL")), *names])


def unobservable(command: Sequence[str]) -> str | None:
    """Return why the probe cannot observe this command, if its words alone show it."""
    name = Path(command[0]).name
    if not name.startswith("python"):
        return None
    for word in command[1:]:
        if not word.startswith("-") or word == "-" or word.startswith("--") or word[1] in "cm":
            return None
        if DEAF & set(word[1:]):
            return f"{shlex.join(command[:2])} does not load the probe (python -E, -I and -S)"
    return None


def program_of(pid: int) -> str:
    """Return the name of the program that a process runs; empty if that is not known."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/exe").readlink().name
    return ""


def why_unobserved(pid: int, inject: str) -> str | None:
    """Return why the probe in this folder cannot get into a process of Python; None if it can."""
    with suppress(OSError):
        words = _split(Path(f"/proc/{pid}/cmdline").read_bytes())
        variables = dict(word.partition("=")[::2] for word in _environment(pid))
        if words and (deaf := unobservable(words)):
            return deaf
        named = shlex.join(words[:2])
        folder = os.path.normpath(inject)
        entries = variables.get("PYTHONPATH", "").split(os.pathsep)
        if folder not in map(os.path.normpath, entries):
            return (
                f"{named} was not looked into: PYTHONPATH had been set anew; "
                "add to it, as in PYTHONPATH=lib:$PYTHONPATH"
            )
        if not Path(f"/proc/{pid}/root{folder}").exists():
            return f"{named} was not looked into: its container does not see {folder}"
    return None


def _environment(pid: int) -> list[str]:
    return _split(Path(f"/proc/{pid}/environ").read_bytes())


def _split(text: bytes) -> list[str]:
    return text.decode(errors="backslashreplace").split("\0")[:-1]
