"""A record is left however a rank ends: where a signal lands, and what becomes of other ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hpcncf.launcher.environment import Place
from hpcncf.launcher.signals import Stopped, hold
from hpcncf.paths import AttemptPaths, RunPaths
from hpcncf.records.claims import process_start
from hpcncf.records.schema import RankRecord, read_record
from hpcncf.worker import recorder
from hpcncf.worker.lost_ranks import Peer, current_process_record
from hpcncf.worker.record_command import planned
from hpcncf.worker.recorder import ProcessRecorder

WAITS_IN_C = """\
import ctypes, sys, threading
from pathlib import Path
from test_recorder import recorded
from hpcncf.launcher import signals
signals.PATIENCE_S["at_once"] = 1.0
lock, mutex = ctypes.CDLL(None).pthread_mutex_lock, ctypes.create_string_buffer(64)
with recorded(Path(sys.argv[1])):
    lock(mutex)
    threading.Timer(0.5, print, ["waits"], {"flush": True}).start()
    lock(mutex)
"""


def attempt(folder: Path) -> AttemptPaths:
    return RunPaths(folder).attempt(1)


def recorded(folder: Path, place: Place = Place()) -> ProcessRecorder:  # noqa: B008  frozen
    attempt(folder).folder.mkdir(parents=True, exist_ok=True)
    return ProcessRecorder(planned(["train"], 1, None), place, attempt(folder))


def record(folder: Path, rank: int = 0) -> RankRecord:
    return read_record(attempt(folder).rank(rank), RankRecord)


def message(folder: Path, rank: int = 0) -> str:
    error = record(folder, rank).error
    assert error is not None
    return error["message"]


class StoppedWhileDropped:
    """The signal lands in `__del__`: Python drops what a handler raises there."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(100):
            pass


def work(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.01)
    raise AssertionError("the signal was not heard")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_that_lands_in_a_del_still_ends_the_rank(tmp_path: Path) -> None:
    dropped = StoppedWhileDropped()
    with recorded(tmp_path) as rank:
        del dropped
        work(seconds=10)
    assert isinstance(rank.error, Stopped)
    left = record(tmp_path)
    assert (left.outcome, left.exit_code) == ("stopped", 128 + signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, "as it was before"


def test_of_two_signals_the_first_is_the_reason(tmp_path: Path) -> None:
    with recorded(tmp_path):
        try:
            os.kill(os.getpid(), signal.SIGUSR2)
            work(seconds=10)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
    assert record(tmp_path).exit_code == 128 + signal.SIGUSR2


def test_what_breaks_after_a_signal_broke_because_of_it(tmp_path: Path) -> None:
    with recorded(tmp_path):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            work(seconds=10)
        except Stopped:
            raise RuntimeError("Connection closed by peer") from None
    assert message(tmp_path) == "stopped by SIGTERM"
    assert "Connection closed by peer" in record(tmp_path).error["traceback"]


def stopped(folder: Path, signum: int, *others: Peer) -> str:
    """What rank 1 of three records when the signal ends it."""
    with recorded(folder, Place(rank=1, local_rank=1, world_size=3, local_world_size=3)) as rank:
        rank.peers = list(others)
        os.kill(os.getpid(), signum)
        work(seconds=10)
    return message(folder, 1)


def test_a_rank_that_is_ended_for_another_one_names_it(tmp_path: Path) -> None:
    other = subprocess.Popen(["sleep", "600"])
    created = process_start(other.pid)
    peer = replace(current_process_record(Place(rank=2)), pid=other.pid, started=created)
    alone = "stopped by SIGTERM"
    assert stopped(tmp_path / "all live", signal.SIGTERM, peer) == alone
    other.kill()
    other.wait()
    gone = f" after another rank ended: {peer} is gone and left no record: it was killed"
    assert stopped(tmp_path / "killed", signal.SIGTERM, peer) == alone + gone
    warned = stopped(tmp_path / "warned", signal.SIGUSR2, peer)
    assert warned == str(Stopped(signal.SIGUSR2)), "that is sent to all"
    for name, error in {"failed": ValueError("bad row"), "stopped": Stopped(15)}.items():
        with recorded(tmp_path / name, Place(rank=2, world_size=3, local_world_size=3)):
            raise error
    seen = " after another rank ended: rank 2 failed: ValueError: bad row"
    assert stopped(tmp_path / "failed", signal.SIGTERM, peer) == alone + seen
    assert stopped(tmp_path / "stopped", signal.SIGTERM, peer) == alone, "as this one was"


def test_a_rank_that_is_ended_for_one_on_another_node_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the ranks have met, those that are stopped leave a record, and the killed one none."""
    monkeypatch.setenv("SLURM_STEP_NODELIST", "node[1-3]")
    monkeypatch.setattr(recorder, "ELSEWHERE_S", (0.1, 0.2))
    there = Place(rank=2, world_size=3, local_world_size=1, node_index=2)
    with recorded(tmp_path, there):
        raise Stopped(signal.SIGTERM)
    here = Place(rank=1, world_size=3, local_world_size=1, node_index=1)
    with recorded(tmp_path, here):
        os.kill(os.getpid(), signal.SIGTERM)
        work(seconds=10)
    assert message(tmp_path, 1).startswith(
        "stopped by SIGTERM after another rank ended: rank 0 (node1) left no record"
    )
    with recorded(tmp_path, Place(world_size=3, local_world_size=1)):
        raise Stopped(signal.SIGTERM)
    with recorded(tmp_path, here):
        raise Stopped(signal.SIGTERM)
    assert message(tmp_path, 1) == "stopped by SIGTERM", "as all were"


def test_of_many_ranks_one_looks_at_the_record_of_the_first_that_failed(tmp_path: Path) -> None:
    many = 256
    for failed in (200, 7):
        with recorded(tmp_path, Place(rank=failed, world_size=many)):
            raise ValueError(f"bad row of {failed}")
    text = attempt(tmp_path).rank(7).read_text()
    for rank in {*range(many)} - {1, 7, 200}:
        attempt(tmp_path).rank(rank).write_text(text)
    opened: list[str] = []
    listening = True

    def hear(event: str, arguments: tuple[object, ...]) -> None:
        if listening and event == "open":
            opened.append(str(arguments[0]))

    sys.addaudithook(hear)
    seen = [stopped(tmp_path, signal.SIGTERM)]
    with recorded(tmp_path, Place(rank=1, world_size=many)):
        raise RuntimeError("Connection closed by peer")
    seen.append(message(tmp_path, 1))
    listening = False
    assert all("rank 200 failed: ValueError: bad row of 200" in each for each in seen)
    assert not any("bad row of 7" in each for each in seen)
    assert sum(Path(name).name.startswith(("rank-", "first-")) for name in opened) < 10


def test_a_rank_that_waits_in_c_leaves_its_record_too(tmp_path: Path) -> None:
    """Torch waits so for other ranks: no handler runs until they come."""
    process = subprocess.Popen(
        [sys.executable, "-c", WAITS_IN_C, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=Path(__file__).parent,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"waits\n"
        process.terminate()
        _, seen = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGTERM
    assert b"stopped by SIGTERM" in seen
    assert record(tmp_path).outcome == "stopped"
    assert "did not stop, it is here" in record(tmp_path).error["traceback"]


def test_a_forked_worker_leaves_the_signal_to_its_rank(tmp_path: Path) -> None:
    with recorded(tmp_path) as rank:
        worker = os.fork()
        if worker == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(0)
        assert os.waitpid(worker, 0)[1] == 0
        time.sleep(1)
    assert rank.error is None


def test_where_the_work_defers_a_graceful_signal_waits_for_it(tmp_path: Path) -> None:
    with recorded(tmp_path) as rank:
        with rank.stop.doing("deferred"):
            os.kill(os.getpid(), signal.SIGUSR2)
            time.sleep(0.1)
            assert rank.stop.signum == signal.SIGUSR2
            with pytest.raises(Stopped), rank.stop.doing("at_once"):
                raise AssertionError("not begun")
        raise Stopped(rank.stop.signum)
    assert record(tmp_path).exit_code == 128 + signal.SIGUSR2


def test_a_peer_lost_on_the_way_to_the_agreed_step_is_the_reason(tmp_path: Path) -> None:
    """A signal leaves the ranks together: one that went before did not go because of it."""
    with recorded(tmp_path) as rank, rank.stop.doing("deferred"):
        os.kill(os.getpid(), signal.SIGUSR2)
        raise RuntimeError("Connection closed by peer [127.0.0.1]:1234")
    assert record(tmp_path).outcome == "failed"
    assert message(tmp_path).startswith("another rank ended while this one waited for it")


def test_a_signal_that_came_before_there_was_anything_to_stop_is_reported_later(
    tmp_path: Path,
) -> None:
    before = signal.getsignal(signal.SIGUSR2)
    hold([signal.SIGUSR2])
    os.kill(os.getpid(), signal.SIGUSR2)
    with recorded(tmp_path):
        work(seconds=10)
    signal.signal(signal.SIGUSR2, before)
    assert record(tmp_path).exit_code == 128 + signal.SIGUSR2


GONE = """\
import time
from hpcncf.launcher.environment import Place
from hpcncf.worker.lost_ranks import gone_before_meeting
time.sleep(0.5)
print([gone_before_meeting(Place(0, 0, 2, 2), recorded) for recorded in (set(), {1})])
"""


@pytest.mark.parametrize("lives", [True, False])
def test_a_rank_that_ended_before_the_ranks_met_is_named(lives: bool) -> None:
    """The first rank asks once the second had time to end."""
    second = subprocess.Popen(["sleep", "60" if lives else "0"], env={**os.environ, "RANK": "1"})
    words, env = [sys.executable, "-c", GONE], {**os.environ, "RANK": "0"}
    said = subprocess.check_output(words, env=env, text=True)
    second.kill()
    second.wait()
    assert said.startswith("['', " if lives else "['rank 1 of ")
    assert said.endswith(", '']\n"), "nothing of one that left its record"


REGISTERED = """
import atexit, sys
from hpcncf.worker import process_exit as ending
atexit.register(print, "registered", end=".")

class Late:
    def __del__(self):
        print("cleared up")

late = Late()
"""


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("sys.stdout.close(); ending.exit_now(4)", 4),
        ("ending.exit_after_main(0)", 0),
        ("ending.exit_after_main(143); sys.exit(143)", 143),
        ("ending.exit_after_main(0); raise OSError('the result cannot be written')", 1),
    ],
)
def test_what_was_registered_runs_and_python_does_not_clear_up(code: str, exit_code: int) -> None:
    words = [sys.executable, "-c", REGISTERED + code]
    over = subprocess.run(words, capture_output=True, text=True)
    assert over.returncode == exit_code
    assert over.stdout == ("" if exit_code == 4 else "registered.")
    assert ("the result cannot be written" in over.stderr) == (exit_code == 1)
