"""The job's own Multi-Process Service: begun, told to its clients, ended; or missed in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcncf.local import mps

CONTROL = """\
#!/bin/sh
if [ "$1" = -d ]; then
    echo "start $CUDA_VISIBLE_DEVICES" >> %(calls)s
    [ %(code)s = 0 ] && { sleep 100 & echo $! > "$CUDA_MPS_PIPE_DIRECTORY/daemon"; }
    exit %(code)s
fi
read command
[ "$command" = quit ] && kill "$(cat "$CUDA_MPS_PIPE_DIRECTORY/daemon")"
[ -d "$CUDA_MPS_PIPE_DIRECTORY" ] && echo "$command" >> %(calls)s
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path / "calls"


def install(calls: Path, code: int = 0) -> None:
    control = calls.parent / mps.CONTROL
    control.write_text(CONTROL % {"calls": calls, "code": code})
    control.chmod(0o755)


def test_it_serves_the_jobs_gpus_under_numbers_of_its_own_and_is_ended(calls: Path) -> None:
    install(calls)
    with mps.started(True, ["4", "7"]) as served:
        assert (served.running, served.gpus) == (True, ["0", "1"])
        pipes = Path(served.variables["CUDA_MPS_PIPE_DIRECTORY"])
        assert pipes.stat().st_mode & 0o777 == 0o700
    assert calls.read_text().splitlines() == ["start 4,7", "get_server_list", "quit"]
    assert not pipes.exists()


@pytest.mark.parametrize("code", [None, 1], ids=["not installed", "does not start"])
def test_without_it_the_runs_share_the_gpu_and_one_line_says_why(
    calls: Path, code: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    if code is not None:
        install(calls, code)
    with mps.started(True, ["4"]) as served:
        assert (served.running, served.gpus, served.variables) == (False, ["4"], {})
    (line,) = capsys.readouterr().err.splitlines()
    assert served.problem is not None
    assert served.problem in line


def test_without_a_folder_for_its_pipes_the_runs_share_the_gpu_too(
    calls: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(calls.parent / "no such folder"))
    with mps.started(True, ["4"]) as served:
        assert (served.running, served.gpus) == (False, ["4"])
    assert "no folder for its pipes" in capsys.readouterr().err


def test_nothing_is_started_where_nobody_asked(calls: Path) -> None:
    install(calls)
    with mps.started(False, ["4"]) as served:
        assert (served.running, served.problem) == (False, None)
    assert not calls.exists()
