"""The time limit of the batch job that runs this process."""

from __future__ import annotations

import os
from collections.abc import Mapping

from hpcncf.slurm.query import parse_duration, run_query

# Torque's and OAR's, in seconds.
VARIABLES = ("PBS_WALLTIME", "OAR_JOB_WALLTIME_SECONDS")


def time_limit_s(env: Mapping[str, str] = os.environ) -> float | None:
    """Return the job's whole time limit in seconds; None outside a job, or if it is not known."""
    if "SLURM_JOB_ID" in env:
        start, end = (_number(env.get(f"SLURM_JOB_{name}_TIME")) for name in ("START", "END"))
        if start and end and end > start:
            return end - start
        problems: list[str] = []  # a silent squeue is no reason to fail
        text = run_query(["squeue", "-h", "-j", env["SLURM_JOB_ID"], "-o", "%l"], problems)
        return parse_duration(text.strip().partition("\n")[0])
    return next((_number(env[name]) for name in VARIABLES if name in env), None)


def _number(text: str | None) -> float | None:
    return float(text) if text and text.isdecimal() else None
