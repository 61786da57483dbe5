"""A program that tunes itself in its own allocation, before its real run: `hpcncf run --auto`.

The trials are those of `hpcncf tune`, started by this process, one after another, for a limited
time. What is taken changes the real run from outside only; whatever goes wrong here leaves it as it
is.
"""

from __future__ import annotations

import os
import select
import stat
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from hpcncf.job.plan import Run
from hpcncf.job.spec import Program, Remedies
from hpcncf.launcher.environment import place_of_command
from hpcncf.monitor.cgroup import memory_limit, usable, usable_cpus
from hpcncf.monitor.gpu import visible_gpus
from hpcncf.paths import ResultPaths
from hpcncf.probe.launch import (
    GUARD,
    GUARD_KERNEL,
    GUARD_UNSET,
    LAUNCHERS,
    observed,
    unobservable,
)
from hpcncf.records.claims import claim_attempt
from hpcncf.tune.program import UNCHANGED, Programs, Setup, Tried, build_tuning, is_equal, simplest
from hpcncf.tune.sandbox import Sandbox, kernel_version, open_sandbox, restrict_thread, writable
from hpcncf.tune.search import Step
from hpcncf.tune.trials import Ask, Figure, Known, best_first
from hpcncf.tune.tuning import Now, read_state, record_round
from hpcncf.worker.pack import LaunchPolicy, Machine, PackRunner

START_S: Final = 2.0
"""What a trial takes beside the program: its worker, and the diagnosis."""
SPARE: Final = 1.1
MEMORY_SHARE: Final = 0.8
"""Of the job's memory, which no trial is expected to exceed: an OOM kill marks the whole job."""
GRACE_S: Final = 2.0
POLL_S: Final = 0.2
CHECK_S: Final = 30.0
NO_BUDGET: Final = -1.0
# What the worker gives its program, and `hpcncf run` does not.
THREADS: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
OF_RANKS: Final = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("GLOO_SOCKET_IFNAME", "HPCNCF_CHECKPOINTS"),
)


@dataclass(frozen=True)
class AutoChoice:
    """Setups that were tried, and the one that the real run takes."""

    remedies: Remedies = UNCHANGED
    reason: str = ""
    """Why these, or why none."""
    trials: int = 0
    seconds: float = 0.0
    tried: tuple[str, ...] = ()
    """Each setup with its step time."""
    out: tuple[str, ...] = ()
    """Setups that do not count, each with the reason."""
    drop: str = ""
    """What the next request may leave out."""
    results: Path | None = None
    """The results folder of the trials."""


def find_obstacle(command: Sequence[str]) -> str:
    """Return why no trial of a command can be made or be safe; "" if none is known."""
    ranks, name = place_of_command().world_size, Path(command[0]).name
    modules = [after for word, after in pairwise(command) if word == "-m"]
    if ranks > 1:
        return f"it is one of {ranks} ranks, and trials are of one process"
    if not name.startswith("python"):
        return (
            f"it is started by {name}: trials can only be watched if the command begins with python"
        )
    if modules and modules[0] in LAUNCHERS:
        return f"{modules[0]} starts several ranks, and trials are of one process"
    if problem := unobservable(command):
        return problem
    return "it reads its standard input, which only one run can" if _has_input() else ""


def _has_input() -> bool:
    """Whether standard input holds data: a file, or a pipe with something in it."""
    try:
        kind = os.fstat(0)
        if stat.S_ISREG(kind.st_mode):
            return kind.st_size > os.lseek(0, 0, os.SEEK_CUR)
        ready = stat.S_ISFIFO(kind.st_mode) and select.select([0], [], [], 0)[0]
        return bool(ready) and _waiting_bytes() > 0
    except OSError:
        return False


def _waiting_bytes() -> int:
    """Number of bytes that wait in standard input, which is 0 for a pipe that has ended."""
    import fcntl
    import struct
    import termios

    return int(struct.unpack("i", fcntl.ioctl(0, termios.FIONREAD, b"\0" * 4))[0])


@dataclass(frozen=True)
class OwnAllocation(Programs):
    """Tuning of a program by trials inside the allocation that the real run will have."""

    def has_room(self, known: Known, setup: Setup) -> bool:
        """Whether workers, each as large as the program, leave the job enough memory."""
        limit, workers = memory_limit(), setup.remedies.workers
        seen = [trial.memory_mib for trial in known.trials if trial.memory_mib]
        if not (limit and workers and seen):
            return True
        return (1 + workers) * seen[0] < MEMORY_SHARE * limit.value

    def real(self, known: Known) -> list[Figure]:
        """The figures of setups that the real run can have: those with all of its cores."""
        return [one for one in known.figures.values() if one.point.cores == self.cores]


def tune_here(
    command: Sequence[str], results: Path, seconds: float, stopped: Callable[[], bool]
) -> AutoChoice:
    """Try setups of a program for at most `seconds`; `results` is the folder of the trials.

    It ends early if `stopped` becomes true. Raises HpcncfError or OSError if there can be no trial.
    """
    began = time.monotonic()
    with open_sandbox(Path.cwd()) as sandbox, ThreadPoolExecutor(1) as pool:
        cores = max(1, int(usable()))
        tuning = _tuning(command, results, cores, cores * seconds / 3600, sandbox)
        ends = False

        def should_stop() -> bool:
            return ends or time.monotonic() > began + seconds

        search = pool.submit(_search, tuning, sandbox, should_stop, began + seconds)
        while True:
            try:
                now, unsafe = search.result(POLL_S)
                break
            except NotYet:
                ends = ends or stopped()  # signals come to the main thread
    took_s = time.monotonic() - began
    return replace(_choose(now, unsafe), seconds=took_s, results=results)


def _tuning(
    command: Sequence[str], results: Path, cores: int, core_hours: float, sandbox: Sandbox
) -> OwnAllocation:
    made = build_tuning(command, results, cores, core_hours, "fastest", "local", None, 1.0)
    job = made.grid.job
    assert isinstance(job.workload, Program)
    workload = job.workload.model_copy(update={"folder": str(sandbox.work)})
    resources = job.resources.model_copy(update={"gpus_per_node": len(visible_gpus())})
    job = job.model_copy(update={"workload": workload, "resources": resources})
    paths, grid = ResultPaths(results), replace(made.grid, job=job)
    return OwnAllocation(paths, grid, "fastest", core_hours, "local", None, cores)


def _search(
    tuning: OwnAllocation, sandbox: Sandbox, should_stop: Callable[[], bool], deadline: float
) -> tuple[Now, str]:
    """Run trials until the search or the time ends; in a thread of its own, which is restricted.

    Returns the last state, and why trials are not safe ("" if nothing showed that).
    """
    tuning.paths.folder.mkdir(parents=True, exist_ok=True)
    is_watched = kernel_version() > 0
    if is_watched:
        restrict_thread(writable(sandbox, tuning.paths.folder))
    now = read_state(tuning)
    if not _is_guarded(tuning.unchanged_run().words[0], sandbox):
        return now, "its Python does not load the probe, as 3.9 and later do"
    while (now := read_state(tuning)).step.kind == "send":
        took = [trial.elapsed_s for trial in now.known.trials if trial.epoch_s]
        trial_s, left_s = SPARE * max(took, default=0.0) + START_S, deadline - time.monotonic()
        if left_s < trial_s:
            return read_state(replace(tuning, core_hours=NO_BUDGET)), ""
        again = [trial.ask for trial in now.known.trials if trial.fate == "open"]
        ask = (*again, *now.step.asks)[0]
        if left_s < 2 * trial_s and (unsettled := _unsettled(now)):
            ask = unsettled
            now = replace(now, step=Step("send", "the best so far once more", (ask,)))
        extended, _ = record_round(now)
        run = extended.grid.run(ask)
        _execute(tuning, run, sandbox, should_stop, is_watched)
        if unsafe := _read_unsafe(tuning.paths, run):
            return read_state(replace(tuning, core_hours=NO_BUDGET)), unsafe
    return now, ""


def _unsettled(now: Now) -> Ask | None:
    """Ask for a second trial of the fastest setup, if a disturbed first one proves too little."""
    tuning, known = now.tuning, now.known
    assert isinstance(tuning, OwnAllocation)
    base = Tried(tuning, known).figures.get(Setup(tuning.cores))
    if base is None:
        return None
    best = min(tuning.real(known), key=lambda one: one.epoch_s)
    alone = [one for one in (base, best) if one.runs < 2 and known.is_disturbed(one)]
    if best.runs > 1 or not alone or is_equal(best, base, "fastest"):
        return None
    return known.ask(best.point)


def _is_guarded(python: str, sandbox: Sandbox) -> bool:
    """Whether the guard ends a process of this Python that is about to write elsewhere."""
    folder = sandbox.folder / "check"
    folder.mkdir()
    environment = observed(os.environ, folder, trial=folder / "trial.json") | {GUARD: str(folder)}
    command = [python, "-c", "open('/', 'a')"]  # never succeeds: it is a folder
    with suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            command,
            env=environment,
            cwd=sandbox.source,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=CHECK_S,
            check=False,
        )
    return (folder / "trial.json.unsafe").exists()


def _execute(
    tuning: OwnAllocation,
    run: Run,
    sandbox: Sandbox,
    should_stop: Callable[[], bool],
    is_watched: bool,
) -> None:
    """Run one trial to its end, in a working folder that no earlier trial has changed."""
    sandbox.renew()
    folders = writable(sandbox, tuning.paths.folder)
    variables = {
        GUARD: os.pathsep.join(map(str, folders)),
        GUARD_KERNEL: "1" if is_watched else "0",
        **sandbox.variables,
    }
    unset = {name for name in OF_RANKS if name not in os.environ}
    cpus = usable_cpus()[: run.resources.cpus_per_task]
    if run.resources.cpus_per_task == tuning.cores:
        cpus = []  # as in the real run, bound to nothing
        variables |= {name: os.environ[name] for name in THREADS if name in os.environ}
    if run.remedies.threads is None:
        unset |= {name for name in THREADS if name not in os.environ}
    machine = Machine(cpus, visible_gpus(), variables | {GUARD_UNSET: ",".join(unset)})

    def stop(_: str) -> bool:
        return should_stop()

    policy = LaunchPolicy(
        lambda run: claim_attempt(tuning.paths.run(run.id), "local"), stop, grace_s=GRACE_S
    )
    PackRunner(tuning.paths, machine, policy).work([run])


def _read_unsafe(paths: ResultPaths, run: Run) -> str:
    files = paths.run(run.id).folder.glob("attempt-*/trial.json.unsafe")
    return next((file.read_text() for file in files), "")


def _choose(now: Now, unsafe: str) -> AutoChoice:
    """Take the simplest of the fastest setups that have the real run's cores."""
    tuning, known = now.tuning, now.known
    assert isinstance(tuning, OwnAllocation)
    done = [trial for trial in known.trials if trial.fate in ("completed", "failed")]
    labels = {point.index: point.label for point in known.points}
    found = AutoChoice(
        trials=len(done),
        tried=tuple(
            f"{one.point.label} {_ms(one)}"
            for one in sorted(known.figures.values(), key=lambda one: one.epoch_s)
        ),
        out=tuple(f"{labels[each.ask.point]}: {each.reason}" for each in done if each.reason),
    )
    if unsafe:
        return replace(found, reason=f"a trial would not be safe: {unsafe}", out=())
    tried = Tried(tuning, known)
    base = tried.figures.get(tried.base)
    if base is None:
        failed = next((trial.reason for trial in done if trial.reason), "")
        return replace(found, reason=failed or "the time was too short for its first trial", out=())
    ranked = best_first(tuning.real(known), "fastest")
    best = simplest(known, ranked)
    better = [one for one in ranked[: ranked.index(best)] if not is_equal(one, best, "fastest")]
    setup = tuning.setups[best.point.index]
    reason = "no setup that was tried is known to be faster with the same losses"
    if len(known.seen) < 2:
        reason = "the time had room for trials of the unchanged program only"
    elif better:
        names = "; ".join(one.point.label for one in better)
        reason = f"faster, but in single trials beside neighbours: {names}"
    elif now.step.why:
        reason += "; the time ended before the search did"
    if setup.remedies:
        gain = base.epoch_s / best.epoch_s
        reason = (
            f"a step takes {_ms(best)} instead of {_ms(base)} ({gain:.2f}x), with the same losses"
        )
    return replace(found, remedies=setup.remedies, reason=reason, drop=_droppable(known, best))


def _droppable(known: Known, best: Figure) -> str:
    """Name the cores without which a step is as fast; "" if no trial shows any."""
    equal = [
        one
        for one in known.figures.values()
        if one.point.cores < best.point.cores and is_equal(best, one, "fastest")
    ]
    if not equal:
        return ""
    least = min(equal, key=lambda one: (one.point.cores, one.epoch_s)).point
    fewer = best.point.cores - least.cores
    return f"{fewer} of {best.point.cores} cores: as fast with {least.label}"


def _ms(figure: Figure) -> str:
    return f"{1000 * figure.epoch_s:.3g} ms"
