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

from hpcncf.native.builds import BUILDS

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


def test_the_wheel_holds_every_module_and_what_else_is_used_and_nothing_more(
    wheel: list[str],
) -> None:
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "hpcncf").rglob("*.py")}
    analysis = ROOT / "analysis"
    modules |= {str(path.relative_to(analysis)) for path in analysis.rglob("*.py")}
    shared = "hpcncf-0.1.0.data/data/share"
    assert set(wheel) >= modules | {
        "hpcncf/py.typed",
        "hpcncf/schemas/job.json",
        "hpcncf/schemas/site.json",
        "hpcncf/SKILL.md",
        *(f"hpcncf/schemas/output/{verb}.json" for verb in ("error", "run", "lint", "retry")),
        "hpcncf/slurm_templates/cpu.yaml",
        "hpcncf_analysis/report/templates/report.html.j2",
        f"{shared}/man/man1/hpcncf-run.1",
        f"{shared}/bash-completion/completions/hpcncf",
        f"{shared}/fish/vendor_completions.d/hpcncf.fish",
        f"{shared}/zsh/site-functions/_hpcncf",
    }
    top = {name.split("/")[0] for name in wheel if ".dist-info" not in name and ".data" not in name}
    assert top == {"hpcncf", "hpcncf_analysis"}


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
