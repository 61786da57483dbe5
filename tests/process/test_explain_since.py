"""`hpcncf explain --since`: sacct's rows become a table of workloads."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tracemalloc
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from hpcncf import cli
from hpcncf.explain.workloads import group
from hpcncf.slurm.past_jobs import PastJobsQuery, read_past_jobs

SACCT = """\
#!{python}
import sys
open("asked", "a").write(" ".join(sys.argv[1:]) + "\\n")
row = "{{}}|{{}}|1|{{}}|cpu={{}},mem=64G,node=1|{{}}|1-00:00:00|{{}}|{{}}|{{}}|64G||{{}}|{{}}"
def job(id, name, state="COMPLETED", cores=8, elapsed="01:00:00", cpu="01:01:12", code="0:0"):
    print(row.format(id, state, cores, cores, elapsed, cpu, "", "", code, name))
    for step, memory in (("batch", "3000M"), ("extern", "0")):
        used = cpu if step == "batch" else "00:00:00"
        step_id = f"{{id}}.{{step}}"
        print(row.format(step_id, state, cores, cores, elapsed, used, 1, memory, code, step))
{body}
"""
MONTH = """\
for number in range(1, 5):
    job(f"10_{number}", "train|seed")
print(row.format("10_[5-9]", "PENDING", 0, 8, "00:00:00", "00:00:00", "", "", "0:0", "train|seed"))
job("21+0", "het", cores=2)
job("21+1", "het", cores=4)
job("22", "down", state="NODE_FAIL")
job("23", "now", state="RUNNING")
job("24", "small", cores=1, cpu="00:59:00")
job("25", "small", state="CANCELLED by 0", cores=1, elapsed="00:00:00", cpu="00:00:00")
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOGNAME", "ada")
    monkeypatch.setenv("COLUMNS", "120")
    return tmp_path


def prints(folder: Path, body: str) -> None:
    (folder / "sacct").write_text(SACCT.format(python=sys.executable, body=body))
    (folder / "sacct").chmod(0o755)


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert cli.main(["explain", "--since", "7days", "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def test_arrays_het_jobs_and_steps_are_counted_once(
    slurm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prints(slurm, MONTH)
    said = asked(capsys)
    assert (said["jobs_running"], said["jobs_of_failed_nodes"]) == (1, 1)
    counted = [(each["name"], each["runs"], each["core_hours"]) for each in said["workloads"]]
    assert counted == [("train|seed", 4, 32), ("het", 1, 6), ("small", 1, 1)]
    train, het, small = said["workloads"]
    assert train["core_hours_idle"] == pytest.approx(4 * (8 - 1.02))
    assert train["request"] == {"nodes": None, "cores": None, "memory_mib": 4096, "limit_s": 5400}
    assert [part["cores"] for part in het["shape"]] == [2, 4]
    assert small["not_enough"] == "not enough evidence: 1 of 3 completed runs"
    assert said["core_hours_idle"] == pytest.approx(4 * 6.98 + 6 - 2.04 + 1 / 60)


def test_table_has_the_next_request_and_its_reasons(
    slurm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prints(slurm, MONTH)
    assert cli.main(["explain", "--since", "2026-01-01"]) == 0
    text = " ".join(capsys.readouterr().out.replace("\u202f", " ").split())
    assert "Jobs of ada since 2026-01-01 00:00: 6 runs in 3 workloads, 39 core-hours" in text
    assert "1 job still running: left out. 1 job of failed nodes: left out." in text
    assert "train|seed 4 8 1.02 (13 %) 2.9 GiB of 64 GiB 1:00:00 of 24:00:00 27.9" in text
    assert "27.9 --mem=4G --time=01:30:00" in text
    assert "memory: 2.9 GiB at most in 4 runs, a quarter more" in text
    assert "What Slurm counted of its last run: hpcncf explain 10_4" in text


PAGE = """\
for number in range(40):
    minutes = f"00:{20 + number}"
    job(str(100 + number), f"train-seed{number}", elapsed=minutes + ":07", cpu=minutes + ":30")
for number in range(4):
    job(str(200 + number), "prepare", cores=1, elapsed="23:10:00", cpu="21:30:00")
job("300", "evaluate", cores=4)
"""


def test_page_shows_what_is_printed(slurm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prints(slurm, PAGE)
    assert cli.main(["explain", "--since", "2026-11-20"]) == 0
    printed = capsys.readouterr().out.replace("\u202f", " ")
    page = (Path(__file__).parents[2] / "docs/explain.md").read_text()
    assert printed.partition("\n\n  next step")[0] in page


def test_filters_are_passed_to_sacct(slurm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prints(slurm, MONTH)
    for words, options in (
        ([], ""),
        (["--user", "ben", "--name", "small"], " --user=ben --name=small"),
        (["--user", "all"], " --allusers"),
        (["--account", "lab"], " --accounts=lab --allusers"),
    ):
        (slurm / "asked").unlink(missing_ok=True)
        asked(capsys, *words)
        command = (slurm / "asked").read_text().strip()
        assert command.partition("--endtime=now")[2] == options
        assert datetime.fromisoformat(command.partition("--starttime=")[2].split()[0])
    said = asked(capsys, "--name", "tr*")
    assert [each["name"] for each in said["workloads"]] == ["train|seed"]


def test_no_job_is_said(slurm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prints(slurm, "")
    assert cli.main(["explain", "--since", "2026-01-01", "--name", "x"]) == 0
    assert capsys.readouterr().out == "no job of ada named x has ended since 2026-01-01 00:00\n"


@pytest.mark.parametrize(
    ("words", "body", "code", "why"),
    [
        (["--since", "soon"], "", 2, "--since soon: expected a span such as 7days"),
        (["--since", "7days", "12"], "", 2, "takes no 12 beside it"),
        (["--since", "7days", "--cores", "2"], "", 2, "takes no --cores 2"),
        (["--user", "ada"], "", 2, "--user: only with --since"),
        (
            ["--since", "1d"],
            "sys.exit('sacct: error: Slurm accounting storage is disabled')",
            2,
            "--since: this cluster keeps no accounting",
        ),
        (
            ["--since", "1d", "--user", "eve"],
            "sys.exit('sacct: error: Invalid user id: eve')",
            2,
            "--user eve: Slurm knows no such user",
        ),
        (["--since", "1d"], "sys.exit('sacct: error: no slurmdbd')", 1, "sacct: no slurmdbd"),
    ],
)
def test_refusals_are_one_sentence(
    slurm: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    body: str,
    code: int,
    why: str,
) -> None:
    prints(slurm, body)
    assert cli.main(["explain", *words]) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert why in said.err
    assert said.err.count("\n") == 1


def test_without_sacct_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cli.main(["explain", "--since", "7days"]) == 2
    assert capsys.readouterr().err.startswith("hpcncf: --since: there is no sacct here")


def peak_bytes(folder: Path, jobs: int) -> int:
    prints(folder, f"for number in range({jobs}): job(str(number + 1), f'train-{{number}}')\n")
    tracemalloc.start()
    found = group(read_past_jobs(PastJobsQuery(datetime(2026, 1, 1))))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.runs == jobs
    return peak


def test_memory_does_not_grow_with_the_number_of_jobs(slurm: Path) -> None:
    peak_bytes(slurm, 10)  # loads what is loaded once
    few, many = peak_bytes(slurm, 100), peak_bytes(slurm, 1000)
    assert many < 1.5 * few + 2**16


@pytest.mark.slow
def test_fifty_thousand_rows_take_less_than_five_cpu_seconds(slurm: Path) -> None:
    body = "for number in range(16_667): job(str(number + 1), f'train-{number % 40}')\n"
    prints(slurm, body)
    command = [Path(sys.executable).with_name("hpcncf"), "explain", "--since", "7days"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 5
    assert "16,667 runs in 1 workload" in done.stdout
