"""Either Slurm, talked to by its commands alone."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import FakeSlurm, pretended

from slurm.conftest import PATIENCE_S

LIKE_THE_REAL = {
    "running": True,
    "cpus": 2,
    "mem_mib": 4000,
    "accounts": ["root", "lab"],
    # A second of its limits takes a fifth of one; a requeued job waits long enough to be seen, and
    # who is told to end has the time for it.
    "second_s": 0.2,
    "requeue_delay_s": 40,
    "kill_wait_s": 100,
}


@dataclass(frozen=True)
class Slurm:
    folder: Path
    """Where its commands are typed."""
    environment: dict[str, str]
    fake: FakeSlurm | None = None

    def attempt(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.folder,
            env=os.environ | self.environment | variables,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def run(self, *command: str, **variables: str) -> str:
        done = self.attempt(*command, **variables)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def refusal(self, *command: str) -> str:
        """What it says when it does not take this."""
        done = self.attempt(*command)
        assert (done.returncode, done.stdout) == (1, "")
        return done.stderr

    def submit(self, script: str, *options: str) -> str:
        """The job's id. It prints to <id>.out, where its options do not say otherwise."""
        asked = ["sbatch", "--parsable", "--output=%j.out", "--open-mode=append", *options]
        return self.run(*asked, f"--wrap={script}").strip()

    def queued(self, job: str, form: str = "%i|%T|%r") -> list[str]:
        """squeue's lines; none where it has forgotten the job."""
        asked = ["squeue", "--array", "--noheader", "--states=all", f"--format={form}", "-j", job]
        return self.attempt(*asked).stdout.splitlines()

    def accounted(self, job: str, *more: str, fields: str = "JobID,State,ExitCode") -> list[str]:
        asked = ["sacct", "--noheader", "--parsable2", f"--format={fields}", "-j", job, *more]
        return self.run(*asked).splitlines()

    def soon(self, job: str, *lines: str, form: str = "%T") -> None:
        """squeue will say this."""
        wait(lambda: self.queued(job, form) == list(lines), lambda: self.queued(job))

    def said(self, job: str) -> list[str]:
        """What the job printed, without what Slurm's own daemon adds."""
        file = self.folder / f"{job}.out"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line for line in lines if "slurmstepd" not in line and "error: ***" not in line]


def wait(happened: object, shown: object = None) -> None:
    assert callable(happened)
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        if time.monotonic() > deadline:
            raise AssertionError(
                f"not within {PATIENCE_S:g} s: {shown() if callable(shown) else ''}"
            )
        time.sleep(0.1)


@pytest.fixture(scope="session", params=["fake", pytest.param("real", marks=pytest.mark.slurm)])
def slurm(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Slurm]:
    folder = tmp_path_factory.mktemp("cases")
    if request.param == "real":
        cluster = request.getfixturevalue("cluster")
        yield Slurm(folder, {"SLURM_CONF": str(cluster.folder / "etc/slurm.conf")})
        cluster.run("scancel", "--me")
        return
    with pretended(folder / "slurm") as fake:
        fake.set(**LIKE_THE_REAL)
        yield Slurm(folder, fake.environment, fake)
