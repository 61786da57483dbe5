"""One job before the many: what it asks, what its answers mean, how it ends."""

from __future__ import annotations

import platform
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import FakeSlurm, within

from hpcncf.cli import main
from hpcncf.job.load import build_plan, load_job
from hpcncf.job.spec import Resources
from hpcncf.launch.node_check import (
    ANSWER,
    LIMIT_MIN,
    Answer,
    Question,
    answer,
    build_question,
    describe_failure,
    differences,
    single_rank,
)
from hpcncf.records.host import package_versions
from hpcncf.records.schema import read_record
from hpcncf.slurm.states import JobState

JobFile = Callable[[str], Path]


def asked(path: Path) -> Question:
    return build_question(build_plan(load_job(path), path).active())


def answered(path: Path, tmp_path: Path, **changes: Any) -> list[str]:
    """The differences found in this machine's own answer with these changes."""
    question = asked(path)
    answer(str(tmp_path), replace(question, torch=False))  # importing it takes seconds
    seen = read_record(tmp_path / ANSWER, Answer).model_copy(update=changes)
    return list(differences(question, seen, package_versions()))


@pytest.mark.parametrize(
    ("changes", "seen"),
    [
        ({"python": "3.9.0"}, "runs Python 3.9.0, here it is " + platform.python_version()),
        ({"versions": {}}, "has hpcncf not installed, here it is "),
        ({"torch_problem": "no libgomp"}, "cannot import torch: no libgomp"),
        ({"missing": ["train.py"]}, "does not see train.py: is it on a file system that"),
        ({"data": {}}, "/tiny: is it on a file system that compute nodes share?"),
        ({"allocated": 4.0, "usable": 1.0}, "allocated 4 cores, but the job may use 1"),
    ],
)
def test_differences_between_a_node_and_this_machine_are_reported(
    job_file: JobFile, tmp_path: Path, changes: dict[str, Any], seen: str
) -> None:
    path = job_file("")
    assert answered(path, tmp_path) == []
    said = answered(path, tmp_path, node="node3", **changes)
    assert seen in said[0]
    assert said[0].startswith("the node node3 ")
    (folder,) = asked(path).data
    (other,) = answered(path, tmp_path, data={folder: "another"})
    assert f"sees other data in {folder}" in other


def test_of_a_command_its_program_and_files_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    Path("job.yaml").write_text(
        "name: a\nworkload: {command: [no-such-program, train.py, '{x}', gone.py]}\n"
        "parameters: {x: 1}\ngrid: {parameters.x: [1, 2, 3]}\n"
    )
    question = asked(Path("job.yaml"))
    there = [str(tmp_path), str(tmp_path / "train.py")]
    assert (question.programs, question.files) == (["no-such-program"], there)
    assert (question.data, question.torch) == ({}, False)
    Path("train.py").unlink()
    answer(str(tmp_path), question)
    assert read_record(tmp_path / ANSWER, Answer).missing == ["no-such-program", there[1]]


def test_the_check_is_one_rank_for_a_short_time() -> None:
    wants = Resources(nodes=4, tasks_per_node=2, cpus_per_task=3, timeout_min=600, runs_per_task=9)
    small = single_rank(wants)
    assert (small.world_size, small.cpus_per_task, small.runs_per_task) == (1, 3, 1)
    assert small.timeout_min == LIMIT_MIN


@pytest.mark.parametrize(
    ("log", "seen"),
    [
        ("slurmstepd: error: execve(): /env/bin/python: No such file or directory\n",
         "the node node3 cannot start Python: /env/bin/python: No such file or directory. Is the "
         "environment on a file system that compute nodes share?"),
        *((f"{said}\n", "the node node3 cannot start Python: /env/bin/python: No such file")
          for said in ("sh: 1: exec: /env/bin/python: not found",
                       "sh: line 1: /env/bin/python: No such file or directory",
                       "sh: line 1: exec: /env/bin/python: not found")),
        ("", "the node node3 does not see /results, or not the same folder: its job ended "
             "(signal 53) and left no log here"),
        ("Traceback\nModuleNotFoundError: No module named 'np'\n",
         "the node node3 ended the check (signal 53): ModuleNotFoundError: No module named 'np'"),
    ],
)  # fmt: skip
def test_a_check_that_dies_is_explained_by_its_traces(log: str, seen: str) -> None:
    state = JobState("failed", "FAILED", "signal 53", "node3")
    assert describe_failure(state, log, Path("/results")).startswith(seen)


def test_a_node_that_answers_is_reported_and_the_runs_are_submitted(
    job_file: JobFile, fake_slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    """This process answers for the node, on which nothing starts here."""
    path = job_file("")
    results = path.parent / "results"

    def node() -> None:
        assert within(120, lambda: len(fake_slurm.submitted) == 1)
        (folder,) = results.glob("slurm-*/check-*")
        answer(str(folder), replace(asked(path), torch=False))
        fake_slurm.answer("squeue", "100|COMPLETED|None|||0:01|node1|0|0|\n")

    words = ["submit", str(path), "--cluster", "slurm", "--check-node", "60"]
    with ThreadPoolExecutor() as nodes:
        answered = nodes.submit(node)
        assert main([*words, "--results", str(results)]) == 0
        answered.result()
    said = capsys.readouterr()
    assert "sees results and data, and runs Python" in said.err
    assert "1 run submitted to Slurm" in said.out
    assert len(fake_slurm.submitted) == 2
    assert not list(results.glob("slurm-*/check-*")), "it cleans up"


def test_a_check_that_waits_too_long_is_cancelled_and_nothing_is_submitted(
    job_file: JobFile, fake_slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    path = job_file("")
    results = ["--results", str(path.parent / "results")]
    assert main(["submit", str(path), "--cluster", "slurm", "--check-node", "0.1", *results]) == 1
    assert "no node answered within 0.1 s" in capsys.readouterr().err
    assert len(fake_slurm.submitted) == 1
    assert [call for call in fake_slurm.calls if call.startswith("scancel 100")]
    assert main(["submit", str(path), "--cluster", "local", "--check-node", *results]) == 2
    assert "--check-node needs a node of Slurm" in capsys.readouterr().err
