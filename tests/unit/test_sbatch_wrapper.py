"""`hpcncf sbatch`: sbatch's words told apart, and the script that starts the user's."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hpcncf.errors import UsageError
from hpcncf.launch import sbatch_wrapper
from hpcncf.launch.sbatch_wrapper import Request, parse_request, prepare, wrap_script


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
    assert prepared.words[-1].startswith("--wrap=exec ")
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
    lines = wrap_script(SCRIPT, tmp_path / "job.sh", []).decode().split("\n")
    assert lines[:5] == ["#!/bin/sh", *SCRIPT.decode().split("\n")[1:5]]
    assert wrap_script(SCRIPT, tmp_path / "job.sh", []).endswith(SCRIPT)


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
    assert page if state != "no hpcncf" else "the job runs without it" in done.stderr


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
