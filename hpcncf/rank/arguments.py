"""The arguments of `hpcncf train` and `python -m hpcncf.worker`, one and the same, and `-s`."""

from __future__ import annotations

import argparse
from pathlib import Path


def of_a_rank(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("source", type=Path, help="a job file, or a results folder with a plan")
    # torchrun on Python 3.11 refuses `--run`, ours or not: it begins two of its own options.
    add("--run", "--run-id", dest="run_id", metavar="ID", help="which run; its first letters do")
    settings(parser, "override a setting of the job file: -s training.epochs=1")
    add("--results", type=Path, metavar="DIR", help="default: results/<the job's name>")
    add("--again", action="store_true", help="train even if the run is complete already")


def settings(parser: argparse.ArgumentParser, meaning: str) -> None:
    """`-s KEY=VALUE`, as often as wanted, wherever a verb takes it."""
    parser.add_argument(
        "-s", dest="settings", metavar="KEY=VALUE", action="append", default=[], help=meaning
    )
