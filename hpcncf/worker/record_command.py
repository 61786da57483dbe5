"""Measure one command, for `hpcncf run`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import psutil

from hpcncf.errors import signal_name
from hpcncf.job.plan import Run, hash_identity
from hpcncf.job.spec import Program, Remedies, Resources
from hpcncf.monitor.cgroup import usable
from hpcncf.monitor.monitor_thread import Measured, Monitor
from hpcncf.paths import AttemptPaths, ResultPaths, make_folder
from hpcncf.probe.launch import observed, unobservable
from hpcncf.probe.read import read_profiles, shares_so_far, take_profiles
from hpcncf.records.claims import claim_attempt, process_start
from hpcncf.records.host import describe_host
from hpcncf.records.plan_file import add_command, writing
from hpcncf.records.schema import (
    End,
    NodeRecord,
    Outcome,
    Progress,
    RankRecord,
    RecordError,
    Reported,
    read_record,
    utc_now,
    write_record,
)
from hpcncf.worker.allocation import allocated_cores
from hpcncf.worker.attempt import all_left, take_or_join
from hpcncf.worker.child_process import FILE, CannotStart, Child, Report, check
from hpcncf.worker.environment import (
    LaunchedBy,
    Place,
    place_of_command,
    slurm_job_id,
    start_of_ranks,
)
from hpcncf.worker.recorder import build_record

# A rank that ended waits this long for the others' records, whose summary the first rank prints.
OTHERS_S: Final = 60.0
ALONE: Final = Place()
NO_REMEDIES: Final = Remedies()
R = TypeVar("R", RankRecord, NodeRecord)


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

    @cached_property
    def process_started(self) -> float | None:
        """When the command started; None if it ended at once."""
        with suppress(psutil.NoSuchProcess):
            return process_start(self.pid)
        return None

    def record(
        self,
        measured: Measured,
        code: int,
        outcome: Outcome,
        reported: Reported | None = None,
        problems: Sequence[str] = (),
    ) -> RankRecord:
        folder, program = self.attempt.probe(self.place.rank), self.run.workload
        is_probed = folder.exists()
        profiles, unread = take_profiles(folder)
        if is_probed and not profiles and isinstance(program, Program):
            deaf = unobservable(program.templates)
            unread = [*unread, *([deaf] if deaf else [])]
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
        profiles, _ = read_profiles(self.attempt.probe(self.place.rank))
        steps, phases = shares_so_far(profiles)
        progress = Progress(
            run_id=self.run.id,
            attempt=self.attempt.number,
            updated_at=utc_now(),
            elapsed_s=monitor.elapsed_s(),
            phase="command",
            epoch=0,
            epochs=0,
            step=steps,
            steps_per_epoch=0,
            reported=reported,
            instances_per_s=speed if isinstance(speed, int | float) else None,
            cpu_efficiency=monitor.efficiency(),
            cores_usable=usable(),
            cores_allocated=float(self.run.resources.cpus_per_task),
            cpu_s=monitor.cpu_s(),
            rss_mib=monitor.rss_mib(),
            pid=self.pid,
            process_started=self.process_started,
            phases=phases,
        )
        # Without it, `status` says less; the command goes on.
        with suppress(OSError):
            write_record(self.attempt.progress, progress)


def record(
    command: Sequence[str],
    folder: Path,
    name: str | None = None,
    probe: bool = True,
    remedies: Remedies | None = None,
    alone: bool = False,
) -> Recorded:
    """Run the command to its end and leave its record in the results folder.

    `probe`: look into its Python processes; `remedies`: what it changes in them; `alone`: whatever
    started other ranks of it.

    Raises CannotStart, UsageError if the folder holds something else, and HpcncfError before the
    start if the folder cannot be written.
    """
    check(command)
    paths = ResultPaths(folder)
    allocated = allocated_cores()
    place = ALONE if alone else place_of_command()
    if allocated is None:
        allocated = usable() / (place.local_world_size if _share_cores() else 1)
    run = planned(command, allocated, name, place, remedies or NO_REMEDIES)
    described = describe_host()
    if place.rank == 0:
        add_command(paths, run)
    with writing(folder):
        if place.world_size > 1:
            attempt = take_or_join(run, paths.run(run.id), place, over=0)
        else:
            attempt = claim_attempt(paths.run(run.id), "run", slurm_job_id())
        make_folder(attempt.output)
        if probe:
            make_folder(attempt.probe(place.rank))
    return _record(command, attempt, run, place, described, allocated)


def _share_cores() -> bool:
    """Whether ranks of this node may all use the same cores: nobody bound them to some."""
    with suppress(OSError):
        return os.sched_getaffinity(os.getppid()) == os.sched_getaffinity(0)
    return False


def _record(
    command: Sequence[str],
    attempt: AttemptPaths,
    run: Run,
    place: Place,
    described: dict[str, Any],
    allocated: float,
) -> Recorded:
    variables = {**os.environ, "HPCNCF_OUTPUT": str(attempt.output.absolute())}
    seen = attempt.probe(place.rank)
    if seen.exists():
        variables = observed(variables, seen, run.remedies)
    try:
        child = Child(command, env=variables)
    except CannotStart as error:
        write_record(attempt.end, _end(run, attempt, [error.exit_code], "exited"))
        raise
    monitor = Monitor(
        run.id,
        attempt.number,
        node_index=place.node_index,
        pid=child.pid,
        allocated=allocated,
        node_file=attempt.node(place.node_index) if place.local_rank == 0 else None,
        siblings=place.local_world_size > 1,
    )
    started = Started(run, attempt, place, child.pid, described, "run")
    monitor.start()
    started.write_progress(monitor, {})  # by it `status` finds the command if this is killed
    code = child.wait(lambda: started.write_progress(monitor, {}), monitor.see_main)
    measured = monitor.stop()
    report = Report()
    report.read_file(attempt.output / FILE)
    rank = started.record(measured, code, _outcome(child, code), report.values, report.problems)
    problem = _leave(child, code, attempt, run, rank)
    return Recorded(code, attempt.folder, rank, monitor.node_record(), problem)


def others(recorded: Recorded) -> tuple[list[RankRecord], list[NodeRecord]]:
    """All ranks' and nodes' records, as the first rank sees them at the end."""
    attempt = AttemptPaths(recorded.folder)
    ranks = [_read(path, RankRecord) for path in attempt.rank_records()]
    nodes = [_read(path, NodeRecord) for path in attempt.node_records()]
    return [each for each in ranks if each], [each for each in nodes if each]


def _read(path: Path, kind: type[R]) -> R | None:
    with suppress(RecordError):
        return read_record(path, kind)
    return None


def _leave(
    child: Child, code: int, attempt: AttemptPaths, run: Run, rank: RankRecord
) -> str | None:
    """Write what is left; a full disk must not hide how the command ended."""
    reason: Literal["exited", "cancelled"] = "exited"
    if child.asked_to_end and code != 0:
        reason = "cancelled"
    try:
        write_record(attempt.rank(rank.rank), rank)
        if rank.rank == 0:
            all_left(attempt, rank.world_size, OTHERS_S)
            records = [_read(path, RankRecord) for path in attempt.rank_records()]
            codes = [each.exit_code or 0 for each in records if each]
            write_record(attempt.end, _end(run, attempt, codes, reason))
    except OSError as error:
        return f"{attempt.folder}: the record is not written: {error.strerror}"
    return None


def planned(
    command: Sequence[str],
    cores: float,
    name: str | None,
    place: Place = ALONE,
    remedies: Remedies = NO_REMEDIES,
) -> Run:
    """Each start of a command is a run of its own: nobody knows what it depends on.

    Several may start on one host within a millisecond: the process distinguishes them. Ranks that
    were started together are one run.
    """
    # Linux passes any bytes as an argument; JSON keeps text.
    words = [os.fsencode(word).decode("utf-8", "backslashreplace") for word in command]
    started: dict[str, Any] = {
        "workload": {"command": words},
        "host": f"{os.uname().nodename}:{os.getpid()}",
        "started": utc_now(),
    }
    if place.world_size > 1:
        started = {"ranks": place.world_size, "start": start_of_ranks()}
    nodes = -(-place.world_size // place.local_world_size)
    return Run(
        id=hash_identity(started),
        repeat=0,
        varied={"run.command": name or shlex.join(words)}
        | {
            f"remedies.{key}": value
            for key, value in remedies.model_dump(exclude_defaults=True).items()
        },
        remedies=remedies,
        workload=Program(command=words, folder=_here()),
        by_hand=True,
        resources=Resources(
            nodes=nodes,
            tasks_per_node=place.local_world_size,
            cpus_per_task=max(1, round(cores)),
        ),
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
    return "completed" if code == 0 else "stopped" if child.asked_to_end else "failed"


def _error(code: int) -> dict[str, str] | None:
    if code == 0:
        return None
    kind, _, message = describe_exit(code).rpartition(": ")
    return {"type": kind, "message": message, "traceback": ""}


def describe_exit(code: int) -> str:
    """`exit code: 3`, `signal: 9 (SIGKILL)`."""
    return f"exit code: {code}" if code >= 0 else f"signal: {signal_name(-code)}"


def _end(
    run: Run, attempt: AttemptPaths, codes: list[int], reason: Literal["exited", "cancelled"]
) -> End:
    return End(
        run_id=run.id,
        attempt=attempt.number,
        reason=reason,
        exit_codes=codes,
        ended_at=utc_now(),
    )
