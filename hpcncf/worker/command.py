"""A user's own program as a rank of a run."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Final

from hpcncf.errors import HpcncfError
from hpcncf.job.command import Program, build_command, placeholder_values
from hpcncf.job.plan import Run
from hpcncf.monitor.sampler import Monitor
from hpcncf.paths import AttemptPaths, RunPaths, make_folder
from hpcncf.probe.launch import observed
from hpcncf.records.host import describe_host
from hpcncf.records.schema import Outcome, RankRecord, write_record_with_retries
from hpcncf.worker.attempt import all_left
from hpcncf.worker.child_process import FILE, CannotStart, Child, Output, Report, check, shell_code
from hpcncf.worker.environment import Place, end_line, launched_by, print_line, rendezvous
from hpcncf.worker.record_command import Started, describe_exit
from hpcncf.worker.recorder import Recorded, changes, node_cpus
from hpcncf.worker.signals import Decision, Held, Stopped, decide, put_back

# Where several came, the first of these counts: who ends a job does not want it back.
STOPPING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR2)
# Each rank's program may take its time to write a checkpoint, as long as Slurm lets it.
OTHERS_S: Final = 60.0


def rank(run: Run, place: Place, attempt: AttemptPaths) -> int:
    """Be this rank: run the program to its end and leave its record. Returns the exit code."""
    described = describe_host()
    edited = changes(run, attempt) if place.local_rank == 0 else []
    told = Report()
    output = Output(told.read)
    try:
        _stop_if_signalled()
        child = _start(run, place, attempt, output)
    except (CannotStart, Stopped) as error:
        return _not_started(run, place, attempt, error)
    begun = Started(run, attempt, place, child.pid, described, launched_by())
    monitor = _monitor(begun)
    monitor.start()
    output.start()
    ended = child.wait(lambda: _progress(begun, monitor, told), monitor.see_main)
    output.end()
    measured = monitor.stop()
    told.end()
    if place.rank == 0:
        told.read_file(attempt.output / FILE)
    stopped = _stopped(child)
    outcome: Outcome = "stopped" if stopped else "completed" if ended == 0 else "failed"
    record = begun.record(measured, ended, outcome, told.values, [*told.problems, *edited])
    if stopped:
        return _leave_stopped(record, run, attempt, stopped)
    return _leave(record, attempt, output.ended_a_line)


def _stop_if_signalled() -> None:
    """A signal that came before there was a program to pass it on to. Raises Stopped."""
    for each in STOPPING:
        held = signal.getsignal(each)
        if isinstance(held, Held) and held.came:
            raise Stopped(each)


def _start(run: Run, place: Place, attempt: AttemptPaths, output: Output) -> Child:
    """Raises CannotStart."""
    words, folder = _call(run, attempt)
    for made in (attempt.output, _run_paths(attempt).checkpoints):
        make_folder(made)
    environment = variables(run, place, attempt)
    if _program(run).probe:
        seen = attempt.probe(place.rank)
        make_folder(seen)
        environment = observed(environment, seen, run.remedies)
    return Child(
        words,
        folder=folder,
        env=environment,
        output=output.writing,
        is_shell=_program(run).shell is not None,
    )


def _program(run: Run) -> Program:
    assert isinstance(run.workload, Program)
    return run.workload


def _run_paths(attempt: AttemptPaths) -> RunPaths:
    return RunPaths(attempt.folder.parent)


def _call(run: Run, attempt: AttemptPaths) -> tuple[list[str], Path]:
    """The words and the folder. Raises CannotStart."""
    program, folder = _program(run), Path(_program(run).folder)
    known = placeholder_values(run.parameters, run.resources.model_dump(mode="json"), run.repeat)
    words = build_command(program, known | _places(run, attempt))
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
        **rendezvous(),
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
        node_cpus=node_cpus(os.environ.get("HPCNCF_NODE_CPUS")),
    )


def _progress(begun: Started, monitor: Monitor, told: Report) -> None:
    if begun.place.rank == 0:
        told.read_file(begun.attempt.output / FILE)
        begun.write_progress(monitor, dict(told.values))


def _stopped(child: Child) -> Stopped | None:
    """Told to stop, it did what it could until then; whether that was all, its code cannot tell."""
    signals = [each for each in STOPPING if each in child.signals]
    return Stopped(signals[0]) if signals else None


def _leave(record: RankRecord, attempt: AttemptPaths, on_a_new_line: bool) -> int:
    _write(record, attempt)
    code = record.exit_code or 0
    if code == 0:
        if record.rank == 0:
            print_line("\n" * (not on_a_new_line) + end_line(attempt.rank(record.rank)))
        return 0
    sys.stderr.write(f"hpcncf: {_rank(record)}{describe_exit(code)}\n")
    return shell_code(code)


def _leave_stopped(record: RankRecord, run: Run, attempt: AttemptPaths, stopped: Stopped) -> int:
    """As our own ranks: the first has the job put back, once the others have left, too.

    Slurm ends a step as soon as one of its ranks fails, so the others do not say that they did.
    """
    ended = f", and the program ended ({describe_exit(record.exit_code or 0)})"
    decision = Decision(None, "")
    if record.rank == 0:
        decision = decide(stopped.signum, run.resources.requeues)
    stopped.fate = ended + decision.told
    record = _with_fate(record, stopped)
    _write(record, attempt)
    if record.rank != 0 and "SLURM_STEP_ID" in os.environ:
        return 0
    all_left(attempt, record.world_size, OTHERS_S)
    refused = put_back(decision.job_id) if decision.job_id else None
    if refused:
        stopped.fate = f"{ended}; not put back into the queue: {refused}"
        _write(_with_fate(record, stopped), attempt)
    sys.stderr.write(f"hpcncf: {_rank(record)}{stopped}\n")
    return stopped.exit_code


def _with_fate(record: RankRecord, stopped: Stopped) -> RankRecord:
    told = {"type": "Stopped", "message": str(stopped), "traceback": ""}
    return record.model_copy(update={"error": told})


def _rank(record: RankRecord) -> str:
    return f"rank {record.rank}: " if record.world_size > 1 else ""


def _write(record: RankRecord, attempt: AttemptPaths) -> None:
    path = attempt.rank(record.rank)
    try:
        write_record_with_retries(path, record)
    except OSError as problem:
        raise HpcncfError(f"{path}: cannot be written: {problem.strerror}") from None


def _not_started(
    run: Run, place: Place, attempt: AttemptPaths, error: CannotStart | Stopped
) -> int:
    """There is no program to measure: the record is of this process."""
    with Recorded(run, place, attempt):
        raise error.with_traceback(None)
    sys.stderr.write(f"hpcncf: {error}\n")
    return error.exit_code
