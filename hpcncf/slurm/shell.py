"""The lines of bash that a batch script begins with: what leaked in, modules, environments."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Final

# sbatch hands on the whole environment of the shell that submits. Where that is a rank of another
# job, or an interactive one, these would tell ours about the other.
OF_RANKS: Final = (
    "RANK LOCAL_RANK GROUP_RANK ROLE_RANK WORLD_SIZE LOCAL_WORLD_SIZE ROLE_WORLD_SIZE "
    "GROUP_WORLD_SIZE MASTER_ADDR MASTER_PORT HPCNCF_ATTEMPT HPCNCF_LAUNCHED_BY HPCNCF_NODE_CPUS"
)
# Every variable that begins so.
PREFIXES: Final = ("SRUN_", "SUBMITIT_", "TORCHELASTIC_", "SLURM_STEP_", "SLURM_CPU_BIND")
# What srun takes for its own options. SLURM_EXPORT_ENV=NONE, which sbatch --export=NONE leaves,
# would keep from the ranks what this script exports; from 23.11 on SLURM_TRES_PER_TASK that
# differs from --cpus-per-task ends srun at once, and so do two forms of memory. Asked for none, a
# step has all of its job's.
OF_SRUN: Final = (
    "SLURM_EXPORT_ENV SLURM_EXACT SLURM_OVERLAP SLURM_WHOLE SLURM_TRES_PER_TASK SLURM_GPU_BIND "
    "SLURM_MEM_BIND SLURM_DISTRIBUTION SLURM_HINT SLURM_THREADS_PER_CORE SLURM_CPUS_PER_GPU "
    "SLURM_GPUS SLURM_GPUS_PER_TASK SLURM_NTASKS_PER_GPU SLURM_NTASKS_PER_CORE "
    "SLURM_NTASKS_PER_SOCKET SLURM_MEM_PER_NODE SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU"
)

# Slurm's warning would end a Python that is still being imported, and with it the job as failed.
# What is preempted so early has nothing to save: Slurm puts it back by itself.
DEAF_AT_FIRST: Final = """sh -c 'trap "" USR2; exec "$@"' sh"""


def unset(asked: Collection[str]) -> list[str]:
    """Forget what the submitting shell knew of other jobs, but not what `asked` makes Slurm set."""
    own = [name for name in OF_SRUN.split() if _option(name) not in asked]
    prefixed = [f'"${{!{prefix}@}}"' for prefix in PREFIXES]
    groups = (OF_RANKS.split(), own, prefixed)
    return [
        "# what the submitting shell knew of other jobs",
        *(" ".join(["unset", *names]) for names in groups),
    ]


def _option(variable: str) -> str:
    return variable.removeprefix("SLURM_").lower().replace("_", "-")


def modules(names: Sequence[str]) -> list[str]:
    """Only these, whatever the login shell had loaded. A module that is missing ends the job."""
    if not names:
        return []
    return [
        "type module >/dev/null 2>&1 || . /etc/profile",
        "module purge",
        *(f"module load {shlex.quote(name)} || exit" for name in names),
    ]


def activate(conda: str | None, venv: str | None) -> list[str]:
    if conda is not None:
        return [
            'eval "$("${CONDA_EXE:-conda}" shell.bash hook)"',
            f"conda activate {path(conda)} || exit",
        ]
    return [f". {path(venv)}/bin/activate || exit"] if venv is not None else []


def teardown(lines: Sequence[str]) -> list[str]:
    """The job ends as its ranks did, however these lines end."""
    return ["status=$?", *lines, "exit $status"] if lines else []


def exports(variables: Mapping[str, str]) -> list[str]:
    return [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]


def python_shell(conda: str | None, venv: str | None, container: str | None, ours: str) -> str:
    """The command that starts Python on a node; `ours` where the site names none."""
    there = inside(conda, venv, container, ours)
    return f"{shlex.join(shlex.split(container))} {there}" if container is not None else there


def inside(conda: str | None, venv: str | None, container: str | None, ours: str) -> str:
    """Python alone, as one that runs in the container already calls it."""
    if venv is not None:
        return f"{path(venv)}/bin/python"
    return "python3" if conda is not None or container is not None else shlex.quote(ours)


def path(text: str) -> str:
    """Quoted; `~/` is the home folder of whoever runs it."""
    if text.startswith("~/"):
        return f'"$HOME"/{shlex.quote(text[2:])}'
    return shlex.quote(text)
