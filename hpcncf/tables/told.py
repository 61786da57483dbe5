"""What a command was told, and what it told of itself, as columns of its run. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hpcncf.plan import Run
from hpcncf.records import RankRecord, Reported
from hpcncf.tables.trained import Row

# These mean what they mean for our own training, and stand in the same columns.
KNOWN: Final = ("instances_per_s", "loss", "hr10", "ndcg10")
PARAMETER: Final = "parameter_"
METRIC: Final = "metric_"


def columns(run: Run, ranks: Sequence[RankRecord]) -> Row:
    """`parameter_lr` and `metric_accuracy`; what rank 0 reported counts for the run."""
    told: Reported = next((record.reported for record in ranks if record.rank == 0), {})
    known = {name: told[name] for name in KNOWN if is_number(told.get(name))}
    return {
        **{f"{PARAMETER}{name}": value for name, value in run.parameters.items()},
        **known,
        **{f"{METRIC}{name}": value for name, value in told.items() if name not in known},
    }


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
