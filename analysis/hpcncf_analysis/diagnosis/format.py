"""A diagnosis as text and as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from hpcncf.text import pluralize
from hpcncf_analysis.diagnosis.evidence import CoreCounts, Diagnosis, Finding, Gain
from hpcncf_analysis.formatting import THIN, format_cores, format_percent, format_ratio

_UNITS: Final = {"instances_per_s": "instances per second", "core_hours": "core-hours"}


def counts(counted: CoreCounts) -> str:
    """Format core counts, such as `5 cores allocated, 5 usable, 1.02 used`."""
    noun = "core" if counted.allocated == 1 else "cores"
    allocated, usable, used = map(format_cores, (counted.allocated, counted.usable, counted.used))
    return f"{allocated} {noun} allocated, {usable} usable, {used} used"


def cost(finding: Finding) -> str:
    """Format the cost of a finding, such as `58 % of the time`."""
    return f"{format_percent(finding.share)} of the {finding.of}"


def gain(expected: Gain) -> str:
    """Format a gain, such as `2.82× the instances per second (2.31× to 3.21×)`."""
    between = f"{format_ratio(expected.low)} to {format_ratio(expected.high)}"
    return f"{format_ratio(expected.factor)} the {_UNITS[expected.what]} ({between})"


def settings(changes: Mapping[str, Any]) -> str:
    """Format settings as options of plan and submit: `-s training.loader=vectorized`."""
    words = {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in changes.items()}
    return " ".join(f"-s {key}={word}" for key, word in words.items())


def headline(finding: Finding) -> str:
    """Format a finding in one line, such as `python_input: costs 58 % of the time`.

    For a run too short to judge, the line says how much was measured.
    """
    short = finding.cause == "too_short_to_judge"
    return f"{finding.cause}: {finding.evidence[0] if short else f'costs {cost(finding)}'}"


def verdict(diagnosis: Diagnosis) -> str:
    """Format a diagnosis in one line: the main cause and its cost, `healthy`, or `unknown`."""
    if diagnosis.primary:
        return headline(diagnosis.primary)
    if diagnosis.verdict == "healthy":
        return "healthy: no cause accounts for 20 % or more of the time or cores"
    return f"unknown: the records do not show {diagnosis.missing[0]}"


def disturbance(diagnosis: Diagnosis) -> str:
    """Warning that other processes make the figures doubtful; empty if none does."""
    for finding in diagnosis.findings:
        if finding.cause == "neighbour_load" and diagnosis.cores.usable:
            taken = finding.share * diagnosis.cores.usable
            return (
                f"other processes took {format_cores(taken)} of its "
                f"{pluralize(diagnosis.cores.usable, 'core')} while it waited: shares and "
                "expected gains may differ on a quiet machine"
            )
    return ""


def describe(finding: Finding) -> Iterator[str]:
    """Lines below the headline of a finding: evidence, code lines, remedy, expected gain."""
    yield from finding.evidence[finding.cause == "too_short_to_judge" :]
    for place in finding.places:
        source = f"   {place.source}" if place.source else ""
        yield f"{place.share:4.0%}  {place.file}:{place.line} {place.function}{source}"
        if place.advice:
            yield f"      {place.advice}"
    yield f"remedy: {finding.remedy}"
    if finding.changes:
        yield f"settings: {settings(finding.changes)}"
    if finding.gain:
        yield f"predicted: {gain(finding.gain)}"


def plain(diagnosis: Diagnosis) -> dict[str, Any]:
    """Convert a diagnosis to plain data for JSON."""
    return {
        "run_id": diagnosis.run_id,
        "cores": vars(diagnosis.cores),
        "verdict": diagnosis.verdict,
        "primary": _plain_finding(diagnosis.primary) if diagnosis.primary else None,
        "secondary": [_plain_finding(each) for each in diagnosis.secondary],
        "missing": [each.replace(THIN, " ") for each in diagnosis.missing],
        "alerts": [each.replace(THIN, " ") for each in diagnosis.alerts],
    }


def _plain_finding(finding: Finding) -> dict[str, Any]:
    return {
        **vars(finding),
        "evidence": [each.replace(THIN, " ") for each in finding.evidence],
        "remedy_codes": list(finding.remedy_codes),
        "with": list(finding.with_remedies),
        "changes": dict(finding.changes),
        "gain": vars(finding.gain) if finding.gain else None,
        "places": [vars(each) for each in finding.places],
    }
