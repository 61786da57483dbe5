"""What breaks at random while the runs of a chaos test are at work, each a row of `FAULTS`."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from slurm.conftest import Cluster, User

NODES: Final = ("node1", "node2", "node3", "node4")
ALL: Final = frozenset({"all"})


@dataclass(frozen=True)
class Job:
    """A task under way."""

    names: frozenset[str]
    """Its own number, and that of its array and element."""
    number: str
    """For Slurm's commands; the own number of an array's last element is that of the array."""
    nodes: str


@dataclass(frozen=True)
class Done:
    """What a fault did, whom it may have hit, and how it is undone after some seconds."""

    seen: str
    hit: frozenset[str] = frozenset()
    """Names of jobs; ALL where any may be."""
    undo: Callable[[], None] | None = None
    after_s: float = 0.0


@dataclass
class Scene:
    """The cluster that is broken, and by what dice."""

    cluster: Cluster
    user: User
    dice: random.Random
    nodes_out: set[str] = field(default_factory=set)

    def jobs(self) -> list[Job]:
        asked = ["squeue", "--noheader", "--me", "--states=running", "--partition=short"]
        lines = self.cluster.attempt(*asked, "--format=%i %A %N").stdout.splitlines()
        rows = [line.split() for line in lines]
        return [Job(frozenset(row[:2]), row[0], row[2]) for row in rows if len(row) == 3]

    def a_job(self) -> Job | None:
        jobs = self.jobs()
        return self.dice.choice(jobs) if jobs else None

    def on(self, node: str) -> frozenset[str]:
        """The names of the jobs there."""
        asked = ["squeue", "--noheader", "--me", f"--nodelist={node}", "--format=%i %A"]
        return frozenset(self.cluster.attempt(*asked, "--states=all").stdout.split())

    def a_node(self) -> str | None:
        """One that is not broken yet; two stay whole, so that something goes on."""
        whole = [node for node in NODES if node not in self.nodes_out]
        if len(whole) <= 2:
            return None
        node = self.dice.choice(whole)
        self.nodes_out.add(node)
        return node

    def a_rank(self) -> psutil.Process | None:
        found = []
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            ours = "submitit.core._submit" in words or "hpcncf.worker" in words
            if ours and "python" in words[0] and str(self.user.folder) in " ".join(words):
                found.append(process)
        return self.dice.choice(found) if found else None


def rank_killed(scene: Scene) -> Done | None:
    rank = scene.a_rank()
    if rank is None:
        return None
    names = _job_of(rank)
    rank.kill()
    return Done(f"process {rank.pid} of job {_seen(names)}", names)


def rank_frozen(scene: Scene) -> Done | None:
    rank = scene.a_rank()
    if rank is None:
        return None
    names = _job_of(rank)
    rank.suspend()

    def thaw() -> None:
        with suppress(psutil.NoSuchProcess):
            rank.resume()

    return Done(f"process {rank.pid} of job {_seen(names)}", names, thaw, _between(scene, 2, 20))


def job_cancelled(scene: Scene) -> Done | None:
    return _to_a_job(scene, "scancel")


def batch_script_killed(scene: Scene) -> Done | None:
    return _to_a_job(scene, "scancel", "--batch", "--signal=KILL")


def job_requeued(scene: Scene) -> Done | None:
    return _to_a_job(scene, "scontrol", "requeue")


def warned(scene: Scene) -> Done | None:
    return _to_a_job(scene, "scancel", "--signal=USR2")


def node_crashed(scene: Scene) -> Done | None:
    node = scene.a_node()
    if node is None:
        return None
    hit = scene.on(node)
    scene.cluster.crash(node)

    def boot() -> None:
        scene.cluster.boot(node)
        scene.nodes_out.discard(node)

    return Done(node, hit | scene.on(node), boot, _between(scene, 2, 45))


def slurmd_killed(scene: Scene) -> Done | None:
    """Its jobs run on. Where it is away for long they are put back, and are there twice."""
    node = scene.a_node()
    if node is None:
        return None
    hit = scene.on(node)
    scene.cluster.kill_slurmd(node)

    def start() -> None:
        scene.cluster.start_slurmd(node)
        scene.nodes_out.discard(node)

    return Done(node, hit | scene.on(node), start, _between(scene, 2, 45))


def preempted(scene: Scene) -> Done | None:
    every = ["--nodes=4", "--exclusive", "--time=1", "--partition=cpu", "--wrap=sleep 1"]
    said = scene.cluster.run("sbatch", "--parsable", *every, "--output=/dev/null")
    return Done(f"by job {said.strip()}", ALL)


def slurmctld_restarted(scene: Scene) -> Done | None:
    scene.cluster.slurmctld("restart")
    return Done("")


def slurmdbd_stopped(scene: Scene) -> Done | None:
    scene.cluster.dbd("stop")
    return Done("", undo=lambda: scene.cluster.dbd("start"), after_s=_between(scene, 2, 30))


def disk_full(scene: Scene) -> Done | None:
    scene.cluster.disk("fill")
    free = lambda: scene.cluster.disk("free")  # noqa: E731
    return Done("", ALL, free, _between(scene, 2, 15))


FAULTS: Final[dict[str, Callable[[Scene], Done | None]]] = {
    "rank killed": rank_killed,
    "rank frozen": rank_frozen,
    "job cancelled": job_cancelled,
    "batch script killed": batch_script_killed,
    "job requeued": job_requeued,
    "job warned": warned,
    "node crashed": node_crashed,
    "slurmd killed": slurmd_killed,
    "jobs preempted": preempted,
    "slurmctld restarted": slurmctld_restarted,
    "slurmdbd stopped": slurmdbd_stopped,
    "disk full": disk_full,
}


def _to_a_job(scene: Scene, *command: str) -> Done | None:
    job = scene.a_job()
    if job is None:
        return None
    # It may just have ended; and a step that stands still keeps who signals it waiting.
    with suppress(subprocess.TimeoutExpired):
        scene.cluster.attempt(*command, job.number, patience_s=30)
    return Done(f"job {_seen(job.names)}", job.names)


def _job_of(rank: psutil.Process) -> frozenset[str]:
    known = rank.environ()
    names = {known.get("SLURM_JOB_ID", "?")}
    if "SLURM_ARRAY_JOB_ID" in known:
        names.add(f"{known['SLURM_ARRAY_JOB_ID']}_{known['SLURM_ARRAY_TASK_ID']}")
    return frozenset(names)


def _seen(names: frozenset[str]) -> str:
    return "/".join(sorted(names))


def _between(scene: Scene, least: float, most: float) -> float:
    return scene.dice.uniform(least, most)


def shuffled(dice: random.Random) -> Iterator[str]:
    """Every fault once, then every fault again, and so on."""
    while True:
        yield from dice.sample([*FAULTS], len(FAULTS))


@dataclass
class Breaking:
    """Breaks one thing after the other, undoes each in its time, and keeps a list."""

    scene: Scene
    names: Iterator[str]
    seen: list[str] = field(default_factory=list)
    hit: set[str] = field(default_factory=set)
    saved: dict[Path, int] = field(default_factory=dict)
    """Folder of a run that left a checkpoint -> its last attempt when that was first seen."""
    _began: float = field(default_factory=time.monotonic)
    _due: list[tuple[float, str, Callable[[], None]]] = field(default_factory=list)

    def one(self) -> bool:
        """False where what is next cannot be broken now."""
        name = next(self.names)
        if any(name == other for _, other, _ in self._due) and name in ONE_AT_A_TIME:
            return False
        try:
            done = FAULTS[name](self.scene)
        except psutil.NoSuchProcess:
            return False
        if done is None:
            return False
        self.hit |= done.hit
        self.say(f"{name}: {done.seen}" if done.seen else name)
        if done.undo:
            self._due.append((time.monotonic() + done.after_s, name, done.undo))
        return True

    def note_what_is_saved(self) -> None:
        for checkpoint in self.scene.user.folder.glob("results/*/runs/*/checkpoint.pt"):
            attempts = [int(path.name[8:]) for path in checkpoint.parent.glob("attempt-*")]
            self.saved.setdefault(checkpoint.parent, max(attempts))

    def undo_what_is_due(self, everything: bool = False) -> None:
        for entry in list(self._due):
            due, name, undo = entry
            if everything or due <= time.monotonic():
                self._due.remove(entry)
                undo()
                self.say(f"over: {name}")

    def say(self, what: str) -> None:
        line = f"{time.monotonic() - self._began:6.1f} s  {what}"
        self.seen.append(line)
        print(line, flush=True)


ONE_AT_A_TIME: Final = {"slurmdbd stopped", "disk full"}
