"""A real Slurm for the session's tests, and hpcncf on it as a user types it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from slurm import parts
from slurm.people import GROUP, PEOPLE

parts.use_prefix()
CHECKOUT = Path(__file__).parents[2]
CLUSTER = Path(__file__).with_name("cluster.py")
# For whatever must happen: a busy machine is slow, and a wait that ends well costs no more for it.
PATIENCE_S = 600.0
ENDED = {"completed", "failed", "stopped", "cancelled", "timeout", "lost", "out_of_memory"}


@dataclass(frozen=True)
class Cluster:
    folder: Path

    def run(self, *command: str | Path, cwd: Path | None = None) -> str:
        """What the command prints, started where Slurm's commands talk to this cluster."""
        done = self.attempt(*command, cwd=cwd)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def attempt(
        self, *command: str | Path, cwd: Path | None = None, patience_s: float = PATIENCE_S
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=cwd or self.folder,
            env=os.environ | {"SLURM_CONF": str(self.folder / "etc/slurm.conf")},
            capture_output=True,
            text=True,
            timeout=patience_s,
            check=False,
        )

    def crash(self, node: str) -> None:
        """Every process of the node dies at once. Slurm notices after some twenty seconds."""
        self._control("node", node, "crash")

    def boot(self, node: str) -> None:
        self._control("node", node, "boot")

    def kill_slurmd(self, node: str) -> None:
        """Its jobs run on."""
        self._control("node", node, "kill-slurmd")

    def start_slurmd(self, node: str) -> None:
        self._control("node", node, "start-slurmd")

    def net_down(self, node: str) -> None:
        """Nobody reaches the node, nor it anybody; its files it shares all the same."""
        self._control("node", node, "net-down")

    def net_up(self, node: str) -> None:
        self._control("node", node, "net-up")

    def slurmctld(self, fault: Literal["stop", "start", "restart"]) -> None:
        self._control("slurmctld", fault)

    def dbd(self, fault: Literal["stop", "start", "restart"]) -> None:
        """Without it sacct says nothing; what ends meanwhile, slurmctld reports it later."""
        self._control("dbd", fault)

    @property
    def small(self) -> Path:
        """A folder that all nodes share, and that can be filled."""
        return self.folder / "small"

    def disk(self, fault: Literal["fill", "free"]) -> None:
        self._control("disk", fault)

    def mend(self) -> None:
        """Everything runs again, and every node takes jobs."""
        self._control("mend")

    def _control(self, *words: str) -> None:
        self.run(sys.executable, CLUSTER, *words, "--dir", self.folder)


def eventually(happened: Callable[[], bool], shown: object = "") -> None:
    """Slurm's accounting says of a job some seconds after its end. To ask takes no more than a
    third of the time: `hpcncf status`, again and again, takes a core from the runs."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        asked = time.monotonic()
        if happened():
            return
        assert asked < deadline, f"not within {PATIENCE_S:g} s {shown}"
        time.sleep(max(0.2, 2 * (time.monotonic() - asked)))


@contextmanager
def started(*options: str) -> Iterator[Cluster]:
    """A cluster of its own; what goes wrong in starting or ending it is a failure."""
    folder = Path(tempfile.mkdtemp(prefix="hpcncf-test-", dir="/tmp"))
    try:
        _cluster("start", folder, *options)
        yield Cluster(folder)
    finally:
        _cluster("stop", folder)


def _cluster(verb: str, folder: Path, *options: str) -> None:
    command = [sys.executable, CLUSTER, verb, "--dir", folder, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            said, _ = process.communicate(timeout=600)
        except BaseException:
            process.terminate()  # not killed: it cleans up behind itself
            process.communicate()
            raise
    if process.returncode != 0:
        pytest.fail(f"cluster.py {verb}: {said.decode()}", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    user = getattr(item, "funcargs", {}).get("user")
    if report.failed and report.when == "call" and isinstance(user, User):
        report.sections.append(("what its user sees", user.sees()))
    return report


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long ones first: else all wait for one that a worker began last."""
    here = [item for item in items if item.path.is_relative_to(Path(__file__).parent)]
    if len(here) == len(items):
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    if os.environ.get("HPCNCF_TEST_SLURM") != "1":
        pytest.skip("`make test-slurm` starts a real Slurm for it (HPCNCF_TEST_SLURM=1)")
    if os.geteuid() != 0:
        pytest.skip("starting a Slurm needs root")
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that it is ended, too
    try:
        with started() as cluster:
            yield cluster
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.fixture
def breakable(cluster: Cluster) -> Iterator[Cluster]:
    """The session's cluster for a test that breaks something of it: it is mended afterwards."""
    yield cluster
    cluster.mend()


@dataclass(frozen=True)
class User:
    """Someone who types hpcncf in a folder that the nodes see."""

    cluster: Cluster
    folder: Path
    hpcncf: tuple[str | Path, ...] = (Path(sys.executable).with_name("hpcncf"),)
    before: tuple[str | Path, ...] = ()
    """What makes a command that of one of the cluster's people; else it is root's."""

    def attempt(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return self.shell(*self.hpcncf, *arguments)

    def shell(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        return self.cluster.attempt(*self.before, *command, cwd=self.folder)

    def types(self, *arguments: str | Path) -> str:
        done = self.attempt(*arguments)
        assert done.returncode == 0, f"hpcncf {arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def submits(self, job: str, *settings: str) -> str:
        (self.folder / "job.yaml").write_text(job)
        given = [word for setting in settings for word in ("-s", setting)]
        return self.types("submit", "job.yaml", "--cluster", "slurm", *given)

    def runs(self) -> list[dict[str, Any]]:
        """What `hpcncf status` says of each run."""
        said = json.loads(self.types("status", "--json"))
        runs: list[dict[str, Any]] = said["jobs"][0]["runs"]
        return runs

    def waits(self, seen: Callable[[list[str]], bool]) -> list[dict[str, Any]]:
        """The runs as soon as their states are what is waited for."""
        runs: list[dict[str, Any]] = []

        def got() -> bool:
            runs[:] = self.runs()
            return seen([run["state"] for run in runs])

        eventually(got, runs)
        return runs

    def begins(self) -> list[dict[str, Any]]:
        """The runs once all have reported how far they are, and status that they run."""
        expected = len(self.runs())
        eventually(lambda: len(self.records("progress.json")) == expected)
        return self.waits(lambda states: set(states) == {"running"})

    def ends(self) -> list[dict[str, Any]]:
        """Slurm is asked first: `hpcncf status`, again and again, takes a core from the runs."""
        self.is_through()
        return self.waits(lambda states: set(states) <= ENDED)

    def leaves(self) -> None:
        """Nothing of what was submitted runs any more, for whoever comes next."""
        self.shell("scancel", "--me")
        self.is_through()

    def is_through(self) -> None:
        """Wait until nothing of this user is queued or runs."""
        queued = ("squeue", "--me", "--noheader")
        eventually(lambda: (said := self.shell(*queued)).returncode == 0 and said.stdout == "")

    def records(self, pattern: str) -> list[dict[str, Any]]:
        files = sorted(self.folder.glob(f"results/*/runs/*/attempt-*/{pattern}"))
        return [json.loads(file.read_text()) for file in files]

    def sees(self) -> str:
        """What there is to find out why from, when a test has failed."""
        queue = self.cluster.attempt("squeue", "--long").stdout
        runs = sorted(self.folder.glob("results/*/runs/*/attempt-*/progress.json"))
        logs = sorted(self.folder.glob("results/*/slurm-*/*_log.err"))
        got = (f"--- {file.relative_to(self.folder)}\n{file.read_text()}" for file in runs + logs)
        return "\n".join([queue, *got])


def user_of(cluster: Cluster, folder: Path) -> User:
    """With a site file that asks for nothing but the partition."""
    (folder / "site.yaml").write_text("partition: cpu\n")
    return User(cluster, folder)


@pytest.fixture
def user(cluster: Cluster, tmp_path: Path) -> Iterator[User]:
    user = user_of(cluster, tmp_path)
    yield user
    user.leaves()


@pytest.fixture
def people(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[User]]:
    """Ada and Ben, who share a folder, and neither of whom is root."""
    folder = cluster.folder / f"shared/{tmp_path_factory.mktemp('people').name}"
    folder.mkdir(parents=True)
    os.chown(folder, 0, GROUP[1])
    folder.chmod(0o2775)
    two = [acting(user_of(cluster, folder), who) for who in PEOPLE]
    yield two
    for one in two:
        one.leaves()


def acting(user: User, who: str) -> User:
    """As `user`, but typed by one of the cluster's people, with a Python that they may run."""
    path = os.pathsep.join([sysconfig.get_path("purelib"), str(CHECKOUT), f"{CHECKOUT}/analysis"])
    become = [sys.executable, CLUSTER, "as", "--dir", user.cluster.folder, who, "--"]
    # The folder of compiled steps is root's.
    before = (*become, "env", "-u", "TORCHINDUCTOR_CACHE_DIR", f"PYTHONPATH={path}")
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        one = User(user.cluster, user.folder, (python, "-m", "hpcncf"), before)
        if one.shell(python, "-c", "import hpcncf, torch, submitit").returncode == 0:
            return one
    pytest.skip(f"no Python here that {who} may run: neither this one nor Debian's")
