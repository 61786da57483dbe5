"""A profile of real work holds that work, and says what it costs the figures."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import shutil
import sysconfig
import time
import zlib
from pathlib import Path

import pytest
import torch

from hpcncf.errors import HpcncfError
from hpcncf.job.spec import Training
from hpcncf.launcher.environment import Place
from hpcncf.ncf import profiling
from hpcncf.paths import AttemptPaths

FIRST = Place(rank=0, local_rank=0, world_size=2)
SECOND = Place(rank=1, local_rank=1, world_size=2)


def looked_into(training: Training, folder: Path, steps: int) -> list[str]:
    """The warnings about so many steps, of a multiplication each."""
    seen: list[str] = []
    ones = torch.ones(64, 64)
    with profiling.profiled(training, FIRST, AttemptPaths(folder), seen.append) as after_step:
        for _ in range(steps):
            ones @ ones
            after_step()
    return seen


def test_torchs_trace_has_the_steps_that_were_asked_for(tmp_path: Path) -> None:
    [seen] = looked_into(Training(profile="torch", profile_steps=5), tmp_path, 40)
    assert seen == "torch's profiler watched 5 steps, which it makes slower: trace-0.json.gz"
    with gzip.open(tmp_path / "trace-0.json.gz", "rt") as file:
        events = json.load(file)["traceEvents"]
    assert sum(event.get("name") == "aten::mm" for event in events) == 5


def test_a_run_too_short_for_a_trace_says_so(tmp_path: Path) -> None:
    seen = looked_into(Training(profile="torch"), tmp_path, profiling.SKIPPED_STEPS)
    assert seen == ["training.profile torch: the run had no more than 23 steps"]
    assert list(tmp_path.iterdir()) == []


def spins_for_the_flame_graph() -> None:
    until = time.process_time() + 2  # so that py-spy, too, had the time to begin
    while time.process_time() < until:
        pass


def test_the_flame_graph_names_what_took_the_time(tmp_path: Path) -> None:
    seen: list[str] = []
    attempt = AttemptPaths(tmp_path)
    with profiling.profiled(Training(profile="py-spy"), FIRST, attempt, seen.append):
        spins_for_the_flame_graph()
    assert seen == ["py-spy looked 100 times a second, and its CPU time counts: flame-graph-0.svg"]
    assert "spins_for_the_flame_graph" in (tmp_path / "flame-graph-0.svg").read_text()


def spins_in_a_worker() -> None:
    spins_for_the_flame_graph()


def test_the_flame_graph_shows_c_functions_and_subprocesses(tmp_path: Path) -> None:
    """zlib's deflate takes the rank's time, and a forked process spins beside it."""
    seen: list[str] = []
    asked = Training(
        profile="py-spy", profile_native=True, profile_subprocesses=True, profile_rate=25
    )
    text = "Some text that does not repeat itself very often. " * 100_000
    with profiling.profiled(asked, FIRST, AttemptPaths(tmp_path), seen.append):
        worker = multiprocessing.get_context("fork").Process(target=spins_in_a_worker)
        worker.start()
        until = time.process_time() + 2
        while time.process_time() < until:
            zlib.compress(text.encode(), 9)
        worker.join()
    assert seen == [
        "py-spy looked 25 times a second, each time pausing the rank, and its CPU time counts: "
        "flame-graph-0.svg"
    ]
    graph = (tmp_path / "flame-graph-0.svg").read_text()
    assert "deflate" in graph
    assert "spins_in_a_worker" in graph


def test_only_the_first_rank_is_looked_into_unless_all_are_asked_for() -> None:
    one, all_ = Training(profile="torch"), Training(profile="torch", profile_ranks="all")
    assert profiling.is_profiled(one, FIRST)
    assert not profiling.is_profiled(one, SECOND)
    assert profiling.is_profiled(all_, SECOND)
    assert not profiling.is_profiled(Training(), FIRST)


def test_without_py_spy_it_is_said_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("py-spy", path=sysconfig.get_path("scripts")) is None:
        pytest.fail("py-spy is among the development tools")
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HpcncfError, match=r"pip install 'hpcncf\[profile\]'"):
        profiling.find_py_spy()
