"""What a release adds to the wheel: the file for clusters without pip, recipes, man pages."""

from __future__ import annotations

import ast
import csv
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from hpcncf.cli import VERBS

ROOT = Path(__file__).parents[2]
LMOD = Path("/usr/share/lmod/lmod/init/bash")
JOB = """\
name: own
workload: {command: [python3, train.py, "{lr}"]}
grid: {lr: [0.1, 0.2]}
resources: {mem_gb: 0.5, timeout_min: 5}
"""


def release_module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / f"release/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_one_file_measures_a_users_program_over_a_grid(tmp_path: Path) -> None:
    build = [sys.executable, str(ROOT / "release/build.py"), "wheels", "pyz", "--machine", "none"]
    subprocess.run([*build, "--into", str(tmp_path)], check=True)
    (file,) = tmp_path.glob("*.pyz")
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").write_text(
        "import importlib.util, sys\n"
        "assert importlib.util.find_spec('submitit') is None, 'ours are in the program'\n"
        "print('hpcncf: lr_seen=' + sys.argv[1])\n"
    )
    (work / "job.yaml").write_text(JOB)
    # A Python without a single package, as on a login node.
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    variables = {"PATH": f"{bare}/bin:{os.environ['PATH']}", "HPCNCF_CACHE": str(tmp_path / "c")}

    def hpcncf(*words: str) -> str:
        done = subprocess.run(
            ["python3", str(file), *words],
            cwd=work,
            env=os.environ | variables,
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout

    assert hpcncf("--version").startswith("hpcncf ")
    hpcncf("run", "--", "python3", "train.py", "0.3")
    assert "2 completed" in hpcncf("submit", "job.yaml", "--cluster", "local", "--wait")
    hpcncf("report", "results/own")
    assert (work / "results/own/report/report.html").is_file()
    with (work / "results/own/tables/runs.csv").open(newline="") as table:
        seen = {float(row["metric_lr_seen"]) for row in csv.DictReader(table)}
    assert seen == {0.1, 0.2}


def test_recipes_need_what_the_project_needs(tmp_path: Path) -> None:
    (tmp_path / "hpcncf-0.1.0.tar.gz").write_bytes(b"archive")
    release_module("build").write_recipes(tmp_path)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = dict(each.split(">=") for each in project["dependencies"])

    conda = (tmp_path / "recipes/conda/meta.yaml").read_text()
    plain = re.sub(r"\{\{[^}]*\}\}", "x", re.sub(r"\{%[^%]*%\}", "", conda))
    run = dict(each.split(" >=") for each in yaml.safe_load(plain)["requirements"]["run"])
    assert run.pop("python") == project["requires-python"].removeprefix(">=")
    names = {"pytorch": "torch", "matplotlib-base": "matplotlib"}
    assert {names.get(name, name): version for name, version in run.items()} == needed

    packages = tmp_path / "recipes/spack/spack_repo/hpcncf/packages"
    assert yaml.safe_load((packages.parent / "repo.yaml").read_text())["repo"]["api"] == "v2.0"
    spack = ast.parse((packages / "py_hpcncf/package.py").read_text())
    # Spack 1 has build systems in a package of its own.
    imported = [ast.unparse(node) for node in spack.body if isinstance(node, ast.ImportFrom)]
    assert "from spack_repo.builtin.build_systems.python import PythonPackage" in imported
    calls = [node for node in ast.walk(spack) if isinstance(node, ast.Call)]
    depends = [
        call.args[0].value
        for call in calls
        if isinstance(call.func, ast.Name)
        and call.func.id == "depends_on"
        and isinstance(call.args[0], ast.Constant)
        and "run" in ast.unparse(call)
    ]
    found = dict(re.fullmatch(r"(?:py-)?([\w-]+)@(.+):", each).groups() for each in depends)  # type: ignore[union-attr]
    assert found.pop("python") == "3.11"
    assert found == needed

    easyconfig: dict[str, object] = {}
    exec((tmp_path / "recipes/easybuild/hpcncf.eb").read_text(), easyconfig)
    assert easyconfig["version"] == project["version"]
    extensions: Any = easyconfig["exts_list"]
    assert [len(options["checksums"][0]) for _, _, options in extensions] == [64] * 4
    for path in (tmp_path / "recipes").rglob("*.*"):
        assert "@" + "VERSION@" not in path.read_text()


@pytest.mark.skipif(not LMOD.exists(), reason="Lmod: not here")
def test_the_module_gives_the_command_alone_to_batch_scripts_too(tmp_path: Path) -> None:
    (tmp_path / "hpcncf-0.1.0.tar.gz").write_bytes(b"archive")
    release_module("build").write_recipes(tmp_path)
    prefix = tmp_path / "prefix"
    for folder in ("bin", "command"):
        (prefix / folder).mkdir(parents=True)
    for name in ("hpcncf", "python3"):
        (prefix / "bin" / name).write_text("#!/bin/sh\necho from the module $1\n")
        (prefix / "bin" / name).chmod(0o755)
    (prefix / "command/hpcncf").symlink_to("../bin/hpcncf")
    script = f"source {LMOD}; module load hpcncf; hpcncf plan; command -v python3; man -w man"
    done = subprocess.run(
        ["bash", "-c", script],
        env=os.environ | {"MODULEPATH": f"{tmp_path}/recipes/module", "HPCNCF_PREFIX": str(prefix)},
        capture_output=True,
        text=True,
        check=True,
    )
    first, python, page = done.stdout.splitlines()
    assert first == "from the module plan"
    assert str(prefix) not in python
    assert page.startswith("/usr/share/man")  # the system's pages are found as before


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (citation["version"], citation["license"]) == (project["version"], project["license"])


@pytest.mark.skipif(shutil.which("man") is None, reason="man: not here")
def test_each_command_has_a_page_that_man_can_show(tmp_path: Path) -> None:
    files = dict(release_module("manual").write_shared_files(tmp_path))
    pages = [Path(page) for page in files["share/man/man1"]]
    assert {each.name for each in pages} == {"hpcncf.1", *(f"hpcncf-{verb}.1" for verb in VERBS)}
    for page in pages:
        shown = subprocess.run(
            ["man", "--warnings", "--local-file", str(page)],
            env=os.environ | {"MANWIDTH": "80", "LC_ALL": "C.UTF-8", "MANPAGER": "cat"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert shown.stderr == ""
        assert page.stem in shown.stdout
        assert "\N{HYPHEN}" not in shown.stdout  # words broken where none could copy them
    (data,) = (page.read_text() for page in pages if page.stem == "hpcncf-data")
    assert ".SH HPCNCF DATA PREPARE CSV" in data
    assert ".B \\-\\-test\\-negatives" in data


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish: not here")
def test_fish_completes_commands_and_folders(tmp_path: Path) -> None:
    release_module("manual").write_shared_files(tmp_path)
    (tmp_path / "results/demo").mkdir(parents=True)
    script = tmp_path / "share/fish/vendor_completions.d/hpcncf.fish"

    def completed(line: str) -> str:
        command = ["fish", "--no-config", "-c", f"source {script}; complete -C '{line}'"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.split("\t")[0].strip()

    assert completed("hpcncf subm") == "submit"
    assert completed("hpcncf submit --cl") == "--cluster"
    assert completed("hpcncf report results/d") == "results/demo/"


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh: not here")
def test_zsh_finds_the_completion_in_its_standard_place(tmp_path: Path) -> None:
    release_module("manual").write_shared_files(tmp_path)
    functions = tmp_path / "share/zsh/site-functions"
    asked = f"fpath=({functions} $fpath); autoload -Uz compinit; compinit -u -D; " + (
        "print -r -- $_comps[hpcncf]; autoload -Uz +X _hpcncf"
    )
    done = subprocess.run(["zsh", "-fc", asked], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("_hpcncf", "")
