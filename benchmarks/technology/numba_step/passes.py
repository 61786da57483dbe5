"""Forward and backward of a tile, whose numbers lie as [features, instances]."""

from __future__ import annotations

import math

import products
from memory import (
    BIAS0,
    BIAS1,
    BIAS2,
    DENSE,
    FIRST,
    ITEM,
    OUTPUT,
    SECOND,
    THIRD,
    WEIGHTS1,
    WEIGHTS2,
)
from sizes import EACH, GMF, INSTANCES, MLP, SHARED, TILE, F, compiled


@compiled
def gather(model, data, batch, s, first):
    for p in range(TILE):
        row, at = model.users[batch.users[first + p]], batch.rows[first + p]
        for c in range(MLP):
            s.shared[c, p] = row[c]
        for c in range(GMF):
            s.gmf_user[c, p] = row[MLP + c]
        numbers = data.numbers.shape[1]
        for c in range(numbers):
            s.shared[MLP + c, p] = data.numbers[at, c]
        for c in range(data.small.shape[1]):
            s.shared[MLP + numbers + c, p] = data.small[at, c]
    for p in range(TILE):
        for k in range(EACH):
            row, n = model.items[batch.items[first + p, k]], k * TILE + p
            for c in range(MLP):
                s.item[c, n] = row[c]
            for c in range(GMF):
                s.gmf_item[c, n] = row[MLP + c]


@compiled
def activate(z, bias):
    for j in range(z.shape[0]):
        for n in range(INSTANCES):
            z[j, n] = max(z[j, n] + bias[j], F(0))


@compiled
def forward(p, s):
    products.forward(p[:ITEM].reshape(FIRST, SHARED), s.shared, s.half)
    products.forward(p[ITEM:BIAS0].reshape(FIRST, MLP), s.item, s.z0)
    for j in range(FIRST):
        for k in range(EACH):
            for q in range(TILE):
                s.z0[j, k * TILE + q] += s.half[j, q]
    activate(s.z0, p[BIAS0:WEIGHTS1])
    products.forward(p[WEIGHTS1:BIAS1].reshape(SECOND, FIRST), s.z0, s.z1)
    activate(s.z1, p[BIAS1:WEIGHTS2])
    products.forward(p[WEIGHTS2:BIAS2].reshape(THIRD, SECOND), s.z1, s.z2)
    activate(s.z2, p[BIAS2:OUTPUT])
    s.logits[:] = p[DENSE - 1]
    for c in range(THIRD):
        for n in range(INSTANCES):
            s.logits[n] += p[OUTPUT + GMF + c] * s.z2[c, n]
    for c in range(GMF):
        for k in range(EACH):
            for q in range(TILE):
                n = k * TILE + q
                s.logits[n] += p[OUTPUT + c] * s.gmf_user[c, q] * s.gmf_item[c, n]


@compiled
def cross_entropy(s, scale):
    """The sum of the losses; slopes are times `scale`."""
    loss = 0.0
    for n in range(INSTANCES):
        z = s.logits[n] if n >= TILE else -s.logits[n]
        small = math.exp(-abs(z))
        slope = (F(1) if z > 0 else small) / (F(1) + small) * scale
        s.slopes[n] = slope if n >= TILE else -slope
        loss += max(z, F(0)) + math.log(F(1) + small)
    return loss


@compiled
def output_backward(p, g, s):
    for n in range(INSTANCES):
        g[DENSE - 1] += s.slopes[n]
    for c in range(GMF):
        weight, total = p[OUTPUT + c], F(0)
        s.d_gmf_user[c] = 0
        for k in range(EACH):
            for q in range(TILE):
                n = k * TILE + q
                slope_item = s.slopes[n] * s.gmf_item[c, n]
                total += slope_item * s.gmf_user[c, q]
                s.d_gmf_user[c, q] += slope_item * weight
                s.d_gmf_item[c, n] = s.slopes[n] * weight * s.gmf_user[c, q]
        g[OUTPUT + c] += total
    for c in range(THIRD):
        weight, total = p[OUTPUT + GMF + c], F(0)
        for n in range(INSTANCES):
            total += s.slopes[n] * s.z2[c, n]
            s.d2[c, n] = s.slopes[n] * weight if s.z2[c, n] > 0 else F(0)
        g[OUTPUT + GMF + c] += total


@compiled
def gate(d, z):
    for j in range(d.shape[0]):
        for n in range(INSTANCES):
            d[j, n] = d[j, n] if z[j, n] > 0 else F(0)


@compiled
def add_sums(d, g):
    for j in range(d.shape[0]):
        total = F(0)
        for n in range(d.shape[1]):
            total += d[j, n]
        g[j] += total


@compiled
def backward(p, g, s):
    output_backward(p, g, s)
    products.outer(s.d2, s.z1, g[WEIGHTS2:BIAS2].reshape(THIRD, SECOND))
    add_sums(s.d2, g[BIAS2:OUTPUT])
    products.backward(p[WEIGHTS2:BIAS2].reshape(THIRD, SECOND), s.d2, s.d1)
    gate(s.d1, s.z1)
    products.outer(s.d1, s.z0, g[WEIGHTS1:BIAS1].reshape(SECOND, FIRST))
    add_sums(s.d1, g[BIAS1:WEIGHTS2])
    products.backward(p[WEIGHTS1:BIAS1].reshape(SECOND, FIRST), s.d1, s.d0)
    gate(s.d0, s.z0)
    for j in range(FIRST):
        s.half_delta[j] = 0
        for k in range(EACH):
            for q in range(TILE):
                s.half_delta[j, q] += s.d0[j, k * TILE + q]
    products.outer(s.d0, s.item, g[ITEM:BIAS0].reshape(FIRST, MLP))
    products.outer(s.half_delta, s.shared, g[:ITEM].reshape(FIRST, SHARED))
    add_sums(s.half_delta, g[BIAS0:WEIGHTS1])
    products.backward(p[ITEM:BIAS0].reshape(FIRST, MLP), s.d0, s.d_item)
    products.backward(p[:ITEM].reshape(FIRST, SHARED), s.half_delta, s.d_shared)


@compiled
def scatter(s, first):
    for q in range(TILE):
        row = s.user_gradient[s.user_slot[first + q]]
        for c in range(MLP):
            row[c] += s.d_shared[c, q]
        for c in range(GMF):
            row[MLP + c] += s.d_gmf_user[c, q]
        for k in range(EACH):
            row, n = s.item_gradient[s.item_slot[(first + q) * EACH + k]], k * TILE + q
            for c in range(MLP):
                row[c] += s.d_item[c, n]
            for c in range(GMF):
                row[MLP + c] += s.d_gmf_item[c, n]
