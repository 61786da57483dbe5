"""What a run surely holds in memory at once, less than it really takes: enough to refuse by. Pure.

A step's count is of what its backward pass still needs of every instance, four bytes a number:
engine `reference` the indices, four gathered embeddings, the MLP's input and each layer's output;
engine `rowwise` the indices, one gathered row and each layer's output. Engine `native` works on a
few instances at a time, and a GPU's memory is not the request's.
"""

from __future__ import annotations

from math import ceil
from typing import Final

from hpcncf.spec import Model, Resources, Training

GIB: Final = 2**30
FLOAT: Final = 4
# Copies of every parameter: its value, Adam's two moments, and torch's gradient.
COPIES: Final = {"reference": 4, "rowwise": 3, "native": 3}


def conflicts_footprint(resources: Resources, training: Training, model: Model) -> list[str]:
    """Why the request is too small for what it asks, with numbers; empty where it may do."""
    if training.device_for(resources) == "cuda":
        return []
    step = of_step(resources, training, model)
    needs = (
        (
            step,
            f"training.negatives {training.negatives}: a step's "
            f"{instances(resources, training):,} instances",
            "use fewer negatives, a smaller batch",
        ),
        (
            of_model(training, model, users=1, items=1),
            "model: its parameters, with what the optimiser keeps of each,",
            "use narrower widths in model",
        ),
    )
    return [
        f"{what} take at least {each / GIB:.1f} GiB on each of {resources.tasks_per_node} "
        f"{'ranks' if resources.tasks_per_node > 1 else 'rank'} of a node, and "
        f"resources.mem_gb is {resources.mem_gb:g}: {instead}, or ask for more"
        for each, what, instead in needs
        if each * resources.tasks_per_node > resources.mem_gb * GIB
    ]


def instances(resources: Resources, training: Training) -> int:
    """That a rank takes through the model at once: positives and their negatives."""
    share = ceil(training.batch_over_ranks(resources.world_size) / resources.world_size)
    return ceil(share / training.accumulate) * (1 + training.negatives)


def of_step(resources: Resources, training: Training, model: Model) -> int:
    """Bytes on each rank."""
    outputs = FLOAT * sum(model.layers)
    row = FLOAT * (model.gmf_width + model.mlp_width)
    each = {
        "reference": 20 + 2 * row + FLOAT * 2 * model.mlp_width + outputs,
        "rowwise": 16 + row + outputs,
        "native": 0,
    }
    return instances(resources, training) * each[training.engine]


def of_model(training: Training, model: Model, users: int, items: int, context: int = 0) -> int:
    """Bytes on each rank: parameters and what the optimiser keeps of them."""
    inputs, dense = 2 * model.mlp_width + context, 0
    for width in model.layers:
        dense, inputs = dense + (inputs + 1) * width, width
    dense += model.gmf_width + inputs + 1
    tables = (users + items) * (model.gmf_width + model.mlp_width)
    copies = COPIES[training.engine] if training.optimizer == "adam" else 1
    return FLOAT * copies * (tables + dense)
