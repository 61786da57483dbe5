"""Site files: where they are, their settings and checks."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, PositiveInt, model_validator

from hpcncf.errors import UsageError, did_you_mean
from hpcncf.job.load import is_site_file, parse_yaml, read_utf8
from hpcncf.job.spec import Settings, refuse, validate_settings


def quote_path(text: str) -> str:
    """Quote a path for a shell; `~/` becomes the home folder of the user who runs it."""
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


SiteLine = Annotated[str, Field(min_length=1), AfterValidator(_one_line)]


NO_NUL: Final = refuse(
    lambda text: "\0" in text, "expected text without NUL bytes: no shell can hold one"
)


Text = Annotated[str, NO_NUL]


SiteWord = Annotated[str, Field(pattern=r"^[^\s\x00-\x1f\x7f-][^\s\x00-\x1f\x7f]*$")]


FolderPath = Annotated[
    str,
    refuse(
        lambda text: not text.startswith(("/", "~/")),
        "expected an absolute path, or one that begins with ~/",
    ),
    NO_NUL,
]


SiteCommand = Annotated[str, NO_NUL, AfterValidator(_command)]


SrunArgument = Annotated[SiteLine, AfterValidator(_srun_argument)]


SbatchKey = Annotated[str, Field(pattern=r"^[a-z][a-z_-]*$"), AfterValidator(_sbatch_key)]


VariableName = Annotated[
    str,
    Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"),
    refuse(LAUNCHERS.fullmatch, "{} is set by Slurm or the launcher of the ranks: leave it out"),
]


Interface = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:@-]{0,31}$")]


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

    partition: SiteLine | None = None
    """Slurm's `--partition`, one or several with commas; left out, the cluster's default."""
    account: SiteLine | None = None
    """Account that is charged, if the cluster requires one (`--account`)."""
    qos: SiteLine | None = None
    """Quality of service (`--qos`)."""
    constraint: SiteLine | None = None
    """Features that the nodes must have, as `a100` or `intel&avx512` (`--constraint`)."""
    reservation: SiteLine | None = None
    """A reservation to run in (`--reservation`)."""
    memory: Literal["mem", "mem_per_cpu", "mem_per_gpu", "none"] = "mem"
    """How `resources.mem_gb`, the memory per node, is asked for: per node, divided by the CPUs or
    by the GPUs asked for on each node (without GPUs, not), or not at all. Whole MB, rounded up."""
    modules: list[SiteWord] = []  # noqa: RUF012  pydantic copies it
    """`module load` of each, after `module purge`; one that cannot be loaded ends the job."""
    conda: SiteLine | None = None
    """Name or path of a conda environment to activate; its Python starts the ranks."""
    venv: FolderPath | None = None
    """Folder of a virtual environment to activate; its Python starts the ranks."""
    container: SiteCommand | None = None
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
    additional_parameters: dict[SbatchKey, SiteLine | int | bool] = {}  # noqa: RUF012
    """Further `#SBATCH --key=value` lines, as `{no-requeue: true}`."""
    array_parallelism: PositiveInt = 256
    """At most this many tasks of an array run at a time."""
    signal_delay_s: PositiveInt = 30
    """Seconds before the time limit at which Slurm warns the ranks; at most a sixth of the limit,
    for Slurm may warn up to a minute earlier."""
    mail_user: SiteLine | None = None
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


ENDING: Final = ".yaml"


def template_folder() -> Path:
    """Return the folder slurm_templates/, of the installed package or of the checkout."""
    package = Path(__file__).parent.parent
    installed = package / "slurm_templates"
    return installed if installed.is_dir() else package.parent / "slurm_templates"


def personal_sites() -> Path:
    config = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(config) / "hpcncf/sites"


def load_site(name: str) -> Site:
    """Load the site with this name or path; a user's file overrides a template of that name.

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
