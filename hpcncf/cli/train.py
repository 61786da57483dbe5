"""`hpcncf train`: train one run in this process."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from hpcncf.worker.__main__ import add_rank_arguments

if TYPE_CHECKING:
    from hpcncf.records.schema import RankRecord

EPILOG = """\
An alias of `python -m hpcncf.worker`. Several ranks:
torchrun --nproc-per-node 2 -m hpcncf.worker JOB.yaml --run-id ID
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_rank_arguments(parser)


def run(args: argparse.Namespace) -> int:
    from hpcncf.cli.output import format_path
    from hpcncf.launcher.environment import place
    from hpcncf.records.schema import RankRecord, read_record
    from hpcncf.worker.rank import from_arguments

    code, paths = from_arguments(args)
    attempts = paths.attempts()
    if code == 0 and attempts and place().rank == 0:
        record = read_record(attempts[-1].rank(0), RankRecord)
        if record.pid == os.getpid():  # else the run was complete, and nothing was trained
            print(summary(record))
        print(f"look with: hpcncf report {format_path(paths.folder.parent.parent)}")
    return code


def summary(record: RankRecord) -> str:
    """What a rank did, in a few lines."""
    lines = [f"run {record.run_id} {record.outcome} in {record.elapsed_s:.1f} s"]
    done = record.training
    if done and done.epochs:
        last = done.epochs[-1]
        lines.append(f"epochs {len(done.epochs)}, loss {last.loss:.4f}")
        if done.counted_s:
            speed = done.counted_instances / done.counted_s
            lines.append(f"speed {speed:,.0f} instances/s, threads {done.threads}")
        if last.hr10 is not None and last.ndcg10 is not None:
            took = f"evaluated in {last.evaluation_s:.2f} s"
            lines.append(f"HR@10 {last.hr10:.3f}, NDCG@10 {last.ndcg10:.3f}, {took}")
        if last.hr10_unseen is not None:
            lines.append(f"HR@10 of pairs not seen in training {last.hr10_unseen:.3f}")
    if record.cpu.efficiency is not None:
        lines.append(
            f"CPU efficiency {record.cpu.efficiency:.0%} of {record.cores.allocated:g} cores"
        )
    return "\n".join([*lines, *(f"warning: {warning}" for warning in record.warnings)])
