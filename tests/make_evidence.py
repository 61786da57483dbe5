"""Evidence of a run that is well, for tests that change what they are about."""

from __future__ import annotations

from typing import Any

from hpcncf_analysis.diagnosis.evidence import CoreCounts, Evidence
from hpcncf_analysis.diagnosis.facts import RankTimes

PHASES = {"input": 0.1, "forward": 0.3, "backward": 0.4, "sync": 0.0, "optimizer": 0.18}


def evidence(
    allocated: float = 1.0, usable: float | None = None, used: float | None = None, **changes: Any
) -> Evidence:
    """100 s of our own training, 95 of them steps; its cores, where not given, are all used."""
    usable = allocated if usable is None else usable
    seen: dict[str, Any] = {
        "run_id": "0123456789ab",
        "elapsed_s": 100.0,
        "cores": CoreCounts(allocated, usable, usable if used is None else used),
        "ranks": (RankTimes(0, "node1", 95.0, 0.0, 1000, 95.0),),
        "trained": True,
        "training": {"loader": "vectorized", "engine": "reference", "sync": "dense"},
        "resources": {"cpus_per_task": int(allocated)},
        "threads": int(usable),
        "runnable": usable if used is None else used,
        "runqueue_s": 0.0,
        "startup_s": 3.0,
        "training_s": 95.0,
        "evaluation_s": 1.0,
        "checkpoint_s": 0.1,
        "phases": {**PHASES, "other": 0.02},
        "counted_steps": 1000,
        "rows_per_step": 1000.0,
        "table_rows": 1500,
        "others_cores": 0.0,
        "steal": 0.0,
    }
    return Evidence(**(seen | changes))


def command(**changes: Any) -> Evidence:
    """The same of a command that reported nothing of itself."""
    unknown: dict[str, Any] = dict.fromkeys(
        ("threads", "startup_s", "training_s", "evaluation_s", "checkpoint_s")
    )
    unknown |= dict.fromkeys(("counted_steps", "rows_per_step", "table_rows"))
    plain: dict[str, Any] = {"trained": False, "training": {}, "phases": {}}
    plain["ranks"] = (RankTimes(0, "node1", cpu_s=100.0),)
    return evidence(**(unknown | plain | changes))


def two_ranks(first: RankTimes, second: RankTimes, **changes: Any) -> Evidence:
    """Two ranks of one core each, which both wait for the exchange for a share of their steps."""
    seen = [rank for rank in (first, second) if rank.steps_s is not None]
    steps_s = sum(rank.steps_s or 0.0 for rank in seen)
    sync = sum(rank.sync_s or 0.0 for rank in seen) / steps_s if steps_s else 0.0
    phases = {**PHASES, "other": 0.0} | {"sync": sync, "backward": 0.42 - sync}
    plain: dict[str, Any] = {"world_size": 2, "ranks": (first, second), "phases": phases}
    return evidence(allocated=2.0, **(plain | {"threads": 1, "sync_how": "dense"} | changes))
