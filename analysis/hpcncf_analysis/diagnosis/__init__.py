"""Why a run was no faster: its cause with numbers, its cost, the remedy and what it would bring."""

from hpcncf_analysis.diagnosis.finding import (
    CAUSES,
    Cause,
    CoreCounts,
    Diagnosis,
    Finding,
    Gain,
    Verdict,
)

__all__ = ["CAUSES", "Cause", "CoreCounts", "Diagnosis", "Finding", "Gain", "Verdict"]
