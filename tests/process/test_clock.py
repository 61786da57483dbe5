"""The clock is set by an hour while runs work: no run is lost, and no duration shows it."""

from __future__ import annotations

import csv
import json
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import within

from hpcncf.records.claims import server_time

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("cc") is None, reason="needs a C compiler on Linux"
)
# Works until a file appears, and takes it away from those that begin later.
PROGRAM = """
import pathlib, sys, time
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.05)
pathlib.Path(sys.argv[1]).unlink()
"""
JOB = """\
name: clock
workload: {{command: [{python}, {folder}/train.py, {folder}/turn, "{{number}}"]}}
parameters: {{number: 1}}
grid: {{number: [1, 2]}}
"""


class Machine:
    """Commands that see a clock which a test can set, times of files included."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.step = folder, folder / "step"
        library = folder / "clock_step.so"
        source = Path(__file__).parents[1] / "native/clock_step.c"
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        self.step.write_bytes(struct.pack("dd", 0, 0))
        self.variables = os.environ | {"LD_PRELOAD": str(library), "CLOCK_STEP": str(self.step)}

    def set_clock(self, seconds: float) -> None:
        with self.step.open("r+b") as file:
            file.write(struct.pack("dd", seconds, time.time()))

    def begin(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-P", "-m", "hpcncf", *words]
        return subprocess.Popen(
            command, cwd=self.folder, env=self.variables, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def hpcncf(self, *words: str, code: int = 0) -> str:
        process = self.begin(*words)
        output, _ = process.communicate(timeout=120)
        assert process.returncode == code, output
        return output

    def states(self, results: str) -> list[str]:
        runs = json.loads(self.hpcncf("status", results, "--json"))["jobs"][0]["runs"]
        return [run["state"] for run in runs]

    def records(self, name: str) -> list[Path]:
        return list(self.folder.glob(f"**/attempt-1/{name}"))


def numbers(found: Any) -> Iterator[float]:
    if isinstance(found, dict | list):
        for each in found.values() if isinstance(found, dict) else found:
            yield from numbers(each)
    elif isinstance(found, int | float):
        yield found


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    yield Machine(tmp_path)
    for name in ("end", "turn"):  # whatever became of the test, no program goes on
        (tmp_path / name).touch()


@pytest.mark.slow
@pytest.mark.parametrize("step_s", [3600.0, -3600.0])
def test_runs_on_either_side_of_a_step_complete_with_their_true_times(
    machine: Machine, tmp_path: Path, step_s: float
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "job.yaml").write_text(JOB.format(python=sys.executable, folder=tmp_path))
    command = machine.begin("run", "--results", "r", "--", sys.executable, "train.py", "end")
    machine.hpcncf("submit", "job.yaml", "--cluster", "local")
    assert within(120, lambda: len(machine.records("progress.json")) == 2)
    machine.set_clock(step_s)
    assert machine.states("r") == ["running"]
    assert machine.states("results/clock") == ["running", "pending"]
    (tmp_path / "end").touch()
    assert command.wait(120) == 0
    (tmp_path / "turn").touch()
    assert within(120, lambda: machine.states("results/clock") == ["completed", "running"])
    # It counts for a submission that was made later, by the clock.
    machine.hpcncf("cancel", "--all", "results/clock")
    assert within(120, lambda: machine.states("results/clock") == ["completed", "cancelled"])
    machine.hpcncf("collect", "results/clock", code=3)  # a run was cancelled
    with (tmp_path / "results/clock/tables/attempts.csv").open() as file:
        took_s = [float(row["elapsed_s"]) for row in csv.DictReader(file)]
    assert len(took_s) == 2
    assert all(0 < each < 900 for each in took_s)
    for path in (*machine.records("rank-0.json"), *machine.records("node-0.json")):
        record = json.loads(path.read_text())
        times = {key: value for key, value in record.items() if key.endswith("_s")}
        assert times, path
        assert all(0 <= each < 900 for each in numbers(times)), (path, times)


def test_a_step_of_our_clock_is_none_of_the_file_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = server_time(tmp_path)
    ahead = time.time() + 300
    monkeypatch.setattr(time, "time", lambda: ahead)
    assert server_time(tmp_path) - before < 100
