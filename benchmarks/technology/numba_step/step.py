"""NeuMF's step with lazy Adam in Numba: hpcncf's engine native, `optimizer: lazy_adam`, again."""

from __future__ import annotations

import math

import numpy as np
from drawing import draw, order_keys
from passes import backward, cross_entropy, forward, gather, scatter
from prefetching import prefetch
from sizes import B1, B2, EACH, EPSILON, STRIDE, TAKE1, TAKE2, TILE, WIDTH, F, compiled


@compiled
def distinct(seen, at, step, slot, ids, gradient):
    """Which rows the step has, each once; their gradients begin at 0."""
    found, mark = 0, step << 32
    for n in range(len(at)):
        last = seen[at[n]]
        if last >= mark:
            slot[n] = last - mark
        else:
            seen[at[n]] = mark | found
            slot[n], ids[found] = found, at[n]
            gradient[found] = 0
            found += 1
    return found


@compiled
def ask_row(table, row):
    for line in range(STRIDE // 16):
        prefetch(table, row * STRIDE + 16 * line)


@compiled
def ask(model, batch, first, last):
    for p in range(first, last):
        ask_row(model.users, np.int64(batch.users[p]))
        for k in range(EACH):
            ask_row(model.items, np.int64(batch.items[p, k]))


@compiled
def adam(p, m, v, g, rate, floor):
    for c in range(len(p)):
        m[c] = B1 * m[c] + TAKE1 * g[c]
        v[c] = B2 * v[c] + TAKE2 * g[c] * g[c]
        p[c] -= rate * m[c] / (math.sqrt(v[c]) + floor)


@compiled
def move(table, ids, gradients, count, rate, floor):
    """As `adam` does, of one array, so that LLVM sees that its parts are apart."""
    for n in range(count):
        if n + 4 < count:
            ask_row(table, np.int64(ids[n + 4]))
        row, g = table[ids[n]], gradients[n]
        for c in range(WIDTH):
            first = B1 * row[WIDTH + c] + TAKE1 * g[c]
            second = B2 * row[2 * WIDTH + c] + TAKE2 * g[c] * g[c]
            row[WIDTH + c], row[2 * WIDTH + c] = first, second
            row[c] -= rate * first / (math.sqrt(second) + floor)


@compiled
def take(data, batch, model, s, number, lr):
    """The step of this number, the first is 1; the next tile's rows come while one is at work."""
    items, count = batch.items.reshape(-1), len(batch.users)
    users_found = distinct(
        model.seen_users, batch.users, number, s.user_slot, s.user_ids, s.user_gradient
    )
    items_found = distinct(
        model.seen_items, items, number, s.item_slot, s.item_ids, s.item_gradient
    )
    model.gradient[:] = 0
    scale, loss = F(1 / len(items)), 0.0
    ask(model, batch, 0, TILE)
    for first in range(0, count, TILE):
        following, part = first + TILE, TILE // 4 if first + TILE < count else 0
        ask(model, batch, following, following + part)
        gather(model, data, batch, s, first)
        ask(model, batch, following + part, following + 2 * part)
        forward(model.dense, s)
        ask(model, batch, following + 2 * part, following + 3 * part)
        loss += cross_entropy(s, scale)
        backward(model.dense, model.gradient, s)
        ask(model, batch, following + 3 * part, following + 4 * part)
        scatter(s, first)
    correction = math.sqrt(1 - 0.999**number)
    rate = F(lr * correction / (1 - 0.9**number))
    move(model.users, s.user_ids, s.user_gradient, users_found, rate, F(EPSILON))
    move(model.items, s.item_ids, s.item_gradient, items_found, rate, F(EPSILON))
    floor = F(EPSILON * correction)
    adam(model.dense, model.first, model.second, model.gradient, rate, floor)
    return loss / len(items)


@compiled
def train(data, batch, model, s, seed, lr, done, losses):
    """Whole batches after the first `done`, one for each of `losses`."""
    count = len(batch.users)
    per_epoch, epoch, keys = len(data.rows) // count, -1, np.empty(0, np.uint64)
    for n in range(len(losses)):
        at = done + n
        if at // per_epoch != epoch:
            epoch = at // per_epoch
            keys = order_keys(seed, np.uint64(epoch))
        draw(data, batch, seed, np.uint64(epoch), keys, at % per_epoch * count, count)
        losses[n] = take(data, batch, model, s, at + 1, lr)
