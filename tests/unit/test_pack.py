"""Co-located runs: their cores and GPUs, and the job's own Multi-Process Service."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import psutil
import pytest
from test_gpu import Nvml

from hpcncf.job.spec import Resources
from hpcncf.monitor import gpu
from hpcncf.worker import mps, pack

CONTROL = """\
#!/bin/sh
pid="$CUDA_MPS_PIPE_DIRECTORY/pid"
if [ "$1" = -d ]; then
    echo "start $CUDA_VISIBLE_DEVICES" >> %(calls)s
    echo started > "$CUDA_MPS_LOG_DIRECTORY/control.log"
    [ %(code)s = 0 ] && { sleep 100 & echo $! | tee %(calls)s.pid > "$pid"; }
    exit %(code)s
fi
read command
[ "$command" = quit ] && [ %(quits)s = yes ] && kill -KILL "$(cat "$pid")"
[ -d "$CUDA_MPS_PIPE_DIRECTORY" ] && echo "$command" >> %(calls)s
"""


class TwoGpus(Nvml):
    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetUUID(self, index: int) -> str:
        return ("GPU-aa11", "GPU-bb22")[index]


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path / "calls"


def install(calls: Path, code: int = 0, quits: str = "yes") -> None:
    control = calls.parent / mps.CONTROL
    control.write_text(CONTROL % {"calls": calls, "code": code, "quits": quits})
    control.chmod(0o755)


def test_it_serves_the_jobs_gpus_under_numbers_of_its_own_and_is_ended(calls: Path) -> None:
    install(calls)
    with mps.run_mps_daemon(True, ["4", "7"]) as served:
        assert (served.running, served.gpus) == (True, ["0", "1"])
        pipes = Path(served.variables["CUDA_MPS_PIPE_DIRECTORY"])
        assert pipes.stat().st_mode & 0o777 == 0o700
        own_log = Path(served.variables["CUDA_MPS_LOG_DIRECTORY"], "control.log")
        assert own_log.read_text() == "started\n", "the daemon's log is its own"
    assert calls.read_text().splitlines() == ["start 4,7", "get_server_list", "quit"]
    assert not pipes.exists()


def test_where_nvml_says_them_gpus_go_by_uuid(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers would be the daemon's own to its clients, and NVML's to the monitor."""
    monkeypatch.setitem(sys.modules, "pynvml", TwoGpus())
    monkeypatch.setattr(gpu, "DRIVERS", (calls.parent,))
    install(calls)
    with mps.run_mps_daemon(True, ["1", "0"]) as served:
        assert served.gpus == ["GPU-bb22", "GPU-aa11"]
    assert calls.read_text().splitlines()[0] == "start GPU-bb22,GPU-aa11"
    assert mps.uuids(["0", "7"]) == [], "NVML knows no such GPU"
    assert mps.uuids(["GPU-bb"]) == ["GPU-bb22"]


def daemon(calls: Path) -> psutil.Process:
    return psutil.Process(int(calls.with_suffix(".pid").read_text()))


@pytest.mark.parametrize("signum", [signal.SIGUSR2, signal.SIGTERM])
def test_what_ends_the_ranks_reaches_it_only_when_they_have_ended(
    calls: Path, signum: signal.Signals
) -> None:
    install(calls)
    with mps.run_mps_daemon(True, ["4"]):
        here = daemon(calls)
        here.send_signal(signum)
        with pytest.raises(psutil.TimeoutExpired):
            here.wait(0.3)
    here.wait(5)


def test_one_that_does_not_quit_is_ended_by_force(
    calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mps, "ENDED_S", 0.2)
    install(calls, quits="no")
    with mps.run_mps_daemon(True, ["4"]):
        left = daemon(calls)
    left.wait(5)


@pytest.mark.parametrize(
    ("code", "temporary", "problem"),
    [
        (None, "", "there is no nvidia-cuda-mps-control on this node"),
        (1, "", "ended with exit code 1"),
        (0, "no such folder", "no folder for its pipes"),
    ],
)
def test_without_it_the_runs_share_the_gpu_and_one_line_says_why(
    calls: Path,
    code: int | None,
    temporary: str,
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(calls.parent / temporary))
    if code is not None:
        install(calls, code)
    with mps.run_mps_daemon(True, ["4"]) as served:
        assert (served.running, served.gpus, served.variables) == (False, ["4"], {})
    (line,) = capsys.readouterr().err.splitlines()
    assert problem in served.problem
    assert served.problem in line


def test_nothing_is_started_where_nobody_asked(calls: Path) -> None:
    install(calls)
    with mps.run_mps_daemon(False, ["4"]) as served:
        assert (served.running, served.problem) == (False, None)
    assert not calls.exists()


def test_each_run_has_its_own_cores_and_its_share_of_the_gpus() -> None:
    asked = Resources(runs_per_node=4, runs_per_gpu=2, gpus_per_node=1, cpus_per_task=2, mem_gb=3)
    assert (asked.node_cores, asked.node_gpus, asked.node_mem_gb) == (8, 2, 12)
    cores = [pack.slot_cpus(slot, asked, range(8)) for slot in range(4)]
    assert cores == [[0, 1], [2, 3], [4, 5], [6, 7]]
    gpus = [pack.slot_gpus(slot, asked, ["4", "7"]) for slot in range(4)]
    assert gpus == [["4"], ["4"], ["7"], ["7"]]
