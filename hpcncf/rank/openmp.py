"""What OpenMP is told before torch, which brings it along, is loaded. Imports no torch."""

from __future__ import annotations

import os
import sys

from hpcncf.spec import Training


def tell(training: Training) -> list[str]:
    """Set what it reads once, when it is loaded; returns why that comes too late, if it does."""
    if training.omp_wait_policy == "default":
        return []
    os.environ["OMP_WAIT_POLICY"] = training.omp_wait_policy
    if "torch" not in sys.modules:
        return []
    return ["training.omp_wait_policy has no effect: torch was loaded before the run was known"]
