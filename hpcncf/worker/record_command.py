"""Measure one command, for `hpcncf run`."""

from __future__ import annotations

import os
import shlex
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hpcncf.files import make_folder
from hpcncf.launcher.allocation import allocated_cores
from hpcncf.launcher.environment import Place, place_of_command, slurm_job_id, start_of_ranks
from hpcncf.monitor.cgroup import usable
from hpcncf.paths import AttemptPaths, ResultPaths, hash_identity
from hpcncf.probe.launch import observed
from hpcncf.records.claims import claim_attempt
from hpcncf.records.command_plan import append_command, writing
from hpcncf.records.plain import plain_record, utc_now, write_plain
from hpcncf.worker.child_process import CannotStart, Child, check

if TYPE_CHECKING:
    from hpcncf.job.plan import TypedCommand
    from hpcncf.job.spec import Remedies
    from hpcncf.records.schema import NodeRecord, RankRecord

# A rank that ended waits this long for the others' records, whose summary the first rank prints.
OTHERS_S: Final = 60.0
ALONE: Final = Place()
# Settings that a command has, as `Run.model_dump` writes them: no schema is loaded to start one.
PROGRAM: Final = {
    "probe": True,
    "quality": "loss",
    "better": "lower",
    "trial": False,
}
NO_REMEDIES: Final[dict[str, Any]] = {
    "rowwise": False,
    "threads": None,
    "workers": None,
    "persistent_workers": False,
    "prefetch_factor": None,
    "pin_memory": False,
    "fused": False,
    "foreach": False,
    "omp": None,
}
RESOURCES: Final = {
    "gpus_per_node": 0,
    "mem_gb": 4.0,
    "timeout_min": 30,
    "runs_per_task": 1,
    "requeues": 3,
    "launcher": "srun",
    "runs_per_node": 1,
    "runs_per_gpu": 1,
    "ranks_per_gpu": 1,
    "mps": False,
}
REST: Final[dict[str, Any]] = {
    "data": None,
    "data_key": None,
    "model": None,
    "training": None,
    "baseline": False,
    "retired": False,
    "code": None,
    "removed": {},
}


class RecordedCommand:
    """A command that ended, and what it left."""

    def __init__(
        self,
        exit_code: int,
        folder: Path,
        plain_rank: dict[str, Any],
        plain_node: dict[str, Any],
        problem: str | None,
    ) -> None:
        self.exit_code = exit_code
        """Negative is the signal that ended it."""
        self.folder = folder
        self.plain_rank = plain_rank
        """The rank's record as plain data."""
        self.plain_node = plain_node
        self.problem = problem
        """Why the record could not be written."""

    @cached_property
    def rank(self) -> RankRecord:
        from hpcncf.records.schema import RankRecord

        return RankRecord(**self.plain_rank)

    @cached_property
    def node(self) -> NodeRecord:
        from hpcncf.records.schema import NodeRecord

        return NodeRecord(**self.plain_node)


def record(
    command: Sequence[str],
    folder: Path,
    name: str | None = None,
    probe: bool = True,
    remedies: Remedies | None = None,
    alone: bool = False,
    load: Callable[[], None] | None = None,
    begun: Callable[[AttemptPaths, threading.Event], None] | None = None,
) -> RecordedCommand:
    """Run the command to its end and leave its record in the results folder.

    `probe`: look into its Python processes; `remedies`: what it changes in them; `alone`: whatever
    started other ranks of it. `load` imports what the caller needs for a program of Python.
    `begun` is called once the command of rank 0 runs, with the event of its end.

    Raises CannotStart, UsageError if the folder holds something else, and HpcncfError before the
    start if the folder cannot be written.
    """
    check(command)
    paths = ResultPaths(folder)
    allocated = allocated_cores()
    place = ALONE if alone else place_of_command()
    if allocated is None:
        allocated = usable() / (place.local_world_size if _share_cores() else 1)
    run = plan_command(command, allocated, name, place, remedies)
    if place.rank == 0:
        _add_to_plan(paths, run)
    with writing(folder):
        if place.world_size > 1:
            attempt = _take_or_join(run, paths, place)
        else:
            attempt = claim_attempt(paths.run(run["id"]), "run", slurm_job_id())
        make_folder(attempt.output)
        if probe:
            make_folder(attempt.probe(place.rank))
    variables = {**os.environ, "HPCNCF_OUTPUT": str(attempt.output.absolute())}
    if probe:
        variables = observed(variables, attempt.probe(place.rank), remedies)
    try:
        child = Child(command, env=variables)
    except CannotStart as error:
        write_plain(attempt.end, _end(attempt, "exited", [error.exit_code]))
        raise
    # From here on the command runs: what is loaded and looked up now delays it no more.
    from hpcncf.records.host import describe_host
    from hpcncf.worker.command_recorder import CommandRecorder

    host = describe_host(run["workload"]["folder"])  # the command may have removed it
    recorder = CommandRecorder(run, place, attempt, child, host, "run", allocated)
    if begun and place.rank == 0:
        begun(attempt, child.ended)
    if load:
        inject = variables["PYTHONPATH"].split(os.pathsep)[0] if probe else None
        recorder.watch_processes(load, inject)
    code, measured = recorder.wait()
    ended = child.asked_to_end and code != 0
    rank = recorder.end(measured, code, stopped=ended)
    problem = None
    try:
        write_plain(attempt.rank(place.rank), rank)
        if place.rank == 0:
            codes = [code] if place.world_size == 1 else _codes(attempt, place.world_size)
            write_plain(attempt.end, _end(attempt, "cancelled" if ended else "exited", codes))
    except OSError as error:  # a full disk must not hide how the command ended
        problem = f"{attempt.folder}: the record is not written: {error.strerror}"
    node = recorder.monitor.plain_node_record()
    return RecordedCommand(code, attempt.folder, rank, node, problem)


def _add_to_plan(paths: ResultPaths, run: Mapping[str, Any]) -> None:
    if append_command(paths, run):
        return
    from hpcncf.job.plan import TypedCommand
    from hpcncf.records.plan_file import add_command

    add_command(paths, TypedCommand(**run))


def _take_or_join(run: Mapping[str, Any], paths: ResultPaths, place: Place) -> AttemptPaths:
    from hpcncf.job.plan import TypedCommand
    from hpcncf.worker.attempt import take_or_join

    return take_or_join(TypedCommand(**run), paths.run(run["id"]), place, over=0)


def _end(attempt: AttemptPaths, reason: str, codes: Sequence[int]) -> dict[str, Any]:
    run_id = attempt.folder.parent.name
    ended = {"reason": reason, "exit_codes": list(codes), "ended_at": utc_now()}
    return plain_record("end", run_id, attempt.number, **ended)


def _codes(attempt: AttemptPaths, world_size: int) -> list[int]:
    """Return the exit codes of all ranks, once they have left their records."""
    from hpcncf.records.schema import RankRecord, read_optional
    from hpcncf.worker.attempt import all_left

    all_left(attempt, world_size, OTHERS_S)
    records = [read_optional(path, RankRecord) for path in attempt.rank_records()]
    return [each.exit_code or 0 for each in records if each]


def _share_cores() -> bool:
    """Return whether the ranks of this node share all cores, because nobody bound them.

    It compares this process's affinity mask with its parent's.
    """
    with suppress(OSError):
        return os.sched_getaffinity(os.getppid()) == os.sched_getaffinity(0)
    return False


def others(recorded: RecordedCommand) -> tuple[list[RankRecord], list[NodeRecord]]:
    """Read the records of all ranks and of all nodes, as rank 0 sees them at the end."""
    from hpcncf.records.schema import NodeRecord, RankRecord, read_optional

    attempt = AttemptPaths(recorded.folder)
    ranks = [read_optional(path, RankRecord) for path in attempt.rank_records()]
    nodes = [read_optional(path, NodeRecord) for path in attempt.node_records()]
    return [each for each in ranks if each], [each for each in nodes if each]


def planned(
    command: Sequence[str],
    cores: float,
    name: str | None,
    place: Place = ALONE,
    remedies: Remedies | None = None,
) -> TypedCommand:
    """Build the run that represents this start of a command; its id differs at every start."""
    from hpcncf.job.plan import TypedCommand

    return TypedCommand(**plan_command(command, cores, name, place, remedies))


def plan_command(
    command: Sequence[str],
    cores: float,
    name: str | None,
    place: Place = ALONE,
    remedies: Remedies | None = None,
) -> dict[str, Any]:
    """Build, as plain data, the run that represents this start of a command.

    The results of a command may depend on anything, so that no two starts count as the same
    run. Ranks that were started together are one run.
    """
    # Linux passes any bytes as an argument; JSON keeps text.
    words = [os.fsencode(word).decode("utf-8", "backslashreplace") for word in command]
    run_id = os.urandom(6).hex()
    if place.world_size > 1:
        run_id = hash_identity({"ranks": place.world_size, "start": start_of_ranks()})
    nodes = -(-place.world_size // place.local_world_size)
    changed = remedies.model_dump(mode="json") if remedies else NO_REMEDIES
    varied = {key: value for key, value in changed.items() if value != NO_REMEDIES[key]}
    return {
        "id": run_id,
        "repeat": 0,
        "varied": {"run.command": name or shlex.join(words)}
        | {f"remedies.{key}": value for key, value in varied.items()},
        "workload": {"command": words, "shell": None, "folder": _here(), **PROGRAM},
        "by_hand": True,
        "parameters": {},
        "remedies": changed,
        "resources": {
            "nodes": nodes,
            "tasks_per_node": place.local_world_size,
            "cpus_per_task": max(1, round(cores)),
            **RESOURCES,
        },
        **REST,
    }


def _here() -> str:
    """Return the current folder, which the run's job file needs; `.` if it has no valid name."""
    with suppress(OSError, UnicodeEncodeError):
        folder = str(Path.cwd())
        folder.encode()
        return folder
    return "."
