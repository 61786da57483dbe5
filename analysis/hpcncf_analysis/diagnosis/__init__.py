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
from hpcncf_analysis.diagnosis.reading import of_attempt, of_results
from hpcncf_analysis.diagnosis.scoring import score
from hpcncf_analysis.diagnosis.verdict import diagnose

__all__ = [
    "CAUSES",
    "Cause",
    "CoreCounts",
    "Diagnosis",
    "Finding",
    "Gain",
    "Verdict",
    "diagnose",
    "of_attempt",
    "of_results",
    "score",
]
