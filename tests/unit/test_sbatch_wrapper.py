"""`hpcncf sbatch`: sbatch's words told apart, and the script that starts the user's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_json_output import check

from hpcncf import cli
from hpcncf.errors import UsageError
from hpcncf.launch import sbatch_wrapper
from hpcncf.launch.sbatch_wrapper import (
    Request,
    copy_probe,
    environment_lines,
    parse_request,
    prepare,
    wrap_script,
)


@pytest.mark.parametrize(
    ("words", "options", "script", "arguments"),
    [
        ("job.sh", 0, "job.sh", []),
        ("job.sh --epochs 3 -n 4", 0, "job.sh", ["--epochs", "3", "-n", "4"]),
        ("-p cpu job.sh", 2, "job.sh", []),
        ("-pcpu -n4 job.sh", 2, "job.sh", []),
        ("-Qn 4 job.sh x", 2, "job.sh", ["x"]),
        ("-QH job.sh", 1, "job.sh", []),
        ("--partition cpu job.sh", 2, "job.sh", []),
        ("--partition=cpu --parsable job.sh", 2, "job.sh", []),
        ("--part cpu --par job.sh", 4, None, []),
        ("--exclusive job.sh", 1, "job.sh", []),
        ("--exclusive=user --wait --test-only job.sh", 3, "job.sh", []),
        ("--gpus-per-n 1 job.sh", 2, "job.sh", []),
        ("--unknown-option value job.sh", 2, "job.sh", []),
        ("-- job.sh", 1, "job.sh", []),
        ("--array=1-9 --export NONE", 3, None, []),
        ("", 0, None, []),
    ],
)
def test_options_of_sbatch_end_where_the_script_begins(
    words: str, options: int, script: str | None, arguments: list[str]
) -> None:
    given = words.split()
    assert parse_request(given) == Request(given[:options], script, arguments, None)


@pytest.mark.parametrize("words", [["--wrap", "a b"], ["--wrap=a b"], ["-n1", "--wr=a b"]])
def test_wrapped_command_is_the_script(words: list[str], tmp_path: Path) -> None:
    request = parse_request(words)
    assert (request.wrap, request.script) == ("a b", None)
    prepared = prepare(request, tmp_path, None)
    assert len(prepared.words) == len([each for each in words if each == "-n1"]) + 1
    assert prepared.words[-1].startswith("--wrap=[ ! -r ")
    (copy,) = tmp_path.glob("scripts/wrap-*/script/wrap")
    assert copy.read_text() == "#!/bin/sh\na b\n"


SCRIPT = b"""\
#!/usr/bin/env -S bash -e
# words
#SBATCH --mem=1G --comment="a b"

#SBATCH -n 1
echo "$# $1" "$(basename "$0")"; exit 7
#SBATCH --too-late
"""


def test_wrapped_script_keeps_the_directives_that_sbatch_reads(tmp_path: Path) -> None:
    lines = wrap_script(SCRIPT, tmp_path / "job.sh", [], tmp_path).decode().split("\n")
    assert lines[:5] == ["#!/bin/sh", *SCRIPT.decode().split("\n")[1:5]]
    assert wrap_script(SCRIPT, tmp_path / "job.sh", [], tmp_path).endswith(SCRIPT)


@pytest.mark.parametrize("state", ["seen", "unseen", "no hpcncf"])
def test_wrapped_script_runs_whatever_the_node_lacks(
    state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if state == "no hpcncf":
        monkeypatch.setattr(sbatch_wrapper, "own_command", lambda: ["/nowhere/hpcncf"])
    (tmp_path / "job file.sh").write_bytes(SCRIPT)
    request = parse_request([str(tmp_path / "job file.sh"), "a b"])
    prepared = prepare(request, tmp_path / "results", None)
    script, argument = prepared.words
    assert Path(script).name == "job file.sh"  # and so the job's name is as without hpcncf
    if state == "unseen":
        (copy,) = tmp_path.glob("results/scripts/*/script/*")
        copy.unlink()
    done = subprocess.run(["sh", script, argument], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (7, "1 a b job file.sh\n")
    page = "exit       7" in done.stderr
    assert page if state != "no hpcncf" else "only processes of Python" in done.stderr


SPIN = "import time\nwhile time.process_time() < 1.1: pass\n"


def test_node_without_hpcncf_still_has_its_python_observed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sbatch_wrapper, "own_command", lambda: ["/nowhere/hpcncf"])
    (tmp_path / "spin.py").write_text(SPIN)
    (tmp_path / "job.sh").write_text(f"#!/bin/sh -u\n{sys.executable} spin.py\n")
    results = tmp_path / "results/jobs"
    prepared = prepare(parse_request(["job.sh"]), results, None)
    slurm = {"SLURM_JOB_ID": "12", "SLURM_ARRAY_JOB_ID": "11", "SLURM_ARRAY_TASK_ID": "3"}
    slurm |= {"SLURM_JOB_NODELIST": os.uname().nodename, "SLURM_JOB_CPUS_PER_NODE": "4"}
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(["sh", prepared.words[0]], env=kept | slurm, check=True, capture_output=True)
    assert cli.main(["diagnose", "11_3"]) == 0
    page = capsys.readouterr().out
    assert "spin.py" in page.splitlines()[0]
    assert "cores      4 allocated" in page
    assert "Where the time goes" in page
    assert cli.main(["diagnose", "11", "--json"]) == 0
    (found,) = check("diagnose", capsys.readouterr().out)["jobs"]
    assert found["job"] == "11_3"
    assert found["ranks"][0]["cpu"]["user_s"] + found["ranks"][0]["cpu"]["system_s"] >= 1.0
    assert cli.main(["diagnose", str(results / "probes/11_3")]) == 0


@pytest.mark.parametrize("path", [None, "/somewhere"])
@pytest.mark.parametrize("form", ["script", "prolog"])
def test_printed_lines_give_a_program_the_two_variables(
    form: str, path: str | None, tmp_path: Path
) -> None:
    lines = environment_lines(tmp_path / "r s", task_prolog=form == "prolog")
    given = {"SLURM_JOB_ID": "12", "SLURM_SUBMIT_DIR": str(tmp_path), "HPCNCF_OBSERVE": "1"}
    given |= {"PYTHONPATH": path} if path else {}
    show = 'printf \'%s\\n\' "$HPCNCF_PROBE" "$PYTHONPATH"'
    script = f"set -eu\n{lines}" + (show if form == "script" else "")
    done = subprocess.run(
        ["sh", "-c", script],
        env={"PATH": os.environ["PATH"]} | given,
        capture_output=True,
        text=True,
        check=True,
    )
    probe, python_path = done.stdout.splitlines()
    copy = str(copy_probe(tmp_path / "r s"))
    folder = "r s/probes/12" if form == "script" else "results/jobs/probes/12"
    before = "export HPCNCF_PROBE=" if form == "prolog" else ""
    assert probe == f"{before}{tmp_path}/{folder}"
    assert (tmp_path / folder).is_dir()
    assert python_path.endswith(f"{copy}:{path}" if path else f"{copy}/")


def test_printed_lines_leave_alone_what_is_observed_already(tmp_path: Path) -> None:
    observed = {"HPCNCF_PROBE": "/there", "HPCNCF_OBSERVE": "1", "SLURM_SUBMIT_DIR": str(tmp_path)}
    for task_prolog in (False, True):
        lines = environment_lines(tmp_path, task_prolog) + "echo $HPCNCF_PROBE $PYTHONPATH"
        done = subprocess.run(
            ["sh", "-c", lines], env=observed, capture_output=True, text=True, check=True
        )
        assert done.stdout == "/there\n"


def test_task_prolog_observes_those_only_who_ask(tmp_path: Path) -> None:
    lines = environment_lines(tmp_path, task_prolog=True)
    done = subprocess.run(["sh", "-eu", "-c", lines], env={}, capture_output=True, check=True)
    assert done.stdout == b""


@pytest.mark.parametrize("content", [b"echo\n", b"#!/bin/sh\r\n", b"#!/bin/sh\n\0"])
def test_script_that_sbatch_refuses_reaches_it_unchanged(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    path.write_bytes(content)
    prepared = prepare(parse_request(["-n1", str(path), "x"]), tmp_path / "results", None)
    assert prepared.words == ["-n1", str(path), "x"]
    assert not (tmp_path / "results").exists()


def test_what_is_no_script_is_refused(tmp_path: Path) -> None:
    (tmp_path / "large.sh").write_bytes(b"#!" + b"x" * 5 * 2**20)
    for name, match in (("", "is a folder"), ("large.sh", "5 MiB"), ("none.sh", "No such file")):
        with pytest.raises(UsageError, match=match):
            prepare(parse_request([str(tmp_path / name)]), tmp_path / "results", None)
    assert not (tmp_path / "results").exists()
