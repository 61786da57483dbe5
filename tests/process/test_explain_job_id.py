"""`hpcncf explain JOBID` asks Slurm's accounting."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcncf import cli

SACCT = """\
JobID|JobName|State|ExitCode|Elapsed|Timelimit|AllocCPUS|NNodes|NTasks|TotalCPU|ReqMem|MaxRSS|AllocTRES
12|train|{state}|0:0|01:00:00|02:00:00|8|1||{cpu}|16G|||
12.batch|batch|{state}|0:0|01:00:00||8|1|1|{cpu}||2000M|
"""
SSTAT = "JobID|NTasks|AveCPU|MaxRSS\n12.batch|1|01:36:00|2000M\n"


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def answers(folder: Path, name: str, text: str, code: int = 0) -> None:
    (folder / f"{name}.says").write_text(text)
    script = f'#!/bin/sh\necho "$@" >> {folder}/asked\ncat {folder}/{name}.says\nexit {code}\n'
    (folder / name).write_text(script)
    (folder / name).chmod(0o755)


def test_explain_asks_sacct_for_a_job_id(slurm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers(slurm, "sacct", SACCT.format(state="COMPLETED", cpu="01:36:00"))
    assert cli.main(["explain", "12", "--json"]) == 0
    job = json.loads(capsys.readouterr().out)["jobs"][0]["fields"]
    assert (job["id"], job["state"], job["cores"]) == ("12", "COMPLETED", 8)
    assert job["cores_used"] == pytest.approx(1.6)
    assert (slurm / "asked").read_text().startswith("-j 12 --duplicates -P --format=JobID,")


def test_explain_names_an_unknown_job(slurm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers(slurm, "sacct", SACCT.splitlines()[0] + "\n")
    assert cli.main(["explain", "13"]) == 2
    assert "job 13: sacct knows no such job" in capsys.readouterr().err
    answers(slurm, "sacct", "", code=1)
    assert cli.main(["explain", "13"]) == 1
    assert "exit code 1" in capsys.readouterr().err


def test_explain_without_sacct_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cli.main(["explain", "13_2"]) == 2
    assert "seff 13_2 | hpcncf explain" in capsys.readouterr().err
