"""What a command was told, and what it told of itself, as columns of its run. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeGuard

from hpcncf.plan import Run
from hpcncf.records import RankRecord, Reported
from hpcncf.tables.trained import PHASES_TRAINED, Row
from hpcncf.tables.watched import ratio

# These mean what they mean for our own training, and stand in the same columns.
KNOWN: Final = ("instances_per_s", "loss", "hr10", "ndcg10", "startup_s", "evaluation_s")
TIMED: Final = tuple(f"{phase}_s" for phase in PHASES_TRAINED)
PARAMETER: Final = "parameter_"
METRIC: Final = "metric_"


def columns(run: Run, ranks: Sequence[RankRecord]) -> Row:
    """`parameter_lr` and `metric_accuracy`; what rank 0 reported counts for the run, but for the
    phases, which are those of all ranks that told theirs."""
    told: Reported = next((record.reported for record in ranks if record.rank == 0), {})
    known = {name: told[name] for name in KNOWN if is_number(told.get(name))}
    shown = {*known, *phases(told)}
    return {
        **{f"{PARAMETER}{name}": value for name, value in run.parameters.items()},
        **_timed(ranks),
        **known,
        **{f"{METRIC}{name}": value for name, value in told.items() if name not in shown},
    }


def _timed(ranks: Sequence[RankRecord]) -> Row:
    """The shares of the phases that were told, as of our own training, and the speed where every
    rank tells its instances: all of them over the longest time of a rank."""
    times = [phases(record.reported) for record in ranks]
    seconds = {
        name: sum(each.get(name, 0.0) for each in times)
        for name in TIMED
        if any(name in each for each in times)
    }
    total = sum(seconds.values())
    if total <= 0:
        return {}
    shares: Row = {
        f"{name.removesuffix('_s')}_share": spent / total for name, spent in seconds.items()
    }
    instances = [record.reported.get("instances") for record in ranks]
    counted = [float(number) for number in instances if is_number(number)]
    if len(counted) == len(ranks) and all(times):
        longest_s = max(sum(each.values()) for each in times)
        shares["instances_per_s"] = ratio(sum(counted), longest_s)
    return shares


def phases(reported: Reported) -> dict[str, float]:
    """The seconds of each phase of a step that one rank told; those below zero mean nothing."""
    return {
        name: float(value)
        for name, value in reported.items()
        if name in TIMED and is_number(value) and value >= 0
    }


def is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
