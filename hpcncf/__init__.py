"""Measure why a recommender's training job wastes its cores, and what to ask for instead."""

TYPE_CHECKING = False  # `typing` itself is slow to load
if TYPE_CHECKING:
    from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> "Any":
    """Import a public name when it is first used, so that commands start without it."""
    if name in ("submit", "Future", "RunFailed"):
        import importlib

        return getattr(importlib.import_module("hpcncf.launch.function"), name)
    raise AttributeError(f"module 'hpcncf' has no attribute {name!r}")
