"""A user's own program as a rank of a run."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Final

from hpcncf.errors import name_exit
from hpcncf.files import make_folder
from hpcncf.job.plan import Run
from hpcncf.job.spec import Program, build_command, placeholder_values
from hpcncf.launcher.environment import Place, end_line, launched_by, print_line, rendezvous
from hpcncf.launcher.requeue import RequeueDecision, decide_requeue
from hpcncf.launcher.signals import PendingSignal, Stopped
from hpcncf.monitor.cgroup import in_slurm_step
from hpcncf.paths import AttemptPaths, RunPaths
from hpcncf.probe.launch import observed
from hpcncf.records.host import describe_host
from hpcncf.records.schema import RankRecord
from hpcncf.worker.attempt import all_left
from hpcncf.worker.call import lacks_result
from hpcncf.worker.child_process import CannotStart, Child, Output, check, shell_code
from hpcncf.worker.command_recorder import CommandRecorder
from hpcncf.worker.recorder import ProcessRecorder, changes

# If several came, the first of these counts: a job that somebody ended is not to come back.
STOPPING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR2)
# The first rank waits this long for the others' programs to write their checkpoints.
OTHERS_S: Final = 60.0
NO_RESULT: Final = "the process of the function exited with code 0 before the function returned"


def run_program(run: Run, place: Place, attempt: AttemptPaths) -> int:
    """Run the program as this rank, and write its record. Returns the exit code."""
    host = describe_host()
    edited = changes(run, attempt) if place.local_rank == 0 else []
    output = Output()
    try:
        for each in STOPPING:  # one that came before there was a program to pass it on to
            held = signal.getsignal(each)
            if isinstance(held, PendingSignal) and held.came:
                raise Stopped(each)
        child = _start(run, place, attempt, output)
    except (CannotStart, Stopped) as error:
        with ProcessRecorder(run, place, attempt):  # a record of this process: there is no other
            raise error.with_traceback(None) from None
        sys.stderr.write(f"hpcncf: {error}\n")
        return error.exit_code
    cores = float(run.resources.cpus_per_task)
    recorder = CommandRecorder(
        run.model_dump(mode="json"), place, attempt, child, host, launched_by(), cores
    )
    recorder.warnings += edited
    output.start(recorder.report.read)
    code, measured = recorder.wait()
    output.end()
    lost = code == 0 and place.rank == 0 and lacks_result(run.words, attempt.output)
    # A program that was asked to stop did what it could; its exit code does not show whether that
    # was all.
    signals = [each for each in STOPPING if each in child.signals]
    record = RankRecord(**recorder.end(measured, code, stopped=bool(signals)))
    if signals:
        return _end_stopped(recorder, run.resources.requeues, record, Stopped(signals[0]))
    if lost:
        no_result = {"type": "NoResult", "message": NO_RESULT, "traceback": ""}
        record = record.model_copy(update={"outcome": "failed", "error": no_result})
    recorder.leave(record)
    if lost:
        sys.stderr.write(f"hpcncf: {place.prefix}{NO_RESULT}\n")
        return 1
    if code:
        sys.stderr.write(f"hpcncf: {place.prefix}{': '.join(name_exit(code))}\n")
    elif place.rank == 0:
        new_line = "" if output.ended_a_line else "\n"
        print_line(new_line + end_line(attempt.rank(0)))
    return shell_code(code)


def _start(run: Run, place: Place, attempt: AttemptPaths, output: Output) -> Child:
    """Start the run's program with its environment; raises CannotStart."""
    program, checkpoints = run.workload, RunPaths(attempt.folder.parent).checkpoints
    assert isinstance(program, Program)
    folder, threads = Path(program.folder), str(run.resources.cpus_per_task)
    places = {
        "run_id": run.id,
        "output": str(attempt.output.absolute()),
        "checkpoints": str(checkpoints.absolute()),
    }
    known = placeholder_values(run.parameters, run.resources.model_dump(mode="json"), run.repeat)
    words = build_command(program, known | places)
    if program.shell is not None:
        words[-1] += "\nexit $?"  # or bash becomes its last command, which signals then miss
    if not folder.is_dir():
        raise CannotStart(f"workload.folder: {folder}: no such folder on {os.uname().nodename}", 1)
    if "/" in words[0]:
        words[0] = str(folder / words[0])
    check(words)
    for made in (attempt.output, checkpoints):
        make_folder(made)
    environment = {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "PYTHONUNBUFFERED": "1",  # so that its log can be followed
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
    if program.probe:
        profiles = attempt.probe(place.rank)
        make_folder(profiles)
        trial = attempt.trial if program.trial else None
        environment = observed(environment, profiles, run.remedies, trial)
    return Child(
        words,
        folder=folder,
        env=environment,
        output=output.writing,
        is_shell=program.shell is not None,
    )


def _end_stopped(
    recorder: CommandRecorder, requeues: int, record: RankRecord, stopped: Stopped
) -> int:
    """Record a program that was asked to stop; rank 0 requeues the job. Returns the exit code.

    Rank 0 waits for the other ranks' records first.

    Slurm ends a step as soon as one of its ranks fails, so the others exit with 0.
    """

    def write(fate: str) -> None:
        ended = ": ".join(name_exit(record.exit_code or 0))
        stopped.fate = f", and the program ended ({ended}){fate}"
        error = {"type": "Stopped", "message": str(stopped), "traceback": ""}
        recorder.leave(record.model_copy(update={"error": error}))

    decision = RequeueDecision(None, "")
    if record.rank == 0:
        decision = decide_requeue(stopped.signum, requeues)
    write(decision.description)
    if record.rank != 0 and in_slurm_step():
        return 0
    all_left(recorder.attempt, record.world_size, OTHERS_S)
    if refusal := recorder.requeue_last(decision, within_s=0.0):
        write(refusal)
    sys.stderr.write(f"hpcncf: {recorder.place.prefix}{stopped}\n")
    return stopped.exit_code
