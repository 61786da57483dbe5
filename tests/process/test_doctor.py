"""`hpcncf doctor`: complete where all is well, and useful where it is not."""

from __future__ import annotations

import argparse
import json
import os
import shutil
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
    assert list(found["checks"]) == [label for label, _ in doctor.CHECKS]
    for word in (
        "Python", "gloo", "nccl", "CUDA", "intra-op", "usable", "allocated", "cgroup",
        "affinity mask", "/dev/shm", "Slurm", "submitit", "host", "Mobile_Frappe.zip", "pandas",
        "open files",
    ):  # fmt: skip
        assert word in done.stdout, word
    for key in ("engine native", "GPUs watched"):
        assert found["checks"][key].startswith(("yes,", "no:"))
    assert "OMP_NUM_THREADS=3" in found["checks"]["variables"]


def test_a_broken_torch_is_said_and_the_rest_still_reported(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise OSError('libgomp.so.1: cannot open')")
    done = run_doctor(PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert done.stdout.count("BROKEN: torch does not import: libgomp.so.1") == 1
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
    assert doctor.check_slurm_version() == version
    assert doctor.check_cluster() == cluster


def test_without_slurm_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor.check_slurm_commands() == "none"
    assert doctor.check_slurm_version() == "no sinfo"
    assert doctor.check_cluster() == "none here: use --cluster local"


def test_a_data_folder_that_is_not_there_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPCNCF_DATA", str(tmp_path / "absent"))
    assert "no such folder" in doctor.check_downloads()
    monkeypatch.delenv("HPCNCF_DATA")
    assert doctor.check_downloads() == "not set"


def test_prepared_data_is_reported_with_what_is_of_no_use_any_more_and_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert doctor.check_prepared_data() == "none in data/ here"
    for name in ("a", "b", "c"):
        (tmp_path / "data" / name).mkdir(parents=True)
        seen = make_results.manifest().model_dump_json()
        (tmp_path / "data" / name / "manifest.json").write_text(seen)
    assert doctor.check_prepared_data() == "data/a, data/b, data/c"
    make_results.of_format_3(tmp_path / "data/b")
    why = "data/b/manifest.json: format 3, but this hpcncf reads 4. Prepare it again: "
    again = "`hpcncf data prepare frappe -o data/b --force`"
    assert doctor.check_prepared_data() == f"data/a, data/c; of no use: {why}{again}"


def test_what_is_broken_stands_at_the_end() -> None:
    lines = doctor.format_lines({"a": "1", "torch": "2"}, ["x is missing"])
    assert lines == ["a      1", "torch  2", "", "BROKEN: x is missing", "see BROKEN above"]
    assert doctor.format_lines({}, [])[-1] == "nothing essential is broken"


def test_shared_memory_that_is_too_small_for_workers_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if Path("/dev/shm").is_dir() and shutil.disk_usage("/dev/shm").free > 2**30:
        assert "num_workers" not in doctor.check_shared_memory()
    monkeypatch.setattr(doctor, "SMALL_SHM_GIB", 2**30)
    assert "use num_workers 0, or ask for a larger one" in doctor.check_shared_memory()


def test_packages_that_are_missing_are_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "NEEDED", ("torch", "not-there"))
    found, problems = doctor.run_checks()
    assert "not-there not installed: pip install not-there" in problems
    assert "numpy" in found["packages"]


def test_in_a_job_that_may_not_use_its_cores_it_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "1000")
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "1000")
    monkeypatch.setenv("SLURM_JOB_CPUS_PER_NODE", "1000")
    with pytest.raises(doctor.Broken, match="of 1000 allocated cores"):
        doctor.check_usable_cores()
    assert doctor.check_allocated_cores().startswith("1000 by ")
    monkeypatch.delenv("SLURM_STEP_ID")
    monkeypatch.delenv("SLURM_CPUS_ON_NODE")
    assert "limits it" in doctor.check_usable_cores()


def test_it_says_where_ranks_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.check_meeting().startswith("rank 0 of 1, at 127.0.0.1 (127.0.0.1), interface ")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("MASTER_ADDR", "nowhere.invalid")
    assert doctor.check_meeting().startswith("not possible: ")
    assert "nowhere.invalid" in doctor.check_meeting()


def test_a_bundle_holds_what_is_printed_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MY_PASSWORD", "hunter2")
    file = tmp_path / "ticket.zip"
    parser = argparse.ArgumentParser()
    doctor.add_arguments(parser)
    assert doctor.run(parser.parse_args(["--bundle", str(file)])) == 0
    printed = capsys.readouterr()
    with zipfile.ZipFile(file) as archive:
        parts = {name: archive.read(name).decode() for name in archive.namelist()}
    assert parts["doctor.txt"] == printed.out
    assert printed.err == f"written: {file}\n"
    checks = json.loads(parts["doctor.json"])["checks"]
    assert all(checks[label] in printed.out for label, _ in doctor.CHECKS)
    assert "hunter2" not in str(parts)
    with pytest.raises(UsageError, match="File exists"):
        doctor.write_bundle(file, {})
