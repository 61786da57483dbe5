"""`hpcncf data bench`: the speed of each loader of a job file, without a model."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hpcncf.cli.plan import job_arguments

if TYPE_CHECKING:
    from hpcncf.job.plan import Run
    from hpcncf.ncf.loaders import LoaderSpeed

EPILOG = """\
Times the batches of the first rank, for each loader of the job file, one after another. A loader
that is slower than the training's speed delays it.
example: hpcncf data bench jobs/loaders.yaml --seconds 3
"""
# What a loader's speed depends on.
OF_LOADERS: Final = (
    "loader",
    "num_workers",
    "persistent_workers",
    "prefetch_factor",
    "negatives",
)


def add_arguments(loader: argparse.ArgumentParser) -> None:
    loader.epilog, loader.formatter_class = EPILOG, argparse.RawDescriptionHelpFormatter
    job_arguments(loader)
    loader.add_argument(
        "--seconds", type=float, default=5.0, help="seconds for each loader (default: 5)"
    )
    loader.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    from hpcncf.errors import UsageError
    from hpcncf.job import load

    if not args.seconds > 0:
        raise UsageError(f"--seconds {args.seconds:g}: expected more than 0")
    job = load.load_job(args.job, args.settings)
    plan = load.build_plan(job, args.job, args.settings)
    speeds = [(each, _measured(each, args.seconds)) for each in ways(plan.active())]
    if args.json:
        from hpcncf.cli.output import print_json

        print_json("data", {"loaders": [_way(each) | vars(loaded) for each, loaded in speeds]})
    else:
        print(_table(speeds))
    return 0


def ways(runs: Sequence[Run]) -> list[Run]:
    """Select one run for each distinct way of loading batches, sorted.

    Raises UsageError if no run loads batches.
    """
    from hpcncf.errors import UsageError

    found = {
        json.dumps(_way(run)): run
        for run in runs
        if run.training and run.training.engine != "native"
    }
    if not found:
        raise UsageError(
            "nothing to time: a command brings its own loader, and engine native draws its "
            "instances itself; set training.engine to reference or rowwise"
        )
    return [found[way] for way in sorted(found)]


def _way(run: Run) -> dict[str, Any]:
    assert run.training is not None
    batch = run.training.batch_over_ranks(run.resources.world_size)
    own = {name: getattr(run.training, name) for name in OF_LOADERS}
    return own | {"positives": -(-batch // run.resources.world_size)}


def _measured(run: Run, seconds: float) -> LoaderSpeed:
    from hpcncf.data.prepared import load_prepared
    from hpcncf.launcher.environment import Place
    from hpcncf.ncf import distributed
    from hpcncf.ncf.batches import Schedule
    from hpcncf.ncf.loaders import CPU, measure_loader

    assert run.training is not None
    assert run.data is not None
    ranks = run.resources.world_size
    data = load_prepared(Path(run.data.path))
    batch = run.training.batch_over_ranks(ranks)
    schedule = Schedule(data.manifest.train_rows, batch, 0, ranks)
    place = Place(rank=0, local_rank=0, world_size=1)
    distributed.set_threads(run.training, run.resources, place)
    # All other loaders make their batches in memory: timing them takes no GPU.
    resident = run.training.loader == "device"
    device = distributed.select_device(run.training, run.resources, place) if resident else CPU
    print(f"{_describe_loader(run)} ...", file=sys.stderr, flush=True)
    return measure_loader(data, run.training, schedule, seconds, device)


def _describe_loader(run: Run) -> str:
    from hpcncf.job.spec import Training

    way, defaults = _way(run), Training.model_fields
    workers = way["num_workers"]
    kind = "worker" + "s" * (workers != 1)
    parts = [str(way["loader"]), *([f"{workers} {kind}"] if workers else [])]
    plain = ("loader", "num_workers", "negatives", "positives")
    others = {name: value for name, value in way.items() if name not in plain}
    parts += [
        f"{name} {str(value).lower()}"
        for name, value in others.items()
        if value != defaults[name].default
    ]
    return ", ".join(parts)


def _table(speeds: Sequence[tuple[Run, LoaderSpeed]]) -> str:
    from hpcncf.cli.output import table_layout

    heads = ("loader", "positives", "instances/s", "ms/batch", "first batch, s", "next epoch's, s")
    rows = [
        (
            _describe_loader(run),
            str(_way(run)["positives"]),
            f"{loaded.instances_per_s:,.0f}",
            f"{1000 * loaded.seconds / loaded.batches:.2f}",
            f"{loaded.first_batch_s:.3f}",
            f"{loaded.next_epoch_s:.3f}",
        )
        for run, loaded in speeds
    ]
    return table_layout(heads, rows)
