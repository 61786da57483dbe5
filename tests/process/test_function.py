"""`hpcncf.submit`: a function over a grid, and what its futures give."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hpcncf
from hpcncf.errors import HpcncfError, UsageError
from hpcncf.launch.function import Future, RunFailed


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def make_function() -> Any:
    """Pickled by value: a worker cannot import this module."""

    def add(a: float, b: int = 1, text: str = "") -> dict[str, Any]:
        import os

        if a < 0:
            raise ValueError("as asked")
        return {"sum": a + b, "text": text, "cpus": os.environ["OMP_NUM_THREADS"]}

    add.__module__ = "__main__"
    return add


def test_results_and_exceptions_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = {"a": [0.5, 2, -1], "text": ["1"]}
    futures = hpcncf.submit(make_function(), grid, {"cpus_per_task": 1}, cluster="local")
    assert [each.parameters for each in futures] == [{"a": a, "text": "1"} for a in grid["a"]]
    assert [each.result(timeout=120)["sum"] for each in futures[:2]] == [1.5, 3]
    first, _, failing = futures
    assert first.result() == {"sum": 1.5, "text": "1", "cpus": "1"}
    assert (first.state, first.done()) == ("completed", True)
    with pytest.raises(hpcncf.RunFailed, match="ValueError: as asked"):
        failing.result(timeout=120)
    assert failing.state == "failed"
    attempt = tmp_path / "results/add/runs" / first.id / "attempt-1"
    assert json.loads((attempt / "rank-0.json").read_text())["outcome"] == "completed"
    # Equal calls of equal code are not submitted again.
    equal = {"a": [0.5, 2], "text": ["1"]}
    again = hpcncf.submit(make_function(), equal, {"cpus_per_task": 1}, cluster="local")
    assert [each.id for each in again] == [each.id for each in futures[:2]]
    assert len(list((tmp_path / "results/add/submissions").glob("*.json"))) == 1
    # A result that others may have written is not opened.
    file = attempt / "output/result.pkl"
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o620)
    with pytest.raises(HpcncfError, match="not opened"):
        first.result()
    file.chmod(0o600)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(HpcncfError, match="another user"):
        first.result()


def test_a_wait_ends_and_a_run_can_be_cancelled() -> None:
    def sleep(seconds: float) -> None:
        import time

        time.sleep(seconds)

    sleep.__module__ = "__main__"
    (future,) = hpcncf.submit(sleep, {"seconds": [600]}, cluster="local")
    with pytest.raises(TimeoutError, match="after 0"):
        future.result(timeout=0)
    future.cancel()
    with pytest.raises(RunFailed):
        future.result(timeout=120)


@pytest.mark.parametrize(
    ("grid", "resources", "match"),
    [
        ({"a": 3}, None, "expected a list"),
        ({"a": [[1, 2]]}, None, "expected a number, text or a truth value"),
        (None, {"cores": 2}, "unknown key"),
    ],
)
def test_wrong_requests_are_refused(grid: Any, resources: Any, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        hpcncf.submit(make_function(), grid, resources, cluster="local")


def test_importing_hpcncf_imports_nothing_else() -> None:
    code = "import sys, hpcncf; print([m for m in sys.modules if m.startswith('hpcncf.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert Future.__doc__


def test_the_example_of_the_documentation_runs(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/from-submitit.md").read_text()
    script = tmp_path / "example.py"
    example = page.split("```python\n")[1].split("```")[0]
    script.write_text(example.replace("resources=", 'cluster="local", resources='))
    words = [sys.executable, str(script)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)
    losses = [line.rpartition(" {'loss': ")[2] for line in done.stdout.splitlines()]
    assert losses == ["0.1}", "0.2}", "0.01}", "0.02}"]
