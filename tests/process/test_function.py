"""`hpcncf.submit`: a function over a grid, and what its futures give."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
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


MAIN = """
import functools, os, sys, threading
import hpcncf
import mylib, package.part
from mylib import helper, FACTOR
from settings import VALUES

lock = threading.Lock()
OWN = {"c": 3}

def by_module(x): return mylib.helper(x)
def by_name(x): return helper(x)
def by_value(x): return x * FACTOR + OWN["c"]
def lazily(x):
    import lazy
    return lazy.helper(x)
def of_package(x): return package.part.value() + x
def recursive(x): return x if x < 2 else recursive(x - 1) + len({"b", "a"})
def configured(x): return VALUES["a"] + x
class Model:
    def __call__(self, x): return mylib.helper(x)
model = Model()
partial = functools.partial(by_value)
partial.__name__ = "partial"
wrapped = mylib.logged(by_value)

from hpcncf.launch.function_code import hash_function
names = "by_module by_name by_value lazily of_package recursive configured model partial wrapped"
for name in names.split():
    found = hash_function(globals()[name])
    print(name, found.sha256, *found.unfollowed)
print("helper", hash_function(helper).sha256)
"""
FILES = {
    "main.py": MAIN,
    "mylib.py": """
import functools
from package import deep
FACTOR = 10
def helper(x):
    return x * FACTOR + deep.value()
def logged(function):
    @functools.wraps(function)
    def wrapper(x):
        return function(x)
    return wrapper
""",
    "lazy.py": "from mylib import helper\n",
    "settings.py": "import json\nVALUES = json.loads('{\"a\": 1}')\n",
    "package/__init__.py": "",
    "package/deep.py": "from . import deeper\ndef value(): return deeper.VALUE\n",
    "package/deeper.py": "VALUE = 1\n",
    "package/part.py": "def value(): return 1\n",
    "other.py": "never = imported = True\n",
}
THROUGH_MYLIB = {"by_module", "by_name", "lazily", "model", "wrapped", "helper"}


def functions_of(folder: Path) -> dict[str, str]:
    words = [sys.executable, "-B", "main.py"]  # a .pyc of the same second and size would be taken
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True)
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


@pytest.mark.parametrize(
    ("file", "before", "after", "changed"),
    [
        ("mylib.py", "FACTOR + deep", "FACTOR - deep", THROUGH_MYLIB),
        ("mylib.py", "FACTOR = 10", "FACTOR = 11", THROUGH_MYLIB | {"by_value", "partial"}),
        ("package/deeper.py", "1", "2", THROUGH_MYLIB),
        ("package/part.py", "1", "2", {"of_package"}),
        ("settings.py", "1", "2", {"configured"}),
        ("main.py", '"c": 3', '"c": 4', {"by_value", "partial", "wrapped"}),
        ("main.py", "recursive(x - 1) +", "recursive(x - 1) -", {"recursive"}),
        ("main.py", "import lazy", "import lazy, other", {"lazily"}),
        ("main.py", "import hpcncf\n", "import hpcncf\n\n# a comment\nUNUSED = 1\n", set()),
        ("mylib.py", "FACTOR = 10", "# a comment\nFACTOR = 10  # and one more\n", set()),
        ("other.py", "True", "False", set()),
    ],
)
def test_hash_of_a_function_follows_the_code_that_it_runs(
    tmp_path: Path, file: str, before: str, after: str, changed: set[str]
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    first = functions_of(tmp_path)
    assert all(len(each) == 64 for each in first.values())  # and nothing is left unfollowed
    path = tmp_path / file
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))
    second = functions_of(tmp_path)
    assert {name for name in first if first[name] != second[name]} - changed == set()
    assert changed - {"wrapped"} <= {name for name in first if first[name] != second[name]}


def test_hash_names_what_it_cannot_follow(tmp_path: Path) -> None:
    (tmp_path / "mylib.py").write_text(
        "import importlib\ndef helper(x):\n    return importlib.import_module(x).value\n"
    )
    code = (
        "import mylib\nfrom hpcncf.launch.function_code import hash_function\n"
        "print(hash_function(mylib.helper).unfollowed)"
    )
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == (
        f"['{tmp_path / 'mylib.py'}:3: imports a module whose name is computed']"
    )


def test_edited_module_is_another_run(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(
        "import hpcncf, mylib\n"
        "def work(x):\n    return mylib.helper(x)\n"
        "if __name__ == '__main__':\n"
        "    found = hpcncf.submit(work, {'x': [2]}, {'timeout_min': 1}, cluster='local')\n"
        "    print(found[0].id, found[0].result(timeout=120))\n"
    )
    words = [sys.executable, str(tmp_path / "main.py")]
    printed = []
    for factor in (10, 1000, 10):
        (tmp_path / "mylib.py").write_text(f"def helper(x):\n    return {factor} * x\n")
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=180)
        printed.append(done.stdout.split())
    assert [each[1] for each in printed] == ["20", "2000", "20"]
    assert printed[0] == printed[2]


@pytest.mark.parametrize(
    ("source", "named"),
    [
        (
            "lock = L()\ndef f(x):\n    return lock",
            "f: .* the global `lock` \\(used in f\\), a lock,",
        ),
        ("def outer():\n    lock = L()\n    return lambda x: lock\nf = outer()", "variable `lock`"),
        ("def f(x, lock=L()):\n    return lock", "default value 1 of f, a lock,"),
        ("class C: pass\nc = C()\nc.lock = L()\ndef f(x):\n    return c", r"`c` .*\.lock, a lock,"),
        ("d = {'a': [1, L()]}\ndef f(x):\n    return d", r"`d` .*\['a'\]\[1\], a lock,"),
        ("def g(): return k\nk = L()\ndef f(x):\n    return g()", "global `k` "),
    ],
)
def test_function_that_cannot_be_pickled_is_refused_by_name(source: str, named: str) -> None:
    scope: dict[str, Any] = {"__name__": "__main__", "L": threading.Lock}
    exec(source, scope)
    with pytest.raises(UsageError, match=named):
        hpcncf.submit(scope["f"], {"x": [1]}, cluster="local")


def test_call_without_a_result_has_failed() -> None:
    def call(how: str) -> Any:
        import os
        import signal
        import sys
        import threading

        if how == "exit":
            os._exit(0)
        if how == "sys":
            sys.exit(0)
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        return [1, {"lock": threading.Lock()}]

    call.__module__ = "__main__"
    how = ["exit", "sys", "kill", "lock"]
    futures = hpcncf.submit(call, {"how": how}, {"timeout_min": 1}, cluster="local")
    texts = {}
    for each in futures:
        with pytest.raises(RunFailed) as error:
            each.result(timeout=180)
        texts[each.parameters["how"]] = str(error.value)
        assert each.state == "failed"
    assert "before the function returned" in texts["exit"]
    assert "before the function returned" in texts["sys"]
    assert "SIGKILL" in texts["kill"]
    assert "[1]['lock'], a lock, cannot be pickled" in texts["lock"]


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
