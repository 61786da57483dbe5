"""Starts a case by hpcncf's own verbs, as a user would, and asks `hpcncf diagnose`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from hpcncf import records
from hpcncf.monitor.cores import usable_cpus
from hpcncf.records import NodeRecord
from pathology import beside
from pathology.case import DATA, PROGRAMS, Case, Job, Run

LIMIT_S: Final = 150.0
FILE_MIB: Final = 512
HPCNCF: Final = (sys.executable, "-m", "hpcncf")
# Variables that would make a job another one than on a quiet machine of no scheduler.
FOREIGN: Final = ("SLURM_", "OMP_", "MKL_", "KMP_", "GOMP_", "HPCNCF_", "RANK", "WORLD_SIZE")


class CaseFailed(Exception):
    """The job, or the verb that looks at it, did not end as it should."""


@dataclass(frozen=True)
class Said:
    """What came of one start of a case."""

    verdict: str
    """The primary cause, `healthy` or `unknown`."""
    secondary: tuple[str, ...]
    evidence: str
    """The primary cause's, in one line."""
    took_s: float
    others_cores: float
    """Cores' worth of the job's CPUs that foreign processes used, one of ours among them."""


@dataclass(frozen=True)
class Bench:
    """A folder for data, results and the queue's files."""

    folder: Path

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def file(self) -> Path:
        return self.folder / "large-file"

    def results(self, case: Case) -> Path:
        return self.folder / "results" / case.name

    def prepare(self, case: Case) -> None:
        """Make the data or the file that the case reads, where it is not there yet."""
        name = case.start.data if isinstance(case.start, Job) else None
        if name is not None and not (self.data / name / "manifest.json").exists():
            made = ("data", "prepare", "synthetic", *DATA[name], "-o", str(self.data / name))
            self.hpcncf(made, self._environment({}))
        if "{file}" in case.start.program and not self.file.exists():
            write_file(self.file)
        if "{file}" in case.start.program:
            forget(self.file)

    def start(self, case: Case) -> Said:
        """Run the case to its end and read its diagnosis. Raises CaseFailed."""
        cpus = usable_cpus()[: case.cores]
        results = self.results(case)
        results.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        with beside.applied(case.beside, cpus, results) as enter:
            self.hpcncf(self._words(case, cpus, results), self._env(case, cpus), cpus, enter)
        return self.said(results, time.monotonic() - began)

    def said(self, results: Path, took_s: float) -> Said:
        text = self.hpcncf(("diagnose", str(results), "--json"), self._environment({}))
        return read(json.loads(text), took_s, others_cores(results))

    def _words(self, case: Case, cpus: Sequence[int], results: Path) -> tuple[str, ...]:
        program = tuple(self._placed(word, cpus) for word in case.start.program)
        if isinstance(case.start, Run):
            words = (sys.executable, str(PROGRAMS / program[0]), *program[1:])
            return ("run", "--quiet", "--results", str(results), "--", *words)
        job = self.folder / f"{case.name}.yaml"
        job.write_text(yaml.safe_dump(job_file(case, case.start, program, self.data)))
        to = ("--cluster", "local", "--wait", "--results", str(results))
        return ("submit", str(job), *to)

    def _env(self, case: Case, cpus: Sequence[int]) -> dict[str, str]:
        return self._environment({key: self._placed(case.env[key], cpus) for key in case.env})

    def _placed(self, word: str, cpus: Sequence[int]) -> str:
        """With what stands for its placeholders."""
        places = {
            "{file}": self.file,
            "{folder}": self.folder,
            "{programs}": PROGRAMS,
            "{cpu}": cpus[0],
        }
        for mark, place in places.items():
            word = word.replace(mark, str(place))
        return word

    def _environment(self, more: Mapping[str, str]) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        return kept | {"XDG_CACHE_HOME": str(self.folder / "cache")} | dict(more)

    def hpcncf(
        self,
        words: Sequence[str],
        env: Mapping[str, str],
        cpus: Sequence[int] = (),
        enter: beside.Enter = lambda: None,
    ) -> str:
        """What the verb printed. Raises CaseFailed."""

        def first() -> None:
            if cpus:
                os.sched_setaffinity(0, cpus)
            enter()

        with subprocess.Popen(
            [*HPCNCF, *words],
            env=dict(env),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=first,
            start_new_session=True,
        ) as process:
            try:
                out, problems = process.communicate(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                raise CaseFailed(f"hpcncf {words[0]}: not over after {LIMIT_S:.0f} s") from None
            finally:
                self._end(process, words)
        if process.returncode:
            last = (problems or out).strip().splitlines()[-1:] or ["no word"]
            raise CaseFailed(f"hpcncf {words[0]}: exit code {process.returncode}: {last[0]}")
        return out

    def _end(self, process: subprocess.Popen[str], words: Sequence[str]) -> None:
        """Nothing outlives the case: neither the verb's processes nor a local queue's."""
        if process.poll() is not None:
            return
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if words[0] == "submit":
            self.hpcncf(("cancel", "--all", words[-1]), self._environment({}))


def job_file(case: Case, start: Job, program: tuple[str, ...], data: Path) -> dict[str, Any]:
    """The job file's sections."""
    job: dict[str, Any] = {"name": case.way, "resources": {"mem_gb": 4, "timeout_min": 2}}
    if start.program:
        path = str(PROGRAMS / program[0])
        job["workload"] = {"command": [sys.executable, path, *program[1:]]}
    else:
        job["data"] = {"path": str(data / str(start.data))}
    for dotted, value in start.settings.items():
        section, key = dotted.split(".")
        job.setdefault(section, {})[key] = value
    return job


def read(told: Any, took_s: float, others: float) -> Said:
    """The one run's diagnosis, of what `hpcncf diagnose --json` printed."""
    [run] = told["diagnoses"]
    primary = run["primary"]
    return Said(
        primary["cause"] if primary else run["verdict"],
        tuple(finding["cause"] for finding in run["secondary"]),
        "; ".join(primary["evidence"]) if primary else "",
        took_s,
        others,
    )


def others_cores(results: Path) -> float:
    """Of the one run of the results folder, from its node's series; 0 where it has none."""
    for path in results.glob("runs/*/attempt-*/node-0.json"):
        node = records.read(path, NodeRecord)
        length_s = sum(node.length_s)
        used = zip(node.others_cores, node.length_s, strict=True)
        return sum(cores * each for cores, each in used) / length_s if length_s else 0.0
    return 0.0


def write_file(path: Path) -> None:
    """Bytes that a disk cannot make up, on the disk."""
    with path.open("wb") as file:
        for _ in range(FILE_MIB):
            file.write(os.urandom(2**20))
        os.fsync(file.fileno())


def forget(path: Path) -> None:
    """The kernel keeps none of it in memory: the job is to read it from the disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)
