"""The probe in programs of Python 3.14 that ran before `hpcncf attach`, and as if it had not been.

Skipped where there is no python3.14 on PATH.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hpcncf.attach.observe import Observation
from hpcncf.attach.sampled import profiles
from hpcncf.attach.watch import Watch

PYTHON = shutil.which("python3.14")
pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(PYTHON is None, reason="needs python3.14 on PATH"),
]

# What a program can see of itself; `busy` computes and sleeps for some seconds.
BEGIN = """
import os, signal, sys, threading, time
def busy(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(10000))
        time.sleep(0.001)
def seen():
    return [len(os.listdir("/proc/self/task")), len(sys.meta_path), sys.getswitchinterval(),
            threading.active_count(), len(sys._current_frames()),
            [str(signal.getsignal(n)) for n in (2, 10, 12, 15)]]
print("begun", flush=True)
before = seen()
"""
END = "\nprint(seen() == before or (before, seen()))\n"


@contextmanager
def program(
    code: str, tmp_path: Path, *options: str, **variables: str
) -> Iterator[subprocess.Popen[str]]:
    assert PYTHON
    # So that nobody takes a path of this test's for the program's.
    (tmp_path / "train.py").write_text(BEGIN + code)
    with subprocess.Popen(
        [PYTHON, *options, str(tmp_path / "train.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **variables},
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "begun\n"
        try:
            yield process
        finally:
            process.kill()


def watched(pid: int, seconds: float) -> dict[str, Any]:
    return Observation(Watch([pid])).run(seconds)


def rest(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, out
    return out


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where attach puts the probe; nothing is left in it after a test, unless it says so."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


@pytest.fixture
def without_py_spy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As where it is not installed: the probe's own samples are what counts then."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))


@pytest.mark.usefixtures("without_py_spy")
def test_probe_is_loaded_and_taken_out_again(tmp_path: Path) -> None:
    with program("busy(5)" + END, tmp_path) as process:
        raw = watched(process.pid, 2.5)
        (profile,) = profiles(raw)
        assert process.poll() is None
        assert rest(process) == "True\n"
    assert [each["inside"] for each in raw["programs"]] == [True]
    assert not profile.from_outside
    assert profile.complete
    assert profile.problems == []
    assert 1.0 < profile.elapsed_s < 3.5
    assert profile.startup_s == 0
    assert {line.function for line in profile.lines} == {"busy", "<module>"}
    assert profile.phases["loop"].waiting is not None


def test_program_can_be_watched_twice(tmp_path: Path) -> None:
    with program("busy(6)" + END, tmp_path) as process:
        for _ in range(2):
            assert watched(process.pid, 1.6)["unseen"] == []
        assert rest(process) == "True\n"


def test_forks_go_on_while_the_probe_is_inside_and_afterwards(tmp_path: Path) -> None:
    code = """
for _ in range(60):
    child = os.fork()
    if child == 0:
        busy(0.01)
        os._exit(7)
    assert os.waitpid(child, 0)[1] == 7 << 8
    busy(0.04)
"""
    with program(code + END, tmp_path, "-W", "error") as process:
        raw = watched(process.pid, 2.0)
        assert rest(process) == "True\n"
    assert raw["cpu"]["processes_peak"] >= 1


def test_program_that_ends_meanwhile_ends_as_ever(tmp_path: Path) -> None:
    with program("busy(2)\nprint('whole')", tmp_path) as process:
        begun_s = time.monotonic()
        raw = watched(process.pid, 30)
        assert time.monotonic() - begun_s < 10
        assert rest(process) == "whole\n"
    assert raw["ended"]


def test_program_that_runs_no_python_is_left_alone(own_folder: Path, tmp_path: Path) -> None:
    with program("time.sleep(4)\nbusy(0.2)" + END, tmp_path) as process:
        raw = watched(process.pid, 1.5)
        assert "its main thread ran no Python in the watch" in raw["unseen"][-1]
        left = [path.name for path in own_folder.rglob("*")]
        assert left[1:] == ["script.py"]
        assert rest(process) == "True\n"  # it has read the script by now, and removed it
    assert left[1:] == ["script.py"]


@pytest.mark.parametrize(
    ("options", "variables", "said"),
    [
        (["-X", "disable-remote-debug"], {}, "remote debugging switched off"),
        ([], {"PYTHON_DISABLE_REMOTE_DEBUG": "1"}, "PYTHON_DISABLE_REMOTE_DEBUG is set"),
        ([], {"HPCNCF_PROBE": "/nowhere"}, "`hpcncf run` observes it already"),
    ],
)
def test_reason_is_named_where_the_probe_cannot_get_in(
    options: list[str], variables: dict[str, str], said: str, tmp_path: Path
) -> None:
    with program("busy(9)" + END, tmp_path, *options, **variables) as process:
        raw = watched(process.pid, 1.2)
        assert process.poll() is None
    (line,) = [each for each in raw["unseen"] if each.startswith("phases and steps")]
    assert said in line


def test_launcher_beside_its_ranks_has_nothing_to_explain(tmp_path: Path) -> None:
    launcher = tmp_path / "torchrun"
    launcher.write_text(BEGIN + "busy(20)")
    assert PYTHON
    with subprocess.Popen([PYTHON, launcher], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        process.stdout.readline()
        raw = watched(process.pid, 1.5)
        process.kill()
    assert not any(each.get("inside") for each in raw["programs"])
    assert not any("from inside" in each for each in raw["unseen"])


def test_watch_of_a_program_that_computes_in_c_waits_for_nothing(
    own_folder: Path, tmp_path: Path
) -> None:
    with program("x = 7 ** 40_000_000\n", tmp_path) as process:
        begun_s = time.monotonic()
        raw = watched(process.pid, 2.0)
        assert time.monotonic() - begun_s < 8
        assert process.poll() is None
    assert raw["cpu"]["user_s"] > 0.3
    for path in own_folder.iterdir():  # the script that the killed program never came to
        assert [each.name for each in path.iterdir()] == ["script.py"]
        shutil.rmtree(path)


def has_torch() -> bool:
    words = [PYTHON or "false", "-c", "import torch"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


TRAINING = """
import hashlib, torch
torch.set_num_threads(1)
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64000
    def __getitem__(self, at):
        return torch.tensor(sum((at * k) % 7 for k in range(3000)) / 9000.0).repeat(8)
def train(workers, steps):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters())
    forked = "fork" if workers else None
    batches = iter(torch.utils.data.DataLoader(
        Rows(), batch_size=16, num_workers=workers, multiprocessing_context=forked))
    print("trains", flush=True)
    for step, batch in zip(range(steps), batches):
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        optimizer.step()
        if step % 50 == 0:
            with torch.no_grad():
                model(batch)
    state = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    print(hashlib.sha256(state).hexdigest(), flush=True)
    return model, optimizer, batches
codes = [torch.autograd.backward.__code__, torch.save.__code__, torch.no_grad.__enter__.__code__,
         torch.utils.data.dataloader._BaseDataLoaderIter.__next__.__code__]
kept = train(WORKERS, STEPS)
print(codes == [torch.autograd.backward.__code__, torch.save.__code__,
      torch.no_grad.__enter__.__code__,
      torch.utils.data.dataloader._BaseDataLoaderIter.__next__.__code__])
from torch.optim import optimizer as o
print(len(o._global_optimizer_pre_hooks), len(o._global_optimizer_post_hooks))
"""


@pytest.mark.skipif(PYTHON is not None and not has_torch(), reason="needs torch in python3.14")
@pytest.mark.parametrize("workers", [0, 2])
def test_training_has_the_same_result_and_shows_its_steps(workers: int, tmp_path: Path) -> None:
    code = TRAINING.replace("WORKERS", str(workers)).replace("STEPS", "1200")
    printed = []
    for is_watched in (False, True):
        with program(code, tmp_path) as process:
            assert process.stdout
            assert process.stdout.readline() == "trains\n"
            raw = watched(process.pid, 1.5) if is_watched else {}
            printed.append(rest(process))
    assert printed[0] == printed[1]
    assert printed[0].splitlines()[1:] == ["True", "0 0"]
    assert raw["programs"], raw["unseen"]
    profile = profiles(raw)[0]
    assert profile.problems == []
    assert profile.steps >= 5
    assert {"input", "forward", "backward", "optimizer"} <= profile.phases.keys()
    (loader,) = profile.loaders
    assert (loader.dataset, loader.batch_size, loader.workers) == ("Rows", 16, workers)
    if not workers:
        lines = {line.function for line in profile.lines if line.phase == "input"}
        assert "__getitem__" in lines
