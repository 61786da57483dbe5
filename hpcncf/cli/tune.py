"""`hpcncf tune`: chooses the runs itself that find a grid's best configuration within a budget."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hpcncf.cli.plan import job_arguments, warn
from hpcncf.cli.predict import positive

if TYPE_CHECKING:
    from hpcncf.submit.launch import Launched
    from hpcncf.tune.going import Going, Now
    from hpcncf.tune.outcome import Outcome

HELP = "find the best configuration of a job file's grid within a budget, choosing the runs itself"
EPILOG = """\
each call submits the next runs and says so; the same command goes on, until one says what is best.
To the end in one call: --wait. Runs lie in results/<the job's name>-tune.
example: hpcncf tune jobs/engines.yaml --budget 0.5 --wait
exit codes: 0 the best is known and ran whole; 3 not yet (runs are under way, or the budget is
spent); 1 an error; 2 the request is wrong
"""
# Rounds of the same runs sent again: then something is wrong that sending does not mend.
IN_VAIN: Final = 3
OBJECTIVES: Final = {
    "knee": "the fastest whose epoch costs at most 1.4 times the cheapest's, as the report advises",
    "fastest": "the fewest seconds for an epoch",
    "cheapest": "the fewest core-hours for an epoch",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    job_arguments(parser)
    parser.add_argument(
        "--budget",
        type=positive,
        required=True,
        metavar="CORE_HOURS",
        help="what all of its runs may cost together",
    )
    parser.add_argument(
        "--gpu-hour",
        type=positive,
        default=0.0,
        metavar="CORE_HOURS",
        help="what an hour of a GPU counts for in the budget and in cost; needed where some points "
        "have GPUs and others none, else the budget counts core-hours alone",
    )
    parser.add_argument(
        "--objective",
        choices=list(OBJECTIVES),
        default="knee",
        help="at held quality; "
        + "; ".join(f"{name}: {told}" for name, told in OBJECTIVES.items()),
    )
    parser.add_argument("--wait", action="store_true", help="go on until the best is known")
    parser.add_argument(
        "--cluster",
        choices=["auto", "local", "slurm"],
        default="auto",
        help="auto: slurm where there is sbatch, else local (default)",
    )
    parser.add_argument(
        "--results", type=Path, metavar="DIR", help="default: results/<the job's name>-tune"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of sentences")


def run(args: argparse.Namespace) -> int:
    from hpcncf.tune import going, outcome

    tuning = _going(args)
    told = _tell(args)
    for line in tuning.grid.left_out:
        print(f"hpcncf: left out: {line}", file=sys.stderr)
    in_vain = 0
    while True:
        now = going.look(tuning)
        if now.step.kind == "done":
            return _end(args, tuning, now, outcome.of(tuning, now))
        if now.step.kind == "send":
            told(_sending(tuning, now))
            launched = going.send(tuning, now)
            _complain(launched)
            in_vain = 0 if now.step.asks else in_vain + 1
            if not launched.runs or in_vain > IN_VAIN:
                return _stuck(args, tuning, now)
        else:
            told(f"{now.step.why}: {_under_way(now)}")
        if not args.wait:
            return _later(args, tuning, now)
        _wait(args, tuning)


def _going(args: argparse.Namespace) -> Going:
    from hpcncf.paths import ResultPaths
    from hpcncf.submit import launch
    from hpcncf.tune import going

    job = going.job_of(args.job, args.settings)
    warn(job)
    cluster = launch.choose_cluster(args.cluster)
    limits = launch.limits_of(job, cluster)
    paths = ResultPaths((args.results or Path("results") / job.name).resolve())
    grid = going.grid_of(job, cluster, limits, args.gpu_hour)
    return going.Going(paths, grid, args.objective, args.budget, cluster, limits)


def _tell(args: argparse.Namespace) -> Any:
    """Sentences on the way: beside the JSON, which is to be alone on the standard output."""
    return lambda text: print(text, file=sys.stderr if args.json else sys.stdout, flush=True)


def _sending(tuning: Going, now: Now) -> str:
    again = sum(trial.fate == "open" for trial in now.trials)
    number = len(now.step.asks) + again
    price = "" if now.step_core_h is None else f", about {now.step_core_h:.2g} core-hours"
    return (
        f"{now.step.why}: {number} run{'s' * (number != 1)}{price} "
        f"({now.spent_core_h:.2g} of {tuning.core_hours:g} spent)"
    )


def _under_way(now: Now) -> str:
    number = sum(trial.fate == "under way" for trial in now.trials)
    return f"{number} run{'s' * (number != 1)}"


def _complain(launched: Launched) -> None:
    from hpcncf.submit import launch

    for line in [*launch.told(launched.refused), *launched.notes]:
        print(f"hpcncf: {line}", file=sys.stderr)


def _wait(args: argparse.Namespace, tuning: Going) -> None:
    """For whatever is under way, as its records tell: another call may have submitted it."""
    from hpcncf.cli import waiting
    from hpcncf.results import read_plan
    from hpcncf.state import status

    states = status.states(tuning.paths, read_plan(tuning.paths))
    asked = [state.run.id for state in states if state.state in status.UNDER_WAY]
    waiting.wait(tuning.paths, asked, args.json)


def _stuck(args: argparse.Namespace, tuning: Going, now: Now) -> int:
    print(
        "hpcncf: these runs are not taken, or end without a record: see hpcncf status, then call "
        "again",
        file=sys.stderr,
    )
    return _later(args, tuning, now)


def _later(args: argparse.Namespace, tuning: Going, now: Now) -> int:
    from hpcncf.cli import layout

    if args.json:
        print(json.dumps(_plain(tuning, now, None), indent=2))
        return 3
    there = layout.shown(tuning.paths.folder)
    print(f"look with: hpcncf status {there}\nwhen they have ended, go on: {_same(args)}")
    return 3


def _same(args: argparse.Namespace) -> str:
    words = ["hpcncf", "tune", str(args.job)]
    words += [word for setting in args.settings for word in ("-s", setting)]
    words += ["--budget", f"{args.budget:g}"]
    words += ["--gpu-hour", f"{args.gpu_hour:g}"] * (args.gpu_hour > 0)
    words += ["--objective", args.objective] * (args.objective != "knee")
    words += ["--cluster", args.cluster] * (args.cluster != "auto")
    words += ["--results", str(args.results)] * (args.results is not None)
    return shlex.join(words)


def _end(args: argparse.Namespace, tuning: Going, now: Now, found: Outcome | None) -> int:
    from hpcncf import records, results
    from hpcncf.cli import tuned

    if found and found.advice:
        with results.writing(tuning.paths.folder):
            records.write_text(tuning.paths.best, found.advice.job_yaml)
    if args.json:
        print(json.dumps(_plain(tuning, now, found), indent=2))
    else:
        print(tuned.sentences(tuning, now, found))
    if found is None:
        return 1  # no point could be measured: calling again changes nothing
    return 0 if found and found.verified and not now.step.why else 3


def _plain(tuning: Going, now: Now, found: Outcome | None) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "results": str(tuning.paths.folder),
        "step": now.step.kind,
        "why": now.step.why,
        "budget_core_hours": tuning.core_hours,
        "gpu_hour_core_hours": tuning.gpu_hour,
        "spent_core_hours": now.spent_core_h,
        "runs": [_plain_trial(tuning, trial) for trial in now.trials],
    }
    if found is None:
        return plain
    kept = asdict(replace(found, advice=None)) | {"best": found.best.point.label}
    settings = tuning.grid.settings[found.best.point.index]
    file = str(tuning.paths.best) if found.advice else None
    return plain | kept | {"settings": settings, "epoch_s": found.best.epoch_s, "job_file": file}


def _plain_trial(tuning: Going, trial: Any) -> dict[str, Any]:
    return {"run_id": tuning.grid.run(trial.ask).id, **asdict(trial)}
