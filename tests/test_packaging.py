"""What `pip install .` installs: the program, the analysis, sites and schemas, nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The names in the wheel, built from a copy so that the checkout gets no build folder, and as
    where there is no compiler: engine native's libraries, minutes of one, are not looked at."""
    folder = tmp_path_factory.mktemp("build")
    source = folder / "source"
    ignored = shutil.ignore_patterns(".venv", ".git", "results", "data", "build", "*.egg-info")
    shutil.copytree(ROOT, source, ignore=ignored)
    # `data` above also names a package's folder, which must be in the copy.
    shutil.copytree(ROOT / "hpcncf", source / "hpcncf", dirs_exist_ok=True)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    subprocess.run(
        [*command, "--no-build-isolation", "--wheel-dir", str(folder), str(source)],
        env=os.environ | {"CC": "false", "CXX": "false"},
        check=True,
    )
    (built,) = folder.glob("*.whl")
    return zipfile.ZipFile(built).namelist()


@pytest.mark.parametrize(
    "name",
    [
        "hpcncf/cli/run.py",
        "hpcncf/ncf/data/prepared.py",
        "hpcncf/py.typed",
        "hpcncf/schemas/job.json",
        "hpcncf/schemas/rank.json",
        "hpcncf/slurm_templates/cpu.yaml",
        "hpcncf_analysis/report.py",
        "hpcncf_analysis/templates/report.html.j2",
    ],
)
def test_the_wheel_holds(wheel: list[str], name: str) -> None:
    assert name in wheel


def test_the_wheel_adds_two_top_level_names_only(wheel: list[str]) -> None:
    top = {name.split("/")[0] for name in wheel if ".dist-info" not in name}
    assert top == {"hpcncf", "hpcncf_analysis"}


def test_every_module_of_the_checkout_is_in_the_wheel(wheel: list[str]) -> None:
    program = {str(path.relative_to(ROOT)) for path in (ROOT / "hpcncf").rglob("*.py")}
    analysis = {
        str(path.relative_to(ROOT / "analysis")) for path in (ROOT / "analysis").rglob("*.py")
    }
    assert program | analysis <= set(wheel)
