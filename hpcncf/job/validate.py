"""Refuse settings that exclude each other, and runs that cannot fit into memory.

Each function returns one message per conflict: the setting, the reason, and what to change.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from typing import Final

from hpcncf.job.spec import PAPER_STD, Model, Resources, Training

REFERENCE_ONLY: Final = {
    "accumulate": "its gradients are computed at once; a larger batch is mathematically the same",
    "parallel": "it has no torch module to copy to several GPUs",
    "bucket_mb": "it exchanges no DistributedDataParallel buckets",
    "gradient_as_bucket_view": "it exchanges no DistributedDataParallel buckets",
    "static_graph": "it builds no autograd graph",
}
"""Settings of engine reference -> why the other engines do not use them."""
NOT_NATIVE: Final = {
    "compile": "its forward and backward passes are already compiled",
    "precision": "it computes in float32",
    "tf32": "it runs on CPUs, which have no TF32",
}
"""Settings of engines reference and rowwise -> why engine native does not use them."""
NATIVE_LAYERS: Final = 16
"""Most layers that engine native has room for."""
WORKER_SETTINGS: Final = ("workers", "persistent_workers", "prefetch_factor")
LOADER_SETTINGS: Final = ("num_workers", *WORKER_SETTINGS, "collate")
COPY_SETTINGS: Final = ("pin_memory", "non_blocking", "prefetch_to_device")
DDP_SETTINGS: Final = ("bucket_mb", "gradient_as_bucket_view", "static_graph")

GIB: Final = 2**30
FLOAT_BYTES: Final = 4
PARAMETER_COPIES: Final = {"reference": 4, "rowwise": 3, "native": 3}
"""Engine -> copies of each parameter with Adam: its value, two moments, and torch's gradient."""

BATCHES_IN_USE: Final = 2
"""Batches of a DataLoader worker beside the prefetched ones: one being built, one in use."""
SHARED_MEMORY_SHARE: Final = 0.5

Rules = Iterable[tuple[bool, str]]


def placement_conflicts(resources: Resources) -> list[str]:
    """Conflicts between the settings that let runs or ranks share a node or a GPU."""
    node, gpu, ranks = resources.runs_per_node, resources.runs_per_gpu, resources.ranks_per_gpu
    gpus, tasks = resources.gpus_per_node, resources.tasks_per_node
    packing = "mps" if resources.mps else f"runs_per_{'gpu' if gpu > 1 else 'node'}"
    shares_gpu = {"runs_per_gpu": gpu > 1, "ranks_per_gpu": ranks > 1, "mps": resources.mps}
    sharing = next((name for name, is_set in shares_gpu.items() if is_set), "")
    return _broken(
        [
            (
                resources.packed and resources.nodes > 1,
                f"resources.{packing} places whole runs on one node, but resources.nodes is "
                f"{resources.nodes}. Set nodes to 1",
            ),
            (
                resources.packed and resources.launcher == "torchrun",
                f"resources.{packing} does not work with launcher torchrun, since hpcncf itself "
                "starts the ranks of co-located runs. Use launcher srun",
            ),
            (
                sharing != "" and gpus == 0,
                f"resources.{sharing} shares a GPU, but gpus_per_node is 0. Set gpus_per_node, or "
                f"remove {sharing}",
            ),
            (
                node > 1 and node % gpu > 0,
                f"resources.runs_per_node {node} is not a multiple of runs_per_gpu {gpu}, so the "
                "last GPU would have fewer runs than the others. Change one of the two",
            ),
            (
                ranks > 1 and gpus > 0 and tasks != gpus * ranks,
                f"resources.ranks_per_gpu {ranks} times gpus_per_node {gpus} is {gpus * ranks} "
                f"ranks on each node, but tasks_per_node is {tasks}. Make them equal",
            ),
        ]
    )


def training_conflicts(resources: Resources, training: Training) -> list[str]:
    """Conflicts among training settings, and between them and the resources."""
    rules = (
        _device_rules,
        _engine_rules,
        _cuda_graph_rules,
        _precision_rules,
        _ddp_rules,
        _sync_rules,
        _loader_rules,
    )
    found = [reason for each in rules for reason in _broken(each(resources, training))]
    return found + _unused_settings(training)


def model_conflicts(training: Training, model: Model) -> list[str]:
    """Conflicts between training settings and the model."""
    dropout = f"model.dropout {model.dropout:g}"
    return _broken(
        [
            (
                model.dropout > 0 and training.engine == "native",
                f"{dropout} is not available in training.engine native. Use engine rowwise, or "
                "set dropout to 0",
            ),
            (
                model.dropout > 0 and training.cuda_graph,
                f"{dropout} does not work with training.cuda_graph, since a resumed run could not "
                "continue the random masks that replays draw. Remove cuda_graph, or set dropout "
                "to 0",
            ),
            (
                model.table_std is not None and model.embedding_std != PAPER_STD,
                f"model.embedding_std {model.embedding_std:g} is not available with model.init "
                f"{model.init}. Use init: {model.embedding_std:g}, for all tables, or remove "
                "embedding_std",
            ),
            (
                training.engine == "native" and len(model.layers) > NATIVE_LAYERS,
                f"model.layers has {len(model.layers)} layers, but training.engine native has room "
                f"for {NATIVE_LAYERS}. Use engine rowwise, or fewer layers",
            ),
        ]
    )


def memory_conflicts(resources: Resources, training: Training, model: Model) -> list[str]:
    """Why the run cannot fit into the memory that it requests; empty if it may fit.

    Compares lower bounds with the request, so a run that is not refused may still be too large.
    A GPU's memory is not part of the request.
    """
    if training.device_for(resources) == "cuda":
        return []
    ranks = resources.tasks_per_node
    needs = (
        (
            step_bytes(resources, training, model),
            f"training.negatives {training.negatives}: a step's "
            f"{instances_at_once(resources, training):,} instances need",
            "Use fewer negatives or a smaller batch",
        ),
        (
            model_bytes(training, model, users=1, items=1),
            "model: the parameters and the optimizer state need",
            "Use narrower widths in model",
        ),
    )
    return [
        f"{what} at least {needed / GIB:.1f} GiB on each of {ranks} rank{'s' * (ranks > 1)} of a "
        f"node, but resources.mem_gb is {resources.mem_gb:g}. {advice}, or request more memory"
        for needed, what, advice in needs
        if needed * ranks > resources.mem_gb * GIB
    ]


def instances_at_once(resources: Resources, training: Training) -> int:
    """Positives and negatives that a rank takes through the model at once."""
    share = ceil(training.batch_over_ranks(resources.world_size) / resources.world_size)
    return ceil(share / training.accumulate) * (1 + training.negatives)


def step_bytes(resources: Resources, training: Training, model: Model) -> int:
    """Lower bound on the bytes on each rank that the backward pass of a step needs.

    Engine `reference` keeps the indices, four gathered embeddings, the MLP's input and each
    layer's output; `rowwise` the indices, one gathered row and each layer's output. Engine
    `native` works on a few instances at a time.
    """
    outputs = FLOAT_BYTES * sum(model.layers)
    row = FLOAT_BYTES * (model.gmf_width + model.mlp_width)
    per_instance = {
        "reference": 20 + 2 * row + FLOAT_BYTES * 2 * model.mlp_width + outputs,
        "rowwise": 16 + row + outputs,
        "native": 0,
    }
    return instances_at_once(resources, training) * per_instance[training.engine]


def model_bytes(training: Training, model: Model, users: int, items: int, context: int = 0) -> int:
    """Bytes on each rank of the parameters and of the optimizer's state."""
    inputs, dense = 2 * model.mlp_width + context, 0
    for width in model.layers:
        dense, inputs = dense + (inputs + 1) * width, width
    dense += model.gmf_width + inputs + 1
    tables = (users + items) * (model.gmf_width + model.mlp_width)
    copies = PARAMETER_COPIES[training.engine] if training.optimizer == "adam" else 1
    return FLOAT_BYTES * copies * (tables + dense)


def shared_memory_bytes(training: Training, batch: int, context: int = 0) -> int:
    """Shared memory in which a rank's DataLoader workers hold batches of `batch` positives: a user
    and items as int64, `context` columns as float32."""
    if training.loader not in ("per_sample", "batched"):
        return 0
    if training.workers == "thread" or not training.num_workers:
        return 0
    positive = 8 + 8 * (1 + training.negatives) + 4 * context
    batches = training.num_workers * training.prefetch_factor + BATCHES_IN_USE
    return batches * batch * positive


def node_shared_memory_bytes(resources: Resources, training: Training) -> int:
    """Lower bound on the bytes in /dev/shm of a node with full prefetch queues."""
    share = ceil(training.batch_over_ranks(resources.world_size) / resources.world_size)
    ranks = resources.tasks_per_node * resources.side_by_side
    return ranks * shared_memory_bytes(training, share)


def describe_shared_memory(resources: Resources, training: Training) -> str | None:
    """A warning if DataLoader workers may fill half of the requested memory; else None."""
    held, asked = node_shared_memory_bytes(resources, training), resources.node_mem_gb * GIB
    if held <= SHARED_MEMORY_SHARE * asked:
        return None
    return (
        f"DataLoader workers may hold batches of {held / GIB:.1f} GiB in /dev/shm of each node, "
        f"which counts as memory of the job: it requests {resources.node_mem_gb:g} GB. Use fewer "
        "num_workers, a smaller prefetch_factor or batch, or workers: thread"
    )


def describe_gloo_choice(resources: Resources, training: Training) -> str | None:
    """Why `backend: auto` is gloo on GPUs, and how to get nccl; None if that is not so."""
    tasks, gpus = resources.tasks_per_node, resources.gpus_per_node
    on_gpu = training.device_for(resources) == "cuda"
    if training.backend != "auto" or not on_gpu or training.backend_for(resources) == "nccl":
        return None
    return (
        f"{tasks} ranks share {gpus} GPU{'s' * (gpus > 1)} on each node, and nccl refuses two "
        "ranks on one GPU: training.backend auto selects gloo, which goes through host memory. "
        "Request a GPU for each rank to get nccl"
    )


def _broken(rules: Rules) -> list[str]:
    return [reason for is_broken, reason in rules if is_broken]


def _non_default(training: Training, names: Iterable[str]) -> list[str]:
    fields = Training.model_fields
    return [name for name in names if getattr(training, name) != fields[name].default]


def _unused_settings(training: Training) -> list[str]:
    """Settings that the others leave without effect."""
    engine, workers, profile = training.engine, WORKER_SETTINGS, training.profile
    without_effect: list[tuple[bool, dict[str, str]]] = [
        (engine != "reference", _of_engine(engine, REFERENCE_ONLY)),
        (engine == "native", _of_engine(engine, NOT_NATIVE)),
        (
            engine == "reference" and training.sync != "dense",
            dict.fromkeys(
                DDP_SETTINGS,
                f"configures the all-reduce of sync dense, and sync {training.sync} exchanges no "
                "gradients. Remove it",
            ),
        ),
        (
            training.lr_scale == "none",
            {"lr_base_batch": "has no effect with lr_scale none. Use linear or sqrt, or remove it"},
        ),
        (
            training.sync != "local_sgd",
            {
                "sync_every": "is the interval of sync local_sgd, and sync "
                f"{training.sync} exchanges in every step. Remove it, or use local_sgd"
            },
        ),
        (
            training.loader == "vectorized",
            dict.fromkeys(
                LOADER_SETTINGS,
                "has no effect with loader vectorized, which builds whole batches in the rank "
                "itself. Remove it, or use loader per_sample or batched",
            ),
        ),
        (
            training.loader == "device",
            dict.fromkeys(
                (*LOADER_SETTINGS, *COPY_SETTINGS),
                "has no effect with loader device, which builds batches on the device that "
                "trains. Remove it, or use another loader",
            ),
        ),
        (
            training.loader in ("per_sample", "batched") and not training.num_workers,
            dict.fromkeys(workers, "configures workers, but num_workers is 0. Set num_workers"),
        ),
        (profile != "torch", {"profile_steps": f"has no effect with profile {profile}. Remove it"}),
        (
            profile != "py-spy",
            dict.fromkeys(
                ("profile_rate", "profile_native", "profile_subprocesses"),
                f"has no effect with profile {profile}. Use py-spy, or remove it",
            ),
        ),
        (profile == "none", {"profile_ranks": "has no effect with profile none. Remove it"}),
    ]
    return [
        f"training.{name} {reasons[name]}"
        for applies, reasons in without_effect
        if applies
        for name in _non_default(training, reasons)
    ]


def _of_engine(engine: str, reasons: dict[str, str]) -> dict[str, str]:
    return {
        name: f"is not for engine {engine}: {reason}. Remove it" for name, reason in reasons.items()
    }


def _device_rules(resources: Resources, training: Training) -> Rules:
    device, backend = training.device_for(resources), training.backend_for(resources)
    ranks, cores = resources.world_size, resources.cpus_per_task
    batch = training.batch_over_ranks(ranks)
    return [
        (
            device == "cuda" and resources.gpus_per_node == 0,
            "training.device cuda needs a GPU. Set resources.gpus_per_node",
        ),
        (
            backend == "nccl" and device == "cpu",
            "training.backend nccl only transfers GPU memory. Use gloo with device cpu",
        ),
        (
            backend == "nccl" and resources.tasks_per_node > resources.gpus_per_node > 0,
            "training.backend nccl refuses two ranks on one GPU, and tasks_per_node "
            f"{resources.tasks_per_node} exceeds gpus_per_node {resources.gpus_per_node}. Use "
            "backend gloo, or more GPUs",
        ),
        (
            resources.ranks_per_gpu > 1 and device == "cpu",
            f"resources.ranks_per_gpu {resources.ranks_per_gpu} has no effect with training.device "
            "cpu. Remove it, or use device cuda",
        ),
        (
            training.threads != "auto" and training.threads > cores,
            f"training.threads {training.threads} exceeds resources.cpus_per_task {cores}: threads "
            "that share a core slow each other down. Request more cores, or use fewer threads",
        ),
        (
            batch < ranks,
            f"training.global_batch_size {batch} is less than the {ranks} ranks, some of which "
            "would have no work in any step. Use a larger batch, or fewer ranks",
        ),
    ]


def _engine_rules(resources: Resources, training: Training) -> Rules:
    engine, optimizer = training.engine, training.optimizer
    by_rows, native = engine != "reference", engine == "native"
    exchanges = resources.world_size > 1
    return [
        (
            native and training.loader != "vectorized",
            f"training.loader {training.loader} is not for engine native, which draws the same "
            "instances itself. Remove the loader",
        ),
        (
            native and training.device_for(resources) == "cuda",
            "training.engine native runs on CPUs only. Set training.device cpu, or use engine "
            "rowwise",
        ),
        (
            by_rows and training.sparse,
            f"training.sparse selects torch's gradient format, and engine {engine} never builds "
            "gradients of whole tables. Remove it, or use engine reference",
        ),
        (
            training.adam != "default" and (by_rows or optimizer != "adam"),
            f"training.adam {training.adam} selects an implementation of Adam in engine reference, "
            f"but this run uses engine {engine} with optimizer {optimizer}. Remove it",
        ),
        (
            not by_rows and training.sparse and optimizer == "adam",
            "training.sparse does not work with optimizer adam, which updates every row in every "
            "step. Use optimizer lazy_adam or sgd, or engine rowwise, which applies the missed "
            "updates when it next reads a row",
        ),
        (
            not by_rows and optimizer == "lazy_adam" and not training.sparse,
            "training.optimizer lazy_adam is torch's SparseAdam in engine reference and needs "
            "sparse gradients. Set sparse: true, or use engine rowwise",
        ),
        (
            training.sparse
            and training.sync == "dense"
            and exchanges
            and training.backend_for(resources) == "nccl",
            "training.sparse does not work with backend nccl, which only exchanges dense "
            "gradients. Use gloo, or one rank",
        ),
        (
            training.weight_decay > 0 and (by_rows or training.sparse or optimizer == "lazy_adam"),
            f"training.weight_decay {training.weight_decay:g} must change every row in every step, "
            "but engines rowwise and native, sparse: true and lazy_adam skip rows that a batch "
            "does not read. Use engine reference with adam or sgd, or set weight_decay to 0",
        ),
        (
            engine == "rowwise" and training.compile == "torchscript",
            "training.compile torchscript needs the torch module of engine reference. Use compile "
            "inductor with engine rowwise, or remove it",
        ),
        (
            engine == "rowwise" and training.compile != "none" and exchanges,
            f"training.compile {training.compile} in engine rowwise does not work with "
            f"{resources.world_size} ranks, which exchange gradients in the middle of a step. Use "
            "one rank, or compile none",
        ),
    ]


def _cuda_graph_rules(resources: Resources, training: Training) -> Rules:
    if not training.cuda_graph:
        return []
    return [
        (
            training.device_for(resources) == "cpu",
            "training.cuda_graph needs a GPU, and this run trains on a CPU. Remove it, or set "
            "resources.gpus_per_node",
        ),
        (
            training.engine != "rowwise",
            f"training.cuda_graph does not work with engine {training.engine}, since a replay "
            "repeats the same operations on the same memory. Use engine rowwise, or remove it",
        ),
        (
            training.loader != "device",
            f"training.cuda_graph does not work with loader {training.loader}, which builds "
            "batches in host memory. Use loader device",
        ),
        (
            resources.world_size > 1,
            f"training.cuda_graph does not work with {resources.world_size} ranks, since a graph "
            "cannot contain their exchange. Use one rank, or remove it",
        ),
        (
            training.profile == "torch",
            "training.cuda_graph does not work with profile torch, which would record replays "
            "without their operations. Remove one of the two",
        ),
    ]


def _precision_rules(resources: Resources, training: Training) -> Rules:
    scaled = training.precision == "float16" and training.engine == "reference"
    return [
        (
            training.engine == "rowwise"
            and training.precision != "float32"
            and training.device_for(resources) == "cpu",
            f"training.precision {training.precision} makes engine rowwise slower on a CPU, where "
            "rounding costs more than it saves. Use a GPU, engine reference, or float32",
        ),
        (
            scaled and training.optimizer == "lazy_adam",
            "training.precision float16 does not work with optimizer lazy_adam, which consists of "
            "two torch optimizers: the gradient scaler could skip the step of only one. Use "
            "bfloat16, or adam",
        ),
        (
            scaled and training.sync == "local_sgd" and resources.world_size > 1,
            "training.precision float16 does not work with sync local_sgd: the gradient scaler of "
            "one rank would skip steps that other ranks take. Use bfloat16, or sync dense",
        ),
        (
            training.tf32 and training.precision != "float32",
            "training.tf32 affects float32 products only, and precision is "
            f"{training.precision}. Remove one of the two",
        ),
    ]


def _ddp_rules(resources: Resources, training: Training) -> Rules:
    if training.engine != "reference":
        return []
    ranks = resources.world_size
    share = training.batch_over_ranks(ranks) // ranks
    one_process = training.parallel == "data_parallel"
    return [
        (
            training.accumulate > max(1, share),
            f"training.accumulate {training.accumulate} exceeds the {share} positives that each "
            "rank has in a step, so some parts would be empty. Use fewer parts, or a larger batch",
        ),
        (
            training.accumulate > 1 and training.static_graph,
            "training.static_graph does not work with accumulate: DDP fails or drops gradients "
            "(pytorch/pytorch issue 143580). Remove one of the two",
        ),
        (
            one_process and ranks > 1,
            f"training.parallel data_parallel is one process for all GPUs, but the run has {ranks} "
            "ranks. Use one rank, or parallel ddp",
        ),
        (
            one_process and training.compile != "none",
            f"training.compile {training.compile} does not work with parallel data_parallel, which "
            "copies the module to each GPU in every step. Use compile none, or several ranks with "
            "parallel ddp",
        ),
    ]


def _sync_rules(resources: Resources, training: Training) -> Rules:
    by_rows, ranks = training.engine != "reference", resources.world_size
    return [
        (
            by_rows and training.sync == "dense" and ranks > 1,
            f"training.engine {training.engine} does not work with sync dense in {ranks} ranks, "
            "since it never builds the gradients of whole tables. Use sync rows or local_sgd, "
            "engine reference, or one rank with more threads",
        ),
        (
            not by_rows and training.sync == "rows",
            "training.sync rows exchanges the gradients of single rows, and engine reference "
            "builds those of whole tables. Use engine rowwise, or sync dense",
        ),
    ]


def _loader_rules(resources: Resources, training: Training) -> Rules:
    if training.loader not in ("per_sample", "batched"):
        return []
    workers, cores, ranks = training.num_workers, resources.cpus_per_task, resources.world_size
    return [
        (
            workers > cores,
            f"training.num_workers {workers} starts {workers * ranks} workers on "
            f"{cores * ranks} cores, where they slow each other down. Use at most {cores} "
            "(resources.cpus_per_task)",
        ),
        (
            workers > 0 and training.workers == "thread" and not training.persistent_workers,
            "training.persistent_workers applies to processes only, since threads start at once. "
            "Remove it, or use workers: process",
        ),
        (
            training.collate != "default" and training.loader != "per_sample",
            f"training.collate {training.collate} builds batches from single samples, and loader "
            f"{training.loader} has none. Use loader per_sample, or remove it",
        ),
    ]
