"""What srun starts inside a job: the tasks of a step, until the last has ended."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fake_slurm import environment, processes
from fake_slurm.jobs import Job, Step
from fake_slurm.processes import Process
from fake_slurm.request import Refused

VALUES: Final = (
    *(("-o", "--output"), ("-e", "--error"), ("-w", "--nodelist"), ("-J", "--job-name")),
    *(("--cpu-bind",), ("--mem",), ("--gpus-per-node",), ("--gpus-per-task",), ("--export",)),
    *(("--mpi",), ("--ntasks-per-node",), ("-m", "--distribution"), ("--hint",), ("-D", "--chdir")),
)
SWITCHES: Final = (
    *(("-u", "--unbuffered"), ("--exact",), ("--overlap",), ("--exclusive",), ("-v", "--verbose")),
)


def _options() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser("srun", add_help=False, allow_abbrev=False)
    for names in VALUES:
        options.add_argument(*names)
    for names in SWITCHES:
        options.add_argument(*names, action="store_true")
    options.add_argument("-N", "--nodes", type=int)
    options.add_argument("-n", "--ntasks", type=int)
    options.add_argument("-c", "--cpus-per-task", type=int, default=1)
    options.add_argument("-K", "--kill-on-bad-exit", nargs="?", const="1", default="0")
    options.add_argument("command", nargs=argparse.REMAINDER)
    return options


@dataclass(eq=False)
class LiveStep:
    job: Job
    step: Step
    asked: argparse.Namespace
    stderr: int
    """srun's own."""
    done: Callable[[int], None]
    """Told srun's exit code."""
    tasks: list[Process] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)
    """Ranks whose end was told."""
    killed: bool = False
    doomed: float | None = None
    """When it was told to end."""
    starved: set[int] = field(default_factory=set)
    """Ranks that a test lets run out of memory."""

    @property
    def marks(self) -> dict[str, str]:
        return {"SLURM_JOB_ID": str(self.job.number), "SLURM_STEP_ID": self.step.name}

    def say(self, text: str) -> None:
        with suppress(BrokenPipeError):  # whoever read it is gone
            os.write(self.stderr, f"srun: {text}\n".encode())

    def node(self, rank: int) -> str:
        return self.step.nodes[rank // -(-self.step.tasks // len(self.step.nodes))]

    def poll(self) -> bool:
        """Whether it is over; says what srun says of ranks that end badly."""
        for rank, task in enumerate(self.tasks):
            if rank not in self.seen and task.ended():
                self.seen.add(rank)
                self._tell(rank, *task.exit_code)
        if len(self.seen) < len(self.tasks):
            return False
        self._close()
        return True

    def _tell(self, rank: int, code: int, number: int) -> None:
        if rank in self.starved:
            self.say(f"error: {self.node(rank)}: task {rank}: Out Of Memory")
        elif number:
            self.say(f"error: {self.node(rank)}: task {rank}: {NAMES.get(number, number)}")
        elif code:
            self.say(f"error: {self.node(rank)}: task {rank}: Exited with exit code {code}")
        if (code or number) and self.asked.kill_on_bad_exit != "0" and not self.killed:
            self.killed = len(self.seen) < len(self.tasks)
            self.end()

    def end(self) -> None:
        if len(self.seen) < len(self.tasks):
            self.say(
                f"launch/slurm: _step_signal: Terminating StepId={self.job.number}.{self.step.name}"
            )
            self.send(signal.SIGTERM)
            self.doomed = time.time()

    def send(self, number: int) -> None:
        for task in self.tasks:
            task.send(number)

    def _close(self) -> None:
        codes = [task.exit_code for task in self.tasks]
        worst = max(codes)
        step = self.step
        if self.starved:
            step.state, step.exit_code = "OUT_OF_MEMORY", (0, 125)
        elif self.killed or any(number == signal.SIGTERM for _, number in codes):
            step.state, step.exit_code = "CANCELLED", (0, signal.SIGTERM)
        elif any(number for _, number in codes):
            step.state, step.exit_code = "CANCELLED", (0, max(number for _, number in codes))
        else:
            step.state, step.exit_code = ("FAILED" if worst[0] else "COMPLETED"), (worst[0], 0)
        step.cpu_s = sum(task.cpu_s for task in self.tasks)
        step.max_rss_kib = max(task.max_rss_kib for task in self.tasks)
        self.done(max(number + 128 if number else code for code, number in codes))


NAMES: Final[dict[int, str]] = {
    signal.SIGTERM: "Terminated",
    signal.SIGKILL: "Killed",
    signal.SIGUSR2: "User defined signal 2",
}


def start(
    job: Job,
    words: list[str],
    variables: dict[str, str],
    folder: str,
    files: list[int],
    done: Callable[[int], None],
) -> LiveStep:
    """Raises Refused as srun does."""
    try:
        asked, _ = _options().parse_known_args(words)
    except SystemExit:
        raise Refused("srun: error: invalid arguments\n") from None
    step = _step(job, asked, variables)
    job.steps.append(step)
    live = LiveStep(job, step, asked, os.dup(files[2]), done)
    program = asked.command[0] if asked.command else ""
    if not shutil.which(program, path=variables.get("PATH")):
        step.state, step.exit_code, step.ended = "FAILED", (2, 0), step.began
        said = f"slurmstepd: error: execve(): {program}: No such file or directory\n"
        raise Refused(said, code=2)
    for rank in range(step.tasks):
        told = variables | environment.task(step, rank)
        outputs = _outputs(live, rank, folder, files)
        live.tasks.append(
            processes.start(asked.command, told, folder, files[0] if rank == 0 else None, *outputs)
        )
        for opened in set(outputs) - set(files):
            os.close(opened)
    return live


def _step(job: Job, asked: argparse.Namespace, variables: dict[str, str]) -> Step:
    count = asked.nodes or len(job.nodes)
    per_node = int(asked.ntasks_per_node or 0) * count
    given = int(variables.get("SLURM_NTASKS", count))
    tasks = asked.ntasks or per_node or (given if asked.nodes is None else max(given, count))
    nodes = job.nodes[: min(count, tasks)]
    name = str(sum(step.name.isdigit() for step in job.steps))
    command = Path(asked.command[0]).name if asked.command else ""
    return Step(name, asked.job_name or command, nodes, tasks, tasks * asked.cpus_per_task)


def _outputs(live: LiveStep, rank: int, folder: str, files: list[int]) -> tuple[int, int]:
    """Its files, else srun's own."""
    asked, mode = live.asked, live.job.request.asked.open_mode
    output = files[1]
    if asked.output:
        output = processes.opened(named(asked.output, live.job, rank), folder, mode)
    if not asked.error:
        return output, output if asked.output else files[2]
    return output, processes.opened(named(asked.error, live.job, rank), folder, mode)


def named(pattern: str, job: Job, rank: int = 0) -> str:
    """A file name with Slurm's `%`."""
    values = {
        "%A": str(job.array if job.array is not None else job.number),
        "%a": str(job.element if job.element is not None else 4294967294),
        "%j": str(job.number),
        "%J": str(job.number),
        "%t": str(rank),
        "%n": str(rank),
        "%N": job.nodes[0],
        "%x": job.title,
        "%s": "0",
        "%u": "root",
    }
    for sign, value in values.items():
        pattern = pattern.replace(sign, value)
    return pattern
