"""What the diagnoses of a configuration's repeats agree on. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from hpcncf_analysis.diagnosis import Diagnosis
from hpcncf_analysis.summary import Configuration

Diagnoses = Mapping[str, Diagnosis]
"""Run id -> its diagnosis."""


def of(one: Configuration, diagnoses: Diagnoses) -> Diagnosis | None:
    """The first of those that most repeats share; None where most have none, or no two agree."""
    known = [diagnoses[row["run_id"]] for row in one.rows if row["run_id"] in diagnoses]
    if not known:
        return None
    said, times = Counter(map(_says, known)).most_common(1)[0]
    if 2 * times <= len(one.rows):
        return None
    return next(each for each in known if _says(each) == said)


def _says(diagnosis: Diagnosis) -> str:
    return diagnosis.primary.cause if diagnosis.primary else diagnosis.verdict
