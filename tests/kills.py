"""Random kills and faults of local queues and of `hpcncf run`, and what must hold afterwards.

`python -m tests.kills 1000` injects so many and prints what went wrong; a second number is the
seed. Faults of a whole Slurm cluster: `make chaos`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from tests.hostile import Outcome, call

PATIENCE_S: Final = 180.0
ROUNDS: Final = 8
SIGNALS: Final = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGUSR2, signal.SIGSTOP)
OWN: Final = """\
f=$HPCNCF_CHECKPOINTS/state; step=0; total=$1
if [ -s "$f" ]; then read step total < "$f"; fi
while [ $step -lt 6 ]; do
  sleep 0.1
  total=$(((total * 31 + step) % 10007)); step=$((step + 1))
  echo "$step $total" > "$f.new" && mv "$f.new" "$f"
done
echo "hpcncf: total=$total"
"""
PROGRAM: Final = """\
name: own
workload: {{command: [sh, own.sh, "{{seed}}"]}}
resources: {{mem_gb: 0.2, timeout_min: 4}}
grid: {{seed: {seeds}}}
"""
TRAINS: Final = """\
name: trains
data: {{path: {data}}}
resources: {{mem_gb: 1, timeout_min: 4, tasks_per_node: {tasks}}}
training: {{epochs: 3, global_batch_size: 20, threads: 1, checkpoint_every_min: 0.002}}
grid: {{training.seed: {seeds}}}
"""


@dataclass
class Seen:
    """The faults that were injected, and what was wrong afterwards."""

    faults: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    completed: int = 0
    """Runs that were complete at the end, with the expected result."""

    def check(self, outcome: Outcome, codes: Sequence[int] = (0, 2, 3)) -> Outcome:
        self.problems += outcome.problems()
        if outcome.code not in codes:
            self.problems.append(f"{outcome.arguments}: {outcome.code}: {outcome.output[-2000:]}")
        return outcome


@dataclass
class Faults:
    """Injects faults into the processes that work in a folder, and undoes them in their time."""

    folder: Path
    dice: random.Random
    seen: Seen
    _due: list[tuple[float, psutil.Process]] = field(default_factory=list)
    _full_until: float = 0.0

    def inject(self) -> None:
        """Inject one, if it finds something to break."""
        if self.dice.random() < 0.08 and self._fill():
            return
        found = processes(self.folder)
        # A queue is ended more rarely than its ranks and their programs.
        queues = [each for each in found if any("submitit" in word for word in words(each))]
        others = [each for each in found if each not in queues]
        victims = queues if self.dice.random() < 0.1 else others
        if not victims:  # a rank is not there yet
            return
        victim, number = self.dice.choice(victims), self.dice.choice(SIGNALS)
        kind = "queue" if victim in queues else "rank" if is_ours(victim) else "program"
        try:
            victim.send_signal(number)
        except psutil.NoSuchProcess:
            return
        self.seen.faults[f"{kind} {number.name}"] += 1
        if number == signal.SIGSTOP:
            self._due.append((time.monotonic() + self.dice.uniform(0.1, 2), victim))

    def _fill(self) -> bool:
        """Fill the disk for a moment, if it is one of its own."""
        if not self.folder.is_mount() or self._full_until:
            return False
        with suppress(OSError), (self.folder / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        self._full_until = time.monotonic() + self.dice.uniform(0.2, 1.5)
        self.seen.faults["disk full"] += 1
        return True

    def undo(self, everything: bool = False) -> None:
        for entry in list(self._due):
            if everything or entry[0] <= time.monotonic():
                self._due.remove(entry)
                with suppress(psutil.NoSuchProcess):
                    entry[1].resume()
        if self._full_until and (everything or self._full_until <= time.monotonic()):
            (self.folder / "filler").unlink()
            self._full_until = 0.0


def words(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return process.cmdline()
    return []


def is_ours(process: psutil.Process) -> bool:
    return any("hpcncf" in word for word in words(process)[:6])


def processes(folder: Path) -> list[psutil.Process]:
    """Everything that works in the folder, this process apart."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            named = any(str(folder) in word for word in process.cmdline())
            inside = process.cwd() == str(folder) or named
            if process.pid != os.getpid() and inside and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def expected(seed: int) -> int:
    """The total of `OWN`."""
    for step in range(6):
        seed = (seed * 31 + step) % 10007
    return seed


def attack_queue(
    folder: Path, job: str, wanted: dict[int, Any], faults: int, dice: random.Random, seen: Seen
) -> None:
    """Submit the job, break things, retry until all is complete, and check the results.

    `wanted`: seed -> what its run computes.
    """
    name = job.splitlines()[0].partition(": ")[2]
    results, breaking = folder / f"results/{name}", Faults(folder, dice, seen)
    (folder / "own.sh").write_text(OWN)
    (folder / "job.yaml").write_text(job)
    before, stop = seen.faults.total(), faults
    with contextlib.chdir(folder):
        seen.check(call("submit", "job.yaml", "--cluster", "local"), (0,))
        for _ in range(ROUNDS):
            deadline = time.monotonic() + PATIENCE_S
            while processes(folder) and time.monotonic() < deadline:
                time.sleep(dice.uniform(0.02, 0.4))
                breaking.undo()
                if seen.faults.total() - before < stop:
                    breaking.inject()
                if dice.random() < 0.1:
                    seen.check(call("status", str(results), "--json"))
            breaking.undo(everything=True)
            if left := processes(folder):
                got = [f"{each.pid}: {' '.join(words(each))}" for each in left]
                seen.problems.append(f"{name}: still there after {PATIENCE_S:g} s: {got}")
                return
            states = [run["state"] for run in runs(results, seen)]
            if set(states) == {"completed"}:
                break
            if seen.faults.total() - before >= stop:
                stop = 0  # the last rounds are undisturbed
            seen.check(call("retry", str(results), "--cluster", "local"), (0, 3))
        check_results(results, wanted, seen)


def runs(results: Path, seen: Seen) -> list[dict[str, Any]]:
    got = seen.check(call("status", str(results), "--json", "--all"), (0,))
    found: list[dict[str, Any]] = json.loads(got.output)["jobs"][0]["runs"]
    return found


def check_results(results: Path, wanted: dict[int, Any], seen: Seen) -> None:
    """Each run is complete once, computed what it should, and left nothing half-written."""
    for run in runs(results, seen):
        folder = results / "runs" / run["id"]
        if run["state"] != "completed":
            seen.problems.append(f"{folder}: {run['state']}: {run['reason']}")
            continue
        records = [json.loads(path.read_text()) for path in folder.glob("attempt-*/rank-0.json")]
        complete = [each for each in records if each["outcome"] == "completed"]
        if len(complete) != 1:
            seen.problems.append(f"{folder}: complete {len(complete)} times")
        training, parameters = complete[0]["training"], complete[0]["run"]["parameters"]
        came = training["model_sha256"] if training else complete[0]["reported"]["total"]
        seed = complete[0]["run"]["training"]["seed"] if training else parameters["seed"]
        if came != wanted[seed]:
            seen.problems.append(f"{folder}: seed {seed}: {came}, expected {wanted[seed]}")
        seen.completed += came == wanted[seed]
    left = [path for path in results.glob("runs/*/*") if path.name.startswith((".", "checkpoint."))]
    left += results.glob("runs/*/*/.*")
    seen.problems += [f"left over: {path}" for path in left]
    seen.check(call("collect", str(results)), (0,))
    for log in [*results.glob("runs/*/*/*.log"), *results.glob("slurm-*/*.err")]:
        text = log.read_text(errors="replace")
        if "Traceback" in text and not of_python_itself(text):
            seen.problems.append(f"{log}: {text[-2000:]}")


def of_python_itself(text: str) -> bool:
    """Whether SIGINT came while Python started, before any line of ours."""
    return "KeyboardInterrupt" in text and not re.search(r'File "[^"]*/hpcncf/\w+/', text)


def attack_commands(folder: Path, number: int, dice: random.Random, seen: Seen) -> None:
    """`hpcncf run`, several at once, each hit once: itself or its command."""
    command = [sys.executable, "-m", "hpcncf", "run", "--results", "results", "--"]
    command += ["sh", "-c", "for i in 1 2 3 4 5 6 7 8; do sleep 0.2; done; exit 5"]
    started = [
        subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for _ in range(number)
    ]
    hit: dict[int, tuple[str, signal.Signals]] = {}
    # Most are hit when the command runs, a few at any moment of the start.
    due = {each: time.monotonic() + dice.uniform(0, 2) for each in started[::6]}
    left = list(started)
    while left := [each for each in left if each.poll() is None and each.pid not in hit]:
        time.sleep(0.02)
        for process in left:
            with suppress(psutil.NoSuchProcess):
                ours = psutil.Process(process.pid)
                below = ours.children()
                if below and process not in due:
                    due[process] = time.monotonic() + dice.uniform(0, 1.5)
                if process not in due or due[process] > time.monotonic():
                    continue
                aim = below[0] if below and dice.random() < 0.4 else ours
                sent = dice.choice([*SIGNALS, signal.SIGHUP, signal.SIGALRM])
                aim.send_signal(sent)
                hit[process.pid] = ("command" if aim is not ours else "hpcncf run", sent)
                seen.faults[" ".join([hit[process.pid][0], sent.name])] += 1
                if sent == signal.SIGSTOP:
                    time.sleep(dice.uniform(0, 0.5))
                    aim.resume()
    for process in started:
        try:
            _, error = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            seen.problems.append(f"hpcncf run: hangs after {hit.get(process.pid)}")
            process.kill()
            continue
        check_command(process.returncode, error.decode(), hit.get(process.pid), seen)
    # The command of one that was killed runs on, to its own end.
    deadline = time.monotonic() + PATIENCE_S
    while processes(folder) and time.monotonic() < deadline:
        seen.check(call("status", str(folder / "results")))
        time.sleep(0.3)
    if (folder / "results/plan.json").exists():
        got = runs(folder / "results", seen)
        if wrong := [run for run in got if run["state"] in ("running", "pending")]:
            seen.problems.append(f"hpcncf run: nothing runs any more, and status says {wrong}")
        seen.check(call("collect", str(folder / "results")))
        seen.completed += len(got)


def check_command(
    code: int, error: str, hit: tuple[str, signal.Signals] | None, seen: Seen
) -> None:
    """The command's exit code, a signal's, or its own end by the signal before it had begun."""
    possible = {5}
    if hit and hit[1] != signal.SIGSTOP:
        possible = {5, 128 + hit[1], -hit[1]}
    if code not in possible:
        seen.problems.append(f"hpcncf run: {hit}: exit code {code}: {error[-1500:]}")
    if "Traceback" in error and not of_python_itself(error):
        seen.problems.append(f"hpcncf run: {hit}: {error[-3000:]}")


@contextlib.contextmanager
def own_disk(at: Path) -> Iterator[Path]:
    """A folder on a small disk of its own, where we may mount one."""
    at.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=12m", "none", str(at)]
    with suppress(OSError):
        subprocess.run(mounting, capture_output=True, check=False)
    try:
        yield at
    finally:
        for _ in range(50):
            if (
                not at.is_mount()
                or subprocess.run(["umount", str(at)], check=False).returncode == 0
            ):
                break
            time.sleep(0.2)
        try:
            shutil.rmtree(at)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise


def undisturbed(folder: Path, data: Path, seeds: Sequence[int], tasks: int) -> dict[int, Any]:
    """Seed -> the parameters' hash of a run that nothing breaks."""
    folder.mkdir()
    (folder / "job.yaml").write_text(TRAINS.format(data=data, tasks=tasks, seeds=list(seeds)))
    with contextlib.chdir(folder):
        done = call("submit", "job.yaml", "--cluster", "local", "--wait")
    assert done.code == 0, done.output
    found = {}
    for path in folder.glob("results/trains/runs/*/attempt-1/rank-0.json"):
        record = json.loads(path.read_text())
        found[record["run"]["training"]["seed"]] = record["training"]["model_sha256"]
    return found


def main(number: int, seed: int) -> Seen:
    """In shares: commands, programs in a queue, training in a queue."""
    from hpcncf.data import synthetic

    seen, dice = Seen(), random.Random(seed)
    with tempfile.TemporaryDirectory() as made:
        os.environ["XDG_CACHE_HOME"] = f"{made}/cache"  # a queue of its own
        data = Path(made) / "tiny"
        synthetic.prepare_synthetic(data, users=60, items=200, train_rows=2000, context=9)
        known = {
            tasks: undisturbed(Path(made) / f"alone{tasks}", data, (1, 2), tasks)
            for tasks in (1, 2)
        }
        while (so_far := seen.faults.total()) < number:
            with own_disk(Path(made) / f"disk-{so_far}") as disk:
                share = dice.random()
                if share < 0.4:
                    attack_commands(disk, 8, dice, seen)
                elif share < 0.85:
                    seeds = [dice.randrange(10007) for _ in range(6)]
                    wanted = {each: expected(each) for each in seeds}
                    attack_queue(disk, PROGRAM.format(seeds=seeds), wanted, 12, dice, seen)
                else:
                    tasks = dice.choice([1, 2])
                    job = TRAINS.format(data=data, tasks=tasks, seeds=[1, 2])
                    attack_queue(disk, job, known[tasks], 6, dice, seen)
                if seen.faults.total() == so_far:
                    break
            done = f"{seen.faults.total()} faults, {seen.completed} runs as expected"
            print(f"{done}, {len(seen.problems)} problems", flush=True)
            for problem in seen.problems[-5:]:
                print(problem, flush=True)
    return seen


if __name__ == "__main__":
    found = main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    print(
        f"{found.faults.total()} faults, {found.completed} runs as expected: {dict(found.faults)}"
    )
    sys.exit("\n".join(found.problems))
