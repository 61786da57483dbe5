"""Settings that exclude each other, places of packed runs, a lower bound of memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil
from typing import Final

from hpcncf.job.spec import Model, Resources, Training


def placement_conflicts(resources: Resources) -> list[str]:
    """Why these resources do not go together, each with what would; empty when they do."""
    node, gpu, ranks = resources.runs_per_node, resources.runs_per_gpu, resources.ranks_per_gpu
    gpus, tasks = resources.gpus_per_node, resources.tasks_per_node
    shares = "mps" if resources.mps else f"runs_per_{'gpu' if gpu > 1 else 'node'}"
    sharing = next((name for name, is_so in _on_gpus(resources) if is_so), "")
    rules = [
        (
            resources.packed and resources.nodes > 1,
            f"resources.{shares} places whole runs on one node, and nodes is {resources.nodes}: "
            "use nodes 1",
        ),
        (
            resources.packed and resources.launcher == "torchrun",
            f"resources.{shares} with launcher torchrun: a process of hpcncf's own starts the "
            "ranks of runs side by side: use launcher srun",
        ),
        (
            sharing != "" and gpus == 0,
            f"resources.{sharing} shares a GPU, and gpus_per_node is 0: set it, or leave "
            f"{sharing} out",
        ),
        (
            node > 1 and node % gpu > 0,
            f"resources.runs_per_node {node} is no multiple of runs_per_gpu {gpu}: the last GPU "
            "would have fewer runs than the others",
        ),
        (
            ranks > 1 and gpus > 0 and tasks != gpus * ranks,
            f"resources.ranks_per_gpu {ranks} on gpus_per_node {gpus} are {gpus * ranks} ranks on "
            f"each node, and tasks_per_node is {tasks}: make them equal",
        ),
    ]
    return [reason for broken, reason in rules if broken]


def _on_gpus(resources: Resources) -> list[tuple[str, bool]]:
    return [
        ("runs_per_gpu", resources.runs_per_gpu > 1),
        ("ranks_per_gpu", resources.ranks_per_gpu > 1),
        ("mps", resources.mps),
    ]


def slot_cpus(slot: int, resources: Resources, ordered: Sequence[int]) -> list[int]:
    """The CPUs of the run in that slot, where the job has `ordered`: those of a core in a row."""
    each = resources.cores
    return list(ordered[slot * each : (slot + 1) * each])


def slot_gpus(slot: int, resources: Resources, visible: Sequence[str]) -> list[str]:
    """The GPUs of the run in that slot, as the job names its own."""
    each = resources.gpus_per_node
    first = slot // resources.runs_per_gpu * each
    return list(visible[first : first + each])


def gpu_conflicts(resources: Resources, training: Training) -> list[str]:
    """As of `conflicts.conflicts`."""
    rules = (_conflicts_of_graphs, _conflicts_of_rowwise, _conflicts_of_precision)
    return [reason for each in rules for reason in each(resources, training)]


def describe_gloo_choice(resources: Resources, training: Training) -> str | None:
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


def _conflicts_of_graphs(resources: Resources, training: Training) -> list[str]:
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


def _conflicts_of_rowwise(resources: Resources, training: Training) -> list[str]:
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


def _conflicts_of_precision(resources: Resources, training: Training) -> list[str]:
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


# A step's count is of what its backward pass still needs of every instance, four bytes a
# number:
# engine `reference` the indices, four gathered embeddings, the MLP's input and each layer's
# output;
# engine `rowwise` the indices, one gathered row and each layer's output. Engine `native` works
# on a
# few instances at a time, and a GPU's memory is not the request's.

GIB: Final = 2**30
FLOAT_BYTES: Final = 4
# Copies of every parameter: its value, Adam's two moments, and torch's gradient.
PARAMETER_COPIES: Final = {"reference": 4, "rowwise": 3, "native": 3}


def memory_conflicts(resources: Resources, training: Training, model: Model) -> list[str]:
    """Why the request is too small for what it asks, with numbers; empty where it may do."""
    if training.device_for(resources) == "cuda":
        return []
    step = step_bytes(resources, training, model)
    needs = (
        (
            step,
            f"training.negatives {training.negatives}: a step's "
            f"{instances_at_once(resources, training):,} instances",
            "use fewer negatives, a smaller batch",
        ),
        (
            model_bytes(training, model, users=1, items=1),
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


def instances_at_once(resources: Resources, training: Training) -> int:
    """That a rank takes through the model at once: positives and their negatives."""
    share = ceil(training.batch_over_ranks(resources.world_size) / resources.world_size)
    return ceil(share / training.accumulate) * (1 + training.negatives)


def step_bytes(resources: Resources, training: Training, model: Model) -> int:
    """Bytes on each rank."""
    outputs = FLOAT_BYTES * sum(model.layers)
    row = FLOAT_BYTES * (model.gmf_width + model.mlp_width)
    each = {
        "reference": 20 + 2 * row + FLOAT_BYTES * 2 * model.mlp_width + outputs,
        "rowwise": 16 + row + outputs,
        "native": 0,
    }
    return instances_at_once(resources, training) * each[training.engine]


def model_bytes(training: Training, model: Model, users: int, items: int, context: int = 0) -> int:
    """Bytes on each rank: parameters and what the optimiser keeps of them."""
    inputs, dense = 2 * model.mlp_width + context, 0
    for width in model.layers:
        dense, inputs = dense + (inputs + 1) * width, width
    dense += model.gmf_width + inputs + 1
    tables = (users + items) * (model.gmf_width + model.mlp_width)
    copies = PARAMETER_COPIES[training.engine] if training.optimizer == "adam" else 1
    return FLOAT_BYTES * copies * (tables + dense)


# What torch alone has a use for, and why the other engines have none.
REFERENCE_ONLY: Final = {
    "accumulate": "a step's gradients are made at once; a larger batch is the same mathematics",
    "parallel": "no module of torch's computes there that could be copied to several GPUs",
    "bucket_mb": "no buckets of DistributedDataParallel are exchanged there",
    "gradient_as_bucket_view": "no buckets of DistributedDataParallel are exchanged there",
    "static_graph": "there is no graph of torch's",
}
# And what engine rowwise has a use for as well.
NOT_NATIVE: Final = {
    "compile": "its forward and backward are written out, not a module's that could be compiled",
    "precision": "it computes in float32",
    "tf32": "it runs on CPUs, which have none",
}
NATIVE_LAYERS: Final = 16
"""So many engine native has room for."""
WORKER_SETTINGS: Final = ("workers", "persistent_workers", "prefetch_factor")
LOADER_SETTINGS: Final = ("num_workers", *WORKER_SETTINGS, "collate")
COPY_SETTINGS: Final = ("pin_memory", "non_blocking", "prefetch_to_device")
DDP_SETTINGS: Final = ("bucket_mb", "gradient_as_bucket_view", "static_graph")


def training_conflicts(resources: Resources, training: Training) -> list[str]:
    """Why these settings do not go together, each with what would; empty when they do."""
    rules = (
        _resource_conflicts,
        _engine_conflicts,
        gpu_conflicts,
        _foreign_conflicts,
        _torch_conflicts,
        _lr_conflicts,
        _sync_conflicts,
        _loader_conflicts,
        _profile_conflicts,
    )
    return [reason for each in rules for reason in each(resources, training)]


def model_conflicts(training: Training, model: Model) -> list[str]:
    """The same, of how a model trains."""
    rules = [
        (
            training.engine == "native",
            "training.engine native, which has none: use engine rowwise, or 0",
        ),
        (
            training.cuda_graph,
            "training.cuda_graph: a run that resumes could not go on with the masks that replays "
            "draw; leave cuda_graph out, or use 0",
        ),
    ]
    reasons = [
        f"model.dropout {model.dropout:g} with {reason}"
        for broken, reason in rules
        if broken and model.dropout
    ]
    if training.engine == "native" and len(model.layers) > NATIVE_LAYERS:
        reasons.append(
            f"model.layers has {len(model.layers)} with training.engine native, which has room for "
            f"{NATIVE_LAYERS}: use engine rowwise, or fewer"
        )
    return reasons


def _resource_conflicts(resources: Resources, training: Training) -> list[str]:
    device = training.device_for(resources)
    backend = training.backend_for(resources)
    ranks, batch = resources.world_size, training.batch_over_ranks(resources.world_size)
    rules = [
        (
            device == "cuda" and resources.gpus_per_node == 0,
            "training.device cuda needs a GPU: set resources.gpus_per_node",
        ),
        (
            backend == "nccl" and device == "cpu",
            "training.backend nccl moves GPU memory only: use gloo with device cpu",
        ),
        (
            backend == "nccl" and resources.tasks_per_node > resources.gpus_per_node > 0,
            "nccl refuses two ranks on one device: "
            f"tasks_per_node {resources.tasks_per_node} exceeds "
            f"gpus_per_node {resources.gpus_per_node}; use backend: gloo, or more GPUs",
        ),
        (
            resources.ranks_per_gpu > 1 and device == "cpu",
            f"resources.ranks_per_gpu {resources.ranks_per_gpu} with training.device cpu, where "
            "ranks use no GPU: leave it out, or use device cuda",
        ),
        (
            training.threads != "auto" and training.threads > resources.cpus_per_task,
            f"training.threads {training.threads} exceeds resources.cpus_per_task "
            f"{resources.cpus_per_task}: threads without a core of their own take turns and "
            "slow each other down; ask for more cores or fewer threads",
        ),
        (
            batch < ranks,
            f"training.global_batch_size {batch} is less than the {ranks} ranks: "
            "some would have nothing to do in every step",
        ),
    ]
    return [reason for broken, reason in rules if broken]


def _engine_conflicts(resources: Resources, training: Training) -> list[str]:
    by_rows, optimizer = training.engine != "reference", training.optimizer
    native = training.engine == "native"
    rules = [
        (
            native and training.loader != "vectorized",
            f"training.loader {training.loader} with engine native, which draws its instances "
            "itself, the same ones: leave the loader out",
        ),
        (
            native and training.device_for(resources) == "cuda",
            "training.engine native runs on CPUs: set training.device cpu, or use engine rowwise",
        ),
        (
            by_rows and training.sparse,
            f"training.sparse says what torch's own gradients look like; engine {training.engine} "
            "has none of whole tables: leave it out, or use engine reference",
        ),
        (
            training.adam != "default" and (by_rows or optimizer != "adam"),
            f"training.adam {training.adam} is one of torch's implementations of Adam, for engine "
            f"reference with optimizer adam; this is engine {training.engine} with optimizer "
            f"{optimizer}: leave it out",
        ),
        (
            not by_rows and training.sparse and optimizer == "adam",
            "training.sparse with optimizer adam: Adam moves every row in every step, so torch's "
            "refuses sparse gradients; use optimizer lazy_adam or sgd, or engine rowwise, which "
            "catches idle rows up when they are next read",
        ),
        (
            not by_rows and optimizer == "lazy_adam" and not training.sparse,
            "training.optimizer lazy_adam is torch's SparseAdam in engine reference, which takes "
            "sparse gradients only: set sparse: true, or use engine rowwise",
        ),
        (
            training.sparse
            and training.sync == "dense"
            and resources.world_size > 1
            and training.backend_for(resources) == "nccl",
            "training.sparse with backend nccl: nccl exchanges dense gradients only; use gloo, or "
            "one rank",
        ),
        (
            training.weight_decay > 0 and (by_rows or training.sparse or optimizer == "lazy_adam"),
            f"training.weight_decay {training.weight_decay:g} pulls at every row in every step; "
            "rows that no batch has would not feel it here (engines rowwise and native, sparse: "
            "true and lazy_adam leave them): use engine reference with adam or sgd, or 0",
        ),
    ]
    return [reason for broken, reason in rules if broken]


def _changed_settings(training: Training, names: Iterable[str]) -> list[str]:
    """Those of the settings that are not at their defaults."""
    defaults = Training.model_fields
    return [each for each in names if getattr(training, each) != defaults[each].default]


def _foreign_conflicts(_: Resources, training: Training) -> list[str]:
    if training.engine != "reference":
        foreign = REFERENCE_ONLY | (NOT_NATIVE if training.engine == "native" else {})
        return [
            f"training.{each} is not for engine {training.engine}: {foreign[each]}: leave it out"
            for each in _changed_settings(training, foreign)
        ]
    if training.sync != "dense":
        return [
            f"training.{each} is for the all-reduce of sync dense; with sync {training.sync} no "
            "gradients are exchanged: leave it out"
            for each in _changed_settings(training, DDP_SETTINGS)
        ]
    return []


def _torch_conflicts(resources: Resources, training: Training) -> list[str]:
    if training.engine != "reference":
        return []
    ranks = resources.world_size
    share = training.batch_over_ranks(ranks) // ranks
    rules = [
        (
            training.accumulate > max(1, share),
            f"training.accumulate {training.accumulate} exceeds the {share} positives that each "
            "of the ranks has in a step: some parts would be empty; use fewer, or a larger batch",
        ),
        (
            training.accumulate > 1 and training.static_graph,
            "training.static_graph with accumulate: torch's DDP fails there, or leaves gradients "
            "out (pytorch/pytorch issue 143580): use one of the two",
        ),
        (
            training.parallel == "data_parallel" and ranks > 1,
            f"training.parallel data_parallel is one process for all GPUs, not {ranks} ranks: use "
            "one rank, or parallel ddp",
        ),
        (
            training.parallel == "data_parallel" and training.compile != "none",
            f"training.compile {training.compile} with parallel data_parallel, which copies the "
            "module to each GPU anew in every step: use compile none, or ranks with parallel ddp",
        ),
    ]
    return [reason for broken, reason in rules if broken]


def _lr_conflicts(_: Resources, training: Training) -> list[str]:
    if training.lr_scale != "none" or not _changed_settings(training, ["lr_base_batch"]):
        return []
    return [
        f"training.lr_base_batch {training.lr_base_batch} has no meaning with lr_scale none: set "
        "lr_scale linear or sqrt, or leave it out"
    ]


def _sync_conflicts(resources: Resources, training: Training) -> list[str]:
    by_rows, ranks = training.engine != "reference", resources.world_size
    rules = [
        (
            by_rows and training.sync == "dense" and ranks > 1,
            f"training.engine {training.engine} in {ranks} ranks with sync dense, which exchanges "
            "whole tables' gradients, that it never makes: use sync rows or local_sgd, engine "
            "reference, or one rank with more threads",
        ),
        (
            not by_rows and training.sync == "rows",
            "training.sync rows exchanges the gradients of the rows that a step read; engine "
            "reference makes those of whole tables: use engine rowwise, or sync dense",
        ),
        (
            training.sync != "local_sgd" and training.sync_every != 16,
            f"training.sync_every {training.sync_every} says how often sync local_sgd takes the "
            f"mean, and sync {training.sync} exchanges in every step: leave it out, or use "
            "local_sgd",
        ),
    ]
    return [reason for broken, reason in rules if broken]


def _loader_conflicts(resources: Resources, training: Training) -> list[str]:
    workers, cores = training.num_workers, resources.cpus_per_task
    if training.loader == "vectorized":
        return [
            f"training.{each} has no meaning with loader vectorized, which makes whole batches in "
            "the rank itself: leave it out, or use loader per_sample or batched"
            for each in _changed_settings(training, LOADER_SETTINGS)
        ]
    if training.loader == "device":
        return [
            f"training.{each} has no meaning with loader device, whose batches are made where the "
            "model trains, by the rank itself: leave it out, or use another loader"
            for each in _changed_settings(training, (*LOADER_SETTINGS, *COPY_SETTINGS))
        ]
    given = "" if workers else ", ".join(_changed_settings(training, WORKER_SETTINGS))
    rules = [
        (
            workers > cores,
            f"training.num_workers {workers} of each of {resources.world_size} ranks are "
            f"{workers * resources.world_size} workers on {cores * resources.world_size} cores, "
            f"where they take turns: at most {cores} (resources.cpus_per_task)",
        ),
        (given != "", f"training.{given} says how workers work, and num_workers is 0: set it"),
        (
            training.workers == "thread" and not training.persistent_workers,
            "training.persistent_workers is about processes; threads (workers: thread) begin in no "
            "time: leave it out",
        ),
        (
            training.collate != "default" and training.loader != "per_sample",
            f"training.collate {training.collate} makes batches of samples, and loader "
            f"{training.loader} has none: use loader per_sample, or leave it out",
        ),
    ]
    return [reason for broken, reason in rules if broken]


def _profile_conflicts(_: Resources, training: Training) -> list[str]:
    of = {"profile_steps": training.profile != "torch", "profile_ranks": training.profile == "none"}
    return [
        f"training.{each} has no meaning with training.profile {training.profile}: leave it out"
        for each in _changed_settings(training, of)
        if of[each]
    ]
