"""The jobs that run: started, warned, ended, requeued; looked after by `tick`."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from fake_slurm import environment, processes, steps
from fake_slurm.jobs import Job, Step
from fake_slurm.processes import Process
from fake_slurm.request import Refused
from fake_slurm.scheduler import Queue
from fake_slurm.steps import LiveStep

HEEDED_S = 1.0
"""From a warning to the end that it warns of, even where the machine stood still between them."""


@dataclass
class Cluster:
    queue: Queue
    scripts: dict[int, Process] = field(default_factory=dict)
    """Job number -> its batch script."""
    steps: list[LiveStep] = field(default_factory=list)
    changed: bool = True
    """Whether something may start that could not before."""

    @property
    def busy(self) -> bool:
        return bool(self.scripts) or any(job.completing for job in self.queue.jobs)

    def tick(self) -> None:
        for live in [live for live in self.steps if live.poll()]:
            live.step.ended = time.time()
            self.steps.remove(live)
        for live in self.steps:
            if live.doomed and time.time() > live.doomed + self._kill_wait_s:
                processes.kill(live.marks | self._here)
        for job in self.queue.running():
            self._look_after(job)
        if self.queue.settings.running:
            self._start_some()

    def _look_after(self, job: Job) -> None:
        script = self.scripts.get(job.number)
        if script and script.ended() and not job.completing:
            self._ended_itself(job, script)
        elif not job.completing:
            self._watch_the_clock(job)
        if job.completing:
            self._clear(job)

    def _ended_itself(self, job: Job, script: Process) -> None:
        code, number = script.exit_code
        # A shell tells of a signal by 128 and more; Slurm prints the rest as the code.
        code = code - 128 if code > 128 else code
        starved = job.steps[0].state == "OUT_OF_MEMORY"
        job.exit_code = (0, 125) if starved else (code, number)
        failed = code or number or starved
        job.steps[0].exit_code = job.exit_code
        state = "OUT_OF_MEMORY" if starved else "FAILED" if failed else "COMPLETED"
        self._close_batch(job, "CANCELLED" if number else state)
        self.end(job, state)

    def _close_batch(self, job: Job, state: str) -> None:
        batch, extern = job.steps[0], job.steps[1]
        script = self.scripts.get(job.number)
        batch.state, extern.state = state, "COMPLETED"
        batch.ended = extern.ended = time.time()
        if script and script.ended():
            batch.cpu_s, batch.max_rss_kib = script.cpu_s, script.max_rss_kib

    def _watch_the_clock(self, job: Job) -> None:
        assert job.began is not None
        second = self.queue.settings.second_s
        left = job.began + job.limit_min * 60 * second - time.time()
        warning = job.request.warning
        now = time.time()
        if warning and job.warned is None and left <= warning[1] * second:
            job.warned = now
            self.signal(job, warning[0], script=warning[2])
        if left <= 0 and (job.warned is None or now - job.warned > HEEDED_S):
            self.end(job, "TIMEOUT")

    def signal(self, job: Job, number: int, script: bool = False) -> None:
        """To its steps, or to its batch script alone."""
        if script:
            if job.number in self.scripts:
                self.scripts[job.number].send(number)
            return
        for live in self.steps:
            if live.job is job:
                live.send(number)

    @property
    def _kill_wait_s(self) -> float:
        return self.queue.settings.kill_wait_s * self.queue.settings.second_s

    @property
    def _here(self) -> dict[str, str]:
        return {"FAKE_SLURM": str(self.queue.folder)}

    def _marks(self, job: Job) -> dict[str, str]:
        return {"SLURM_JOB_ID": str(job.number), **self._here}

    def end(self, job: Job, state: str, again: bool = False, by: int | None = None) -> None:
        """Its state is told at once; its processes have `kill_wait_s` to leave."""
        job.state, job.by, job.again, job.ended = state, by, again, time.time()
        self.changed = True
        if not job.nodes:
            return
        job.completing = True
        job.deadline = job.ended + self._kill_wait_s
        if job.steps[0].ended is None:
            job.steps[0].exit_code = (0, signal.SIGTERM)
            for number in (signal.SIGCONT, signal.SIGTERM):
                self.signal(job, number)
                self.signal(job, number, script=True)

    def _clear(self, job: Job) -> None:
        """Once nothing of it runs, its nodes are free."""
        script = self.scripts.get(job.number)
        left = (script and not script.ended()) or any(live.job is job for live in self.steps)
        assert job.deadline is not None
        if left and time.time() < job.deadline:
            return
        processes.kill(self._marks(job))
        if left:
            job.deadline = time.time()
            return
        if job.steps[0].ended is None:
            self._close_batch(job, "CANCELLED")
        self.scripts.pop(job.number, None)
        job.completing, self.changed = False, True
        if job.again:
            self._back_to_the_queue(job)

    def _back_to_the_queue(self, job: Job) -> None:
        job.earlier.append(job.run())
        delay = self.queue.settings.requeue_delay_s * self.queue.settings.second_s
        job.state, job.again, job.warned, job.by = "PENDING", False, None, None
        job.began = job.ended = job.deadline = None
        job.nodes, job.steps, job.exit_code = [], [], (0, 0)
        job.restarts += 1
        job.submitted = time.time()
        job.eligible = time.time() + delay

    def _start_some(self) -> None:
        due = any(0 < job.eligible <= time.time() for job in self.queue.waiting())
        if not self.changed and not due:
            return
        self.changed = False
        for job, nodes in self.queue.startable():
            job.eligible = 0.0
            self._start(job, nodes)

    def _start(self, job: Job, nodes: list[str]) -> None:
        self.queue.number(job)
        job.state, job.reason, job.nodes, job.began = "RUNNING", "None", nodes, time.time()
        asked, request = job.request.asked, job.request
        job.steps = [
            Step("batch", "batch", nodes[:1], 1, request.cpus_per_node),
            Step("extern", "extern", nodes, len(nodes), job.cpus),
        ]
        number = job.array if job.array is not None else job.number
        script = self.queue.folder / f"{number}.sbatch"
        script.chmod(0o755)
        told = request.environment | environment.batch(job) | {"FAKE_SLURM": str(self.queue.folder)}
        default = "slurm-%A_%a.out" if job.array is not None else "slurm-%j.out"
        try:
            output = processes.opened(
                steps.named(asked.output or default, job), request.folder, asked.open_mode
            )
            error = output
            if asked.error:
                error = processes.opened(
                    steps.named(asked.error, job), request.folder, asked.open_mode
                )
        except OSError:  # as where the folder of the logs is missing
            job.exit_code = job.steps[0].exit_code = (0, 53)
            self._close_batch(job, "CANCELLED")
            self.end(job, "FAILED")
            return
        command = [str(script), *request.arguments]
        self.scripts[job.number] = processes.start(
            command, told, request.folder, None, output, error
        )
        for opened in {output, error}:
            os.close(opened)

    def step(
        self,
        words: list[str],
        variables: dict[str, str],
        folder: str,
        files: list[int],
        done: Callable[[int], None],
    ) -> None:
        """Raises Refused as srun does."""
        job = self.queue.numbers.get(int(variables.get("SLURM_JOB_ID", "0")))
        if job is None or job.state != "RUNNING":
            raise Refused("srun: error: this one starts steps of batch jobs alone\n")
        self.steps.append(steps.start(job, words, variables, folder, files, done))

    def cancel(self, job: Job, by: int) -> None:
        if not job.over:
            self.end(job, "CANCELLED", by=by)

    def requeue(self, job: Job) -> None:
        """Raises Refused where it waits already."""
        if job.state == "PENDING":
            raise Refused(f"Job is pending execution for job {job.name}\n")
        if not job.over:
            self.end(job, "REQUEUED", again=True)
        elif not job.completing:
            self._back_to_the_queue(job)
            self.changed = True

    def fail_node(self, node: str) -> None:
        """It is dead, and Slurm has noticed."""
        self.queue.down.add(node)
        for job in self.queue.running():
            if node in job.nodes and not job.completing:
                processes.kill(self._marks(job))
                self.end(job, "NODE_FAIL", again=job.requeues)

    def preempt(self, job: Job) -> None:
        processes.kill(self._marks(job))
        self.end(job, "PREEMPTED", again=job.requeues)

    def starve(self, job: Job, rank: int) -> None:
        """The rank takes more memory than its job asked for."""
        for live in self.steps:
            if live.job is job:
                live.starved.add(rank)
                os.kill(live.tasks[rank].popen.pid, signal.SIGKILL)

    def close(self) -> None:
        for job in self.queue.running():
            processes.kill(self._marks(job))
