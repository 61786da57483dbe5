"""Drop-ins for the user's own PyTorch program. They need torch and numpy alone."""

from __future__ import annotations

import importlib
from typing import Any

MODULES: dict[str, str] = {
    "BatchLoader": "batch_loader",
    "NegativeSampler": "negative_sampler",
    "RowwiseAdam": "rowwise_optimizer",
    "rowwise": "rowwise_optimizer",
}
"""Public name -> the module here that defines it; imported when the name is first used."""

__all__ = sorted(MODULES)


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"hpcncf.remedies has no {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f"hpcncf.remedies.{MODULES[name]}"), name)
