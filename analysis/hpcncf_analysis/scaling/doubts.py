"""Warnings about what is compared: unequal quality, outliers, runs of no one pace. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from hpcncf.tables import steady
from hpcncf_analysis import words
from hpcncf_analysis.advice.quality import is_worse
from hpcncf_analysis.labels import counted
from hpcncf_analysis.summary import Configuration, by_series


def doubts(shown: Sequence[Configuration]) -> list[str]:
    """Sentences, the gravest first; empty where nothing speaks against the comparison."""
    told = (_quality_doubts(shown), _outliers(shown), _unsteady(shown))
    return [text for text in told if text]


def _quality_doubts(shown: Sequence[Configuration]) -> str:
    pairs = [
        (one, members[0])
        for members in by_series(shown).values()
        for one in members[1:]
        if is_worse(one, members[0]) or is_worse(members[0], one)
    ]
    if not pairs:
        return ""
    one, base = pairs[0]
    return (
        f"{counted(len(pairs), 'speed-up')} compare models of unequal quality, as {one.label} "
        f"(HR@10 {words.score(one.median('hr10'))}) with {base.label} "
        f"({words.score(base.median('hr10'))}): as fast is not as good."
    )


def _outliers(shown: Sequence[Configuration]) -> str:
    far = [(one, row) for one in shown for row in one.rows if row.get("outlier") is not None]
    if not far:
        return ""
    one, row = far[0]
    return (
        f"Outliers among the repeats: {counted(len(far), 'run')}, as {row['run_id']} of "
        f"{one.label} ({words.times(row['outlier'])} the median): marked, and left in the medians."
    )


def _unsteady(shown: Sequence[Configuration]) -> str:
    rows = [row for one in shown for row in one.rows if "step_drift" in row]
    found = [row for row in rows if steady.unsteady(row)]
    if not found:
        return ""
    return (
        f"{counted(len(found), 'run')} did not keep one pace, as run {found[0]['run_id']}, "
        f"{steady.unsteady(found[0])[0]}: a run's one speed hides that."
    )
