"""The life of one rank: claim, join, train, record."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from hpcncf.errors import HpcncfError, UsageError
from hpcncf.job import load
from hpcncf.job.plan import Plan, Run
from hpcncf.launcher import environment
from hpcncf.launcher.environment import Place, end_line, epoch_line, print_line, requeued
from hpcncf.launcher.signals import Stopped
from hpcncf.monitor.cgroup import in_slurm_step
from hpcncf.paths import AttemptPaths, ResultPaths, RunPaths
from hpcncf.records import plan_file
from hpcncf.records.claims import later_attempt
from hpcncf.state.decide import is_complete, last_attempt, read_attempts
from hpcncf.worker.attempt import find_attempt, take_or_join
from hpcncf.worker.command import run_program
from hpcncf.worker.lost_ranks import current_process_record
from hpcncf.worker.recorder import ProcessRecorder

if TYPE_CHECKING:
    from hpcncf.ncf.progress import TrainingProgress
    from hpcncf.ncf.trainer import BatchProgress


def from_arguments(args: argparse.Namespace, over: int = 0) -> tuple[int, RunPaths]:
    """Work as the rank that the arguments describe; return the exit code and the run's paths.

    The results folder of a job file is results/<the job's name>. Rank 0 writes plan and job file
    there; an existing plan gets the run if it is new. Raises UsageError if several runs could be
    meant.
    """
    source: Path = args.source
    if source.is_dir():
        if args.settings or args.results:
            raise UsageError(
                f"{source}: is a results folder, whose plan exists. Use -s and --results with a "
                "job file"
            )
        results = ResultPaths(source)
        run = select_run(plan_file.read_plan(results), args.run_id)
    else:
        job = load.load_job(source, args.settings)
        plan = load.build_plan(job, source, args.settings)
        run = select_run(plan, args.run_id)
        results = ResultPaths(args.results or Path("results") / job.name)
        if environment.place().rank == 0 and results.plan.exists():
            plan_file.add_run(results, plan.job, run)
        elif environment.place().rank == 0:
            plan_file.record_plan(results, job, plan)
    return run_rank(run, results, args.again, over), results.run(run.id)


def select_run(plan: Plan, run_id: str | None) -> Run:
    """Return the run with this id, or the job's only run if the id is None.

    Raises UsageError, which lists the runs, if several could be meant.
    """
    if run_id is not None:
        return plan.run(run_id)
    active = plan.active()
    if len(active) == 1:
        return active[0]
    lines = [f"job {plan.job} has {len(active)} runs. Choose one with --run ID"]
    for run in active:
        values = [f"{key.split('.')[1]}={value}" for key, value in run.varied.items()]
        lines.append(f"  {run.id}  {' '.join([*values, f'repeat={run.repeat}'])}")
    raise UsageError("\n".join(lines))


def work(results: Path, run_id: str | None = None, again: bool = False, over: int = 0) -> int:
    """Work as one rank of a planned run; return its exit code.

    Attempts up to number `over` are known to have ended, whatever heartbeat they left.
    """
    paths = ResultPaths(results)
    return run_rank(select_run(plan_file.read_plan(paths), run_id), paths, again, over)


def run_rank(run: Run, results: ResultPaths, again: bool = False, over: int = 0) -> int:
    """Work as one rank of this run; return its exit code.

    An error is recorded and printed.

    Raises HpcncfError if the run cannot start: another process runs it, or the number of ranks is
    not the planned one.
    """
    place, paths = environment.place(), results.run(run.id)
    _check_size(run, place)
    claimed = os.environ.get("HPCNCF_ATTEMPT")
    if claimed is None and _done(run, paths, again):
        sys.stderr.write(
            f"run {run.id} is complete and is not run again. Use --again to run it once more\n"
        )
        return 0

    def attempt() -> AttemptPaths:
        return paths.attempt(int(claimed)) if claimed else take_or_join(run, paths, place, over)

    try:
        if run.training is None:
            return run_program(run, place, attempt())
        with ProcessRecorder(run, place, found=lambda: find_attempt(paths, place)) as recorded:
            recorded.begin(attempt())
            _train(recorded, paths, shares_attempt=claimed is None and place.rank == 0)
    finally:
        if "torch" in sys.modules:
            from hpcncf.ncf.distributed import leave_group

            leave_group()
    if recorded.error is not None:
        # A traceback only for our own bugs.
        if isinstance(recorded.error, Exception) and not isinstance(recorded.error, HpcncfError):
            traceback.print_exception(recorded.error)
        sys.stderr.write(f"hpcncf: {place.prefix}{recorded.explained()}\n")
        # Slurm ends a step as soon as one of its ranks fails. Ranks that stopped together leave the
        # exit code to the first, which has the job requeued before.
        together = place.rank != 0 and in_slurm_step()
        return 0 if together and isinstance(recorded.error, Stopped) else recorded.exit_code
    if place.rank == 0:
        print_line(end_line(recorded.attempt.rank(0)))
    if is_complete(run, read_attempts(recorded.attempt)):  # true for the last rank
        for path in (paths.checkpoint, paths.previous_checkpoint, *paths.partial_files()):
            _remove(path)
    return 0


def _remove(path: Path) -> None:
    """Remove a file or folder; errors are ignored, since the run is complete anyway."""
    if path.is_dir() and not path.is_symlink() and path.name.startswith("."):
        shutil.rmtree(path, ignore_errors=True)
        return
    with contextlib.suppress(OSError):
        path.unlink()


def _done(run: Run, paths: RunPaths, again: bool) -> bool:
    """Return whether the run is complete; with `again`, by an earlier start of this very job."""
    last = last_attempt(paths)
    if last is None or not is_complete(run, last):
        return False
    return not again or (last.claim is not None and requeued(last.claim.slurm_job_id))


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


def _train(recorded: ProcessRecorder, paths: RunPaths, shares_attempt: bool) -> None:
    run, place = recorded.run, recorded.place
    if run.training is None or run.data is None:
        raise AssertionError("a command is run elsewhere")
    recorded.warnings += environment.set_openmp(run.training)
    epochs = run.training.epochs

    def write_position(position: TrainingProgress) -> None:
        _still_ours(recorded, paths)
        position_and_length = asdict(position) | {"epochs": epochs}
        recorded.write_progress(**position_and_length)

    from hpcncf.data.prepared import load_prepared
    from hpcncf.ncf import profiling
    from hpcncf.ncf.distributed import gather_objects, join_group, pin_rank
    from hpcncf.ncf.progress import TrainingProgress
    from hpcncf.ncf.trainer import Trainer

    if place.rank == 0:
        write_position(TrainingProgress("startup", 0, 0, 0, None))
    join_group(place, run.resources, run.training, run.id)
    if shares_attempt:
        gather_objects(recorded.attempt.number, place)
    recorded.peers = gather_objects(current_process_record(place), place)
    if run.training.pin != "none":
        pin_rank(run.resources.cpus_per_task, place)
        recorded.monitor.reread_affinity(run.training.pin)
    data = load_prepared(Path(run.data.path))
    if run.data_key not in (None, data.manifest.key):
        raise HpcncfError(
            f"{run.data.path}: holds other data than when the run was planned (key "
            f"{data.manifest.key[:12]}, planned {str(run.data_key)[:12]}): plan it again"
        )
    warn = recorded.warnings.append
    with profiling.profiled(run.training, place, recorded.attempt, warn) as watched:
        recorded.trainer = Trainer(
            run,
            data,
            place,
            paths,
            write_position,
            lambda epoch: print_line(epoch_line(epoch, epochs)),
            recorded.stop,
            watched,
            lambda batches: print_line(batches_line(batches, epochs)),
        )
        recorded.trainer.train()
    _still_ours(recorded, paths)


def batches_line(batches: BatchProgress, epochs: int) -> str:
    """Format a log line of progress within an epoch: batch, loss and speed.

    For example `epoch 1/3, batch 200/782: loss 0.4213, 152,331 instances/s`.
    """
    return (
        f"epoch {batches.epoch + 1}/{epochs}, batch {batches.batch}/{batches.of}: "
        f"loss {batches.loss:.4f}, {batches.instances_per_s:,.0f} instances/s"
    )


def _still_ours(recorded: ProcessRecorder, paths: RunPaths) -> None:
    later = later_attempt(paths, recorded.attempt)
    if later is not None:
        raise HpcncfError(
            f"attempt {recorded.attempt.number} sent no heartbeat and was presumed dead; attempt "
            f"{later} has taken over"
        )
