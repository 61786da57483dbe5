"""A remedy's settings, with what must go back to its default because it has no meaning beside them.

A job file that gives such a setting is refused (`hpcncf/conflicts.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hpcncf.conflicts import OF_LOADERS, OF_REFERENCE, OF_WORKERS
from hpcncf.spec import Training
from hpcncf_analysis.diagnosis.evidence import Evidence

# Setting of a remedy -> those that another value of it gave a meaning.
OVERRULED: Final[Mapping[str, tuple[str, ...]]] = {
    "training.loader": OF_LOADERS,
    "training.num_workers": OF_WORKERS,
    "training.engine": ("adam", "sparse", "compile", "precision", *OF_REFERENCE),
}


def applied(evidence: Evidence, **changes: Any) -> dict[str, Any]:
    """`training` settings to change in a run's job file; empty for a command."""
    if not evidence.trained:
        return {}
    dotted = {f"training.{name}": value for name, value in changes.items()}
    names = [name for key in dotted for name in OVERRULED.get(key, ())]
    plain = Training().model_dump(mode="json")
    given = {name: plain[name] for name in names if _given(evidence, name, plain[name])}
    return {f"training.{name}": value for name, value in given.items()} | dotted


def _given(evidence: Evidence, name: str, default: Any) -> bool:
    return bool(evidence.training.get(name, default) != default)
