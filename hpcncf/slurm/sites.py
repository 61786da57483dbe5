"""Where site files lie, and reading one."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from hpcncf import jobfile, plain_yaml
from hpcncf.errors import UsageError, nearest
from hpcncf.slurm.request import Site
from hpcncf.spec import JobSpec

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
    plain = plain_yaml.parse(plain_yaml.read_text(path), str(path))
    # A file of nothing but comments asks for nothing.
    return jobfile.validated(Site, {} if plain is None else plain, str(path))


def _is_path(name: str) -> bool:
    return "/" in name or name.endswith(ENDING)


def _known_file(name: str) -> Path:
    known = _known()
    if name not in known:
        raise UsageError(
            f"site: no site {name!r}.{nearest(name, list(known))} Known sites: "
            f"{', '.join(sorted(known))} (in {templates()} and {personal()}); or give a path"
        )
    return known[name]


def _known() -> dict[str, Path]:
    files = list(templates().glob(f"*{ENDING}"))
    with contextlib.suppress(OSError):  # a configuration folder that we may not read holds none
        files += personal().glob(f"*{ENDING}")
    return {path.stem: path for path in files}
