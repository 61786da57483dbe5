"""`hpcncf attach`: watch a job or program that runs now."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from hpcncf.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_S = 20.0
LONGEST_S = 3600.0
EPILOG = """\
Reads /proc and the cgroup; the program is neither changed nor ended. Ctrl-C ends the watch
early and shows what was seen.

example: hpcncf attach 12345
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target", metavar="PID", help="a process on this machine; all that it started is included"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=DEFAULT_S,
        metavar="S",
        help="how long to watch (default: %(default)g)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def run(args: argparse.Namespace) -> int:
    from hpcncf.attach import find
    from hpcncf.attach.observe import Observation
    from hpcncf.attach.watch import Watch

    if not 1 <= args.seconds <= LONGEST_S:
        raise UsageError(f"--seconds: expected 1 to {LONGEST_S:,.0f}, came {args.seconds:g}")
    if not args.target.isdecimal():
        raise UsageError(
            f"attach: {args.target!r}: expected a process id, as in: hpcncf attach 123"
        )
    pid = int(args.target)
    try:
        find.check(pid)
        watch = Watch([pid])
    except find.CannotWatch as error:
        raise UsageError(f"attach: {error}") from None
    raw = Observation(watch).run(args.seconds)
    return _show([raw], f"process {pid}", args.json)


def _show(raws: Sequence[dict[str, Any]], what: str, as_json: bool) -> int:
    """Print the page of one or more nodes, or the same as JSON."""
    from hpcncf.attach.as_records import records
    from hpcncf.attach.sampled import profiles
    from hpcncf.cli import attach_page
    from hpcncf.cli.run_summary import BLOCKS, PLAIN, conclusion

    ranks, nodes = records(raws, programs={raw["node"]: profiles(raw) for raw in raws})
    unseen = list(dict.fromkeys(each for raw in raws for each in raw["unseen"]))
    if as_json:
        plain: dict[str, Any] = {
            "watched": what,
            "seconds": max(raw["elapsed_s"] for raw in raws),
            "conclusion": conclusion(ranks[0], nodes[0]),
            "notes": [each for raw in raws for each in raw["notes"]],
            "not_seen": unseen,
            "rank": ranks[0].model_dump(mode="json"),
            "node": nodes[0].model_dump(mode="json"),
            "nodes": [
                {
                    "node": raw["node"],
                    "rank": rank.model_dump(mode="json"),
                    "processes": raw["processes"],
                    "files": raw["files"],
                    "observer_cpu_s": raw["observer_cpu_s"],
                }
                for raw, rank in zip(raws, ranks, strict=True)
            ],
        }
        print(json.dumps(plain, indent=1, allow_nan=False))
        return 0
    marks = BLOCKS if (sys.stdout.encoding or "").lower().startswith("utf") else PLAIN
    command = attach_page.name_command(ranks[0].run["workload"]["command"])
    print(*attach_page.lines(f"{what}, {command}", raws, ranks, nodes, marks, unseen), sep="\n")
    return 0
