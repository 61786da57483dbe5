"""Measure one command, for `hpcncf run`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hpcncf.errors import signal_name
from hpcncf.job.command import Program
from hpcncf.job.plan import Run, hash_identity
from hpcncf.job.spec import Resources
from hpcncf.monitor.cgroup import usable
from hpcncf.monitor.sampler import Measured, Monitor
from hpcncf.paths import AttemptPaths, ResultPaths, make_folder
from hpcncf.probe.launch import observed
from hpcncf.probe.read import take_profiles
from hpcncf.records.claims import claim_attempt
from hpcncf.records.host import describe_host
from hpcncf.records.results_folder import add_command, writing
from hpcncf.records.schema import (
    End,
    NodeRecord,
    Outcome,
    Progress,
    RankRecord,
    Reported,
    utc_now,
    write_record,
)
from hpcncf.worker.child_process import FILE, CannotStart, Child, Report, check
from hpcncf.worker.environment import LaunchedBy, Place, granted_cores, slurm_job_id
from hpcncf.worker.recorder import build_record


@dataclass(frozen=True)
class Recorded:
    """A command that ended, and what it left."""

    exit_code: int
    """Negative is the signal that ended it."""
    folder: Path
    rank: RankRecord
    node: NodeRecord
    problem: str | None
    """Why the record could not be written."""


@dataclass(frozen=True)
class Started:
    """A command at work, as which rank of which run."""

    run: Run
    attempt: AttemptPaths
    place: Place
    pid: int
    environment: Mapping[str, Any]
    launched_by: LaunchedBy

    def record(
        self,
        measured: Measured,
        code: int,
        outcome: Outcome,
        reported: Reported | None = None,
        problems: Sequence[str] = (),
    ) -> RankRecord:
        profiles, unread = take_profiles(self.attempt.probe(self.place.rank))
        return build_record(
            self.run,
            self.place,
            self.attempt,
            measured,
            pid=self.pid,
            launched_by=self.launched_by,
            outcome=outcome,
            exit_code=code,
            error=_error(code),
            environment=dict(self.environment),
            training=None,
            reported=reported or {},
            program=profiles,
            warnings=[*problems, *unread],
        )

    def write_progress(self, monitor: Monitor, reported: Reported) -> None:
        speed = reported.get("instances_per_s")
        progress = Progress(
            run_id=self.run.id,
            attempt=self.attempt.number,
            updated_at=utc_now(),
            elapsed_s=monitor.elapsed_s(),
            phase="command",
            epoch=0,
            epochs=0,
            step=0,
            steps_per_epoch=0,
            reported=reported,
            instances_per_s=speed if isinstance(speed, int | float) else None,
            cpu_efficiency=monitor.efficiency(),
            cores_usable=usable(),
            cores_allocated=float(self.run.resources.cpus_per_task),
            cpu_s=monitor.cpu_s(),
        )
        # Without it, `status` says less; the command goes on.
        with suppress(OSError):
            write_record(self.attempt.progress, progress)


def record(
    command: Sequence[str], folder: Path, name: str | None = None, probe: bool = True
) -> Recorded:
    """Run the command to its end and leave its record in the results folder.

    `probe`: look into its Python processes.

    Raises CannotStart, and UsageError where the folder holds something else.
    """
    check(command)
    paths = ResultPaths(folder)
    allocated = granted_cores()
    run = planned(command, allocated or usable(), name)
    described = describe_host()
    add_command(paths, run)
    with writing(folder):
        attempt = claim_attempt(paths.run(run.id), "run", slurm_job_id())
        make_folder(attempt.output)
        if probe:
            make_folder(attempt.probe(0))
    return _record(command, attempt, run, described, allocated)


def _record(
    command: Sequence[str],
    attempt: AttemptPaths,
    run: Run,
    described: dict[str, Any],
    allocated: float | None,
) -> Recorded:
    variables = {**os.environ, "HPCNCF_OUTPUT": str(attempt.output.absolute())}
    if attempt.probe(0).exists():
        variables = observed(variables, attempt.probe(0))
    try:
        child = Child(command, env=variables)
    except CannotStart as error:
        write_record(attempt.end, _end(run, attempt, error.exit_code, "exited"))
        raise
    monitor = Monitor(
        run.id, attempt.number, pid=child.pid, allocated=allocated, node_file=attempt.node(0)
    )
    started = Started(run, attempt, Place(), child.pid, described, "run")
    monitor.start()
    code = child.wait(lambda: started.write_progress(monitor, {}), monitor.see_main)
    measured = monitor.stop()
    told = Report()
    told.read_file(attempt.output / FILE)
    rank = started.record(measured, code, _outcome(child, code), told.values, told.problems)
    problem = _leave(child, code, attempt, run, rank)
    return Recorded(code, attempt.folder, rank, monitor.node_record(), problem)


def _leave(
    child: Child, code: int, attempt: AttemptPaths, run: Run, rank: RankRecord
) -> str | None:
    """Write what is left; a full disk must not hide how the command ended."""
    told = child.told_to_end and code != 0
    try:
        write_record(attempt.rank(0), rank)
        write_record(attempt.end, _end(run, attempt, code, "cancelled" if told else "exited"))
    except OSError as error:
        return f"{attempt.folder}: the record is not written: {error.strerror}"
    return None


def planned(command: Sequence[str], cores: float, name: str | None) -> Run:
    """Each start of a command is a run of its own: nobody knows what it depends on.

    Several may start on one host within a millisecond: the process tells them apart.
    """
    # Linux passes any bytes as an argument; JSON keeps text.
    words = [os.fsencode(word).decode("utf-8", "backslashreplace") for word in command]
    started = {
        "workload": {"command": words},
        "host": f"{os.uname().nodename}:{os.getpid()}",
        "started": utc_now(),
    }
    return Run(
        id=hash_identity(started),
        repeat=0,
        varied={"run.command": name or shlex.join(words)},
        workload=Program(command=words, folder=_here()),
        by_hand=True,
        resources=Resources(cpus_per_task=max(1, round(cores))),
        data=None,
        data_key=None,
        model=None,
        training=None,
    )


def _here() -> str:
    """What a job file of the same command needs; no part of what the command is."""
    with suppress(OSError, UnicodeEncodeError):
        folder = str(Path.cwd())
        folder.encode()
        return folder
    return "."


def _outcome(child: Child, code: int) -> Outcome:
    return "completed" if code == 0 else "stopped" if child.told_to_end else "failed"


def _error(code: int) -> dict[str, str] | None:
    if code == 0:
        return None
    kind, _, message = describe_exit(code).rpartition(": ")
    return {"type": kind, "message": message, "traceback": ""}


def describe_exit(code: int) -> str:
    """`exit code: 3`, `signal: 9 (SIGKILL)`."""
    return f"exit code: {code}" if code >= 0 else f"signal: {signal_name(-code)}"


def _end(run: Run, attempt: AttemptPaths, code: int, reason: Literal["exited", "cancelled"]) -> End:
    return End(
        run_id=run.id,
        attempt=attempt.number,
        reason=reason,
        exit_codes=[code],
        ended_at=utc_now(),
    )
