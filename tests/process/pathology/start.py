"""Starts a case by hpcncf's own verbs, as a user would, and asks `hpcncf diagnose`."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from benchmarks.verbs import VerbFailed, Verbs
from hpcncf.monitor.cgroup import usable_cpus
from hpcncf.records.schema import NodeRecord, read_record
from pathology import beside
from pathology.case import DATA, PROGRAMS, Case

LIMIT_S: Final = 300.0
FILE_MIB: Final = 512


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
    """Cores' worth of the job's CPUs that foreign processes used, one of ours among them, or that
    the hypervisor took."""
    longest_s: float = 0.0
    """Of the windows of its node's series: a second, unless the machine stood still."""


@dataclass(frozen=True)
class Bench:
    """A folder for data, results and the queue's files."""

    folder: Path

    @property
    def verbs(self) -> Verbs:
        return Verbs(self.folder, LIMIT_S)

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def file(self) -> Path:
        return self.folder / "large-file"

    def results(self, case: Case) -> Path:
        return self.folder / "results" / case.name

    def has(self, case: Case) -> bool:
        """Whether results of an earlier start of the case are kept."""
        return (self.results(case) / "plan.json").exists()

    def prepare(self, case: Case) -> None:
        """Make the data or the file that the case reads, where it is not there yet."""
        if case.data and not (self.data / case.data / "manifest.json").exists():
            folder = str(self.data / case.data)
            self.verbs("data", "prepare", "synthetic", *DATA[case.data].split(), "-o", folder)
        if "{file}" in case.words:
            if not self.file.exists():
                write_file(self.file)
            forget(self.file)

    def start(self, case: Case) -> Said:
        """Run the case to its end and read its diagnosis. Raises VerbFailed."""
        cpus = usable_cpus()[: case.cores]
        results = self.results(case)
        results.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        with beside.applied(case.beside, cpus, results) as enter:
            self._run(case, cpus, results, enter)
        return self.said(results, time.monotonic() - began)

    def _run(self, case: Case, cpus: Sequence[int], results: Path, enter: beside.Enter) -> None:
        program = [self._placed(word, cpus) for word in case.words]
        env = {name: self._placed(value, cpus) for name, value in case.env.items()}
        if case.run:
            words = (sys.executable, str(PROGRAMS / program[0]), *program[1:])
            to = ("--quiet", "--results", str(results), "--", *words)
            self.verbs("run", *to, env=env, cpus=cpus, enter=enter)
        else:
            job = self.folder / f"{case.name}.yaml"
            job.write_text(yaml.safe_dump(job_file(case, program, self.data)))
            self.verbs.submit(job, results, env, cpus, enter)

    def said(self, results: Path, took_s: float) -> Said:
        text = self.verbs("diagnose", str(results), "--json")
        try:
            return read(json.loads(text), took_s, node_of(results))
        except (ValueError, KeyError) as problem:
            raise VerbFailed(f"hpcncf diagnose: {problem!r} in {text[:100]!r}") from None

    def _placed(self, word: str, cpus: Sequence[int]) -> str:
        """With what stands for its placeholders."""
        places = {"{file}": self.file, "{folder}": self.folder, "{cpu}": cpus[0]}
        for mark, place in places.items():
            word = word.replace(mark, str(place))
        return word


def job_file(case: Case, program: Sequence[str], data: Path) -> dict[str, Any]:
    """The job file's sections."""
    job: dict[str, Any] = {"name": case.way, "resources": {"mem_gb": 4, "timeout_min": 4}}
    if program:
        path = str(PROGRAMS / program[0])
        job["workload"] = {"command": [sys.executable, path, *program[1:]]}
    else:
        job["data"] = {"path": str(data / str(case.data))}
    for dotted, value in case.settings.items():
        section, key = dotted.split(".")
        job.setdefault(section, {})[key] = value
    return job


def read(seen: Any, took_s: float, node: NodeRecord | None) -> Said:
    """The one run's diagnosis, of what `hpcncf diagnose --json` printed."""
    [run] = seen.get("runs") or seen["diagnoses"]
    primary = run["primary"]
    return Said(
        primary["cause"] if primary else run["verdict"],
        tuple(finding["cause"] for finding in run["secondary"]),
        "; ".join(primary["evidence"]) if primary else "",
        took_s,
        others_cores(node) if node else 0.0,
        max(node.length_s, default=0.0) if node else 0.0,
    )


def node_of(results: Path) -> NodeRecord | None:
    """The series of the node of the one run of the results folder."""
    for path in results.glob("runs/*/attempt-*/node-0.json"):
        return read_record(path, NodeRecord)
    return None


def others_cores(node: NodeRecord) -> float:
    length_s = sum(node.length_s)
    windows = zip(node.others_cores, node.steal, node.length_s, strict=True)
    used_s = sum((used + len(node.cpus) * took) * each for used, took, each in windows)
    return used_s / length_s if length_s else 0.0


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
