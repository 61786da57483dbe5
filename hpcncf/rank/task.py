"""What each rank of a Slurm task calls: the task's runs, one after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path


def work(results: str, run_ids: Sequence[str], again: bool, over: Mapping[str, int]) -> None:
    """Be one rank of each run in turn; Slurm is to see a failure as one.

    `over`: run -> the attempt up to which all are known to have ended.
    """
    from hpcncf import worker

    codes = [worker.work(Path(results), run, again, over.get(run, 0)) for run in run_ids]
    if any(codes):
        raise SystemExit(max(codes))
