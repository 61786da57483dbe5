"""What makes a comparison of two configurations' speeds worth less. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from hpcncf_analysis import words
from hpcncf_analysis.advice.quality import is_worse
from hpcncf_analysis.summary import Configuration

MODELS: Final = {"cpu_model": "CPU models", "gpu_model": "GPU models"}


def cautions(one: Configuration, base: Configuration) -> list[str]:
    """Sentence parts; empty where nothing speaks against comparing the two."""
    told = (*(_models(one, base, column) for column in MODELS), _quality(one, base))
    return [text for text in told if text]


def _models(one: Configuration, base: Configuration, column: str) -> str:
    ours, theirs = distinct(one.rows, column), distinct(base.rows, column)
    if not ours or not theirs or len({*ours, *theirs}) == 1:
        return ""
    return f"different {MODELS[column]} ({' and '.join(ours)} against {' and '.join(theirs)})"


def distinct(rows: Iterable[Mapping[str, Any]], column: str) -> list[str]:
    """The known values that runs had, each once."""
    return sorted({row[column] for row in rows if row.get(column)})


def _quality(one: Configuration, base: Configuration) -> str:
    ours, theirs = one.median("hr10"), base.median("hr10")
    if (ours is None) != (theirs is None):
        return "the quality of one of them was not evaluated"
    if is_worse(one, base) or is_worse(base, one):
        return f"unequal quality (HR@10 {words.score(ours)} against {words.score(theirs)})"
    return ""
