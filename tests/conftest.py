"""What several tests share: tiny prepared data, a job file on it, and a Slurm that is not one."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, suppress
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import psutil
import pytest
from alone import turn
from fake_slurm import FakeSlurm

if TYPE_CHECKING:
    from hpcncf.data.prepared import PreparedData

# No test is timed: a busy machine is not a failure. HYPOTHESIS_EXAMPLES=1000 searches for longer.
hypothesis.settings.register_profile(
    "untimed", deadline=None, max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", "25"))
)
hypothesis.settings.load_profile("untimed")

# For `benchmarks`. Last: the package under test may be an installed one.
sys.path.append(str(Path(__file__).parents[1]))
# Some tests share what a neighbour in another tier makes.
sys.path += [str(Path(__file__).parent / tier) for tier in ("unit", "torch", "process")]


ROOM = pytest.StashKey[ExitStack]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """While tests marked `alone` run, pytest-xdist's other workers wait: once for all that follow
    one another."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return (yield)
    alone, more = (
        each is not None and each.get_closest_marker("alone") is not None
        for each in (item, nextitem)
    )
    if ROOM not in item.config.stash:
        shared = Path(item.config.option.basetemp).parent  # each worker has a folder in it
        item.config.stash[ROOM] = ExitStack()
        item.config.stash[ROOM].enter_context(turn(shared, alone))
    try:
        return (yield)
    finally:
        if not (alone and more):
            item.config.stash[ROOM].close()
            del item.config.stash[ROOM]


@pytest.fixture(autouse=True)
def no_servers(request: pytest.FixtureRequest) -> None:
    """A test marked `alone` has no child that earlier ones left: monitors count them all.

    multiprocessing keeps two for good. It has none but this private way to end them; killed first,
    for they stay while anybody else holds their pipe's end.
    """
    if request.node.get_closest_marker("alone") is None:
        return
    of_ranks, of_names = forkserver._forkserver, resource_tracker._resource_tracker
    for server, pid in ((of_ranks, of_ranks._forkserver_pid), (of_names, of_names._pid)):
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            server._stop()


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    """`hpcncf run` blocks all signals until it ends. Called within a test, it must leave none
    blocked: later tests' processes would inherit that, and some would wait for ever."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@pytest.fixture(scope="session", autouse=True)
def own_cache(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[None]:
    """The tests' local queues wait for one another, not for the user's; torch compiles what is
    asked for, and nothing in advance."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # each worker has a folder in it
        shared = Path(request.config.option.basetemp).parent
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patched.setenv("TORCHINDUCTOR_CACHE_DIR", str(shared / "compiled"))
        patched.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no pool that imports torch anew
        patched.setenv("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")
        patched.setenv("TORCHINDUCTOR_VEC_ISA_OK", "1")  # not tried with a program for each
        yield


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """torch computes on one core here: beside other workers, more threads wait in loops."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared folder of made data that an epoch takes a fraction of a second on."""
    from hpcncf.data import synthetic

    folder = tmp_path_factory.mktemp("data") / "tiny"
    synthetic.prepare_synthetic(folder, users=60, items=200, train_rows=2000, context=9)
    return folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared folder whose rows no batch divides: see `make_runs.tiny`."""
    from make_runs import tiny

    path = tmp_path_factory.mktemp("data") / "tiny"
    tiny(path)
    return path


@pytest.fixture(scope="session")
def data(folder: Path) -> PreparedData:
    """What is in it."""
    from hpcncf.data.prepared import load_prepared

    return load_prepared(folder)


JOB = """\
name: tiny
data: {{path: {data}}}
resources: {{mem_gb: 1, timeout_min: 2}}
training: {{epochs: 1, global_batch_size: 100}}
"""


@pytest.fixture
def job_file(tmp_path: Path, tiny_data: Path) -> Callable[[str], Path]:
    """Writes job.yaml: a tiny job, and what the test adds."""

    def write(more: str = "") -> Path:
        path = tmp_path / "job.yaml"
        path.write_text(JOB.format(data=tiny_data) + more)
        return path

    return write


@pytest.fixture
def fake_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    fake = FakeSlurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", f"{fake.bin}{os.pathsep}{os.environ['PATH']}")
    return fake


def free_port() -> int:
    """None of those that the kernel gives to whoever connects: nobody takes it before its server,
    nor does a test beside this one draw it."""
    while True:
        port = 20000 + secrets.randbelow(10000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            return port


def within(seconds: float, happened: Callable[[], bool]) -> bool:
    """Whether it happened before the seconds were over."""
    deadline = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def alive(pid: int) -> bool:
    """Not ended, nor a zombie; who looks may find that it just went."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False
