"""Where site files lie, and reading one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from hpcncf import jobfile
from hpcncf.errors import UsageError, nearest
from hpcncf.slurm import Site

ENDING: Final = ".yaml"


def templates() -> Path:
    """slurm_templates/: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).parent
    installed = package / "slurm_templates"
    return installed if installed.is_dir() else package.parent / "slurm_templates"


def personal() -> Path:
    config = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(config) / "hpcncf/sites"


def load(name: str, job_folder: Path) -> Site:
    """The site that a job file names: a path from the job file's folder, or a known name.

    A user's own file wins over the template of the same name. Raises UsageError.
    """
    path = _find(name, job_folder)
    plain = jobfile.parse(jobfile.read_text(path), str(path))
    # A file of nothing but comments asks for nothing.
    return jobfile.validated(Site, {} if plain is None else plain, str(path))


def absolute(name: str, job_folder: Path) -> str:
    """The name, or where it is a path the absolute one, to be kept apart from the job file."""
    is_path = "/" in name or name.endswith(ENDING)
    return str((job_folder / Path(name).expanduser()).resolve()) if is_path else name


def _find(name: str, job_folder: Path) -> Path:
    named = absolute(name, job_folder)
    if named != name or Path(name).is_absolute():
        return Path(named)
    known = _known()
    if name not in known:
        raise UsageError(
            f"site: no site {name!r}.{nearest(name, list(known))} Known sites: "
            f"{', '.join(sorted(known))} (in {templates()} and {personal()}); or give a path"
        )
    return known[name]


def _known() -> dict[str, Path]:
    files = [*templates().glob(f"*{ENDING}"), *personal().glob(f"*{ENDING}")]
    return {path.stem: path for path in files}
