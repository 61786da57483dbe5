"""What makes a comparison of two configurations' speeds worth less. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hpcncf_analysis import words
from hpcncf_analysis.advice.quality import is_worse
from hpcncf_analysis.summary import Configuration


def cautions(one: Configuration, base: Configuration) -> list[str]:
    """Sentence parts; empty where nothing speaks against comparing the two."""
    checks = (_processors(one, base), _quality(one, base))
    return [text for text in checks if text]


def _processors(one: Configuration, base: Configuration) -> str:
    ours, theirs = models(one.rows), models(base.rows)
    if not ours or not theirs or len({*ours, *theirs}) == 1:
        return ""
    return f"different CPU models ({' and '.join(ours)} against {' and '.join(theirs)})"


def models(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The CPU models that runs had, each once."""
    return sorted({row["cpu_model"] for row in rows if row.get("cpu_model")})


def _quality(one: Configuration, base: Configuration) -> str:
    ours, theirs = one.median("hr10"), base.median("hr10")
    if (ours is None) != (theirs is None):
        return "the quality of one of them was not evaluated"
    if is_worse(one, base) or is_worse(base, one):
        return f"unequal quality (HR@10 {words.score(ours)} against {words.score(theirs)})"
    return ""
