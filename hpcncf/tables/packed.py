"""With whom a run shared its node or its GPU, and when it was at work, as columns. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from hpcncf.records import RankRecord
from hpcncf.tables import watched
from hpcncf.tables.trained import Row

PACKED: Final = ("pack", "pack_runs", "pack_mps", "worked_from", "worked_to")


def columns_packed(ranks: Sequence[RankRecord]) -> Row:
    """`pack`: the ids of the runs begun side by side, None for a run alone; `worked_from` and
    `worked_to` in seconds since 1970: first step to last, of a command from start to end."""
    told = next((record.packed for record in ranks if record.packed), None)
    began, ended = watched.training_time(ranks)
    if not ended:
        began = min(_moment(record.started_at) for record in ranks)
        ended = max(_moment(record.ended_at) for record in ranks)
    return {
        "pack": " ".join(told.runs) if told else None,
        "pack_runs": len(told.runs) if told else 1,
        "pack_mps": told.mps if told else None,
        "worked_from": began,
        "worked_to": ended,
    }


def _moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
