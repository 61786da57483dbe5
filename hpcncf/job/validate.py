"""Refuse settings that exclude each other, and runs that cannot fit into memory.

Each message names the setting, the reason, and what to change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

from hpcncf.job.spec import PAPER_STD, Model, Resources, Training
from hpcncf.native.builds import NATIVE_LAYERS
from hpcncf.text import pluralize

WORKER_SETTINGS: Final = ("persistent_workers", "prefetch_factor")
LOADER_SETTINGS: Final = ("num_workers", *WORKER_SETTINGS)
COPY_SETTINGS: Final = ("pin_memory", "non_blocking", "prefetch_to_device")
REFERENCE_ONLY: Final = ("accumulate", "parallel")

GIB: Final = 2**30
FLOAT_BYTES: Final = 4
PARAMETER_COPIES: Final = {"reference": 4, "rowwise": 3, "native": 3}
"""Engine -> copies of each parameter with Adam: its value, two moments, and torch's gradient."""

BATCHES_IN_USE: Final = 2
"""Batches of a DataLoader worker beside the prefetched ones: one being built, one in use."""
SHARED_MEMORY_SHARE: Final = 0.5


TRAINING_DEFAULTS: Final = Training()
MODEL_DEFAULTS: Final = Model()


@dataclass(frozen=True)
class Case:
    """The settings that a rule reads, and what follows from them."""

    r: Resources
    t: Training = TRAINING_DEFAULTS
    m: Model = MODEL_DEFAULTS

    device = property(lambda self: self.t.device_for(self.r))
    backend = property(lambda self: self.t.backend_for(self.r))
    ranks = property(lambda self: self.r.world_size)
    batch = property(lambda self: self.t.batch_over_ranks(self.ranks))
    share = property(lambda self: self.batch // self.ranks)
    workers = property(lambda self: self.t.num_workers * self.ranks)
    gpu_ranks = property(lambda self: self.r.gpus_per_node * self.r.ranks_per_gpu)
    depth = property(lambda self: len(self.m.layers))
    by_rows = property(lambda self: self.t.engine != "reference")
    """Whether the engine updates only the rows that a step reads."""
    fetches = property(lambda self: self.t.loader in ("per_sample", "batched"))
    """Whether a DataLoader brings the batches."""

    @property
    def packing(self) -> str:
        return "mps" if self.r.mps else f"runs_per_{'gpu' if self.r.runs_per_gpu > 1 else 'node'}"

    @property
    def sharing(self) -> str:
        """Name of the setting by which runs or ranks share a GPU; "" if none does."""
        names = ("runs_per_gpu", "ranks_per_gpu", "mps")
        return next((name for name in names if is_given(self.r, name)), "")


SettingConflict = tuple[Callable[[Case], Any], str]
"""Whether the settings conflict, and the message, with fields of the case in braces."""

PLACEMENT: Final[tuple[SettingConflict, ...]] = (
    (
        lambda c: c.r.packed and c.r.nodes > 1,
        "resources.{c.packing} places whole runs on one node, but resources.nodes is {c.r.nodes}. "
        "Set nodes to 1",
    ),
    (
        lambda c: c.r.packed and c.r.launcher == "torchrun",
        "resources.{c.packing} does not work with launcher torchrun, since hpcncf itself starts "
        "the ranks of co-located runs. Use launcher srun",
    ),
    (
        lambda c: c.sharing and not c.r.gpus_per_node,
        "resources.{c.sharing} shares a GPU, but gpus_per_node is 0. Set gpus_per_node, or remove "
        "{c.sharing}",
    ),
    (
        lambda c: c.r.runs_per_node > 1 and c.r.runs_per_node % c.r.runs_per_gpu,
        "resources.runs_per_node {c.r.runs_per_node} is not a multiple of runs_per_gpu "
        "{c.r.runs_per_gpu}, so the last GPU would have fewer runs than the others. Change one of "
        "the two",
    ),
    (
        lambda c: c.r.ranks_per_gpu > 1 and c.r.gpus_per_node and c.r.tasks_per_node != c.gpu_ranks,
        "resources.ranks_per_gpu {c.r.ranks_per_gpu} times gpus_per_node {c.r.gpus_per_node} is "
        "{c.gpu_ranks} ranks on each node, but tasks_per_node is {c.r.tasks_per_node}. Make them "
        "equal",
    ),
)

TRAINING: Final[tuple[SettingConflict, ...]] = (
    # The device and its cores.
    (
        lambda c: c.device == "cuda" and not c.r.gpus_per_node,
        "training.device cuda needs a GPU. Set resources.gpus_per_node",
    ),
    (
        lambda c: c.backend == "nccl" and c.device == "cpu",
        "training.backend nccl only transfers GPU memory. Use gloo with device cpu",
    ),
    (
        lambda c: c.backend == "nccl" and c.r.tasks_per_node > c.r.gpus_per_node > 0,
        "training.backend nccl refuses two ranks on one GPU, and tasks_per_node "
        "{c.r.tasks_per_node} exceeds gpus_per_node {c.r.gpus_per_node}. Use backend gloo, or more "
        "GPUs",
    ),
    (
        lambda c: c.r.ranks_per_gpu > 1 and c.device == "cpu",
        "resources.ranks_per_gpu {c.r.ranks_per_gpu} has no effect with training.device cpu. "
        "Remove it, or use device cuda",
    ),
    (
        lambda c: c.t.threads != "auto" and c.t.threads > c.r.cpus_per_task,
        "training.threads {c.t.threads} exceeds resources.cpus_per_task {c.r.cpus_per_task}: "
        "threads that share a core slow each other down. Request more cores, or use fewer threads",
    ),
    (
        lambda c: c.batch < c.ranks,
        "training.global_batch_size {c.batch} is less than the {c.ranks} ranks, some of which "
        "would have no work in any step. Use a larger batch, or fewer ranks",
    ),
    # Engines and optimizers.
    (
        lambda c: c.t.engine == "native" and c.t.loader != "vectorized",
        "training.loader {c.t.loader} is not for engine native, which draws the same instances "
        "itself. Remove the loader",
    ),
    (
        lambda c: c.by_rows and c.device == "cuda",
        "training.engine {c.t.engine} runs on CPUs only. Set training.device cpu, or use engine "
        "reference, which has what torch offers for GPUs",
    ),
    (
        lambda c: c.by_rows and c.t.sparse,
        "training.sparse selects torch's gradient format, and engine {c.t.engine} never builds "
        "gradients of whole tables. Remove it, or use engine reference",
    ),
    (
        lambda c: c.t.adam != "default" and (c.by_rows or c.t.optimizer != "adam"),
        "training.adam {c.t.adam} selects an implementation of Adam in engine reference, but this "
        "run uses engine {c.t.engine} with optimizer {c.t.optimizer}. Remove it",
    ),
    (
        lambda c: not c.by_rows and c.t.sparse and c.t.optimizer == "adam",
        "training.sparse does not work with optimizer adam, which updates every row in every "
        "step. Use optimizer lazy_adam or sgd, or engine rowwise, which applies the missed "
        "updates when it next reads a row",
    ),
    (
        lambda c: not c.by_rows and c.t.optimizer == "lazy_adam" and not c.t.sparse,
        "training.optimizer lazy_adam is torch's SparseAdam in engine reference and needs sparse "
        "gradients. Set sparse: true, or use engine rowwise",
    ),
    (
        lambda c: c.t.sparse and c.t.sync == "dense" and c.ranks > 1 and c.backend == "nccl",
        "training.sparse does not work with backend nccl, which only exchanges dense gradients. "
        "Use gloo, or one rank",
    ),
    (
        lambda c: c.t.weight_decay and (c.by_rows or c.t.sparse or c.t.optimizer == "lazy_adam"),
        "training.weight_decay {c.t.weight_decay:g} must change every row in every step, but "
        "engines rowwise and native, sparse: true and lazy_adam skip rows that a batch does not "
        "read. Use engine reference with adam or sgd, or set weight_decay to 0",
    ),
    # CUDA graphs.
    (
        lambda c: c.t.cuda_graph and c.device == "cpu",
        "training.cuda_graph needs a GPU, and this run trains on a CPU. Remove it, or set "
        "resources.gpus_per_node",
    ),
    (
        lambda c: not c.by_rows and c.t.cuda_graph and c.t.compile != "none",
        "training.cuda_graph does not work with compile {c.t.compile}. Use compile: "
        "reduce-overhead, which compiles and captures graphs, or remove one of the two",
    ),
    (
        lambda c: not c.by_rows and c.t.cuda_graph and c.t.sparse,
        "training.cuda_graph does not work with sparse gradients, whose sizes change from step to "
        "step. Remove one of the two",
    ),
    (
        lambda c: not c.by_rows and c.t.cuda_graph and c.t.parallel == "data_parallel",
        "training.cuda_graph does not work with parallel data_parallel, which copies the module to "
        "each GPU in every step. Remove one of the two",
    ),
    (
        lambda c: c.t.cuda_graph and c.ranks > 1,
        "training.cuda_graph does not work with {c.ranks} ranks, which exchange gradients in the "
        "middle of a graph. Use one rank, or remove it",
    ),
    (
        lambda c: c.t.cuda_graph and c.t.profile == "torch",
        "training.cuda_graph does not work with profile torch, which would record replays without "
        "their operations. Remove one of the two",
    ),
    # Precision.
    (
        lambda c: not c.by_rows and c.t.precision == "float16" and c.t.optimizer == "lazy_adam",
        "training.precision float16 does not work with optimizer lazy_adam, which consists of two "
        "torch optimizers: the gradient scaler could skip the step of only one. Use bfloat16, or "
        "adam",
    ),
    # Several ranks or GPUs.
    (
        lambda c: not c.by_rows and c.t.accumulate > max(1, c.share),
        "training.accumulate {c.t.accumulate} exceeds the {c.share} positives that each rank has "
        "in a step, so some parts would be empty. Use fewer parts, or a larger batch",
    ),
    (
        lambda c: not c.by_rows and c.t.parallel == "data_parallel" and c.ranks > 1,
        "training.parallel data_parallel is one process for all GPUs, but the run has {c.ranks} "
        "ranks. Use one rank, or parallel ddp",
    ),
    (
        lambda c: not c.by_rows and c.t.parallel == "data_parallel" and c.t.compile != "none",
        "training.compile {c.t.compile} does not work with parallel data_parallel, which copies "
        "the module to each GPU in every step. Use compile none, or several ranks with parallel "
        "ddp",
    ),
    (
        lambda c: c.by_rows and c.t.sync == "dense" and c.ranks > 1,
        "training.engine {c.t.engine} does not work with sync dense in {c.ranks} ranks, since it "
        "never builds the gradients of whole tables. Use sync rows, engine "
        "reference, or one rank with more threads",
    ),
    (
        lambda c: not c.by_rows and c.t.sync == "rows",
        "training.sync rows exchanges the gradients of single rows, and engine reference builds "
        "those of whole tables. Use engine rowwise, or sync dense",
    ),
    # DataLoader workers.
    (
        lambda c: c.fetches and c.t.num_workers > c.r.cpus_per_task,
        "training.num_workers {c.t.num_workers} starts {c.workers} workers on {c.r.cores} cores, "
        "where they slow each other down. Use at most {c.r.cpus_per_task} "
        "(resources.cpus_per_task)",
    ),
)

MODEL: Final[tuple[SettingConflict, ...]] = (
    (
        lambda c: c.m.dropout and c.t.engine == "native",
        "model.dropout {c.m.dropout:g} is not available in training.engine native. Use engine "
        "rowwise, or set dropout to 0",
    ),
    (
        lambda c: c.m.dropout and c.t.cuda_graph,
        "model.dropout {c.m.dropout:g} does not work with training.cuda_graph, since a resumed run "
        "could not continue the random masks that replays draw. Remove cuda_graph, or set dropout "
        "to 0",
    ),
    (
        lambda c: c.m.table_std is not None and c.m.embedding_std != PAPER_STD,
        "model.embedding_std {c.m.embedding_std:g} is not available with model.init {c.m.init}. "
        "Use init: {c.m.embedding_std:g}, for all tables, or remove embedding_std",
    ),
    (
        lambda c: c.t.engine == "native" and c.depth > NATIVE_LAYERS,
        "model.layers has {c.depth} layers, but training.engine native has room for "
        f"{NATIVE_LAYERS}. Use engine rowwise, or fewer layers",
    ),
)

Unused = tuple[Callable[[Case], Any], tuple[str, ...], str]
"""When settings of `training` have no effect, their names, and the rest of the message."""

UNUSED: Final[tuple[Unused, ...]] = (
    (
        lambda c: c.by_rows,
        ("accumulate",),
        "is not for engine {c.t.engine}: its gradients are computed at once; a larger batch is "
        "mathematically the same. Remove it",
    ),
    (
        lambda c: c.by_rows,
        ("parallel",),
        "is not for engine {c.t.engine}: it has no torch module to copy to several GPUs. Remove it",
    ),
    (
        lambda c: c.by_rows,
        ("compile", "cuda_graph"),
        "is not for engine {c.t.engine}, whose passes are written out: there is no torch module to "
        "compile or capture. Use engine reference, or remove it",
    ),
    (
        lambda c: c.by_rows,
        ("precision",),
        "is not for engine {c.t.engine}, which runs on CPUs and computes in float32. Use engine "
        "reference, or remove it",
    ),
    (
        lambda c: c.t.loader == "vectorized",
        LOADER_SETTINGS,
        "has no effect with loader vectorized, which builds whole batches in the rank itself. "
        "Remove it, or use loader per_sample or batched",
    ),
    (
        lambda c: c.t.loader == "device",
        (*LOADER_SETTINGS, *COPY_SETTINGS),
        "has no effect with loader device, which builds batches on the device that trains. Remove "
        "it, or use another loader",
    ),
    (
        lambda c: c.fetches and not c.t.num_workers,
        WORKER_SETTINGS,
        "configures workers, but num_workers is 0. Set num_workers",
    ),
    (
        lambda c: c.t.profile != "torch",
        ("profile_steps",),
        "has no effect with profile {c.t.profile}. Remove it",
    ),
    (
        lambda c: c.t.profile != "py-spy",
        ("profile_rate", "profile_native", "profile_subprocesses"),
        "has no effect with profile {c.t.profile}. Use py-spy, or remove it",
    ),
    (
        lambda c: c.t.profile == "none",
        ("profile_ranks",),
        "has no effect with profile none. Remove it",
    ),
)

NO_EFFECT: Final[tuple[tuple[Callable[[str, Training], bool], tuple[str, ...], str], ...]] = (
    (
        lambda device, _: device == "cpu",
        COPY_SETTINGS,
        "it is for copies to a GPU, and this run trains on a CPU",
    ),
    (
        lambda device, _: device == "cpu",
        ("parallel",),
        "DataParallel spreads batches over GPUs only, and on a CPU torch runs the model itself",
    ),
    (
        lambda _, training: training.engine == "native",
        ("omp_wait_policy",),
        "it is for torch's threads, and engine native has its own",
    ),
    (
        lambda _, __: True,
        ("cudnn_benchmark",),
        "it chooses among algorithms for convolutions, and this model has none",
    ),
)
"""On which devices and for which training, settings of `training`, and why they have no effect.
They are allowed, so that this can be measured."""


def describe_no_effect(training: Training, device: str) -> list[str]:
    """Warn about training settings without effect on `device`, which is cpu or cuda."""
    return [
        f"training.{name} has no effect: {reason}"
        for applies, names, reason in NO_EFFECT
        if applies(device, training)
        for name in names
        if is_given(training, name)
    ]


def is_given(settings: Resources | Training, name: str) -> bool:
    """Whether the setting differs from its default."""
    return bool(getattr(settings, name) != type(settings).model_fields[name].default)


def find_conflicts(
    resources: Resources, training: Training | None = None, model: Model = MODEL_DEFAULTS
) -> list[str]:
    """Describe settings that exclude each other, and memory that is too small for the run.

    Without `training` only conflicts among the resources, as for a command.
    """
    if training is None:
        return _find_broken(PLACEMENT, Case(resources))
    case = Case(resources, training, model)
    unused = [
        f"training.{name} {reason.format(c=case)}"
        for applies, names, reason in UNUSED
        if applies(case)
        for name in names
        if is_given(training, name)
    ]
    return [
        *_find_broken((*PLACEMENT, *TRAINING), case),
        *unused,
        *_find_broken(MODEL, case),
        *memory_conflicts(resources, training, model),
    ]


def _find_broken(rules: Iterable[SettingConflict], case: Case) -> list[str]:
    return [message.format(c=case) for conflicts, message in rules if conflicts(case)]


def memory_conflicts(resources: Resources, training: Training, model: Model) -> list[str]:
    """Explain why the run cannot fit into its requested memory; empty if it may fit.

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
        f"{what} at least {needed / GIB:.1f} GiB on each of {pluralize(ranks, 'rank')} of a "
        f"node, but resources.mem_gb is {resources.mem_gb:g}. {advice}, or request more memory"
        for needed, what, advice in needs
        if needed * ranks > resources.mem_gb * GIB
    ]


def instances_at_once(resources: Resources, training: Training) -> int:
    """Number of positives and negatives that a rank takes through the model at once."""
    share = ceil(training.batch_over_ranks(resources.world_size) / resources.world_size)
    return ceil(share / training.accumulate) * (1 + training.negatives)


def step_bytes(resources: Resources, training: Training, model: Model) -> int:
    """Lower bound in bytes of a rank's memory for the backward pass of a step.

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
    """Size in bytes, on each rank, of the parameters and the optimizer's state."""
    inputs, dense = 2 * model.mlp_width + context, 0
    for width in model.layers:
        dense, inputs = dense + (inputs + 1) * width, width
    dense += model.gmf_width + inputs + 1
    tables = (users + items) * (model.gmf_width + model.mlp_width)
    copies = PARAMETER_COPIES[training.engine] if training.optimizer == "adam" else 1
    return FLOAT_BYTES * copies * (tables + dense)


def shared_memory_bytes(training: Training, batch: int, context: int = 0) -> int:
    """Bytes of shared memory that hold the batches of a rank's DataLoader workers.

    Each of the `batch` positives has a user and items as int64, and `context` columns as
    float32. It is 0 without workers.
    """
    if training.loader not in ("per_sample", "batched"):
        return 0
    if not training.num_workers:
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
    """Warn if DataLoader workers may fill half of the requested memory; else None."""
    held, asked = node_shared_memory_bytes(resources, training), resources.node_mem_gb * GIB
    if held <= SHARED_MEMORY_SHARE * asked:
        return None
    return (
        f"DataLoader workers may hold batches of {held / GIB:.1f} GiB in /dev/shm of each node, "
        f"which counts as memory of the job: it requests {resources.node_mem_gb:g} GB. Use fewer "
        "num_workers, or a smaller prefetch_factor or batch"
    )


def describe_gloo_choice(resources: Resources, training: Training) -> str | None:
    """Explain why `backend: auto` selects gloo on GPUs; None if it does not."""
    tasks, gpus = resources.tasks_per_node, resources.gpus_per_node
    on_gpu = training.device_for(resources) == "cuda"
    if training.backend != "auto" or not on_gpu or training.backend_for(resources) == "nccl":
        return None
    return (
        f"{tasks} ranks share {pluralize(gpus, 'GPU')} on each node, and nccl refuses two "
        "ranks on one GPU: training.backend auto selects gloo, which goes through host memory. "
        "Request a GPU for each rank to get nccl"
    )
