"""Runs of a command whose code was edited since they ran."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcncf.cli import main
from hpcncf.job.load import build_plan, load_job
from hpcncf.records.user_code import hash_command_code, without_comments

JOB = """\
name: edited
workload: {command: [python, train.py, "--factor", "{factor}"]}
parameters: {factor: 1}
grid: {parameters.factor: [1, 2]}
resources: {timeout_min: 1}
"""


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, bool]]:
    """Submits the job and waits; returns the plan's ids and whether they are retired."""
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(JOB)
    Path("train.py").write_text("import lib\nlib.train()\n")

    def submit(expected: int = 0) -> dict[str, bool]:
        assert main(["submit", "job.yaml", "--cluster", "local", "--wait"]) == expected
        plan = json.loads(Path("results/edited/plan.json").read_text())
        return {run["id"]: run["retired"] for run in plan["runs"]}

    return submit


def test_edited_module_of_a_command_is_another_run(
    submit: Callable[..., dict[str, bool]], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("lib.py").write_text("def train(): print('first')\n")
    first = submit()
    job = load_job(Path("job.yaml"))
    assert set(first) == {run.id for run in build_plan(job, Path("job.yaml")).runs}
    assert submit() == first
    Path("lib.py").write_text("def train(): print('second')\n")
    second = submit()
    assert "2 runs had other code" in capsys.readouterr().err
    assert [run for run, retired in second.items() if retired] == list(first)
    assert len(second) == 4
    Path("lib.py").write_text("def train(): print('first')  # as before\n")
    third = submit()
    assert [run for run, retired in third.items() if not retired] == list(first)
    logs = list(Path("results/edited/runs").glob("*/attempt-*/*log*"))
    texts = "".join(path.read_text() for path in logs if path.is_file())
    assert (texts.count("first"), texts.count("second")) == (2, 2)


def test_failed_run_keeps_its_id_when_its_code_is_mended(
    submit: Callable[..., dict[str, bool]],
) -> None:
    Path("lib.py").write_text("def train(): raise ValueError\n")
    first = submit(expected=3)
    Path("lib.py").write_text("def train(): pass\n")
    assert submit() == first


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["python", "train.py"], {"train.py", "lib", "package", "package.part"}),
        (["python", "-m", "package.part"], {"package", "package.part"}),
        (["python", "-m", "package"], {"package", "package.__main__"}),
        (
            ["bash", "-c", "cd . && python train.py; true"],
            {"train.py", "lib", "package", "package.part"},
        ),
        (["bash", "run.sh"], {"run.sh", "train.py", "lib", "package", "package.part"}),
        (["./tool", "x"], {"./tool", "lib"}),
        (["python", "-c", "pass", "--config=a.yaml", "b.json"], {"a.yaml"}),
        (["python", "starts.py"], {"starts.py", "train.py"}),
        (["true"], set()),
    ],
)
def test_code_of_a_command_is_followed(tmp_path: Path, words: list[str], names: set[str]) -> None:
    files = {
        "train.py": "import json, lib, numpy\ndef f():\n    from package import part\n",
        "lib.py": "",
        "package/__init__.py": "",
        "package/__main__.py": "",
        "package/part.py": "from . import *\n",
        "run.sh": "#!/bin/sh\npython train.py \\\n  --x\n",
        "tool": "#!/usr/bin/env python3\nimport lib\n",
        "a.yaml": "a: 1\n",
        "b.json": "{}\n",
        "starts.py": "import subprocess, sys\nsubprocess.run([sys.executable, 'train.py'])\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = hash_command_code(words, tmp_path)
    assert names <= set(found.digests)
    assert set(found.digests) - names <= {"lib", "package", "package.part"}
    assert found.unfollowed == []


@pytest.mark.parametrize(
    ("source", "kept"),
    [
        ("a = 1  # b\n\n# c\nd = '# e'\n", "a = 1\nd = '# e'\n"),
        ("'''\n\n# no comment\n'''\n", "'''\n\n# no comment\n'''\n"),
        ("if a:\n\n    # b\n    c\n", "if a:\n    c\n"),
        ("a = 1\r\n", "a = 1\n"),
        ("a = (1\n", "a = (1\n"),
        ("", "\n"),
    ],
)
def test_comments_and_blank_lines_are_no_content(source: str, kept: str) -> None:
    assert without_comments(source.encode()) == kept.encode()
