"""One rank of a run of the user's own program: started, watched, passed signals, recorded."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Final

from hpcncf import command, environment, records, reported
from hpcncf import workload as programs
from hpcncf.child import ENDING, CannotStart, Child, check, shell_code
from hpcncf.command import Started
from hpcncf.errors import HpcncfError
from hpcncf.monitor import Monitor
from hpcncf.paths import AttemptPaths, RunPaths
from hpcncf.plan import Run
from hpcncf.rank import launcher, leaving, log
from hpcncf.rank.launcher import Place
from hpcncf.rank.output import Output
from hpcncf.records import Outcome, RankRecord
from hpcncf.reported import Report
from hpcncf.workload import Program

STOPPING: Final = (*ENDING, signal.SIGUSR2)


def rank(run: Run, place: Place, attempt: AttemptPaths) -> int:
    """Be this rank: run the program to its end and leave its record. Returns the exit code."""
    try:
        words, folder = _call(run, attempt)
    except CannotStart as error:
        return _not_started(run, place, attempt, error)
    for made in (attempt.output, _run_paths(attempt).checkpoints):
        made.mkdir(exist_ok=True)
    told = Report()
    output = Output(told.read)
    started = environment.describe()
    try:
        child = Child(
            words,
            folder=folder,
            env=variables(run, place, attempt),
            output=output.writing,
            is_shell=_program(run).shell is not None,
        )
    except CannotStart as error:
        return _not_started(run, place, attempt, error)
    begun = Started(run, attempt, place, child.pid, started, launcher.launched_by())
    monitor = _monitor(begun)
    monitor.start()
    output.start()
    code = child.wait(lambda: _progress(begun, monitor, told))
    output.end()
    measured = monitor.stop()
    told.end()
    if place.rank == 0:
        told.read_file(attempt.output / reported.FILE)
    record = begun.record(measured, code, outcome(child, code), told.values, told.problems)
    return _leave(record, attempt, child, code)


def _program(run: Run) -> Program:
    assert isinstance(run.workload, Program)
    return run.workload


def _run_paths(attempt: AttemptPaths) -> RunPaths:
    return RunPaths(attempt.folder.parent)


def _call(run: Run, attempt: AttemptPaths) -> tuple[list[str], Path]:
    """The words and the folder. Raises CannotStart."""
    program, folder = _program(run), Path(_program(run).folder)
    known = programs.values(run.parameters, run.resources.model_dump(mode="json"), run.repeat)
    words = programs.called(program, known | _places(run, attempt))
    if program.shell is not None:
        words[-1] += "\nexit $?"  # or bash becomes its last command, which signals then miss
    if not folder.is_dir():
        raise CannotStart(f"workload.folder: {folder}: no such folder on {os.uname().nodename}", 1)
    if "/" in words[0]:
        words[0] = str(folder / words[0])
    check(words)
    return words, folder


def _places(run: Run, attempt: AttemptPaths) -> dict[str, str]:
    return {
        "run_id": run.id,
        "output": str(attempt.output.absolute()),
        "checkpoints": str(_run_paths(attempt).checkpoints.absolute()),
    }


def variables(run: Run, place: Place, attempt: AttemptPaths) -> dict[str, str]:
    """What the program finds in its environment: torch's names, thread counts, and ours."""
    threads = str(run.resources.cpus_per_task)
    defaults = {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "PYTHONUNBUFFERED": "1",  # a log is for those who follow it
    }
    places = _places(run, attempt)
    return {
        **defaults,
        **os.environ,
        **launcher.rendezvous(),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(place.local_world_size),
        "HPCNCF_RUN_ID": run.id,
        "HPCNCF_REPEAT": str(run.repeat),
        "HPCNCF_ATTEMPT": str(attempt.number),
        "HPCNCF_OUTPUT": places["output"],
        "HPCNCF_CHECKPOINTS": places["checkpoints"],
    }


def _monitor(begun: Started) -> Monitor:
    place, run = begun.place, begun.run
    return Monitor(
        run.id,
        begun.attempt.number,
        node_index=place.node_index,
        pid=begun.pid,
        allocated=float(run.resources.cpus_per_task),
        node_file=begun.attempt.node(place.node_index) if place.local_rank == 0 else None,
        node_cpus=leaving.node_cpus(os.environ.get("HPCNCF_NODE_CPUS")),
    )


def _progress(begun: Started, monitor: Monitor, told: Report) -> None:
    if begun.place.rank == 0:
        told.read_file(begun.attempt.output / reported.FILE)
        begun.write_progress(monitor, dict(told.values))


def outcome(child: Child, code: int) -> Outcome:
    """Told to stop, it did what it could until then: whether that was all, its code cannot tell."""
    if child.signals & set(STOPPING):
        return "stopped"
    return "completed" if code == 0 else "failed"


def _leave(record: RankRecord, attempt: AttemptPaths, child: Child, code: int) -> int:
    path = attempt.rank(record.rank)
    try:
        records.write(path, record)
    except OSError as problem:
        raise HpcncfError(f"{path}: cannot be written: {problem.strerror}") from None
    if record.outcome == "completed":
        if record.rank == 0:
            log.say(log.of_end(path))
        return 0
    rank = f"rank {record.rank}: " if record.world_size > 1 else ""
    sys.stderr.write(f"hpcncf: {rank}{record.outcome}: {command.told(code)}\n")
    return shell_code(code) or 128 + next(iter(child.signals & set(STOPPING)))


def _not_started(run: Run, place: Place, attempt: AttemptPaths, error: CannotStart) -> int:
    """There is no program to measure: the record is of this process."""
    with leaving.Recorded(run, place, attempt):
        raise error
    sys.stderr.write(f"hpcncf: {error}\n")
    return error.exit_code
