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
from hpcncf.job.load import is_site_file, parse_yaml, read_utf8
from hpcncf.job.spec import Resources, Settings, refuse, validate_settings

# sbatch passes on the whole environment of the submitting shell. If that belongs to another job,
# these variables would describe the other job to our ranks.
OF_RANKS: Final = (
    "RANK LOCAL_RANK GROUP_RANK ROLE_RANK WORLD_SIZE LOCAL_WORLD_SIZE ROLE_WORLD_SIZE "
    "GROUP_WORLD_SIZE MASTER_ADDR MASTER_PORT HPCNCF_ATTEMPT HPCNCF_LAUNCHED_BY HPCNCF_NODE_CPUS"
)
# Prefixes of variables.
PREFIXES: Final = ("SRUN_", "SUBMITIT_", "TORCHELASTIC_", "SLURM_STEP_", "SLURM_CPU_BIND")
# Variables that srun reads as options. SLURM_EXPORT_ENV=NONE, set by sbatch --export=NONE, would
# hide this script's exports from the ranks. From 23.11 on, srun ends at once if SLURM_TRES_PER_TASK
# differs from --cpus-per-task, and if memory is given in two forms; a step that requests no memory
# gets all of its job's.
OF_SRUN: Final = (
    "SLURM_EXPORT_ENV SLURM_EXACT SLURM_OVERLAP SLURM_WHOLE SLURM_TRES_PER_TASK SLURM_GPU_BIND "
    "SLURM_MEM_BIND SLURM_DISTRIBUTION SLURM_HINT SLURM_THREADS_PER_CORE SLURM_CPUS_PER_GPU "
    "SLURM_GPUS SLURM_GPUS_PER_TASK SLURM_NTASKS_PER_GPU SLURM_NTASKS_PER_CORE "
    "SLURM_NTASKS_PER_SOCKET SLURM_MEM_PER_NODE SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU"
)

# Slurm's warning signal would kill a Python that is still importing, and fail the job. A run
# preempted that early has nothing to save: Slurm requeues it by itself.
DEAF_AT_FIRST: Final = """sh -c 'trap "" USR2; exec "$@"' sh"""


def unset_lines(options: Collection[str]) -> list[str]:
    """Lines that unset other jobs' variables, except those that Slurm sets for these `options`."""
    own = [
        name
        for name in OF_SRUN.split()
        if name.removeprefix("SLURM_").lower().replace("_", "-") not in options
    ]
    prefixed = [f'"${{!{prefix}@}}"' for prefix in PREFIXES]
    return [
        "# what the submitting shell knew of other jobs",
        *(" ".join(["unset", *names]) for names in (OF_RANKS.split(), own, prefixed)),
    ]


def module_lines(names: Sequence[str]) -> list[str]:
    """Lines that load only these modules. A missing module ends the job."""
    if not names:
        return []
    return [
        "type module >/dev/null 2>&1 || . /etc/profile",
        "module purge",
        *(f"module load {shlex.quote(name)} || exit" for name in names),
    ]


def teardown_lines(lines: Sequence[str]) -> list[str]:
    """The lines, followed by the exit status of the ranks."""
    return ["status=$?", *lines, "exit $status"] if lines else []


def quote_path(text: str) -> str:
    """The path quoted for a shell; `~/` becomes the home folder of the user who runs it."""
    if text.startswith("~/"):
        return f'"$HOME"/{shlex.quote(text[2:])}'
    return shlex.quote(text)


# sbatch parses #SBATCH lines like a shell, but a backslash escapes even inside quotes.
UNFIT: Final = re.compile(r"[\x00-\x1f\x7f\\]")
# In file names, Slurm expands % patterns.
UNFIT_IN_PATHS: Final = re.compile(r"[\x00-\x1f\x7f\\%]")

OF_THE_JOB: Final = "comes from the job file's resources"
OF_SUBMITIT: Final = "is where hpcncf looks for the logs"
# Option -> why a site may not set it.
SRUN_REFUSED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("-c", "--cpus-per-task", "-n", "--ntasks", "--ntasks-per-node"), OF_THE_JOB),
    **dict.fromkeys(("-N", "--nodes"), OF_THE_JOB),
    **dict.fromkeys(("-o", "--output", "-e", "--error"), OF_SUBMITIT),
}
OWN_KEYS: Final = (
    *("partition", "account", "qos", "constraint", "reservation", "mail-user", "mail-type"),
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
# Set by the launcher of the ranks; a site must not override them.
LAUNCHERS: Final = re.compile(
    r"(SLURM|SLURMD|SRUN|SBATCH|SUBMITIT|TORCHELASTIC)_.*|HPCNCF_(ATTEMPT|LAUNCHED_BY|NODE_CPUS)"
    r"|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)"
)


def _one_line(text: str) -> str:
    if unfit := UNFIT.search(text):
        raise ValueError(
            "expected one line without control characters and backslashes, which sbatch "
            f"would not read as written; found {unfit.group()!r}"
        )
    return text


def _srun_argument(text: str) -> str:
    option = text.partition("=")[0]
    short = option[:2] if re.match(r"-[^-]", option) else option
    # srun accepts any unambiguous beginning of an option.
    abbreviated = option.startswith("--") and len(option) > len("--cpus")
    for known, reason in SRUN_REFUSED.items():
        if known == short or (abbreviated and known.startswith(option)):
            raise ValueError(
                f"{known} {reason} and is passed to srun already, so that every rank may use its "
                "cores: leave it out"
            )
    return text


def _sbatch_key(text: str) -> str:
    key = text.replace("_", "-")
    if key in SBATCH_REFUSED:
        raise ValueError(f"{key} {SBATCH_REFUSED[key]}")
    return key


def _command(text: str) -> str:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"not readable as a command: {error}") from None
    if not words:
        raise ValueError("expected a command, as in apptainer exec --nv image.sif")
    return text


Line = Annotated[str, Field(min_length=1), AfterValidator(_one_line)]
NO_NUL: Final = refuse(
    lambda text: "\0" in text, "expected text without NUL bytes: no shell can hold one"
)
Text = Annotated[str, NO_NUL]
Word = Annotated[str, Field(pattern=r"^[^\s\x00-\x1f\x7f-][^\s\x00-\x1f\x7f]*$")]
FolderPath = Annotated[
    str,
    refuse(
        lambda text: not text.startswith(("/", "~/")),
        "expected an absolute path, or one that begins with ~/",
    ),
    NO_NUL,
]
Command = Annotated[str, NO_NUL, AfterValidator(_command)]
SrunArgument = Annotated[Line, AfterValidator(_srun_argument)]
SbatchKey = Annotated[str, Field(pattern=r"^[a-z][a-z_-]*$"), AfterValidator(_sbatch_key)]
VariableName = Annotated[
    str,
    Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"),
    refuse(LAUNCHERS.fullmatch, "{} is set by Slurm or the launcher of the ranks: leave it out"),
]
Interface = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:@-]{0,31}$")]


def folder_for_slurm(folder: Path) -> Path:
    """The absolute results folder. Raises UsageError if Slurm cannot write logs to it."""
    if unfit := UNFIT_IN_PATHS.search(str(folder.absolute())):
        raise UsageError(
            f"{abbreviate(str(folder))}: Slurm interprets {unfit.group()!r} in a log's path. "
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
    """Settings that differ between clusters: a file of slurm_templates/, or a user's own."""

    partition: Line | None = None
    """Slurm's `--partition`, one or several with commas; left out, the cluster's default."""
    account: Line | None = None
    """Account that is charged, if the cluster requires one (`--account`)."""
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
    """Address of Slurm's mails, if it sends any; left out, the user who submits."""
    mail_type: list[MailType] = []  # noqa: RUF012
    """When it writes, as `[END, FAIL]`: once for each array, with `ARRAY_TASKS` for each task."""
    interface: Interface | None = None
    """Network interface that the ranks talk over, as `ib0`; left out, the ranks choose."""
    min_cpu_efficiency: Annotated[float, Field(ge=0, le=1)] = 0.7
    """CPU efficiency (as `seff` shows it, 0 to 1) below which `hpcncf report` recommends no
    configuration without GPUs."""

    @model_validator(mode="after")
    def one_environment(self) -> Self:
        if self.conda is not None and (self.venv is not None or self.container is not None):
            other = "venv" if self.venv is not None else "container"
            raise ValueError(f"conda and {other} both choose the Python of the ranks: give one")
        return self

    @model_validator(mode="after")
    def mail_has_an_occasion(self) -> Self:
        if self.mail_user is not None and not self.mail_type:
            raise ValueError("mail_user needs mail_type, as in mail_type: [END, FAIL]")
        return self


def parameters(
    resources: Resources,
    site: Site,
    job_name: str,
    array_parallelism: int | None = None,
    exclusive: bool = False,
) -> dict[str, Any]:
    """Parameters for submitit's AutoExecutor, without those that are not set."""
    limit_min = resources.timeout_min * resources.runs_per_task
    tasks, cpus = resources.tasks_per_node, resources.cpus_per_task
    if resources.launcher == "torchrun" or resources.packed:
        # One process per node starts the ranks or the co-located runs, and has all their cores.
        tasks, cpus = 1, resources.node_cores
    request: dict[str, Any] = {
        "name": job_name,
        "timeout_min": limit_min,
        "nodes": resources.nodes,
        "tasks_per_node": tasks,
        "cpus_per_task": cpus,
        "gpus_per_node": resources.node_gpus or None,
        **_memory_parameters(resources, site),
        "slurm_partition": site.partition,
        "slurm_account": site.account,
        "slurm_qos": site.qos,
        "slurm_constraint": site.constraint,
        "slurm_exclusive": exclusive or None,
        "slurm_mail_user": site.mail_user,
        "slurm_mail_type": ",".join(site.mail_type) or None,
        "slurm_signal_delay_s": min(site.signal_delay_s, limit_min * 10),
        "slurm_array_parallelism": array_parallelism or site.array_parallelism,
        "slurm_additional_parameters": _further_parameters(site) or None,
        "slurm_setup": [*setup_lines(resources, site), "export HPCNCF_LAUNCHED_BY=slurm"],
        "slurm_teardown": teardown_lines(site.teardown) or None,
        # From Slurm 22.05 on srun does not inherit sbatch's `--cpus-per-task`: a bound step would
        # give each rank one core. And a dead rank must not leave the others waiting for it.
        "slurm_srun_args": [f"--cpus-per-task={cpus}", "--kill-on-bad-exit=1", *site.srun_args],
    }
    return {key: value for key, value in request.items() if value is not None}


def python_request(site: Site) -> str:
    """The shell words that start Python on a node."""
    container = "" if site.container is None else f"{shlex.join(shlex.split(site.container))} "
    return f"{container}{python_inside(site)}"


def python_inside(site: Site) -> str:
    """The shell words that start Python from a process that is already in the site's container."""
    if site.venv is not None:
        return f"{quote_path(site.venv)}/bin/python"
    own = site.conda is None and site.container is None
    return shlex.quote(sys.executable) if own else "python3"


def _memory_parameters(resources: Resources, site: Site) -> dict[str, Any]:
    node_mib = math.ceil(resources.node_mem_gb * 1024)
    if site.memory == "mem":
        # submitit rounds down, possibly to 0, which would request the memory of the whole node.
        return {"mem_gb": node_mib / 1024}
    if site.memory == "mem_per_cpu":
        return {"slurm_mem_per_cpu": f"{-(-node_mib // resources.node_cores)}MB"}
    if site.memory == "mem_per_gpu" and resources.node_gpus:
        return {"slurm_mem_per_gpu": f"{-(-node_mib // resources.node_gpus)}MB"}
    return {}


def asks_memory(resources: Resources, site: Site) -> bool:
    """Whether `resources.mem_gb` is passed to Slurm at all."""
    return bool(_memory_parameters(resources, site))


def _further_parameters(site: Site) -> dict[str, Any]:
    # `--key=False` would set the option.
    flags = {key: value for key, value in site.additional_parameters.items() if value is not False}
    return flags | ({"reservation": site.reservation} if site.reservation is not None else {})


def setup_lines(resources: Resources, site: Site) -> list[str]:
    """Lines of the batch script before srun."""
    threads = str(resources.cpus_per_task)
    variables = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    if site.interface is not None:
        variables |= {"GLOO_SOCKET_IFNAME": site.interface, "NCCL_SOCKET_IFNAME": site.interface}
    activate = []
    if site.conda is not None:
        activate = [
            'eval "$("${CONDA_EXE:-conda}" shell.bash hook)"',
            f"conda activate {quote_path(site.conda)} || exit",
        ]
    elif site.venv is not None and site.container is None:
        activate = [f". {quote_path(site.venv)}/bin/activate || exit"]
    return [
        *unset_lines(_further_parameters(site)),
        *module_lines(site.modules),
        *activate,
        *(f"export {k}={shlex.quote(v)}" for k, v in (variables | site.environment).items()),
        *site.setup,
    ]


ENDING: Final = ".yaml"


def template_folder() -> Path:
    """slurm_templates/: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).parent.parent
    installed = package / "slurm_templates"
    return installed if installed.is_dir() else package.parent / "slurm_templates"


def personal_sites() -> Path:
    config = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(config) / "hpcncf/sites"


def load_site(name: str) -> Site:
    """The site with this name or path. A user's own file overrides a template of the same name.

    Raises UsageError.
    """
    path = Path(name)
    if not is_site_file(name):
        files = list(template_folder().glob(f"*{ENDING}"))
        with contextlib.suppress(OSError):  # an unreadable configuration folder has no sites
            files += personal_sites().glob(f"*{ENDING}")
        sites = {file.stem: file for file in files}
        if name not in sites:
            raise UsageError(
                f"site: no site {name!r}.{did_you_mean(name, list(sites))} Known sites: "
                f"{', '.join(sorted(sites))} (in {template_folder()} and {personal_sites()}); or "
                "give a path"
            )
        path = sites[name]
    plain = parse_yaml(read_utf8(path), str(path))
    # A file of comments only is an empty site.
    return validate_settings(Site, {} if plain is None else plain, str(path))
