"""`hpcncf doctor`: complete where all is well, and useful where it is not."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcncf.cli import doctor

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


def test_it_tells_what_a_ticket_needs() -> None:
    done = run_doctor()
    assert done.returncode == 0, done.stdout + done.stderr
    for word in (
        "Python", "torch", "gloo", "nccl", "CUDA", "intra-op", "usable", "allocated", "cgroup",
        "affinity mask", "/dev/shm", "sbatch", "submitit", "host", "HPCNCF_DATA", "pandas",
    ):  # fmt: skip
        assert word in done.stdout, word


def test_json_holds_the_same_sections() -> None:
    plain = json.loads(run_doctor("--json").stdout)
    assert plain["problems"] == []
    assert {"hpcncf", "torch", "cores", "memory", "Slurm", "data", "settings"} <= set(plain)


def test_a_broken_torch_is_said_and_the_rest_still_told(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise OSError('libgomp.so.1: cannot open')")
    done = run_doctor(before=f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n")
    assert done.returncode == 1
    assert "torch does not import: libgomp.so.1" in done.stdout
    assert "affinity mask" in done.stdout


@pytest.mark.parametrize("exit_code", [0, 1])
def test_slurm_that_answers_or_fails_is_told(tmp_path: Path, exit_code: int) -> None:
    sinfo = tmp_path / "sinfo"
    sinfo.write_text(
        f"#!/bin/sh\necho 'slurm 22.05.8'; echo 'no slurm.conf' >&2; exit {exit_code}\n"
    )
    sinfo.chmod(0o755)
    out = run_doctor(PATH=f"{tmp_path}:{os.environ['PATH']}").stdout
    assert ("slurm 22.05.8" if exit_code == 0 else "failed: no slurm.conf") in out


def test_without_slurm_it_says_so(tmp_path: Path) -> None:
    out = run_doctor(PATH=str(tmp_path)).stdout
    assert "no command" in out
    assert "no sinfo" in out


def test_the_data_folder_is_looked_into(tmp_path: Path) -> None:
    (tmp_path / "Mobile_Frappe.zip").write_text("")
    assert "Mobile_Frappe.zip" in run_doctor(HPCNCF_DATA=str(tmp_path)).stdout
    assert "no such folder" in run_doctor(HPCNCF_DATA=str(tmp_path / "absent")).stdout


def test_what_is_broken_stands_at_the_end() -> None:
    lines = doctor.lines({"a": {"key": "value"}}, ["x is missing"], ["do y"])
    assert lines[-3:] == ["advice: do y", "BROKEN: x is missing", "see BROKEN above"]
    assert doctor.lines({}, [], [])[-1] == "nothing essential is broken"


def test_settings_that_decide_speed_are_shown() -> None:
    out = run_doctor(OMP_NUM_THREADS="3").stdout
    assert any(line.split() == ["OMP_NUM_THREADS", "3"] for line in out.splitlines())


def test_its_arguments_parse() -> None:
    parser = argparse.ArgumentParser()
    doctor.add_arguments(parser)
    assert parser.parse_args(["--json"]).json
