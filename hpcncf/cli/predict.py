"""`hpcncf predict`: predict configurations that were not run."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hpcncf.cli.plan import job_arguments

if TYPE_CHECKING:
    from hpcncf.job.plan import Plan

EPILOG = """\
example: hpcncf predict jobs/cores.yaml -s resources.cpus_per_task=3
error of the model on your own runs:  hpcncf predict jobs/cores.yaml --held-out
Exit code 3: refused, because the results do not support a prediction.
"""
# More points than that are a list nobody reads.
MOST: Final = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    job_arguments(parser)
    parser.add_argument(
        "--held-out",
        action="store_true",
        help="predict each configuration that was run from all others, and print the errors",
    )
    parser.add_argument(
        "--results", type=Path, metavar="DIR", help="default: results/<the job's name>"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of sentences")


def run(args: argparse.Namespace) -> int:
    from hpcncf.collect import collect
    from hpcncf.errors import UsageError
    from hpcncf.job import load
    from hpcncf.paths import ResultPaths
    from hpcncf_analysis.scaling import MODELS, distinct

    job = load.load_job(args.job, args.settings)
    plan = load.build_plan(job, args.job, args.settings)
    if job.workload != "ncf":
        raise UsageError(f"{args.job}: predict knows the steps of workload ncf, not a command's")
    runs = collect.collect(ResultPaths(args.results or Path("results") / job.name)).runs
    for column, called in MODELS.items():
        models = distinct(runs, column)
        if len(models) > 1:
            names = "; ".join(models)
            print(f"hpcncf: different {called} ({names}), which no law knows", file=sys.stderr)
    return _print_held_out(args, runs) if args.held_out else _predict(args, runs, _settings(plan))


def _settings(plan: Plan) -> list[dict[str, Any]]:
    """Of each point of the plan, as a row of the table of runs has them. Raises UsageError."""
    from hpcncf.collect.collect import settings
    from hpcncf.data.manifest import prepare_command
    from hpcncf.errors import UsageError

    firsts = [run for run in plan.runs if run.repeat == 0]
    if len(firsts) > MOST:
        raise UsageError(
            f"{len(firsts)} points; expected at most {MOST}: fix some axes of the grid with -s"
        )
    for data in (run.data for run in firsts if run.data and run.data_key is None):
        raise UsageError(
            f"data.path: {data.path} holds no prepared data, so that no run is known to be of it: "
            f"make it with `{prepare_command(data.dataset, Path(data.path))}`"
        )
    plain = {"by_hand": False, "workload": "ncf", "command": None}
    return [
        settings(run, ()) | plain | {"data_key": run.data_key, "varied": run.varied}
        for run in firsts
    ]


def _predict(args: argparse.Namespace, runs: list[Any], asked: list[dict[str, Any]]) -> int:
    from dataclasses import asdict

    from hpcncf_analysis.predict import Prediction, Refusal, describe, predict

    answers = predict(runs, asked)
    if args.json:
        plain = [
            asdict(each)
            | {
                "refused": isinstance(each, Refusal),
                "measured": isinstance(each, Prediction) and each.runs > 0,
            }
            for each in answers
        ]
        print(json.dumps({"predictions": plain}, indent=2))
    else:
        settings = [word for setting in args.settings for word in ("-s", setting)]
        submit = shlex.join(["hpcncf", "submit", str(args.job), *settings])
        print("\n\n".join(describe(each, submit) for each in answers))
    return 3 if any(isinstance(each, Refusal) for each in answers) else 0


def _print_held_out(args: argparse.Namespace, runs: list[Any]) -> int:
    from hpcncf_analysis.configurations import completed_runs
    from hpcncf_analysis.predict import describe_errors, measured_points, predict_held_out

    predicted, refused = predict_held_out(measured_points(completed_runs(runs)))
    if args.json:
        plain = [
            {
                "label": each.one.point.label,
                "measured_step_s": each.one.step_s,
                "predicted_step_s": each.step_s,
                "error": each.error,
            }
            for each in predicted
        ]
        print(json.dumps({"held_out": plain, "refused": [one.reason for one in refused]}, indent=2))
    else:
        print(describe_errors(predicted, refused))
    return 0 if predicted else 3
