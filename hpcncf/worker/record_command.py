"""Measure one command, for `hpcncf run`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hpcncf.files import make_folder
from hpcncf.job.identity import hash_identity
from hpcncf.job.plan import Run
from hpcncf.job.spec import Program, Remedies, Resources
from hpcncf.launcher.allocation import allocated_cores
from hpcncf.launcher.environment import Place, place_of_command, slurm_job_id, start_of_ranks
from hpcncf.monitor.cgroup import usable
from hpcncf.paths import AttemptPaths, ResultPaths
from hpcncf.probe.launch import observed
from hpcncf.records.claims import claim_attempt
from hpcncf.records.host import describe_host
from hpcncf.records.plan_file import add_command, writing
from hpcncf.records.schema import NodeRecord, RankRecord, read_optional, utc_now, write_record
from hpcncf.worker.attempt import all_left, build_end, take_or_join
from hpcncf.worker.child_process import CannotStart, Child, check
from hpcncf.worker.command_recorder import CommandRecorder

# A rank that ended waits this long for the others' records, whose summary the first rank prints.
OTHERS_S: Final = 60.0
ALONE: Final = Place()
NO_REMEDIES: Final = Remedies()


@dataclass(frozen=True)
class RecordedCommand:
    """A command that ended, and what it left."""

    exit_code: int
    """Negative is the signal that ended it."""
    folder: Path
    rank: RankRecord
    node: NodeRecord
    problem: str | None
    """Why the record could not be written."""


def record(
    command: Sequence[str],
    folder: Path,
    name: str | None = None,
    probe: bool = True,
    remedies: Remedies | None = None,
    alone: bool = False,
) -> RecordedCommand:
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
    host = describe_host()
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
    variables = {**os.environ, "HPCNCF_OUTPUT": str(attempt.output.absolute())}
    if probe:
        variables = observed(variables, attempt.probe(place.rank), run.remedies)
    try:
        child = Child(command, env=variables)
    except CannotStart as error:
        write_record(attempt.end, build_end(run, attempt, "exited", [error.exit_code]))
        raise
    recorder = CommandRecorder(run, place, attempt, child, host, "run", allocated)
    code, measured = recorder.wait()
    ended = child.asked_to_end and code != 0
    rank = recorder.end(measured, code, stopped=ended)
    problem = None
    try:
        write_record(attempt.rank(rank.rank), rank)
        if rank.rank == 0:
            all_left(attempt, rank.world_size, OTHERS_S)
            records = [read_optional(path, RankRecord) for path in attempt.rank_records()]
            codes = [each.exit_code or 0 for each in records if each]
            end = build_end(run, attempt, "cancelled" if ended else "exited", codes)
            write_record(attempt.end, end)
    except OSError as error:  # a full disk must not hide how the command ended
        problem = f"{attempt.folder}: the record is not written: {error.strerror}"
    return RecordedCommand(code, attempt.folder, rank, recorder.monitor.node_record(), problem)


def _share_cores() -> bool:
    """Return whether the ranks of this node share all cores, because nobody bound them.

    It compares this process's affinity mask with its parent's.
    """
    with suppress(OSError):
        return os.sched_getaffinity(os.getppid()) == os.sched_getaffinity(0)
    return False


def others(recorded: RecordedCommand) -> tuple[list[RankRecord], list[NodeRecord]]:
    """Read the records of all ranks and of all nodes, as rank 0 sees them at the end."""
    attempt = AttemptPaths(recorded.folder)
    ranks = [read_optional(path, RankRecord) for path in attempt.rank_records()]
    nodes = [read_optional(path, NodeRecord) for path in attempt.node_records()]
    return [each for each in ranks if each], [each for each in nodes if each]


def planned(
    command: Sequence[str],
    cores: float,
    name: str | None,
    place: Place = ALONE,
    remedies: Remedies = NO_REMEDIES,
) -> Run:
    """Build the run that represents this start of a command; its id differs at every start.

    The results of a command may depend on anything, so that no two starts count as the same
    run.

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
    """Return the current folder, which the run's job file needs; `.` if it has no valid name."""
    with suppress(OSError, UnicodeEncodeError):
        folder = str(Path.cwd())
        folder.encode()
        return folder
    return "."
