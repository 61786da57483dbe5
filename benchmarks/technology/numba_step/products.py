"""Matrix products of a tile's numbers, [features, instances], by BLAS or by loops.

The loops are along the instances, where LLVM makes vectors; a block of four by four numbers of the
weights stays in registers. All sizes but the instances' are multiples of four.
"""

from __future__ import annotations

import numpy as np
from sizes import BLAS, compiled


@compiled
def add_product(w, x, y):
    """y += w @ x"""
    for j in range(0, w.shape[0], 4):
        for k in range(0, w.shape[1], 4):
            a00, a01, a02, a03 = w[j, k], w[j, k + 1], w[j, k + 2], w[j, k + 3]
            a10, a11, a12, a13 = w[j + 1, k], w[j + 1, k + 1], w[j + 1, k + 2], w[j + 1, k + 3]
            a20, a21, a22, a23 = w[j + 2, k], w[j + 2, k + 1], w[j + 2, k + 2], w[j + 2, k + 3]
            a30, a31, a32, a33 = w[j + 3, k], w[j + 3, k + 1], w[j + 3, k + 2], w[j + 3, k + 3]
            for n in range(x.shape[1]):
                x0, x1, x2, x3 = x[k, n], x[k + 1, n], x[k + 2, n], x[k + 3, n]
                y[j, n] += a00 * x0 + a01 * x1 + a02 * x2 + a03 * x3
                y[j + 1, n] += a10 * x0 + a11 * x1 + a12 * x2 + a13 * x3
                y[j + 2, n] += a20 * x0 + a21 * x1 + a22 * x2 + a23 * x3
                y[j + 3, n] += a30 * x0 + a31 * x1 + a32 * x2 + a33 * x3


@compiled
def add_outer(d, x, g):
    """g += d @ x.T"""
    zero = d.dtype.type(0)
    for j in range(0, d.shape[0], 4):
        for k in range(0, x.shape[0], 4):
            s00 = s01 = s02 = s03 = s10 = s11 = s12 = s13 = zero
            s20 = s21 = s22 = s23 = s30 = s31 = s32 = s33 = zero
            for n in range(d.shape[1]):
                d0, d1, d2, d3 = d[j, n], d[j + 1, n], d[j + 2, n], d[j + 3, n]
                x0, x1, x2, x3 = x[k, n], x[k + 1, n], x[k + 2, n], x[k + 3, n]
                s00 += d0 * x0
                s01 += d0 * x1
                s02 += d0 * x2
                s03 += d0 * x3
                s10 += d1 * x0
                s11 += d1 * x1
                s12 += d1 * x2
                s13 += d1 * x3
                s20 += d2 * x0
                s21 += d2 * x1
                s22 += d2 * x2
                s23 += d2 * x3
                s30 += d3 * x0
                s31 += d3 * x1
                s32 += d3 * x2
                s33 += d3 * x3
            g[j, k] += s00
            g[j, k + 1] += s01
            g[j, k + 2] += s02
            g[j, k + 3] += s03
            g[j + 1, k] += s10
            g[j + 1, k + 1] += s11
            g[j + 1, k + 2] += s12
            g[j + 1, k + 3] += s13
            g[j + 2, k] += s20
            g[j + 2, k + 1] += s21
            g[j + 2, k + 2] += s22
            g[j + 2, k + 3] += s23
            g[j + 3, k] += s30
            g[j + 3, k + 1] += s31
            g[j + 3, k + 2] += s32
            g[j + 3, k + 3] += s33


@compiled
def forward(w, x, y):
    """y = w @ x"""
    if BLAS:
        np.dot(w, x, y)
    else:
        y[:] = 0
        add_product(w, x, y)


@compiled
def backward(w, d, x):
    """x = w.T @ d"""
    if BLAS:
        np.dot(w.T, d, x)
    else:
        x[:] = 0
        add_product(w.T, d, x)


@compiled
def outer(d, x, g):
    """g += d @ x.T"""
    if BLAS:
        g += np.dot(d, x.T)
    else:
        add_outer(d, x, g)
