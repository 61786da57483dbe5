"""The sizes of the full-size model, and how its functions are compiled: with constants for sizes
LLVM makes vectors of short loops, too."""

from __future__ import annotations

import os

import numpy as np
from numba import njit

GMF, MLP, CONTEXT, NEGATIVES = 8, 32, 21, 4
LAYERS = 32, 16, 8
EACH = 1 + NEGATIVES
WIDTH = MLP + GMF
STRIDE = 128
"""Of a table's row: parameters, first and second moments, filled up to cache lines."""
SHARED = 56
"""The first layer's inputs that a positive shares with its negatives: user, context, zeros."""
TILE = 32
"""Positives that go through the model together: their numbers stay in the second cache."""
INSTANCES = TILE * EACH
"""Of a tile: all positives, then everyone's first negative, and so on."""

F = np.float32
B1, B2, TAKE1, TAKE2 = F(0.9), F(0.999), F(1 - 0.9), F(1 - 0.999)
EPSILON = 1e-8

BLAS = os.environ["PRODUCTS"] == "blas"
"""Products by np.dot, else by loops. Numba compiles it in, so each needs a cache of its own."""

# LLVM's freedoms, but not to assume that no number is infinite or NaN: one that diverged must tell.
compiled = njit(
    fastmath={"contract", "reassoc", "nsz", "arcp", "afn"}, error_model="numpy", cache=True
)
