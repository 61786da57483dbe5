"""One rank's record from its place in the run and what was measured of it, whatever it ran."""

from __future__ import annotations

import os
from dataclasses import fields
from typing import Any, Final

from hpcncf.monitor import Measured
from hpcncf.paths import AttemptPaths
from hpcncf.plan import Run
from hpcncf.rank import launcher
from hpcncf.rank.launcher import Place
from hpcncf.records import Packed, RankRecord

# By it who starts runs side by side tells their ranks which these are.
PACKED: Final = "HPCNCF_PACKED"


def of_rank(
    run: Run, place: Place, attempt: AttemptPaths, measured: Measured, **told: Any
) -> RankRecord:
    """`told`: the record's other fields; its warnings stand behind the measured ones."""
    figures = {field.name: getattr(measured, field.name) for field in fields(measured)}
    packed = _packed(run.id)
    missing = [f"mps: {packed.mps_missing}"] if packed and packed.mps_missing else []
    figures["warnings"] = [*measured.warnings, *missing, *told.pop("warnings")]
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
        packed=packed,
        **figures,
        **told,
    )


def _packed(run_id: str) -> Packed | None:
    """Nothing where another's word was inherited: a command of a packed run may start runs."""
    told = os.environ.get(PACKED)
    packed = Packed.model_validate_json(told) if told else None
    return packed if packed and run_id in packed.runs else None
