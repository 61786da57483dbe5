"""Failures are named by the exception in the log, and lack of memory is recognised."""

from __future__ import annotations

from pathlib import Path

import make_results
import pytest
from make_results import plan_of

from hpcncf.cli.failures import grouped, page
from hpcncf.launch.retry import ran_out_of
from hpcncf.paths import ResultPaths
from hpcncf.records.schema import write_record
from hpcncf.state.decide import explain_failure, last_exception
from hpcncf.state.status import states

TRACEBACK = (
    'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\n    load()\n'
)


@pytest.mark.parametrize(
    ("log", "exception"),
    [
        (f"step 1\n{TRACEBACK}ValueError: no column b\n", "ValueError: no column b"),
        (f"{TRACEBACK}my.package.LoadError: gone\nbye\n", "my.package.LoadError: gone"),
        (f"{TRACEBACK}MemoryError\n", "MemoryError"),
        (
            f"{TRACEBACK}OSError: no\n{TRACEBACK}torch.distributed.errors.ChildFailedError: x\n",
            "OSError: no",
        ),
        ("Segmentation fault\n", ""),
        ("", ""),
    ],
)
def test_the_exception_is_the_last_one_of_the_log(tmp_path: Path, log: str, exception: str) -> None:
    (tmp_path / "log").write_text(log)
    assert last_exception([tmp_path / "log", tmp_path / "missing"]) == exception


@pytest.mark.parametrize(
    ("exception", "state"),
    [
        ("MemoryError", "out_of_memory"),
        ("numpy.core._exceptions._ArrayMemoryError: Unable to allocate 8 GiB", "out_of_memory"),
        ("RuntimeError: DefaultCPUAllocator: can't allocate memory: 8 bytes", "out_of_memory"),
        ("OSError: [Errno 12] Cannot allocate memory", "out_of_memory"),
        ("torch.OutOfMemoryError: CUDA out of memory", "failed"),
        ("ValueError: no", "failed"),
        ("", "failed"),
    ],
)
def test_lack_of_host_memory_is_a_state_of_its_own(exception: str, state: str) -> None:
    found, reason = explain_failure(("failed", "rank 0: exit code: 1"), exception)
    assert found == state
    assert reason == "rank 0: exit code: 1" + (f": {exception}" if exception else "")
    assert explain_failure(("lost", "gone"), exception) == ("lost", "gone")


def failed_commands(folder: Path, *logs: str) -> ResultPaths:
    """A command for each log, all of which ended with exit code 1."""
    paths = make_results.command_plan(folder)
    plan = plan_of(paths)
    runs = [plan.runs[0].model_copy(update={"id": f"{at:012}"}) for at in range(len(logs))]
    paths.plan.write_text(plan.model_copy(update={"runs": runs}).model_dump_json())
    error = {"type": "exit code", "message": "1", "traceback": ""}
    for run, log in zip(runs, logs, strict=True):
        attempt = paths.run(run.id).attempt(1)
        record = make_results.rank_record(run, 0)
        record = record.model_copy(update={"outcome": "failed", "exit_code": 1, "error": error})
        write_record(attempt.claim, make_results.claim(run))
        write_record(attempt.rank(0), record)
        attempt.log(0).write_text(log)
    return paths


def test_failures_are_grouped_by_their_exception_and_not_by_their_exit_code(
    tmp_path: Path,
) -> None:
    value, key = f"{TRACEBACK}ValueError: no\n", f"{TRACEBACK}KeyError: 'a'\n"
    paths = failed_commands(tmp_path, value, value, key, f"{TRACEBACK}MemoryError\n")
    found = states(paths, plan_of(paths))
    groups = [(len(each.runs), each.first.state, each.first.reason) for each in grouped(found)]
    assert groups == [
        (2, "failed", "rank 0: exit code: 1: ValueError: no"),
        (1, "failed", "rank 0: exit code: 1: KeyError: 'a'"),
        (1, "out_of_memory", "rank 0: exit code: 1: MemoryError"),
    ]
    assert [ran_out_of(state) for state in found] == [None, None, None, "mem_gb"]
    short, full = page(paths, found), page(paths, found, full=True)
    assert "Traceback" not in short
    assert 'File "train.py", line 7' in short
    assert "Traceback" in full
