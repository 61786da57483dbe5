"""What of a plan this machine's Slurm would refuse or let wait for ever, and what is doubtful of
the rest: told before it is sent."""

from __future__ import annotations

from collections.abc import Sequence

from hpcncf.plan import Run
from hpcncf.spec import JobSpec
from hpcncf.submit import launch


def of(job: JobSpec, runs: Sequence[Run]) -> dict[str, str]:
    """Run id -> why, as far as Slurm tells; empty on a machine without it."""
    limits = launch.limits_of(job, launch.choose_cluster("auto"))
    return launch.left_out(list(runs), "slurm", limits)


def doubts(runs: Sequence[Run]) -> list[str]:
    """What `submit` would say of them where it is not told which cluster."""
    return launch.doubts(list(runs), launch.choose_cluster("auto"))


def lines_refusals(refused: dict[str, str]) -> list[str]:
    """As `submit` says it, a line for each reason."""
    return [f"left out: {line}" for line in launch.told(refused)]
