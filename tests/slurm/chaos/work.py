"""The runs of a chaos test: of every shape, short, and known beforehand in what they compute."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from slurm.conftest import ENDED, User

HPCNCF: Final = Path(sys.executable).with_name("hpcncf")
OVER: Final = ENDED | {"node_failed", "planned"}
TRAINS: Final = """\
name: {name}
data: {{path: {data}}}
{site}
resources: {{mem_gb: 1, timeout_min: {minutes}, nodes: {nodes}, tasks_per_node: {tasks}, \
runs_per_task: {packed}}}
training: {{epochs: 3, global_batch_size: 20, threads: 1, checkpoint_every_min: {every}}}
grid: {{training.seed: {seeds}}}
repeats: {repeats}
"""
PROGRAM: Final = """\
name: {name}
site: site.yaml
workload: {{command: [python3, own.py, "{{seed}}"]}}
resources: {{mem_gb: 0.2, timeout_min: 4}}
grid: {{seed: {seeds}}}
repeats: {repeats}
"""
OWN: Final = """\
import sys, time
total = int(sys.argv[1])
for step in range(8):
    total = (total * 31 + step) % 10007
    time.sleep(0.5)
print(f"hpcncf: total={total}")
"""


@dataclass(frozen=True)
class Job:
    """A job file's worth of runs."""

    name: str
    runs: int
    nodes: int = 1
    tasks: int = 1
    packed: int = 1
    every: float = 0.002
    """Minutes between checkpoints."""
    template: str = field(default=TRAINS, repr=False)

    @property
    def seeds(self) -> list[int]:
        """Three, where as many go evenly: what one run computes it computes again when repeated."""
        number = 3 if self.runs % 3 == 0 else self.runs
        return list(range(1, number + 1))

    def text(
        self, data: Path, name: str = "", site: str = "site: site.yaml", once: bool = False
    ) -> str:
        repeats = 1 if once else self.runs // len(self.seeds)
        return self.template.format(
            name=name or self.name, data=data, site=site, nodes=self.nodes, tasks=self.tasks,
            packed=self.packed, minutes=4 // self.packed, every=self.every, seeds=self.seeds,
            repeats=repeats,
        )  # fmt: skip


def jobs(runs: int) -> list[Job]:
    """Of sixty: 18 of one rank, and of each other kind a share."""
    fifth, tenth = max(1, round(runs / 5)), max(1, round(runs / 10))
    rest = max(1, runs - 3 * fifth - tenth)
    return [
        Job("single", rest, every=5),
        Job("pair", fifth, tasks=2),
        Job("nodes", fifth, nodes=2),
        Job("packed", fifth, packed=2),
        Job("program", tenth, template=PROGRAM),
    ]


def submits(user: User, data: Path, jobs: Sequence[Job]) -> None:
    (user.folder / "own.py").write_text(OWN)
    for job in jobs:
        file = user.folder / f"{job.name}.yaml"
        file.write_text(job.text(data))
        user.types("submit", file.name, "--cluster", "slurm")


def undisturbed(folder: Path, data: Path, jobs: Sequence[Job]) -> dict[tuple[int, int], str]:
    """Ranks and seed -> the parameters' hash, of runs on this machine that nothing disturbs."""
    found = {}
    for ranks in (1, 2):
        alike = [job for job in jobs if job.nodes * job.tasks == ranks and job.template == TRAINS]
        most = max(alike, key=lambda job: len(job.seeds))
        one = Job(f"alone{ranks}", len(most.seeds), tasks=ranks, every=5)
        file = folder / f"alone{ranks}.yaml"
        file.write_text(one.text(data, site="", once=True))
        asked = [HPCNCF, "submit", file.name, "--cluster", "local", "--wait"]
        done = subprocess.run(asked, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        for record in _records(folder, one.name, "rank-0.json"):
            key = (ranks, record["run"]["training"]["seed"])
            found[key] = record["training"]["model_sha256"]
    return found


def _records(folder: Path, job: str, name: str) -> list[dict[str, Any]]:
    files = folder.glob(f"results/{job}/runs/*/attempt-*/{name}")
    return [json.loads(file.read_text()) for file in files]


def runs(user: User) -> list[dict[str, Any]]:
    """What `hpcncf status` says of each run of all jobs."""
    return named(user.types("status", "--json"))


def named(got: str) -> list[dict[str, Any]]:
    """With the folder of each, for two jobs may have the same run."""
    jobs = json.loads(got)["jobs"]
    return [
        run | {"folder": f"{job['results']}/runs/{run['id']}"}
        for job in jobs
        for run in job["runs"]
    ]


def over(states: Sequence[str]) -> bool:
    return set(states) <= OVER


def until(user: User, seconds: float, seen: Callable[[list[str]], bool]) -> list[str]:
    deadline = time.monotonic() + seconds
    while not seen(states := [run["state"] for run in runs(user)]):
        assert time.monotonic() < deadline, f"after {seconds:g} s: {states}"
        time.sleep(1)
    return states


def retries(user: User) -> None:
    """Retry what failed; runs that a fault cancelled are submitted again."""
    for results in sorted(user.folder.glob("results/*/plan.json")):
        for command in (["retry", results.parent], ["submit", f"{results.parent.name}.yaml"]):
            done = user.attempt(*command, "--cluster", "slurm")
            assert done.returncode in (0, 3), f"{done.stdout}{done.stderr}"


def state(user: User) -> str:
    """All that is known of the runs that are not complete."""
    lines = []
    for run in runs(user):
        lines.append(f"{run['folder']} {run['state']}: {run['reason']} (job {run['job_id']})")
        if run["state"] == "completed":
            continue
        for file in sorted(user.folder.glob(f"{run['folder']}/**/*")):
            lines.append(f"    {file.relative_to(user.folder)}")
        for log in user.folder.glob(f"results/*/slurm-*/{run['job_id']}*_log.err"):
            lines.append(f"    --- {log.name}")
            lines += [f"    {line}" for line in log.read_text().splitlines()[-30:]]
    lines.append(user.cluster.run("squeue", "--me", "--states=all"))
    return "\n".join(lines)
