"""One rank's record from its place in the run and what was measured of it, whatever it ran."""

from __future__ import annotations

import os
from dataclasses import fields
from typing import Any

from hpcncf.monitor import Measured
from hpcncf.paths import AttemptPaths
from hpcncf.plan import Run
from hpcncf.rank import launcher
from hpcncf.rank.launcher import Place
from hpcncf.records import RankRecord


def of_rank(
    run: Run, place: Place, attempt: AttemptPaths, measured: Measured, **told: Any
) -> RankRecord:
    """`told`: the record's other fields; its warnings stand behind the measured ones."""
    figures = {field.name: getattr(measured, field.name) for field in fields(measured)}
    figures["warnings"] = [*measured.warnings, *told.pop("warnings")]
    return RankRecord(
        run_id=run.id,
        attempt=attempt.number,
        rank=place.rank,
        local_rank=place.local_rank,
        world_size=place.world_size,
        node=os.uname().nodename,
        node_index=place.node_index,
        slurm_job_id=launcher.slurm_job_id(),
        run=run.model_dump(mode="json"),
        **figures,
        **told,
    )
