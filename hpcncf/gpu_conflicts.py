"""What a GPU makes faster, and where it cannot: graphs, compiled steps, precision."""

from __future__ import annotations

from hpcncf.spec import Resources, Training


def reasons(resources: Resources, training: Training) -> list[str]:
    """As of `conflicts.conflicts`."""
    rules = (_of_graphs, _of_rowwise, _of_precision)
    return [reason for each in rules for reason in each(resources, training)]


def shared(resources: Resources, training: Training) -> str | None:
    """That `backend: auto` is not nccl on these GPUs, and what would make it so."""
    tasks, gpus = resources.tasks_per_node, resources.gpus_per_node
    on_gpu = training.device_for(resources) == "cuda"
    if training.backend != "auto" or not on_gpu or training.backend_for(resources) == "nccl":
        return None
    return (
        f"{tasks} ranks share {gpus} GPU{'s' * (gpus > 1)} on each node, and nccl refuses two on "
        "one: training.backend auto is gloo here, through the host's memory; with a rank for each "
        "GPU it is nccl"
    )


def _of_graphs(resources: Resources, training: Training) -> list[str]:
    if not training.cuda_graph:
        return []
    rules = [
        (
            training.device_for(resources) == "cpu",
            "captures what is queued on a GPU, and this run trains on a CPU: leave it out, or set "
            "resources.gpus_per_node",
        ),
        (
            training.engine != "rowwise",
            f"with engine {training.engine}: a replay repeats the same operations on the same "
            "memory, and only engine rowwise's step is made of such; use engine rowwise, or leave "
            "it out",
        ),
        (
            training.loader != "device",
            f"with loader {training.loader}, which makes batches on the host, where a replay reads "
            "nothing: use loader device",
        ),
        (
            resources.world_size > 1,
            f"with {resources.world_size} ranks, whose exchange is no part of a graph: use one "
            "rank, or leave it out",
        ),
        (
            training.profile == "torch",
            "with profile torch, which would see replays and none of their operations: leave one "
            "of the two out",
        ),
    ]
    return [f"training.cuda_graph {reason}" for broken, reason in rules if broken]


def _of_rowwise(resources: Resources, training: Training) -> list[str]:
    if training.engine != "rowwise":
        return []
    rules = [
        (
            training.compile == "torchscript",
            "training.compile torchscript is for engine reference, whose forward is a module's; "
            "engine rowwise's step is none: use compile inductor, or leave it out",
        ),
        (
            training.compile != "none" and resources.world_size > 1,
            f"training.compile {training.compile} with engine rowwise in {resources.world_size} "
            "ranks, which exchange in the midst of a step: use one rank, or compile none",
        ),
        (
            training.precision != "float32" and training.device_for(resources) == "cpu",
            f"training.precision {training.precision} with engine rowwise on a CPU, where rounding "
            "its factors costs more than it saves: use a GPU, engine reference, or float32",
        ),
    ]
    return [reason for broken, reason in rules if broken]


def _of_precision(resources: Resources, training: Training) -> list[str]:
    rules = [
        (
            training.precision == "float16"
            and training.engine == "reference"
            and training.optimizer == "lazy_adam",
            "training.precision float16 with optimizer lazy_adam, which is two of torch's: a "
            "gradient scaler could skip one's step and take the other's; use bfloat16, or adam",
        ),
        (
            training.precision == "float16"
            and training.engine == "reference"
            and training.sync == "local_sgd"
            and resources.world_size > 1,
            "training.precision float16 with sync local_sgd: a rank's gradient scaler would skip "
            "steps that the others take; use bfloat16, or sync dense",
        ),
        (
            training.tf32 and training.precision != "float32",
            f"training.tf32 is about products of float32, and precision is {training.precision}: "
            "leave one of the two out",
        ),
    ]
    return [reason for broken, reason in rules if broken]
