"""Measure why a recommender's training job wastes its cores, and what to ask for instead."""

import importlib
from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Imported when it is first used: commands start without it."""
    if name in ("submit", "Future", "RunFailed"):
        return getattr(importlib.import_module("hpcncf.launch.function"), name)
    raise AttributeError(f"module 'hpcncf' has no attribute {name!r}")
