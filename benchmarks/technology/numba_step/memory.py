"""Where the model's numbers lie, and those of a step: weights as torch has them, [out, in]."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sizes import CONTEXT, EACH, GMF, INSTANCES, LAYERS, MLP, SHARED, STRIDE, TILE, WIDTH

FIRST, SECOND, THIRD = LAYERS
# Where the dense parameters lie: the first layer's weights for what is shared, and for the item.
ITEM = FIRST * SHARED
BIAS0 = ITEM + FIRST * MLP
WEIGHTS1 = BIAS0 + FIRST
BIAS1 = WEIGHTS1 + SECOND * FIRST
WEIGHTS2 = BIAS1 + SECOND
BIAS2 = WEIGHTS2 + THIRD * SECOND
OUTPUT = BIAS2 + THIRD
DENSE = OUTPUT + GMF + THIRD + 1

Array = NDArray[Any]


class Model(NamedTuple):
    users: Array
    items: Array
    dense: Array
    first: Array
    second: Array
    gradient: Array
    """Of the dense parameters; `first` and `second` are their moments."""
    seen_users: Array
    seen_items: Array
    """[row]: the last step that had it, and there its place among the distinct rows."""


class Scratch(NamedTuple):
    user_slot: Array
    item_slot: Array
    user_ids: Array
    item_ids: Array
    user_gradient: Array
    item_gradient: Array
    shared: Array
    item: Array
    gmf_user: Array
    gmf_item: Array
    half: Array
    z0: Array
    z1: Array
    z2: Array
    half_delta: Array
    d0: Array
    d1: Array
    d2: Array
    logits: Array
    slopes: Array
    d_shared: Array
    d_item: Array
    d_gmf_user: Array
    d_gmf_item: Array


def zeros(*shape: int, kind: type = np.float32) -> Array:
    """At a cache line; in huge pages, which numpy asks for in `empty` only."""
    size = math.prod(shape) * np.dtype(kind).itemsize
    memory = np.empty(size + 64, np.uint8)
    memory[:] = 0
    begin = -memory.ctypes.data % 64
    return memory[begin : begin + size].view(kind).reshape(shape)


def model_of(users: int, items: int) -> Model:
    dense = (zeros(DENSE) for _ in range(4))
    seen = (np.full(rows, -1, np.int64) for rows in (users, items))
    return Model(zeros(users, STRIDE), zeros(items, STRIDE), *dense, *seen)


def room(positives: int) -> Scratch:
    each = positives * EACH
    slots = (zeros(count, kind=np.int32) for count in (positives, each, positives, each))
    gradients = zeros(positives, WIDTH), zeros(each, WIDTH)
    inputs = zeros(SHARED, TILE), zeros(MLP, INSTANCES), zeros(GMF, TILE), zeros(GMF, INSTANCES)
    outputs = zeros(FIRST, TILE), *(zeros(width, INSTANCES) for width in LAYERS)
    deltas = zeros(FIRST, TILE), *(zeros(width, INSTANCES) for width in LAYERS)
    losses = zeros(INSTANCES), zeros(INSTANCES)
    back = zeros(SHARED, TILE), zeros(MLP, INSTANCES), zeros(GMF, TILE), zeros(GMF, INSTANCES)
    return Scratch(*slots, *gradients, *inputs, *outputs, *deltas, *losses, *back)


def model_from(start: dict[str, Array]) -> Model:
    """From torch's parameters, by their names."""
    tables = [
        np.concatenate(
            [start[f"{part}_Embedding_{whose}.weight"] for part in ("MLP", "MF")], axis=1
        )
        for whose in ("User", "Item")
    ]
    model = model_of(*(len(each) for each in tables))
    for mine, theirs in zip((model.users, model.items), tables, strict=True):
        mine[:, :WIDTH] = theirs
    dense, weights = model.dense, start["MLP_layers.0.weight"]
    shared = dense[:ITEM].reshape(FIRST, SHARED)
    shared[:, :MLP] = weights[:, :MLP]
    shared[:, MLP : MLP + CONTEXT] = weights[:, 2 * MLP :]
    dense[ITEM:BIAS0] = weights[:, MLP : 2 * MLP].reshape(-1)
    names = ["0.bias", "2.weight", "2.bias", "4.weight", "4.bias"]
    rest = [start[f"MLP_layers.{name}"] for name in names]
    rest += [start[f"predict_layer.{name}"] for name in ("weight", "bias")]
    dense[BIAS0:] = np.concatenate([each.reshape(-1) for each in rest])
    return model
