"""`hpcncf retry`: what failed or is missing once more, and nothing else."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from hpcncf.cli.submit import sending_arguments
from hpcncf.rank import arguments

if TYPE_CHECKING:
    from hpcncf.paths import ResultPaths
    from hpcncf.spec import JobSpec

HELP = "submit once more what failed or is missing, and nothing else"
EPILOG = """\
what timed out, with more time: hpcncf retry results/demo -s resources.timeout_min=60
exit codes: 0 submitted, and with --wait all complete; 1 an error; 2 the request is wrong;
3 with --wait when some did not complete
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", type=Path, metavar="RESULTS", help="the results folder")
    arguments.settings(
        parser, "resources.mem_gb or resources.timeout_min of what is sent now and later retried"
    )
    sending_arguments(parser, None, "default: where it was submitted last")


def run(args: argparse.Namespace) -> int:
    from hpcncf import amend, launch
    from hpcncf.cli import submit
    from hpcncf.paths import ResultPaths

    paths = ResultPaths(args.results.resolve())
    job = _job(paths)
    plan = amend.amend(paths, args.settings)
    cluster = launch.choose_cluster(args.cluster or launch.last_cluster(paths))
    return submit.tell(args, paths, launch.submit(paths, job, plan, cluster), cluster)


def _job(paths: ResultPaths) -> JobSpec:
    from hpcncf import jobfile
    from hpcncf.errors import UsageError

    if not paths.job.exists():
        raise UsageError(
            f"{paths.folder}: has no {paths.job.name}, so it is not from `hpcncf submit`: "
            "run the command again instead"
        )
    return jobfile.load(paths.job)
