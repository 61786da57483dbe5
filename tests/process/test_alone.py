"""Who wants to be alone is, and is not kept waiting by those who do not."""

from __future__ import annotations

import fcntl
from multiprocessing import forkserver
from pathlib import Path
from threading import Thread

import psutil
import pytest
from alone import turn
from conftest import within


def holds(file: Path, kind: int) -> bool:
    """Whether a lock of this kind can be had now."""
    with file.open() as lock:
        try:
            fcntl.flock(lock, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@pytest.mark.parametrize("alone", [True, False])
def test_beside_one_who_is_alone_there_is_no_room(tmp_path: Path, alone: bool) -> None:
    with turn(tmp_path, alone):
        assert holds(tmp_path / "room", fcntl.LOCK_SH) is not alone
        assert not holds(tmp_path / "room", fcntl.LOCK_EX)
    assert holds(tmp_path / "room", fcntl.LOCK_EX)


def test_who_waits_to_be_alone_lets_nobody_in_before(tmp_path: Path) -> None:
    came = []

    def alone() -> None:
        with turn(tmp_path, alone=True):
            came.append(True)

    waiting = Thread(target=alone)
    with turn(tmp_path, alone=False):
        waiting.start()
        assert within(120, lambda: not holds(tmp_path / "door", fcntl.LOCK_EX))
        assert not came
    waiting.join()
    assert came


@pytest.fixture(scope="module")
def servers() -> list[psutil.Process]:
    """What multiprocessing keeps beside a worker whose tests had ranks."""
    forkserver.ensure_running()
    assert within(60, lambda: len(_servers()) == 2), "one that was just forked has no name yet"
    return _servers()


def _servers() -> list[psutil.Process]:
    children = psutil.Process().children()
    return [each for each in children if "multiprocessing" in str(each.cmdline())]


@pytest.mark.alone
def test_who_is_alone_finds_no_server_that_others_left(servers: list[psutil.Process]) -> None:
    assert len(servers) == 2
    assert not any(each.is_running() for each in servers)
