"""What the probe wrote, read as profiles; and the code that runs inside other Pythons."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from hpcncf.probe.launch import INJECTED, observed, unobservable
from hpcncf.probe.read import (
    library_times,
    profile,
    read_profiles,
    shares_so_far,
    source_lines,
    take_profiles,
)

STEP_LINE = ["train.py", 20, "main"]
DATA_LINE = ["train.py", 8, "__getitem__"]


def loader(**changes: Any) -> dict[str, Any]:
    plain = {"workers": 0, "persistent": False, "dataset": "Ratings", "batch_size": 32}
    return {**plain, "iterators": 1, "batches": 100, "followed": 100, **changes}


def raw(**changes: Any) -> dict[str, Any]:
    """A process of 100 steps, as the probe writes it. A phase: seconds, CPU, clocked, entered."""
    plain: dict[str, Any] = {
        "format": 1,
        "final": True,
        "kind": "program",
        "pid": 7,
        "program": "train.py",
        "python": "3.12.1",
        "torch": "2.13.0",
        "elapsed_s": 25.0,
        "rank": None,
        "start_up": {"seconds": 5.0, "stacks": [["rest:-", "import", [STEP_LINE], "", 4.0]]},
        "since_cpu_s": 20.0,
        "steps": 100,
        "phases": {
            "input:0": [8.0, 8.0, 8.0, 100],
            "rest:0": [4.0, 4.0, 4.0, 100],
            "backward": [6.0, 6.0, 6.0, 100],
            "optimizer": [2.0, 2.0, 2.0, 100],
            "probe": [0.1, 0.1, 0.1, 3],
        },
        "short_steps": {},
        "long_steps": {},
        "loaders": [loader()],
        "no_grad": [],
        "stacks": [
            ["input:0", "", [DATA_LINE], "", 6.0],
            ["input:0", "", [STEP_LINE], "torch default_collate", 2.0],
            ["rest:0", "forward", [STEP_LINE], "", 3.0],
            ["rest:0", "", [STEP_LINE], "", 1.0],
        ],
        "others": [],
        "main_thread": "1",
        "threads": {"1": [25.0, 0.0, 5.0, 0.0]},
        "tables": [],
        "torch_threads": 1,
        "cores": 2,
        "gpu": None,
        "moves": [0, 0],
        "sampler": [2000, 0.1],
        "problems": [],
    }
    return plain | changes


def seconds_of(process: dict[str, Any]) -> dict[str, float]:
    return {name: round(each.seconds, 3) for name, each in profile(process).phases.items()}


UNTIMED = {
    "phases": {
        "input:0": [2.0, 1.0, 2.0, 9],
        "optimizer": [6.0, 6.0, 6.0, 9],
        "untimed": [20.0, 0.0, 0.0, 0],
    },
    "short_steps": {"input:0": 1.0, "optimizer": 3.0},
    "long_steps": {"input:0": [7.0, 0.5, 7.0, 0.2], "rest:0": [5.0, 0.0, 0.0, 0.0]},
    "stacks": [],
}
WAITS = {"input:0": [10.0, 2.0, 10.0, 100], "backward": [10.0, 10.0, 10.0, 100]}


def no_grad(steps: int) -> dict[str, Any]:
    """A block that is entered in so many of the steps."""
    phases = {"no_grad:0": [10.0, 10.0, 10.0, steps], "backward": [10.0, 10.0, 10.0, 100]}
    site = {"place": STEP_LINE, "count": steps, "steps": steps}
    stacks = [["no_grad:0", "", [STEP_LINE], "", 10.0]]
    return {"phases": phases, "no_grad": [site], "stacks": stacks}


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        # Between the phases: as it was sampled.
        ({}, {"input": 8.0, "backward": 6.0, "forward": 3.0, "optimizer": 2.0, "loop": 1.0}),
        # A loader that no backward pass follows.
        (
            {"loaders": [loader(followed=0)]},
            {"evaluation": 12.0, "backward": 6.0, "optimizer": 2.0},
        ),
        # A block of most steps is part of a step.
        (no_grad(3), {"evaluation": 10.0, "backward": 10.0}),
        (no_grad(90), {"loop": 10.0, "backward": 10.0}),
        # Waiting in the backward pass of ranks is their exchange.
        (
            {
                "phases": {"backward": [10.0, 4.0, 10.0, 100], "sync": [2.0, 0.0, 2.0, 5]},
                "rank": [1, 2],
                "stacks": [],
            },
            {"sync": 8.0, "backward": 4.0},
        ),
        # Of steps that are not timed, long ones by their samples, the other 8 s as the short ones
        # that were timed: 2 and 6.
        (UNTIMED, {"input": 11.0, "forward": 5.0, "optimizer": 12.0}),
    ],
)
def test_seconds_of_phases(changes: dict[str, Any], seconds: dict[str, float]) -> None:
    assert seconds_of(raw(**changes)) == seconds


@pytest.mark.parametrize(
    ("changes", "waiting"),
    [
        ({"phases": WAITS, "stacks": []}, 0.8),  # elapsed less CPU
        # 8 s, 4 of them ready without a core.
        ({"phases": WAITS, "stacks": [], "threads": {"1": [17.0, 4.0, 5.0, 0.0]}}, 0.4),
        # Of 4 s of short steps a half, of 7 s of long ones nine tenths.
        (UNTIMED, (2.0 + 6.3) / 11),
    ],
)
def test_waiting_of_the_input(changes: dict[str, Any], waiting: float) -> None:
    assert profile(raw(**changes)).phases["input"].waiting == pytest.approx(waiting)


def test_figures_of_a_process() -> None:
    seen = profile(raw())
    assert (seen.startup_s, seen.imports_s, seen.seconds) == (5.0, 4.0, 20.0)
    assert (seen.steps, seen.batches, seen.samples) == (100, 100, 3200)
    assert (seen.rank, seen.ranks, seen.main_cpu_s, seen.runqueue_s) == (0, 1, 20.0, 0.0)


@pytest.mark.parametrize(
    ("waits", "rank", "hot"), [(8.0, [1, 2], {2}), (1.0, [1, 2], {3}), (8.0, None, set())]
)
def test_the_exchange_has_the_lines_of_both_its_places(
    waits: float, rank: list[int] | None, hot: set[int]
) -> None:
    """DDP's, inside the backward pass, and the collectives that the program calls; one rank has
    none."""
    phases = {"backward": [10.0, 10.0 - waits, 10.0, 100]}
    stacks = [["backward", "", [["a.py", 2, "step"]], "", 10.0]]
    if rank:
        phases["sync"] = [4.0, 0.0, 4.0, 5]
        stacks.append(["sync", "", [["a.py", 3, "reduce"]], "", 4.0])
    lines = profile(raw(phases=phases, rank=rank, stacks=stacks)).lines
    exchange = [each for each in lines if each.phase == "sync"]
    assert {each.line for each in sorted(exchange, key=lambda x: -x.share)[:1]} == hot


def test_lines_have_their_callees_shares() -> None:
    samples = [
        ("loop", [["a.py", 1, "main"], ["a.py", 5, "f"]], "", 3.0),
        ("loop", [["a.py", 1, "main"]], "", 1.0),
        ("input", [["a.py", 9, "g"], ["a.py", 9, "g"]], "", 2.0),
        ("backward", [["a.py", 2, "run"], ["a.py", 3, "main"]], "torch backward", 2.0),
    ]
    seen = {(line.phase, line.line): line for line in source_lines(samples)}
    assert seen["loop", 1].share == 1.0
    assert seen["loop", 1].own_share == 0.25
    assert seen["loop", 5].share == 0.75
    assert seen["input", 9].share == 1.0  # recursion counts once
    outside = [key for key, line in seen.items() if line.outside]
    assert outside == [("backward", 2), ("backward", 3)]


def test_a_library_that_no_line_of_the_users_called_is_named() -> None:
    seen = profile(raw()).libraries
    assert [(each.phase, each.name, each.share) for each in seen] == [
        ("input", "torch default_collate", 0.25)
    ]
    assert library_times([("input", [], "", 1.0)]) == []


def test_threads_that_wait_do_not_compute_and_those_of_pools_that_ended_are_counted() -> None:
    others = [["2", "wait", [], 9.0], ["3", "busy", [DATA_LINE], 8.0]]
    figures = {"1": [9.0, 0.0, 0.0, 0.0], "2": [0.1, 0.0, 0.0, 0.0], "3": [8.0, 0.0, 0.0, 0.0]}
    (busy,) = profile(raw(others=others, threads=figures)).threads
    assert (busy.line, busy.cpu_s) == (8, 8.0)
    # A pool in each step leaves no thread at the end: their CPU time is what nobody else used.
    others = [[ident, "busy", [DATA_LINE], 2.0] for ident in ("2", "3", "2", "4")]
    (ended,) = profile(raw(others=others, threads={"1": [7.0, 0.0, 5.0, 0.0]})).threads
    assert (ended.threads, ended.line, ended.cpu_s) == (3, 8, 8.0)


@pytest.mark.parametrize("starts", [False, True])
def test_a_worker_is_busy_when_it_does_not_wait_for_indices_or_start(starts: bool) -> None:
    stacks = [
        ["rest:-", "", [DATA_LINE], "", 3.0],
        ["rest:-", "", [], "torch fetch", 1.0],
        ["rest:-", "", [], "connection _poll", 6.0],
    ]
    imports = [["<string>", 1, "<module>"], ["train.py", 1, "<module>"]]
    stacks += [["rest:-", "import", imports, "", 10.0]] * starts
    seen = profile(raw(kind="worker", stacks=stacks))
    assert seen.worker_busy == pytest.approx(0.2 if starts else 0.4)
    assert [each.function for each in seen.lines] == ["__getitem__"]
    assert profile(raw()).worker_busy is None


def write(folder: Path, **processes: dict[str, Any]) -> None:
    for name, process in processes.items():
        (folder / f"{name}.json").write_text(json.dumps(process))


def test_processes_that_step_are_the_program(tmp_path: Path) -> None:
    write(
        tmp_path,
        launcher=raw(pid=1, steps=0, phases={}, stacks=[]),
        rank1=raw(pid=3, rank=[1, 2]),
        rank0=raw(pid=2, rank=[0, 2]),
        worker_a=raw(pid=4, kind="worker", steps=0, elapsed_s=9.0),
        worker_b=raw(pid=5, kind="worker", steps=0, elapsed_s=20.0),
        worker_c=raw(pid=6, kind="worker", steps=0, elapsed_s=10.0),
    )
    seen, problems = read_profiles(tmp_path)
    assert [each.pid for each in seen] == [2, 3, 5, 6]
    assert problems == []
    assert shares_so_far(seen) == (
        100,
        {"input": 0.4, "backward": 0.3, "forward": 0.15, "optimizer": 0.1, "loop": 0.05},
    )


def test_a_program_without_steps_is_its_busiest_processes(tmp_path: Path) -> None:
    write(
        tmp_path,
        shell=raw(pid=1, steps=0, since_cpu_s=0.1),
        script=raw(pid=2, steps=0, since_cpu_s=30.0),
        brief=raw(pid=3, steps=0, since_cpu_s=30.0, elapsed_s=0.5),
    )
    seen, _ = read_profiles(tmp_path)
    assert [each.pid for each in seen] == [2]


def test_files_that_are_not_the_probes_are_kept_and_named(tmp_path: Path) -> None:
    write(tmp_path, good=raw(), older={**raw(), "format": 0})
    (tmp_path / "torn.json").write_text('{"format": 1')
    seen, problems = take_profiles(tmp_path)
    assert len(seen) == 1
    assert [problem.split(":")[0] for problem in problems] == ["older.json", "torn.json"]
    assert (tmp_path / "torn.json").exists()
    (tmp_path / "torn.json").unlink()
    (tmp_path / "older.json").unlink()
    take_profiles(tmp_path)
    assert not tmp_path.exists()
    assert take_profiles(tmp_path) == ([], [])


@pytest.mark.parametrize("path", sorted(INJECTED.rglob("*.py")), ids=lambda path: path.name)
def test_the_injected_code_is_in_the_grammar_of_python_3_9(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 9))


def test_the_users_own_path_stays_behind_the_probes() -> None:
    path = observed({"PYTHONPATH": "/a:/b"}, Path("/seen"))["PYTHONPATH"]
    assert path == f"{INJECTED}:/a:/b"


@pytest.mark.parametrize(
    ("command", "is_deaf"),
    [
        (["python", "-I", "train.py"], True),
        (["python3", "-sE", "train.py"], True),
        (["python", "-u", "train.py", "-S"], False),
        (["python", "-m", "pkg", "-E"], False),
        (["bash", "-E"], False),
    ],
)
def test_a_python_that_ignores_the_probe_is_noticed(command: list[str], is_deaf: bool) -> None:
    assert (unobservable(command) is not None) == is_deaf


@pytest.mark.parametrize(("imports_s", "line"), [(2.0, DATA_LINE[1]), (8.0, STEP_LINE[1])])
def test_a_line_at_the_start_that_imports_is_hot_where_imports_are(
    imports_s: float, line: int
) -> None:
    stacks = [["rest:-", "import", [STEP_LINE], "", imports_s], ["rest:-", "", [DATA_LINE], "", 4]]
    seen = profile(raw(start_up={"seconds": 4.0 + imports_s, "stacks": stacks}))
    assert seen.startup_lines[0].line == line
