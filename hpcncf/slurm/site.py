"""Site files: settings, checks, and the parameters that submitit gets."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, PositiveInt, model_validator

from hpcncf.errors import UsageError, abbreviate, did_you_mean
from hpcncf.job.load import validate_settings
from hpcncf.job.settings import Settings, parse_yaml, read_utf8
from hpcncf.job.spec import JobSpec, Resources

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


def _is_foreign_variable(name: str) -> str:
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
    str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"), AfterValidator(_is_foreign_variable)
]
Interface = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:@-]{0,31}$")]


def folder_for_slurm(folder: Path) -> Path:
    """The results folder, absolute. Raises UsageError where Slurm could not write logs below it."""
    if found := UNFIT_IN_PATHS.search(str(folder.absolute())):
        raise UsageError(
            f"{abbreviate(str(folder))}: Slurm interprets {found.group()!r} in a log's path. "
            "Choose --results without %, backslash and control characters."
        )
    return folder.absolute()


MailType = Literal[
    "NONE",
    "BEGIN",
    "END",
    "FAIL",
    "REQUEUE",
    "ALL",
    "INVALID_DEPEND",
    "STAGE_OUT",
    "TIME_LIMIT",
    "TIME_LIMIT_90",
    "TIME_LIMIT_80",
    "TIME_LIMIT_50",
    "ARRAY_TASKS",
]


class Site(Settings):
    """What differs between clusters: a file of slurm_templates/, or a user's own."""

    partition: Line | None = None
    """Slurm's `--partition`, one or several with commas; left out, the cluster's default."""
    account: Line | None = None
    """Who is charged, where the cluster asks (`--account`)."""
    qos: Line | None = None
    """Quality of service (`--qos`)."""
    constraint: Line | None = None
    """Features that the nodes must have, as `a100` or `intel&avx512` (`--constraint`)."""
    reservation: Line | None = None
    """A reservation to run in (`--reservation`)."""
    memory: Literal["mem", "mem_per_cpu", "mem_per_gpu", "none"] = "mem"
    """How `resources.mem_gb`, the memory per node, is asked for: per node, divided by the CPUs or
    by the GPUs asked for on each node (without GPUs, not), or not at all. Whole MB, rounded up."""
    modules: list[Word] = []  # noqa: RUF012  pydantic copies it
    """`module load` of each, after `module purge`; one that cannot be loaded ends the job."""
    conda: Line | None = None
    """Name or path of a conda environment to activate; its Python starts the ranks."""
    venv: FolderPath | None = None
    """Folder of a virtual environment to activate; its Python starts the ranks."""
    container: Command | None = None
    """A command that Python is started with, as `apptainer exec --nv image.sif`. The image's
    `python3` starts the ranks (with `venv`, that one's)."""
    setup: list[Text] = []  # noqa: RUF012
    """Lines of bash before the ranks start, after modules and environments; taken as they are."""
    teardown: list[Text] = []  # noqa: RUF012
    """Lines of bash after the ranks ended; not reached when Slurm ends the job."""
    environment: dict[VariableName, Text] = {}  # noqa: RUF012
    """Variables that every rank gets, taken literally: `$HOME` stays those five characters."""
    srun_args: list[SrunArgument] = []  # noqa: RUF012
    """Further arguments of the srun that starts the ranks, as `--cpu-bind=cores`."""
    additional_parameters: dict[SbatchKey, Line | int | bool] = {}  # noqa: RUF012
    """Further `#SBATCH --key=value` lines, as `{no-requeue: true}`."""
    array_parallelism: PositiveInt = 256
    """At most this many tasks of an array run at a time."""
    signal_delay_s: PositiveInt = 30
    """Seconds before the time limit at which Slurm warns the ranks; at most a sixth of the limit,
    for Slurm may warn up to a minute earlier."""
    mail_user: Line | None = None
    """Whom Slurm writes to, where it sends mail; left out, the user who submits."""
    mail_type: list[MailType] = []  # noqa: RUF012
    """When it writes, as `[END, FAIL]`: once for each array, with `ARRAY_TASKS` for each task."""
    interface: Interface | None = None
    """Network interface that the ranks talk over, as `ib0`; left out, the ranks choose."""

    @model_validator(mode="after")
    def one_environment(self) -> Self:
        if self.conda is not None and (self.venv is not None or self.container is not None):
            other = "venv" if self.venv is not None else "container"
            raise ValueError(f"conda and {other} both say which Python starts the ranks: give one")
        return self

    @model_validator(mode="after")
    def mail_has_an_occasion(self) -> Self:
        if self.mail_user is not None and not self.mail_type:
            raise ValueError(
                "mail_user is given, but not when to write: mail_type: [END, FAIL], say"
            )
        return self


def parameters(
    resources: Resources,
    site: Site,
    job_name: str,
    array_parallelism: int | None = None,
    exclusive: bool = False,
) -> dict[str, Any]:
    """What submitit's AutoExecutor is told, in its own words; what is not asked is left out."""
    limit_min = resources.timeout_min * resources.runs_per_task
    tasks, cpus = _tasks(resources)
    asked: dict[str, Any] = {
        "name": job_name,
        "timeout_min": limit_min,
        "nodes": resources.nodes,
        "tasks_per_node": tasks,
        "cpus_per_task": cpus,
        "gpus_per_node": resources.node_gpus or None,
        **_memory(resources, site),
        "slurm_partition": site.partition,
        "slurm_account": site.account,
        "slurm_qos": site.qos,
        "slurm_constraint": site.constraint,
        "slurm_exclusive": exclusive or None,
        "slurm_mail_user": site.mail_user,
        "slurm_mail_type": ",".join(site.mail_type) or None,
        "slurm_signal_delay_s": min(site.signal_delay_s, limit_min * 10),
        "slurm_array_parallelism": array_parallelism or site.array_parallelism,
        "slurm_additional_parameters": _further(site) or None,
        "slurm_setup": [*setup(resources, site), "export HPCNCF_LAUNCHED_BY=slurm"],
        "slurm_teardown": teardown(site.teardown) or None,
        "slurm_srun_args": _srun_args(cpus, site),
    }
    return {key: value for key, value in asked.items() if value is not None}


def python_request(site: Site) -> str:
    """The shell words that start Python on a node."""
    return python_shell(site.conda, site.venv, site.container, sys.executable)


def python_of_ranks(site: Site) -> str:
    """The same for what a Python on a node starts itself."""
    return inside(site.conda, site.venv, site.container, sys.executable)


def _tasks(resources: Resources) -> tuple[int, int]:
    """Tasks on each node and CPUs of each: one torchrun has the cores of all its ranks, and so has
    what starts runs side by side."""
    if resources.launcher == "torchrun" or resources.packed:
        return 1, resources.node_cores
    return resources.tasks_per_node, resources.cpus_per_task


def _memory(resources: Resources, site: Site) -> dict[str, Any]:
    whole = math.ceil(resources.node_mem_gb * 1024)
    if site.memory == "mem":
        # submitit rounds down, to 0 at last, which asks for the whole node's.
        return {"mem_gb": whole / 1024}
    if site.memory == "mem_per_cpu":
        return {"slurm_mem_per_cpu": f"{-(-whole // resources.node_cores)}MB"}
    if site.memory == "mem_per_gpu" and resources.node_gpus:
        return {"slurm_mem_per_gpu": f"{-(-whole // resources.node_gpus)}MB"}
    return {}


def asks_memory(resources: Resources, site: Site) -> bool:
    """Whether Slurm is told of memory at all; else `resources.mem_gb` changes nothing there."""
    return bool(_memory(resources, site))


def _further(site: Site) -> dict[str, Any]:
    # `--key=False` would ask for it.
    asked = {key: value for key, value in site.additional_parameters.items() if value is not False}
    return asked | ({"reservation": site.reservation} if site.reservation is not None else {})


def setup(resources: Resources, site: Site) -> list[str]:
    """The batch script's lines before srun."""
    threads = str(resources.cpus_per_task)
    ours = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    if site.interface is not None:
        ours |= {"GLOO_SOCKET_IFNAME": site.interface, "NCCL_SOCKET_IFNAME": site.interface}
    outside = None if site.container is not None else site.venv
    return [
        *unset(_further(site)),
        *modules(site.modules),
        *activate(site.conda, outside),
        *exports(ours | site.environment),
        *site.setup,
    ]


def _srun_args(cpus: int, site: Site) -> list[str]:
    """From Slurm 22.05 on srun does not inherit sbatch's `--cpus-per-task`: a bound step then
    gives each rank one core. And one dead rank must not leave the others waiting for it."""
    return [f"--cpus-per-task={cpus}", "--kill-on-bad-exit=1", *site.srun_args]


ENDING: Final = ".yaml"


def templates() -> Path:
    """slurm_templates/: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).parent.parent
    installed = package / "slurm_templates"
    return installed if installed.is_dir() else package.parent / "slurm_templates"


def personal() -> Path:
    config = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(config) / "hpcncf/sites"


def anchored(job: JobSpec, folder: Path) -> JobSpec:
    """The job with its site, where that is a path, made absolute from the job file's folder."""
    if not _is_path(job.site):
        return job
    site = (folder / Path(job.site).expanduser()).resolve()
    return job.model_copy(update={"site": str(site)})


def load_sites(name: str) -> Site:
    """The site that a job names: a path, or a known name.

    A user's own file wins over the template of the same name. Raises UsageError.
    """
    path = Path(name) if _is_path(name) else _known_file(name)
    plain = parse_yaml(read_utf8(path), str(path))
    # A file of nothing but comments asks for nothing.
    return validate_settings(Site, {} if plain is None else plain, str(path))


def _is_path(name: str) -> bool:
    return "/" in name or name.endswith(ENDING)


def _known_file(name: str) -> Path:
    known = _known()
    if name not in known:
        raise UsageError(
            f"site: no site {name!r}.{did_you_mean(name, list(known))} Known sites: "
            f"{', '.join(sorted(known))} (in {templates()} and {personal()}); or give a path"
        )
    return known[name]


def _known() -> dict[str, Path]:
    files = list(templates().glob(f"*{ENDING}"))
    with contextlib.suppress(OSError):  # a configuration folder that we may not read holds none
        files += personal().glob(f"*{ENDING}")
    return {path.stem: path for path in files}
