"""What the command line does where a terminal's streams are closed, full or of another
encoding, or its folder is gone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HPCNCF = f"{sys.executable} -m hpcncf"


def shell(line: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", line],
        cwd=folder,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
def test_a_full_disk_under_the_output_is_reported_in_one_line(tmp_path: Path) -> None:
    done = shell(f"{HPCNCF} --print-completion bash > /dev/full", tmp_path)
    assert done.returncode == 1
    assert done.stderr == ("hpcncf: standard output: cannot be written: No space left on device\n")


def test_a_reader_that_leaves_is_no_error_to_say(tmp_path: Path) -> None:
    done = shell(f"{HPCNCF} --print-completion bash | true; echo ${{PIPESTATUS[0]}}", tmp_path)
    assert done.stderr == ""


def test_a_command_keeps_its_exit_code_where_our_streams_are_closed(tmp_path: Path) -> None:
    line = f"{HPCNCF} run -- sh -c 'echo lost; echo lost >&2; exit 7' <&- >&- 2>&-; echo $?"
    assert shell(line, tmp_path).stdout == "7\n"
    assert shell(f"{HPCNCF} collect results/run; grep -r lost .", tmp_path).stderr == ""


def test_a_name_that_the_encoding_lacks_is_escaped(tmp_path: Path) -> None:
    done = shell(f"{HPCNCF} plan ünknown.yaml", tmp_path, PYTHONIOENCODING="ascii")
    assert done.stderr == ("hpcncf: \\xfcnknown.yaml: cannot be read: No such file or directory\n")


def test_a_folder_that_is_gone_is_reported(tmp_path: Path) -> None:
    done = shell(f"mkdir gone; cd gone; rmdir ../gone; {HPCNCF} run -- true", tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("hpcncf: the current folder: No such file or directory;")


def without_roots_rights() -> str:
    """What makes root a user like others, who may not read everything; nothing where it is one."""
    if os.geteuid() != 0:
        return ""
    if not shutil.which("setpriv"):
        pytest.skip("root may read everywhere, and without setpriv (util-linux) stays so")
    return "setpriv --bounding-set=-dac_override,-dac_read_search"


def test_results_that_may_not_be_read_are_named(tmp_path: Path) -> None:
    shell(f"{HPCNCF} run -- true", tmp_path)
    asked = f"{without_roots_rights()} {HPCNCF} status results/run"
    done = shell(f"chmod 0 results/run/runs; {asked}", tmp_path)
    (tmp_path / "results/run/runs").chmod(0o700)
    assert done.returncode == 0, done.stderr
    assert "1 run: 1 unknown" in done.stdout
    assert re.search(r"^skipped results/run/runs/.*: cannot be read: Permission denied$",
                     done.stdout, re.M)  # fmt: skip
