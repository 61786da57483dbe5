"""hpcncf's commands and any others, run as a user runs them; their seconds and peak of memory; and
the environments and clones that other programs need."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from hpcncf.collect.collect import Collected, collect
from hpcncf.paths import ResultPaths

HPCNCF: Final = (sys.executable, "-m", "hpcncf")
# Variables that would make a run another one than on a machine of no scheduler.
FOREIGN: Final = ("SLURM_", "OMP_", "MKL_", "KMP_", "GOMP_", "HPCNCF_", "RANK", "WORLD_SIZE")

ROOT: Final = Path(__file__).parent.parent
FRAPPE_FOLDER: Final = ROOT / "data/frappe"
WAITING: Final = """
import resource, subprocess, sys
status = subprocess.call(sys.argv[1:], stdout=sys.stderr)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(status)
"""
"""A small process whose one child the command is: Linux counts as a command's peak also that of the
process that started it."""


def hpcncf(*arguments: str) -> None:
    subprocess.run([*HPCNCF, *arguments], check=True, stdout=sys.stderr)


@dataclass(frozen=True)
class Cost:
    seconds: float
    peak_bytes: int


def measure_command(command: Sequence[str]) -> Cost:
    """Its output goes to standard error. Raises SystemExit if it fails."""
    began = time.perf_counter()
    process = subprocess.run([sys.executable, "-c", WAITING, *command], stdout=subprocess.PIPE)
    seconds = time.perf_counter() - began
    if process.returncode:
        raise SystemExit(f"failed: {' '.join(command)}")
    return Cost(seconds, 1024 * int(process.stdout))


def measured(command: Sequence[str], folder: str, remedies: str | None = None) -> list[float]:
    """The figures behind `measured: ` in a program's output; `remedies`: under `hpcncf run`, with
    these if there are any. Raises RuntimeError if it fails."""
    if remedies is not None:
        asked = ["--with", remedies] if remedies else []
        command = [*HPCNCF, "run", "--results", f"{folder}/results", *asked, "--", *command]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = re.search(r"^measured: (.*)$", done.stdout, re.MULTILINE)
    if done.returncode or found is None:
        raise RuntimeError(f"{shlex.join(command)}: {done.stdout[-1500:]}{done.stderr[-1500:]}")
    return [float(each) for each in found[1].split()]


def environment(folder: Path, packages: Sequence[str], *options: str) -> Path:
    """The interpreter of an environment that has these packages, and no hpcncf. It is made anew
    when they have changed; `options`: of pip."""
    python, made_of, wanted = folder / "bin/python", folder / "packages", "\n".join(packages)
    if not made_of.exists() or made_of.read_text() != wanted:
        print(f"making {folder}", file=sys.stderr, flush=True)
        venv.create(folder, clear=True, with_pip=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *options, *packages], check=True, stdout=sys.stderr)
        made_of.write_text(wanted)
    return python


def cloned(source: str, files: Sequence[str], into: Path) -> Path:
    """A fresh copy of `owner/name@commit`, of these files alone if there are any: from the folder
    HPCNCF_PROGRAMS, which has it as owner+name, else from GitHub."""
    repository, _, commit = source.partition("@")
    stored = os.environ.get("HPCNCF_PROGRAMS")
    kept = Path(stored) / repository.replace("/", "+") if stored else None
    if kept and (kept / "repo").is_dir():
        kept /= "repo"
    address = str(kept) if kept else f"https://github.com/{repository}"
    subprocess.run(["git", "clone", "--quiet", "--no-checkout", address, str(into)], check=True)
    only = ["--", *files] if files else []
    subprocess.run(["git", "checkout", "--quiet", commit, *only], cwd=into, check=True)
    return into


class VerbFailed(Exception):
    """It did not end as it should."""


def end_in_order() -> None:
    """From now on SIGTERM is an exception as Ctrl-C is: what was started is ended, what was made
    is removed."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


@dataclass(frozen=True)
class Verbs:
    """Called in a folder, with a local queue that waits for no other folder's."""

    folder: Path
    limit_s: float

    def __call__(
        self,
        *words: str,
        env: Mapping[str, str] | None = None,
        cpus: Sequence[int] = (),
        enter: Callable[[], None] = lambda: None,
    ) -> str:
        """What the verb printed. `enter` is called by its process before its program, which is then
        bound to the CPUs. Raises VerbFailed."""

        def first() -> None:
            if cpus:
                os.sched_setaffinity(0, cpus)
            enter()

        with subprocess.Popen(
            [*HPCNCF, *words],
            env=self._environment() | dict(env or {}),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=first,
            start_new_session=True,
        ) as process:
            try:
                out, problems = process.communicate(timeout=self.limit_s)
            except subprocess.TimeoutExpired:
                raise VerbFailed(f"hpcncf {words[0]}: not over in {self.limit_s:.0f} s") from None
            finally:
                self._end(process, words)
        if process.returncode:
            last = (problems or out).strip().splitlines()[-1:] or ["no word"]
            raise VerbFailed(f"hpcncf {words[0]}: exit code {process.returncode}: {last[0]}")
        return out

    def submit(
        self,
        job: Path,
        results: Path,
        env: Mapping[str, str] | None = None,
        cpus: Sequence[int] = (),
        enter: Callable[[], None] = lambda: None,
    ) -> None:
        """To this machine, until all runs are complete. Raises VerbFailed."""
        to = ("--cluster", "local", "--wait", "--results", str(results))
        self("submit", str(job), *to, env=env, cpus=cpus, enter=enter)

    def results(self, job: Mapping[str, Any]) -> Collected:
        """What came of a job on this machine. Raises VerbFailed."""
        path = self.folder / f"{job['name']}.yaml"
        path.write_text(yaml.safe_dump(dict(job)))
        self.submit(path, self.folder / job["name"])
        return collect(ResultPaths(self.folder / job["name"]))

    def frappe(self) -> str:
        """A folder of Frappe's data, real where HPCNCF_DATA names the folder of its zip."""
        data, source = str(self.folder / "data"), os.environ.get("HPCNCF_DATA")
        real = ["frappe", "--source", str(Path(source).resolve())] if source else []
        self("data", "prepare", *(real or ["synthetic", "--like", "frappe"]), "-o", data)
        return data

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        return kept | {"XDG_CACHE_HOME": str(self.folder / "cache")}

    def _end(self, process: subprocess.Popen[str], words: Sequence[str]) -> None:
        """Nothing outlives it: neither the verb's processes nor a local queue's."""
        if process.poll() is not None:
            return
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if words[0] == "submit":
            self("cancel", "--all", words[-1])
