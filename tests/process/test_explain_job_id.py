"""`hpcncf explain JOBID` and `apply JOBID` ask Slurm: its accounting, and the live queue."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpcncf import cli

HEADER = (
    "JobID|State|NNodes|AllocCPUS|AllocTRES|Elapsed|Timelimit|TotalCPU|NTasks|MaxRSS|ReqMem|"
    "TRESUsageInAve|ExitCode|User"
)
SACCT = f"""\
{HEADER}
12|{{state}}|1|8||01:00:00|02:00:00|{{cpu}}|||16G||0:0|ada
12.batch|{{state}}|1|8||01:00:00||{{cpu}}|1|2000M|||0:0|
"""
SSTAT = "JobID|NTasks|AveCPU|MaxRSS\n12.extern|1|00:00:00|0\n12.batch|1|01:36:00|2000M\n"
SQUEUE = (
    "{id}|{state}|{reason}|1:10:00|2:00:00|1|8|1|cpu=8,mem=16G,node=1,billing=8|{restarts}|ada|\n"
)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("LOGNAME", "ada")
    monkeypatch.chdir(tmp_path)
    for name in ("sacct", "squeue", "sstat"):
        answers(tmp_path, name, "")
    return tmp_path


def answers(folder: Path, name: str, text: str, code: int = 0, error: str = "") -> None:
    (folder / f"{name}.says").write_text(text)
    script = (
        f'#!/bin/sh\necho {name} "$@" >> {folder}/asked\ncat {folder}/{name}.says\n'
        f'[ -z "{error}" ] || echo "{error}" >&2\nexit {code}\n'
    )
    (folder / name).write_text(script)
    (folder / name).chmod(0o755)


def live(state: str, job: str = "12", reason: str = "None", restarts: int = 0) -> str:
    return SQUEUE.format(id=job, state=state, reason=reason, restarts=restarts)


def fields(capsys: pytest.CaptureFixture[str], job: str = "12") -> dict[str, Any]:
    assert cli.main(["explain", job, "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["jobs"]
    found: dict[str, Any] = one["fields"]
    return found


def test_explain_asks_sacct_for_a_job_id(slurm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers(slurm, "sacct", SACCT.format(state="COMPLETED", cpu="01:36:00"))
    job = fields(capsys)
    assert (job["id"], job["state"], job["cores"]) == ("12", "COMPLETED", 8)
    assert job["cores_used"] == pytest.approx(1.6)
    assert job["notes"] == []
    asked = (slurm / "asked").read_text()
    assert "sacct --duplicates --parsable2 --format=JobID," in asked
    assert "sstat" not in asked


@pytest.mark.parametrize("known", ["PENDING", "NODE_FAIL", ""])
def test_live_state_wins_over_accounting_that_lags(
    slurm: Path, capsys: pytest.CaptureFixture[str], known: str
) -> None:
    rows = SACCT.format(state=known, cpu="00:00:00") if known else HEADER + "\n"
    answers(slurm, "sacct", rows)
    answers(slurm, "squeue", live("RUNNING", restarts=int(known == "NODE_FAIL")))
    job = fields(capsys)
    assert (job["state"], job["cores"], job["elapsed_s"]) == ("RUNNING", 8, 4200)
    assert (job["limit_s"], job["memory_asked_mib"], job["cpu_s"]) == (7200, 16384, None)
    assert job["attempts"] == (2 if known == "NODE_FAIL" else None)


def test_running_job_shows_what_sstat_sampled(
    slurm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers(slurm, "sacct", SACCT.format(state="RUNNING", cpu="00:00:00"))
    answers(slurm, "squeue", live("RUNNING"))
    answers(slurm, "sstat", SSTAT)
    job = fields(capsys)
    assert (job["state"], job["elapsed_s"], job["cpu_s"]) == ("RUNNING", 4200, 5760)
    assert job["memory_mib"] == 2000
    assert "last sample" in " ".join(job["notes"])
    answers(slurm, "sstat", "", code=1)
    job = fields(capsys)
    assert (job["cpu_s"], job["memory_mib"]) == (None, None)


def test_end_that_is_not_accounted_for_is_said(
    slurm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers(slurm, "sacct", SACCT.format(state="RUNNING", cpu="00:00:00"))
    answers(slurm, "squeue", live("COMPLETED"))
    job = fields(capsys)
    assert (job["state"], job["cpu_s"]) == ("COMPLETED", None)
    assert "not complete yet" in job["notes"][0]
    answers(slurm, "squeue", "", code=1, error="slurm_load_jobs error: Invalid job id specified")
    job = fields(capsys)
    assert job["state"] == ""
    assert "no longer knows it" in " ".join(job["notes"])
    answers(slurm, "squeue", "", code=1, error="slurm_load_jobs error: Unable to contact slurmctld")
    job = fields(capsys)
    assert job["state"] == "RUNNING"
    assert "Unable to contact slurmctld" in " ".join(job["notes"])


def test_a_task_that_waits_among_many_has_its_own_id(
    slurm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers(slurm, "sacct", SACCT.replace("12", "12_[3-19%2]").format(state="PENDING", cpu=""))
    answers(slurm, "squeue", live("PENDING", "12_4", "JobArrayTaskLimit"))
    job = fields(capsys, "12_4")
    assert (job["id"], job["state"]) == ("12_4", "PENDING")
    assert job["notes"] == [
        "it waits: at the limit of running tasks of its array (JobArrayTaskLimit)"
    ]


def test_parts_of_a_het_job_are_told_apart(slurm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = SACCT.format(state="COMPLETED", cpu="01:36:00").splitlines()
    parts = [row.replace("12", f"12+{part}", 1) for part in (0, 1) for row in rows[1:]]
    answers(slurm, "sacct", "\n".join([HEADER, *parts]) + "\n")
    assert cli.main(["explain", "12", "--json"]) == 0
    jobs = json.loads(capsys.readouterr().out)["jobs"]
    assert [each["fields"]["id"] for each in jobs] == ["12+0", "12+1"]


def test_job_of_somebody_else_is_named_as_such(
    slurm: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOGNAME", "ben")
    answers(slurm, "sacct", SACCT.format(state="COMPLETED", cpu="01:36:00"))
    assert fields(capsys)["notes"] == ["a job of ada"]


DISABLED = "sacct: error: Slurm accounting storage is disabled"
ARRAY = SACCT.replace("12", "12_7").format(state="COMPLETED", cpu="01:36:00")


@pytest.mark.parametrize("words", [["explain", "12"], ["apply", "12", "job.sh"]])
@pytest.mark.parametrize(
    ("rows", "error", "code", "why"),
    [
        (HEADER, "", 2, "job 12: sacct knows no such job of yours; expected the id of a job"),
        (ARRAY, "", 2, "job 12: an array; give one of its tasks, such as 12_7"),
        ("", DISABLED, 2, "job 12: this cluster keeps no accounting"),
        ("", "sacct: error: slurmdbd: connection refused", 1, "connection refused"),
    ],
)
def test_refusals_are_one_sentence(
    slurm: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    rows: str,
    error: str,
    code: int,
    why: str,
) -> None:
    (slurm / "job.sh").write_text("#!/bin/sh\n#SBATCH -c 8\n")
    answers(slurm, "sacct", f"{rows.rstrip()}\n", code=int(bool(error)), error=error)
    assert cli.main(words) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert why in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize("word", ["12_", "12_[1-3]", "12.batch", "0"])
def test_ids_that_are_no_job_are_refused(
    slurm: Path, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    assert cli.main(["explain", word]) == 2
    assert f"{word}: expected the id of a job (123)" in capsys.readouterr().err
    assert not (slurm / "asked").exists()


def test_explain_without_sacct_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cli.main(["explain", "13_2"]) == 2
    assert "there is no sacct here" in (said := capsys.readouterr().err)
    assert "seff 13_2 > job.txt" in said
