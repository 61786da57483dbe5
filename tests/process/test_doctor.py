"""`hpcncf doctor`: complete where all is well, and useful where it is not."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import make_results
import pytest

from hpcncf.cli import doctor
from hpcncf.errors import UsageError

START = (
    "import argparse, sys\nfrom hpcncf.cli import doctor\n"
    "parser = argparse.ArgumentParser()\ndoctor.add_arguments(parser)\n"
    "sys.exit(doctor.run(parser.parse_args(sys.argv[1:])))\n"
)


def run_doctor(*words: str, before: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", before + START, *words],
        capture_output=True, text=True, check=False, timeout=120, env=os.environ | variables,
    )  # fmt: skip


def test_it_says_what_a_ticket_needs(tmp_path: Path) -> None:
    (tmp_path / "Mobile_Frappe.zip").write_text("")
    done = run_doctor("--json", HPCNCF_DATA=str(tmp_path), OMP_NUM_THREADS="3")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["problems"] == []
    assert {"hpcncf", "torch", "cores", "memory", "Slurm", "data", "settings"} <= set(found)
    for word in (
        "Python", "gloo", "nccl", "CUDA", "intra-op", "usable", "allocated", "cgroup",
        "affinity mask", "/dev/shm", "sbatch", "submitit", "host", "Mobile_Frappe.zip", "pandas",
    ):  # fmt: skip
        assert word in done.stdout, word
    for key in ("engine native", "GPUs watched"):
        assert found["hpcncf"][key].startswith(("yes,", "no:"))
    assert found["settings"]["OMP_NUM_THREADS"] == "3"


def test_a_broken_torch_is_said_and_the_rest_still_reported(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise OSError('libgomp.so.1: cannot open')")
    done = run_doctor(PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert "torch does not import: libgomp.so.1" in done.stdout
    assert "affinity mask" in done.stdout


@pytest.mark.parametrize(
    ("exit_code", "version", "cluster"),
    [
        (0, "slurm 22.05.8", "answers; partitions: short, long"),
        (
            1,
            "sinfo --version failed: no slurm.conf",
            "commands are installed, but no cluster answers: use --cluster local "
            "(sinfo --noheader --format=%R failed: no slurm.conf)",
        ),
    ],
)
def test_slurm_that_answers_or_fails_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exit_code: int, version: str, cluster: str
) -> None:
    sinfo = tmp_path / "sinfo"
    sinfo.write_text(
        "#!/bin/sh\n[ $1 = --version ] && echo 'slurm 22.05.8' || printf 'short\\nlong\\n'\n"
        f"echo 'no slurm.conf' >&2; exit {exit_code}\n"
    )
    sinfo.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(doctor, "ANSWER_S", 120)
    assert doctor.slurm()["version"] == version
    assert doctor.slurm()["cluster"] == cluster


def test_without_slurm_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor.slurm()["found"] == "no command"
    assert doctor.slurm()["version"] == "no sinfo"


def test_a_data_folder_that_is_not_there_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPCNCF_DATA", str(tmp_path / "absent"))
    assert "no such folder" in doctor.data()["HPCNCF_DATA"]
    monkeypatch.delenv("HPCNCF_DATA")
    assert doctor.data()["HPCNCF_DATA"] == "not set"


def test_prepared_data_is_reported_with_what_is_of_no_use_any_more_and_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert doctor.data()["prepared"] == "none in data/ here"
    for name in ("a", "b", "c"):
        (tmp_path / "data" / name).mkdir(parents=True)
        seen = make_results.manifest().model_dump_json()
        (tmp_path / "data" / name / "manifest.json").write_text(seen)
    assert doctor.data()["prepared"] == "data/a, data/b, data/c"
    assert "of no use" not in doctor.data()
    make_results.of_format_3(tmp_path / "data/b")
    assert doctor.data()["prepared"] == "data/a, data/c"
    why = "data/b/manifest.json: format 3, but this hpcncf reads 4. Prepare it again: "
    assert doctor.data()["of no use"] == f"{why}`hpcncf data prepare frappe -o data/b --force`"


def test_what_is_broken_stands_at_the_end() -> None:
    lines = doctor.lines({"a": {"key": "value"}}, ["x is missing"], ["do y"])
    assert lines[-3:] == ["advice: do y", "BROKEN: x is missing", "see BROKEN above"]
    assert doctor.lines({}, [], [])[-1] == "nothing essential is broken"


def test_in_a_job_that_may_not_use_its_cores_it_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "1000")
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "1000")
    monkeypatch.setenv("SLURM_JOB_CPUS_PER_NODE", "1000")
    [seen] = doctor.trapped()
    assert "of 1000 allocated cores" in seen
    monkeypatch.delenv("SLURM_STEP_ID")
    monkeypatch.delenv("SLURM_CPUS_ON_NODE")
    assert doctor.trapped() == []


def test_it_says_where_ranks_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.ranks()["meet at"] == "127.0.0.1 (127.0.0.1)"
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("MASTER_ADDR", "nowhere.invalid")
    assert "nowhere.invalid" in doctor.ranks()["meet"]


def test_a_bundle_holds_what_a_ticket_needs_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scontrol = tmp_path / "bin/scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text(
        "#!/bin/sh\nprintf 'ClusterName = c1\\nAccountingStoragePass = hunter2\\n'\n"
        "printf 'AuthAltParameters = jwt_key=/etc/k\\n'\n"
    )
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", str(scontrol.parent), prepend=os.pathsep)
    monkeypatch.setenv("MY_PASSWORD", "hunter2")
    paths = make_results.demo(tmp_path / "results", repeats=1)
    run = make_results.plan_of(paths).runs[0]
    place = '  File "/home/ada/train.py", line 7, in load'
    error = {"type": "ValueError", "message": "user 4711 is broken", "traceback": place}
    make_results.leave(paths, run, outcome="failed", error=error)
    file = tmp_path / "ticket.zip"
    words = ["--bundle", str(file), "--results", str(tmp_path / "results")]
    parser = argparse.ArgumentParser()
    doctor.add_arguments(parser)
    doctor.run(parser.parse_args(words))
    with zipfile.ZipFile(file) as archive:
        parts = {name: archive.read(name).decode() for name in archive.namelist()}
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()[:-1]]
    assert listed == list(parts)
    assert json.loads(parts["doctor.json"])["cores"]
    assert "ClusterName = c1" in parts["slurm.txt"]
    assert 'failed: ValueError: File "/home/ada/train.py", line 7' in parts["errors.txt"]
    assert not [word for word in ("hunter2", "/etc/k", "4711") if word in str(parts)]
    with pytest.raises(UsageError, match="File exists"):
        doctor.run(parser.parse_args(words))
