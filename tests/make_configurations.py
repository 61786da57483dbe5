"""Builds configurations as the summary makes them, from a few plain figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from hpcncf_analysis.configurations import Configuration
from hpcncf_analysis.diagnosis.evidence import Cause, CoreCounts, Diagnosis, Finding, Gain

Row = Mapping[str, Any]


def row(seconds: float = 10.0, cores: int = 1, **changes: Any) -> dict[str, Any]:
    """A completed run of one rank: an epoch of 1,000 instances takes `seconds`."""
    plain = {
        "run_id": "0123456789ab",
        "workload": "ncf",
        "by_hand": False,
        "command": None,
        "nodes": 1,
        "tasks_per_node": 1,
        "cpus_per_task": cores,
        "gpus_per_node": 0,
        "world_size": 1,
        "cores_allocated": float(cores),
        "cores_used": 0.9 * cores,
        "cpu_efficiency": 0.9,
        "cpu_model": "Example CPU",
        "others_cores": 0.0,
        "instances_per_s": 1000 / seconds,
        "seconds_per_epoch": seconds,
        "core_hours": 1.0,
        "epoch_extrapolated": False,
        "elapsed_s": 3 * (seconds + 1.0) + 7.0,
        "training_s": 3 * seconds,
        "evaluation_s": 3.0,
        "seconds_per_evaluation": 1.0,
        "epochs": 3,
        "max_steps": None,
        "evaluation": "sampled",
        "data_key": "key",
        "hr10": 0.8,
        "test_rows": 654,
        "memory_peak_mib": 400.0,
    }
    return plain | changes


def configuration(label: str, rows: Sequence[Row] | None = None, **changes: Any) -> Configuration:
    """Its rows as given, or one made of `changes`."""
    rows = rows or [row(**changes)]
    return Configuration(
        key=label,
        shape="",
        series="",
        label=label,
        rows=rows,
        figures=dict(figures(rows)),
        has_speed=all(each["instances_per_s"] for each in rows),
    )


def figures(rows: Sequence[Row]) -> Mapping[str, float]:
    """Medians of what is a number in all rows, and their extremes from two rows on."""
    found = {}
    for name in rows[0]:
        values = [each[name] for each in rows]
        if all(isinstance(value, int | float) for value in values):
            found[name] = float(median(values))
            if len(rows) > 1:
                found |= {f"{name}_low": min(values), f"{name}_high": max(values)}
    return found


def repeated(label: str, seconds: Sequence[float], **changes: Any) -> Configuration:
    return configuration(label, [row(each, **changes) for each in seconds])


def diagnosis(
    cause: Cause | None = None, changes: Mapping[str, Any] | None = None, gain: Gain | None = None
) -> Diagnosis:
    """Of the run of `row`: a cause that costs 58 % of the time, or healthy."""
    cores, run = CoreCounts(1, 1, 1), str(row()["run_id"])
    if cause is None:
        return Diagnosis(run, "healthy", None, (), cores)
    remedy = "Make whole batches."
    found = Finding(cause, 0.58, "time", ("evidence",), remedy, changes or {}, gain)
    return Diagnosis(run, "cause", found, (), cores)
