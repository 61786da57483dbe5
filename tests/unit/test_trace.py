"""The timeline for Perfetto: what it holds of runs and programs, and that viewers can draw it."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from typing import Any

import make_results
import pytest
from test_diagnosis_program import profile

from hpcncf.records.schema import ProgramMoment, SourceLine
from hpcncf_analysis.report.trace import THREADS, Trace

Event = dict[str, Any]


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    """Two ranks that trained, and a program of two processes that were observed."""
    folder = tmp_path_factory.mktemp("trace")
    runs = make_results.plan_of(make_results.demo(folder)).runs
    run = next(each for each in runs if each.resources.world_size == 2)
    trace = Trace()
    ranks = [make_results.rank_record(run, rank) for rank in range(2)]
    trace.add_run("study", ranks, [make_results.node_record(run)])
    moments = [
        ProgramMoment(elapsed_s=at, steps=int(10 * at), main_cpu_s=at, phases={"input": at / 2})
        for at in (1.0, 2.0, 4.0)
    ]
    line = SourceLine(
        phase="input",
        file="train.py",
        line=3,
        function="__getitem__",
        share=0.9,
        own_share=0.8,
        depth=1,
    )
    seconds = {"input": 12.0, "forward": 4.0, "backward": 4.0}
    programs = [
        profile(seconds, pid=7, moments=moments, lines=[line]),
        profile(seconds, pid=8, moments=[]),
    ]
    command = ranks[0].model_copy(update={"training": None, "program": programs})
    trace.add_run("command", [command], [])
    trace.write(folder / "trace.json")
    written = json.loads((folder / "trace.json").read_text())["traceEvents"]
    return [dict(each) for each in written]


def test_processes_are_nodes_ranks_and_programs(events: list[Event]) -> None:
    named = [each["args"]["name"] for each in events if each["name"] == "process_name"]
    assert sum("study · node" in name for name in named) == 1
    assert sum("study · rank" in name for name in named) == 2
    assert sum("command · " in name and ", pid " in name for name in named) == 2


def test_slices_of_a_thread_are_nested_or_apart(events: list[Event]) -> None:
    threads = defaultdict(list)
    for each in events:
        if each["ph"] == "X":
            threads[each["pid"], each["tid"]].append((each["ts"], each["ts"] + each["dur"]))
    assert len(threads) >= 8
    for slices in threads.values():
        slices.sort(key=lambda span: (span[0], -span[1]))
        for (begun, ended), (begins, ends) in pairwise(slices):
            assert begun <= begins
            assert begins >= ended - 2 or ends <= ended + 2  # rounded to a tenth of a microsecond


def test_cores_are_counters_that_end_with_the_run(events: list[Event]) -> None:
    counters = [each for each in events if each["ph"] == "C" and each["name"].startswith("CPU ")]
    assert all(
        isinstance(share, float) and 0 <= share <= 1.01
        for each in counters
        for share in each["args"].values()
    )
    assert {max(counters, key=lambda each: each["ts"])["args"]["this run"]} == {0.0}


def test_epochs_phases_and_hot_lines_are_slices(events: list[Event]) -> None:
    by_thread = defaultdict(set)
    for each in events:
        if each["ph"] == "X":
            by_thread[list(THREADS)[each["tid"] - 1]].add(each["name"])
    assert {"run", "start-up", "epoch 0"} <= by_thread["epochs"]
    assert {"input", "forward", "backward"} <= by_thread["phases"]
    assert by_thread["lines"] == {"train.py:3 __getitem__"}
    assert min(each["ts"] for each in events if "ts" in each) == 0


def test_phases_of_an_interval_fill_it(events: list[Event]) -> None:
    """The second of the program's intervals lasts two seconds, in all of which it read input."""
    steps = [each for each in events if each.get("args", {}).get("steps") == 20]
    slices = [each for each in steps if each["name"] == "input"]
    assert [each["dur"] for each in slices] == [2e6]
