"""One rank of a run, start to end: claim or learn the attempt, join the others, train, record.

    python -m hpcncf.worker SOURCE [--run ID] [-s key=value] [--results DIR] [--again]

SOURCE is a job file or a results folder. Ranks come from torchrun, the local launcher or srun.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from hpcncf import claims, records
from hpcncf.errors import HpcncfError, UsageError
from hpcncf.monitor import procfs
from hpcncf.monitor.cores import usable
from hpcncf.paths import AttemptPaths, ResultPaths, RunPaths
from hpcncf.plan import Run
from hpcncf.program import rank as own_program
from hpcncf.rank import (
    arguments,
    ending,
    launcher,
    log,
    openmp,
    peers,
    source,
    stopping,
    taking,
    torchrun,
)
from hpcncf.rank.launcher import Place
from hpcncf.rank.leaving import Recorded
from hpcncf.rank.stopping import Stopped
from hpcncf.records import Claim, Progress, RankRecord, RecordError
from hpcncf.results import read_plan
from hpcncf.state.evidence import completed

if TYPE_CHECKING:
    from hpcncf.ncf.position import Position

R = TypeVar("R", Claim, RankRecord)


def work(results: Path, run_id: str | None = None, again: bool = False, over: int = 0) -> int:
    """Be one rank of a planned run; returns its exit code.

    Attempts up to number `over` are known to have ended, whatever signs of life they left.
    """
    paths = ResultPaths(results)
    return be_rank(source.chosen(read_plan(paths), run_id), paths, again, over)


def be_rank(run: Run, results: ResultPaths, again: bool = False, over: int = 0) -> int:
    """The same for a run at hand. What fails is in the record and on stderr.

    Raises HpcncfError where the run cannot be begun: another process is at it, or the number of
    ranks is not the planned one.
    """
    place, paths = launcher.place(), results.run(run.id)
    _check_size(run, place)
    claimed = os.environ.get("HPCNCF_ATTEMPT")
    if claimed is None and _done(paths, again):
        sys.stderr.write(
            f"run {run.id} is complete already and is not run: --again runs it once more\n"
        )
        return 0

    def attempt() -> AttemptPaths:
        return paths.attempt(int(claimed)) if claimed else taking.take(run, paths, place, over)

    try:
        if run.training is None:
            return own_program.rank(run, place, attempt())
        with Recorded(run, place, found=lambda: taking.found(paths, place)) as recorded:
            recorded.begin(attempt())
            _train(recorded, paths, tells_attempt=claimed is None and place.rank == 0)
    finally:
        _leave_group()
    if recorded.error is not None:
        _show(recorded)
        return _exit_code(recorded)
    if place.rank == 0:
        log.say(log.of_end(recorded.attempt.rank(0)))
    if complete(recorded.attempt):  # for the last of the ranks it is
        for path in (paths.checkpoint, paths.checkpoint_before, *paths.partial()):
            _remove(path)
    return 0


def _remove(path: Path) -> None:
    """Or let it stay: it costs room, and the run is complete."""
    if path.is_dir() and not path.is_symlink() and path.name.startswith("."):
        shutil.rmtree(path, ignore_errors=True)
        return
    with contextlib.suppress(OSError):
        path.unlink()


def _done(paths: RunPaths, again: bool) -> bool:
    """What was asked for again is done where an earlier start of this very job did it."""
    last = paths.attempts()[-1:]
    if not last or not complete(last[0]):
        return False
    claim = _read(last[0].claim, Claim)
    return not again or (claim is not None and launcher.requeued(claim.slurm_job_id))


def _exit_code(recorded: Recorded) -> int:
    """Slurm ends a step as soon as one of its ranks fails: the ranks that stopped together leave
    it to the first to say so, which has the job put back before."""
    together = recorded.place.rank != 0 and "SLURM_STEP_ID" in os.environ
    return 0 if together and isinstance(recorded.error, Stopped) else recorded.exit_code


def _check_size(run: Run, place: Place) -> None:
    wanted = run.resources
    planned = (wanted.world_size, wanted.tasks_per_node)
    if (place.world_size, place.local_world_size) != planned:
        raise UsageError(
            f"run {run.id}: planned for {wanted.world_size} ranks (nodes {wanted.nodes} x "
            f"tasks_per_node {wanted.tasks_per_node}), started with {place.world_size}, "
            f"{place.local_world_size} of them on this node: "
            f"torchrun --nnodes {wanted.nodes} --nproc-per-node {wanted.tasks_per_node} "
            f"-m hpcncf.worker ... --run-id {run.id}, or hpcncf submit"
        )


def complete(attempt: AttemptPaths) -> bool:
    """True when every rank left a record and all say completed."""
    left = [_read(path, RankRecord) for path in attempt.ranks()]
    return completed([record for record in left if record])


def _read(path: Path, kind: type[R]) -> R | None:
    try:
        return records.read_records(path, kind)
    except RecordError:
        return None


def _train(recorded: Recorded, paths: RunPaths, tells_attempt: bool) -> None:
    run, place = recorded.run, recorded.place
    if run.training is None or run.data is None:
        raise AssertionError("a command is run elsewhere")
    recorded.warnings += openmp.tell(run.training)
    epochs = run.training.epochs
    tell = _teller(recorded, paths, epochs)
    from hpcncf.ncf import distributed, pinned, profiling
    from hpcncf.ncf.data import prepared
    from hpcncf.ncf.position import Position
    from hpcncf.ncf.train import Trainer

    if place.rank == 0:
        tell(Position("startup", 0, 0, 0, None))
    distributed.join(place, run.resources, run.training, run.id)
    if tells_attempt:
        distributed.gathered(recorded.attempt.number, place)
    recorded.peers = distributed.gathered(peers.oneself(place), place)
    if run.training.pin != "none":
        pinned.pin(run.training.pin, run.resources.cpus_per_task, place)
        recorded.monitor.rebound(run.training.pin)
    data = prepared.load(Path(run.data.path))
    if run.data_key not in (None, data.manifest.key):
        raise HpcncfError(
            f"{run.data.path}: holds other data than when the run was planned (key "
            f"{data.manifest.key[:12]}, planned {str(run.data_key)[:12]}): plan it again"
        )
    warn = recorded.warnings.append
    with profiling.watching(run.training, place, recorded.attempt, warn) as watched:
        recorded.trainer = Trainer(
            run,
            data,
            place,
            paths,
            tell,
            lambda epoch: log.say(log.of_epoch(epoch, epochs)),
            recorded.stop,
            watched,
        )
        recorded.trainer.train()
    _still_ours(recorded, paths)


def _teller(recorded: Recorded, paths: RunPaths, epochs: int) -> Callable[[Position], None]:
    """What rewrites progress.json. It raises HpcncfError where this attempt was taken for ended."""

    def tell(position: Position) -> None:
        _still_ours(recorded, paths)
        progress = Progress(
            run_id=recorded.run.id,
            attempt=recorded.attempt.number,
            updated_at=records.now(),
            elapsed_s=procfs.age_s(os.getpid()),
            phase=position.phase,
            epoch=position.epoch,
            epochs=epochs,
            step=position.step,
            steps_per_epoch=position.steps_per_epoch,
            instances_per_s=position.instances_per_s,
            evaluated=position.evaluated,
            cpu_efficiency=recorded.monitor.efficiency(),
            cores_usable=usable(),
            cores_allocated=float(recorded.run.resources.cpus_per_task),
            cpu_s=recorded.monitor.cpu_s(),
        )
        # Without it, `status` says less; the training goes on.
        with contextlib.suppress(OSError):
            records.write(recorded.attempt.progress, progress)

    return tell


def _still_ours(recorded: Recorded, paths: RunPaths) -> None:
    later = claims.overtaken(paths, recorded.attempt)
    if later is not None:
        raise HpcncfError(
            f"attempt {later} works at this run: attempt {recorded.attempt.number} was silent, "
            "or its node was, and taken for ended"
        )


def _leave_group() -> None:
    if "torch" in sys.modules:
        from hpcncf.ncf import distributed

        distributed.leave()


def _show(recorded: Recorded) -> None:
    """The reason on stderr, which is the rank's log; a traceback where it is our bug."""
    assert recorded.error is not None
    if isinstance(recorded.error, Exception) and not isinstance(recorded.error, HpcncfError):
        traceback.print_exception(recorded.error)
    rank = f"rank {recorded.place.rank}: " if recorded.place.world_size > 1 else ""
    sys.stderr.write(f"hpcncf: {rank}{recorded.explained()}\n")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m hpcncf.worker", description=__doc__)
    arguments.of_a_rank(parser)
    over = "attempts up to this number are known to have ended"
    parser.add_argument("--over", type=int, metavar="N", default=0, help=over)
    args = parser.parse_args(argv)
    torchrun.bind()
    if "SLURM_STEP_ID" in os.environ:
        stopping.hold()
    try:
        code = from_arguments(args, args.over)[0]
    except HpcncfError as error:
        sys.stderr.write(f"hpcncf: {error}\n")
        return 2 if isinstance(error, UsageError) else 1
    if "SLURM_STEP_ID" in os.environ:  # in front of a terminal, Ctrl-C means it
        stopping.ignore()
    return code


def from_arguments(args: argparse.Namespace, over: int = 0) -> tuple[int, RunPaths]:
    """Work as asked; returns the exit code and where the run keeps its files."""
    run, results = source.find(
        args.source, args.run_id, args.settings, args.results, leave_plan=launcher.place().rank == 0
    )
    return be_rank(run, results, args.again, over), results.run(run.id)


if __name__ == "__main__":
    ending.at_once(main())
