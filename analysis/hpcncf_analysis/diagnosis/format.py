"""A diagnosis as text and as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcncf_analysis.diagnosis.evidence import CoreCounts, Diagnosis, Finding, Gain
from hpcncf_analysis.formatting import THIN, format_cores, format_percent, format_ratio


def counts(counted: CoreCounts) -> str:
    """`5 cores allocated, 5 usable, 1.02 used`."""
    noun = "core" if counted.allocated == 1 else "cores"
    allocated, usable, used = map(format_cores, (counted.allocated, counted.usable, counted.used))
    return f"{allocated} {noun} allocated, {usable} usable, {used} used"


def cost(finding: Finding) -> str:
    """`58 % of the time`."""
    return f"{format_percent(finding.share)} of the {finding.of}"


def gain(expected: Gain) -> str:
    """`2.82× the instances per second (2.31× to 3.21×)`."""
    between = f"{format_ratio(expected.low)} to {format_ratio(expected.high)}"
    return f"{format_ratio(expected.factor)} the {_what(expected.what)} ({between})"


def settings(changes: Mapping[str, Any]) -> str:
    """`-s training.loader=vectorized`, to be given to plan, submit or predict."""
    return " ".join(f"-s {key}={_yaml(value)}" for key, value in changes.items())


def _yaml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def verdict(told: Diagnosis) -> str:
    """One line: the cause and its cost, or that there is none."""
    if told.primary and in_verdict(told.primary):
        return f"{told.primary.cause}: {told.primary.evidence[0]}"
    if told.primary:
        return f"{told.primary.cause}: costs {cost(told.primary)}"
    if told.verdict == "healthy":
        return "healthy: nothing costs a fifth of the time or of the cores"
    return f"unknown: the records do not show it {told.missing[0]}"


def in_verdict(found: Finding) -> int:
    """How much of its evidence `verdict` tells: where too little was measured, no cost."""
    return 1 if found.cause == "too_short_to_judge" else 0


def scored(row: Mapping[str, Any]) -> str:
    """A prediction in one line, beside what was measured."""
    told = f"{row['cause']} at {row['base']}, {settings(row['changes'])}: "
    told += f"predicted {format_ratio(row['predicted'])} the {_what(row['what'])}, "
    if row["measured"] is None:
        return told + "not measured yet"
    told += f"measured {format_ratio(row['measured'])}"
    if row["measured_low"] is not None:
        told += f" ({format_ratio(row['measured_low'])} to {format_ratio(row['measured_high'])})"
    return told + (": within 25 %" if row["within"] else ": not within 25 %")


def _what(name: str) -> str:
    return "instances per second" if name == "instances_per_s" else "core-hours"


def plain(told: Diagnosis) -> dict[str, Any]:
    """For JSON."""
    return {
        "run_id": told.run_id,
        "cores": vars(told.cores),
        "verdict": told.verdict,
        "primary": _finding(told.primary) if told.primary else None,
        "secondary": [_finding(each) for each in told.secondary],
        "missing": [each.replace(THIN, " ") for each in told.missing],
        "alerts": [each.replace(THIN, " ") for each in told.alerts],
    }


def _finding(found: Finding) -> dict[str, Any]:
    expected = vars(found.gain) if found.gain else None
    return {
        **vars(found),
        "evidence": [each.replace(THIN, " ") for each in found.evidence],
        "changes": dict(found.changes),
        "gain": expected,
        "places": [vars(each) for each in found.places],
    }
