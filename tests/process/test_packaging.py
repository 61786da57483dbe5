"""What `pip install .` installs: the program, the analysis, sites and schemas, nothing else."""

from __future__ import annotations

import os
import platform
import runpy
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import setuptools

from hpcncf.ncf.engines.native.library import BUILDS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The names in the wheel, built from a copy so that the checkout gets no build folder, without
    engine native's libraries, which take minutes of a compiler."""
    folder = tmp_path_factory.mktemp("build")
    source = folder / "source"
    caches = (".hypothesis", ".*_cache", "__pycache__")  # pytest-xdist's others write there
    left_out = (".venv", ".git", "results", "data", "build", "*.egg-info", *caches)
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(*left_out))
    # `data` above also names a package's folder, which must be in the copy.
    ignored = shutil.ignore_patterns(*caches)
    shutil.copytree(ROOT / "hpcncf", source / "hpcncf", ignore=ignored, dirs_exist_ok=True)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    subprocess.run(
        [*command, "--no-build-isolation", "--wheel-dir", str(folder), str(source)],
        env=os.environ | {"HPCNCF_NATIVE": "0"},
        check=True,
    )
    (built,) = folder.glob("*.whl")
    assert built.name.endswith("-py3-none-any.whl")
    return zipfile.ZipFile(built).namelist()


@pytest.mark.parametrize(
    "name",
    [
        "hpcncf/cli/run.py",
        "hpcncf/ncf/data/prepared.py",
        "hpcncf/py.typed",
        "hpcncf/schemas/job.json",
        "hpcncf/schemas/site.json",
        "hpcncf/slurm_templates/cpu.yaml",
        "hpcncf-0.1.0.data/data/share/man/man1/hpcncf-run.1",
        "hpcncf-0.1.0.data/data/share/bash-completion/completions/hpcncf",
        "hpcncf-0.1.0.data/data/share/fish/vendor_completions.d/hpcncf.fish",
        "hpcncf-0.1.0.data/data/share/zsh/site-functions/_hpcncf",
        "hpcncf_analysis/report/build.py",
        "hpcncf_analysis/report/templates/report.html.j2",
    ],
)
def test_the_wheel_holds(wheel: list[str], name: str) -> None:
    assert name in wheel


def test_the_wheel_adds_two_top_level_names_only(wheel: list[str]) -> None:
    top = {name.split("/")[0] for name in wheel if ".dist-info" not in name and ".data" not in name}
    assert top == {"hpcncf", "hpcncf_analysis"}


def test_every_module_of_the_checkout_is_in_the_wheel(wheel: list[str]) -> None:
    program = {str(path.relative_to(ROOT)) for path in (ROOT / "hpcncf").rglob("*.py")}
    analysis = {
        str(path.relative_to(ROOT / "analysis")) for path in (ROOT / "analysis").rglob("*.py")
    }
    assert program | analysis <= set(wheel)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other CPUs have one build")
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++: not here")
@pytest.mark.parametrize("build", BUILDS)
def test_no_build_is_for_the_cpu_that_builds_it(
    build: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though Python's own flags say so, as EasyBuild's do: the login node's CPU may be newer."""
    seen: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", seen.update)
    runpy.run_path(str(ROOT / "setup.py"))
    (flags,) = (
        each.extra_compile_args for each in seen["ext_modules"] if each.name.endswith(f"._{build}")
    )
    command = ["g++", "-march=skylake-avx512", *flags, "-dM", "-E", "-x", "c++", "/dev/null"]
    defined = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    macros = {line.split()[1] for line in defined.splitlines()}
    names = {f"__{name.upper()}__": name for name in ["avx", *BUILDS["avx512"]]}
    used = {name for macro, name in names.items() if macro in macros}
    assert used == BUILDS[build] | ({"avx"} if BUILDS[build] else set())
