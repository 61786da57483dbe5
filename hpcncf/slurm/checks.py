"""What a site file may put into a batch script: nothing that leaves its line or contradicts it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from hpcncf.errors import UsageError, shown

# sbatch reads a #SBATCH line itself: quotes as a shell does, but a backslash escapes in them, too.
UNFIT: Final = re.compile(r"[\x00-\x1f\x7f\\]")
# In the names of files, Slurm takes % for the beginning of a pattern.
UNFIT_IN_PATHS: Final = re.compile(r"[\x00-\x1f\x7f\\%]")

OF_THE_JOB: Final = "comes from the job file's resources"
OF_SUBMITIT: Final = "is where hpcncf looks for the logs"
# Option -> why it cannot be given.
SRUN_REFUSED: Final[Mapping[str, str]] = {
    "-c": OF_THE_JOB,
    "--cpus-per-task": OF_THE_JOB,
    "-n": OF_THE_JOB,
    "--ntasks": OF_THE_JOB,
    "--ntasks-per-node": OF_THE_JOB,
    "-N": OF_THE_JOB,
    "--nodes": OF_THE_JOB,
    "-o": OF_SUBMITIT,
    "--output": OF_SUBMITIT,
    "-e": OF_SUBMITIT,
    "--error": OF_SUBMITIT,
}
OWN_KEYS: Final = (
    *("partition", "account", "qos", "constraint", "reservation"),
    *("mail-user", "mail-type"),
)
MEMORY_KEYS: Final = ("mem", "mem-per-cpu", "mem-per-gpu")
RESOURCE_KEYS: Final = (
    *("nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "gpus-per-node", "time"),
)
SBATCH_REFUSED: Final[Mapping[str, str]] = {
    **{key: f"has a key of its own: {key.replace('-', '_')}" for key in OWN_KEYS},
    **dict.fromkeys(MEMORY_KEYS, "is asked for by the key memory"),
    **dict.fromkeys(RESOURCE_KEYS, OF_THE_JOB),
    **dict.fromkeys(("output", "error", "open-mode"), OF_SUBMITIT),
    "array": "is made from the runs",
    "job-name": "is the job file's name",
    "signal": "has a key of its own: signal_delay_s",
    "exclusive": "has a key of its own in the job file: exclusive",
}
# What a rank learns from its launcher: a site that sets it would lie to it.
LAUNCHERS: Final = re.compile(
    r"(SLURM|SLURMD|SRUN|SBATCH|SUBMITIT|TORCHELASTIC)_.*|HPCNCF_(ATTEMPT|LAUNCHED_BY|NODE_CPUS)"
    r"|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)"
)


def _one_line(text: str) -> str:
    if found := UNFIT.search(text):
        raise ValueError(
            "expected one line without control characters and backslashes, which sbatch "
            f"would not read as written; found {found.group()!r}"
        )
    return text


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("expected text without NUL bytes: no shell can hold one")
    return text


def _srun_argument(text: str) -> str:
    option = text.partition("=")[0]
    short = option[:2] if re.match(r"-[^-]", option) else option
    # srun takes the beginning of an option for the whole, where no other begins so.
    meant = [known for known in SRUN_REFUSED if known == short or _begins(known, option)]
    if meant:
        raise ValueError(
            f"{meant[0]} {SRUN_REFUSED[meant[0]]} and is passed to srun already, so that every "
            "rank may use its cores: leave it out"
        )
    return text


def _begins(known: str, option: str) -> bool:
    return option.startswith("--") and len(option) > len("--cpus") and known.startswith(option)


def _sbatch_key(text: str) -> str:
    key = text.replace("_", "-")
    if key in SBATCH_REFUSED:
        raise ValueError(f"{key} {SBATCH_REFUSED[key]}")
    return key


def _of_no_launcher(name: str) -> str:
    if LAUNCHERS.fullmatch(name):
        raise ValueError(f"{name} is set by Slurm or the launcher of the ranks: leave it out")
    return name


def _path(text: str) -> str:
    if not text.startswith(("/", "~/")):
        raise ValueError("expected an absolute path, or one that begins with ~/")
    return text


def _command(text: str) -> str:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"not readable as a command: {error}") from None
    if not words:
        raise ValueError("expected a command, as in apptainer exec --nv image.sif")
    return text


Line = Annotated[str, Field(min_length=1), AfterValidator(_one_line)]
Text = Annotated[str, AfterValidator(_no_nul)]
Word = Annotated[str, Field(pattern=r"^[^\s\x00-\x1f\x7f-][^\s\x00-\x1f\x7f]*$")]
FolderPath = Annotated[str, AfterValidator(_path), AfterValidator(_no_nul)]
Command = Annotated[str, AfterValidator(_no_nul), AfterValidator(_command)]
SrunArgument = Annotated[Line, AfterValidator(_srun_argument)]
SbatchKey = Annotated[str, Field(pattern=r"^[a-z][a-z_-]*$"), AfterValidator(_sbatch_key)]
VariableName = Annotated[
    str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"), AfterValidator(_of_no_launcher)
]
Interface = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:@-]{0,31}$")]


def folder_for_slurm(folder: Path) -> Path:
    """The results folder, absolute. Raises UsageError where Slurm could not write logs below it."""
    if found := UNFIT_IN_PATHS.search(str(folder.absolute())):
        raise UsageError(
            f"{shown(str(folder))}: Slurm writes logs below it and takes {found.group()!r} in a "
            "path for something else: choose --results without %, backslash and control characters"
        )
    return folder.absolute()
