"""`hpcncf attach` beside real processes in every state, none of which it may change."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hpcncf.attach import py_spy
from hpcncf.attach.sampled import place
from hpcncf.attach.watch import Watch
from hpcncf.cli import main
from hpcncf.monitor import procfs

# Another worker of pytest-xdist may take the cores that these figures are of.
pytestmark = pytest.mark.alone

SPIN = "while True: sum(range(1000))"
PROGRAM = """
import time
def waits():
    time.sleep(0.02)
def computes():
    end = time.thread_time() + 0.02
    while time.thread_time() < end: pass
while True:
    waits()
    computes()
"""
ROOT = Path(__file__).parents[2]
USER = "/home/u/train.py"
TORCH = "/home/u/env/lib/python3.12/site-packages/torch"


@contextmanager
def program(code: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A running Python program, which has printed a line and is killed in the end."""
    with subprocess.Popen(
        [sys.executable, "-c", f"print(flush=True)\n{code}", *words],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout
        process.stdout.readline()
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def watched(pid: int, seconds: float = 1.0) -> dict[str, Any]:
    watch = Watch([pid])
    watch.run(seconds)
    return watch.result()


def state(pid: int) -> str:
    stat = procfs.stat(f"/proc/{pid}")
    assert stat
    return stat.state


def test_computing_thread_and_waiting_thread_are_told_apart() -> None:
    code = (
        "import threading, time\n"
        f"def spin():\n    {SPIN}\n"
        "threading.Thread(target=spin, daemon=True).start()\ntime.sleep(99)"
    )
    with program(code) as process:
        before = procfs.stat(f"/proc/{process.pid}")
        found = watched(process.pid)
        after = procfs.stat(f"/proc/{process.pid}")
    assert before
    assert after
    (one,) = found["processes"]
    busy, idle = one["busiest"]
    spent_s = after.user_s + after.system_s - before.user_s - before.system_s
    assert one["threads"] == 2
    assert busy["ran_s"] == pytest.approx(spent_s, abs=0.15)
    assert busy["ran_s"] + busy["ready_s"] == pytest.approx(busy["seen_s"], rel=0.1)
    assert idle["ran_s"] + idle["ready_s"] < 0.05
    used_s = found["cpu"]["user_s"] + found["cpu"]["system_s"]
    assert used_s == pytest.approx(busy["ran_s"], abs=0.15)


def test_files_that_are_read_are_named_with_their_rate(tmp_path: Path) -> None:
    data = tmp_path / "data.bin"
    data.write_bytes(bytes(1 << 20))
    code = (
        "import sys, time\nfile = open(sys.argv[1], 'rb', buffering=0)\n"
        "while True:\n    file.read(1000)\n    time.sleep(0.01)"
    )
    with program(code, str(data)) as process:
        found = watched(process.pid)
    first = found["files"][0]
    assert first["path"] == str(data)
    assert 10_000 < first["moved_bytes"] <= 105_000
    assert found["processes"][0]["read_bytes"] >= first["moved_bytes"] - 1000


def test_children_that_come_and_go_are_counted() -> None:
    code = (
        "import os\nwhile True:\n    pid = os.fork()\n    if pid == 0:\n"
        "        sum(range(400000))\n        os._exit(0)\n    os.waitpid(pid, 0)"
    )
    with program(code) as process:
        found = watched(process.pid, 1.5)
        assert process.poll() is None
    used_s = found["cpu"]["user_s"] + found["cpu"]["system_s"]
    assert 0.2 < used_s < 1.7
    assert found["processes"][0]["pid"] == process.pid


def test_stopped_program_stays_stopped_and_is_named() -> None:
    with program(SPIN) as process:
        process.send_signal(signal.SIGSTOP)
        while state(process.pid) != "T":
            time.sleep(0.01)
        found = watched(process.pid)
        assert state(process.pid) == "T"
    assert found["cpu"]["user_s"] == 0
    assert f"`kill -CONT {process.pid}` lets it go on" in found["notes"][0]


def test_program_that_ends_meanwhile_is_shown_up_to_its_end() -> None:
    with program("import time\nend = time.time() + 0.7\nwhile time.time() < end: pass") as process:
        begun_s = time.monotonic()
        found = watched(process.pid, 30.0)
        assert time.monotonic() - begun_s < 10
    assert found["ended"]
    assert 0.1 < found["cpu"]["user_s"] <= 0.8
    assert found["notes"][-1].startswith("it ended ")


def test_two_hundred_processes_cost_the_observer_little() -> None:
    code = "import os, time\nfor _ in range(199):\n    if os.fork() == 0: break\ntime.sleep(99)"
    with program(code) as process:
        watch = Watch([process.pid])
        begun_s = time.process_time()
        watch.run(2.0)
        cost_s = time.process_time() - begun_s
        found = watch.result()
        living = [pid for pid in watch.sample.pids if state(pid) == "S"]
    assert len(found["processes"]) == found["cpu"]["processes_peak"] == 200
    assert len(living) == 200
    assert cost_s < 0.5


def test_page_has_cores_processes_and_conclusion(capsys: pytest.CaptureFixture[str]) -> None:
    with program("import time\ntime.sleep(99)", "train") as process:
        assert main(["attach", str(process.pid), "--seconds", "1"]) == 0
        assert process.poll() is None
    page = capsys.readouterr().out
    assert page.startswith(f"hpcncf attach: process {process.pid}, ")
    assert "allocated, " in page
    assert re.search(rf"^ +{process.pid} +0\.0\d +1 +\d% +\d% +(9\d|100)%", page, re.M), page
    assert all(len(line) <= 80 for line in page.splitlines())


def test_json_can_be_diagnosed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with program(SPIN) as process:
        assert main(["attach", str(process.pid), "--seconds", "1", "--json"]) == 0
    text = capsys.readouterr().out
    found = json.loads(text)
    assert found["rank"]["launched_by"] == "attach"
    assert found["nodes"][0]["processes"][0]["pid"] == process.pid
    (tmp_path / "watch.json").write_text(text)
    assert main(["diagnose", str(tmp_path / "watch.json"), "--json"]) == 0


def zombie() -> subprocess.Popen[str]:
    process = subprocess.Popen(["true"], text=True)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    return process


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("4194303", "no process 4194303"),
        ("abc", "expected a process id"),
        (str(os.getpid()), "this command itself"),
        ("0", "expected a process id"),
    ],
    ids=["absent", "word", "own", "zero"],  # the same in each of pytest-xdist's workers
)
def test_wrong_target_is_one_sentence(
    target: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # without Slurm, if there is one here
    assert main(["attach", target]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""
    assert captured.err.count("\n") == 1


def test_zombie_is_no_program_to_watch(capsys: pytest.CaptureFixture[str]) -> None:
    process = zombie()
    assert main(["attach", str(process.pid)]) == 2
    process.wait()
    assert "has ended (a zombie): its parent" in capsys.readouterr().err


def test_seconds_have_a_range(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["attach", str(os.getppid()), "--seconds", "0"]) == 2
    assert "--seconds: expected 1 to 3,600, came 0" in capsys.readouterr().err


def test_watching_needs_the_standard_library_alone() -> None:
    code = (
        "import sys\nbefore = set(sys.modules)\nimport hpcncf.attach.watch\n"
        "print(*{name.split('.')[0] for name in set(sys.modules) - before})"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(out.stdout.split()) <= {"hpcncf", *sys.stdlib_module_names}


@pytest.mark.alone
@pytest.mark.skipif(py_spy.find_program() is None, reason="needs py-spy")
def test_lines_are_seen_while_the_program_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    with program(PROGRAM) as process:
        assert main(["attach", str(process.pid), "--seconds", "2", "--json"]) == 0
        assert process.poll() is None
        assert state(process.pid) in "RS"
    found = json.loads(capsys.readouterr().out)
    (profile,) = found["rank"]["program"]
    assert found["not_seen"] == []
    assert profile["from_outside"]
    assert profile["phases"]["loop"]["seconds"] == pytest.approx(2.0, abs=1.0)
    shares = {line["function"]: line["share"] for line in profile["lines"]}
    assert shares["computes"] > 0.25
    assert shares["waits"] > 0.05  # beside busy neighbours, what computes takes far longer
    busiest = found["nodes"][0]["processes"][0]["busiest"][0]
    waited = 1 - (busiest["ran_s"] + busiest["ready_s"]) / busiest["seen_s"]
    assert profile["phases"]["loop"]["waiting"] == pytest.approx(waited, abs=0.15)


def without_right(*words: str, user: int | None = None) -> str:
    """What a Python command prints that may not look into the processes of this user."""
    drop = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"]
    drop = ["setpriv", f"--reuid={user}", "--clear-groups"] if user else drop
    out = subprocess.run([*drop, *words], capture_output=True, text=True, check=True)
    return out.stdout


needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv"
)


@needs_root
def test_without_the_right_to_look_inside_the_rest_is_shown() -> None:
    with program(SPIN) as process:
        words = ["attach", str(process.pid), "--seconds", "1", "--json"]
        found = json.loads(without_right(sys.executable, "-m", "hpcncf", *words))
        assert process.poll() is None
    assert found["rank"]["cpu"]["user_s"] > 0.1
    assert found["rank"]["io"]["read_mib"] is None
    first, *others = found["not_seen"]
    assert first.startswith("files, storage and environment: the program has more rights")
    if py_spy.find_program():
        (second,) = others
        assert second.startswith(f"lines of code, of process {process.pid}: reading its memory is")
        assert "SYS_PTRACE" in second


@needs_root
def test_program_of_another_user_shows_its_cores(tmp_path: Path) -> None:
    """As a user who cannot read this checkout: by the modules alone, in one archive."""
    tmp_path.chmod(0o755)
    code = (
        "import json, sys\nfrom hpcncf.attach.observe import Observation\n"
        "from hpcncf.attach.watch import Watch\n"
        "print(json.dumps(Observation(Watch([int(sys.argv[1])])).run(1)))"
    )
    with program(SPIN) as process:
        words = ["/usr/bin/env", f"PYTHONPATH={ROOT}", "/usr/bin/python3", "-c", code]
        found = json.loads(without_right(*words, str(process.pid), user=65534))
    assert found["cpu"]["user_s"] > 0.1
    assert found["processes"][0]["busiest"][0]["ready_s"] is not None
    assert any("belongs to root; that user, or root, can see" in each for each in found["unseen"])


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ([("f", USER, 3)], ("rest:-", "", [[USER, 3, "f"]], "")),
        (
            [
                *(("train", USER, 9), ("A.__next__", f"{TORCH}/utils/data/dataloader.py", 1)),
                *(("D.__getitem__", USER, 5), ("__getitem__.<locals>.<listcomp>", USER, 6)),
            ],
            ("input", "", [[USER, 6, "__getitem__"]], ""),
        ),
        (
            [
                *(("train", USER, 9), ("Module._call_impl", f"{TORCH}/nn/modules/module.py", 1)),
                *(("Net.forward", USER, 5), ("linear", f"{TORCH}/nn/functional.py", 6)),
            ],
            ("rest:-", "forward", [[USER, 5, "forward"]], ""),
        ),
        (
            [("train", USER, 9), ("backward", f"{TORCH}/_tensor.py", 1)],
            ("backward", "", [[USER, 9, "train"]], "torch backward"),
        ),
        (
            [
                *(("train", USER, 9), ("wrapper", f"{TORCH}/optim/optimizer.py", 1)),
                *(("closure", USER, 5), ("Tensor.backward", f"{TORCH}/_tensor.py", 6)),
            ],
            ("backward", "", [[USER, 9, "train"], [USER, 5, "closure"]], "torch backward"),
        ),
    ],
)
def test_stack_has_a_phase_and_the_users_frames(frames: list[Any], expected: Any) -> None:
    assert place(frames) == expected


def test_raw_format_of_py_spy_is_read() -> None:
    text = (
        "thread (12): MainThread;<module> (/a b/t.py:7);f (/a b/t.py:3) 5\n"
        "thread (0x10): Thread-1 (w);w (/a b/t.py:5) 2\nnonsense\n"
    )
    assert dict(py_spy.read_raw(text)) == {
        (12, (("<module>", "/a b/t.py", 7), ("f", "/a b/t.py", 3))): 5,
        (16, (("w", "/a b/t.py", 5),)): 2,
    }
