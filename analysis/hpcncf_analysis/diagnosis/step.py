"""The rule on the step's own work: an optimiser that walks rows which no batch touched. Pure."""

from __future__ import annotations

from typing import Any, Final

from hpcncf_analysis.diagnosis import gains, thresholds
from hpcncf_analysis.diagnosis.changes import applied
from hpcncf_analysis.diagnosis.evidence import Evidence
from hpcncf_analysis.diagnosis.finding import Finding, Gain
from hpcncf_analysis.words import number, percent

# Engines whose step costs what its rows cost.
OF_ROWS: Final = frozenset({"rowwise", "native"})


def dense_optimizer(evidence: Evidence) -> Finding | None:
    """The optimiser's time goes to rows that the step did not read: the share it could save."""
    read, there = evidence.rows_per_step, evidence.table_rows
    if not read or not there or read / there > thresholds.SPARSE or _walks_few(evidence):
        return None
    share = evidence.of_time("optimizer") * (1 - read / there)
    if not evidence.worth(share):
        return None
    bound = "at most " if evidence.rows_estimated else ""
    return Finding(
        "dense_optimizer",
        share,
        "time",
        (
            f"the optimiser takes {percent(evidence.phases['optimizer'])} of a step",
            f"a step reads {bound}{number(read)} of {number(there)} embedding rows, "
            f"{_percent(read / there)}",
        ),
        "Update only the rows that a step read"
        + (
            ": training.engine rowwise gives the same mathematics, native the same in one compiled "
            "step."
            if evidence.trained
            else ": sparse gradients with an optimiser for them."
        ),
        _changes(evidence),
        _gain(evidence) if evidence.trained else None,
    )


def _percent(share: float) -> str:
    return percent(share) if share >= 0.01 else f"{100 * share:.2g} %"


def _walks_few(evidence: Evidence) -> bool:
    """Whether the step already touches its own rows only, or weight decay asks for all of them."""
    told = evidence.training
    return told.get("engine") in OF_ROWS or bool(told.get("sparse") or told.get("weight_decay"))


def _gain(evidence: Evidence) -> Gain:
    told = gains.rowwise if evidence.world_size == 1 else gains.exchanged_rows
    return told(evidence)


def _changes(evidence: Evidence) -> dict[str, Any]:
    rows = {"sync": "rows"} if evidence.world_size > 1 else {}
    return applied(evidence, engine="rowwise", **rows)
