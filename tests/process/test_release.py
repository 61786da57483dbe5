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

import pytest
import yaml

ROOT = Path(__file__).parents[2]
JOB = """\
name: own
workload: {command: [python3, train.py, "{lr}"]}
grid: {lr: [0.1, 0.2]}
resources: {mem_gb: 0.5, timeout_min: 5}
"""


def release_module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / f"release/{name}.py")
    assert spec is not None
    assert spec.loader is not None
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
    assert "2 runs" in hpcncf("plan", "job.yaml")
    hpcncf("submit", "job.yaml", "--cluster", "local", "--wait")
    assert "completed" in hpcncf("status")
    hpcncf("collect", "results/own")
    with (work / "results/own/tables/runs.csv").open(newline="") as table:
        seen = {float(row["metric_lr_seen"]) for row in csv.DictReader(table)}
    assert seen == {0.1, 0.2}
    hpcncf("report", "results/own")
    assert (work / "results/own/report/report.html").is_file()


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

    spack = ast.parse((tmp_path / "recipes/spack/package.py").read_text())
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
    for path in (tmp_path / "recipes").glob("*/*"):
        assert "@" + "VERSION@" not in path.read_text()


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (citation["version"], citation["license"]) == (project["version"], project["license"])


@pytest.mark.skipif(shutil.which("man") is None, reason="man: not here")
def test_each_command_has_a_page_that_man_can_show(tmp_path: Path) -> None:
    files = dict(release_module("manual").write_shared_files(tmp_path))
    pages = [Path(page) for page in files["share/man/man1"]]
    assert len(pages) == 18
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
