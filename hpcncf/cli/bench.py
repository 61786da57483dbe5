"""`hpcncf bench loader`: how fast batches come where no model asks for them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hpcncf.cli.plan import job_arguments

if TYPE_CHECKING:
    from hpcncf.ncf.loading import Loaded
    from hpcncf.plan import Run

HELP = "time one part of a training alone: `bench loader`"
EPILOG = """\
loader: the batches of the first rank of each way to load that the job file names, one after
another, here; what is slower than the training's speed holds it up, what is faster does not
exit codes: 0 told; 1 an error; 2 the request is wrong
example: hpcncf bench loader jobs/loaders.yaml --seconds 3
"""
# What a loader's speed depends on.
OF_LOADERS: Final = (
    "loader",
    "num_workers",
    "workers",
    "persistent_workers",
    "prefetch_factor",
    "collate",
    "negatives",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parts = parser.add_subparsers(dest="part", metavar="PART", required=True)
    loader = parts.add_parser("loader", help="the loader without a model", epilog=EPILOG)
    loader.formatter_class = argparse.RawDescriptionHelpFormatter
    job_arguments(loader)
    loader.add_argument(
        "--seconds", type=float, default=5.0, help="of each way to load (default: 5)"
    )
    loader.add_argument("--json", action="store_true", help="as JSON")


def run(args: argparse.Namespace) -> int:
    from hpcncf import jobfile
    from hpcncf.errors import UsageError

    if not args.seconds > 0:
        raise UsageError(f"--seconds {args.seconds:g}: expected more than 0")
    job = jobfile.load_jobfile(args.job, args.settings)
    plan = jobfile.plan(job, args.job, args.settings)
    told = [(each, _measured(each, args.seconds)) for each in ways(plan.active())]
    if args.json:
        print(json.dumps([_way(each) | vars(loaded) for each, loaded in told], indent=1))
    else:
        print(_table(told))
    return 0


def ways(runs: Sequence[Run]) -> list[Run]:
    """A run of each way to load, by its name. Raises UsageError where none loads batches."""
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


def _measured(run: Run, seconds: float) -> Loaded:
    from hpcncf.ncf import distributed, loading
    from hpcncf.ncf.data import prepared
    from hpcncf.ncf.instances import Schedule
    from hpcncf.ncf.loaders import CPU
    from hpcncf.rank.launcher import Place

    assert run.training is not None
    assert run.data is not None
    ranks = run.resources.world_size
    data = prepared.load(Path(run.data.path))
    batch = run.training.batch_over_ranks(ranks)
    schedule = Schedule(data.manifest.train_rows, batch, 0, ranks)
    place = Place(rank=0, local_rank=0, world_size=1)
    distributed.set_threads(run.training, run.resources, place)
    # All other loaders make their batches in memory: timing them takes no GPU.
    resident = run.training.loader == "device"
    device = distributed.device(run.training, run.resources, place) if resident else CPU
    print(f"{_words(run)} ...", file=sys.stderr, flush=True)
    return loading.measured(data, run.training, schedule, seconds, device)


def _words(run: Run) -> str:
    from hpcncf.spec import Training

    way, defaults = _way(run), Training.model_fields
    workers = way["num_workers"]
    kind = ("thread" if way["workers"] == "thread" else "worker") + "s" * (workers != 1)
    told = [str(way["loader"]), *([f"{workers} {kind}"] if workers else [])]
    plain = ("loader", "num_workers", "workers", "negatives", "positives")
    others = {name: value for name, value in way.items() if name not in plain}
    told += [
        f"{name} {str(value).lower()}"
        for name, value in others.items()
        if value != defaults[name].default
    ]
    return ", ".join(told)


def _table(told: Sequence[tuple[Run, Loaded]]) -> str:
    from hpcncf.cli import layout

    heads = ("loader", "positives", "instances/s", "ms/batch", "first batch, s", "next epoch's, s")
    rows = [
        (
            _words(run),
            str(_way(run)["positives"]),
            f"{loaded.instances_per_s:,.0f}",
            f"{1000 * loaded.seconds / loaded.batches:.2f}",
            f"{loaded.first_batch_s:.3f}",
            f"{loaded.next_epoch_s:.3f}",
        )
        for run, loaded in told
    ]
    return layout.table_layout(heads, rows)
