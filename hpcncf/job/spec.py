"""The settings of a job file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    model_validator,
)

from hpcncf.errors import did_you_mean
from hpcncf.job.command import PARAMETER, Parameters, Program, Workload, check_braces
from hpcncf.job.settings import Settings as Settings

Dataset = Literal["frappe", "movielens", "ncf", "csv", "parquet", "synthetic"]


def _below_2_31(number: int) -> int:
    """More than 2^31 of anything is a typing error; torch, Slurm and clocks each fail at it."""
    if number >= 2**31:
        raise ValueError("expected less than 2^31")
    return number


Count = Annotated[int, Field(gt=0), AfterValidator(_below_2_31)]
CountOrZero = Annotated[int, Field(ge=0), AfterValidator(_below_2_31)]


def suggest_setting(key: str, known: list[str]) -> str:
    """` Did you mean 'model.dropout'?`: a key of another section, else a close one of this."""
    elsewhere = [section for section in SECTIONS if key in SECTIONS[section].model_fields]
    return f" Did you mean '{elsewhere[0]}.{key}'?" if elsewhere else did_you_mean(key, known)


def _known_setting(dotted: str) -> str:
    section, key = dotted.split(".")
    if section == "parameters":
        return dotted
    known = list(SECTIONS[section].model_fields)
    if key not in known:
        raise ValueError(
            f"unknown key {key!r} of {section}.{suggest_setting(key, known)} Known keys: {', '.join(known)}"
        )
    return dotted


GridKey = Annotated[
    str,
    Field(pattern=rf"^((resources|data|model|training)\.[a-z0-9_]+|parameters\.{PARAMETER})$"),
    AfterValidator(_known_setting),
]
Widths = Annotated[
    tuple[Count, ...],
    BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value),
    Field(min_length=1),
]


class Resources(Settings):
    """What one task asks of Slurm, in submitit's own parameter names."""

    nodes: Count = 1
    """Machines a run spreads over."""
    tasks_per_node: Count = 1
    """Ranks (processes of torch.distributed) on each node."""
    cpus_per_task: Count = 1
    """Cores of each rank."""
    gpus_per_node: CountOrZero = 0
    """GPUs on each node."""
    mem_gb: PositiveFloat = 4.0
    """Memory per node, in GB; without Slurm nothing holds a run to it. Not part of a run's
    identity."""
    timeout_min: Count = 30
    """Time limit of a run in minutes. Not part of a run's identity."""
    runs_per_task: Count = 1
    """Runs that one Slurm task works through, one after another, where a site limits the number
    of jobs. Not part of a run's identity."""
    requeues: CountOrZero = 3
    """How often a run that reaches its time limit is put back into Slurm's queue, to go on from
    its checkpoint. Not part of a run's identity."""
    launcher: Literal["srun", "torchrun"] = "srun"
    """Under Slurm: `srun` starts each rank, or one `torchrun` on each node does."""
    runs_per_node: Count = 1
    """Runs that one job works at side by side on its node, each confined to cores of its own; the
    job asks for the cores, GPUs and memory of all of them."""
    runs_per_gpu: Count = 1
    """Runs side by side that share their GPUs; without `runs_per_node`, as many as the job has."""
    ranks_per_gpu: Count = 1
    """Ranks of a run that share one GPU. Their backend is gloo: nccl refuses two ranks on one."""
    mps: bool = False
    """Runs side by side share their GPUs through NVIDIA's Multi-Process Service, which lets their
    kernels run at the same time; the job starts one of its own. Without it they take turns."""

    @property
    def world_size(self) -> int:
        return self.nodes * self.tasks_per_node

    @property
    def cores(self) -> int:
        """Cores that a run is allocated, over all its ranks."""
        return self.world_size * self.cpus_per_task

    @property
    def side_by_side(self) -> int:
        """Runs that a job works at at the same time."""
        return max(self.runs_per_node, self.runs_per_gpu)

    @property
    def packed(self) -> bool:
        """Whether a process of ours stands between the job and its ranks, and places them."""
        return self.side_by_side > 1 or self.mps

    @property
    def node_cores(self) -> int:
        """Cores on each node, of all runs side by side."""
        return self.side_by_side * self.tasks_per_node * self.cpus_per_task

    @property
    def node_gpus(self) -> int:
        return -(-self.side_by_side // self.runs_per_gpu) * self.gpus_per_node

    @property
    def node_mem_gb(self) -> float:
        return self.side_by_side * self.mem_gb


class Data(Settings):
    """Which prepared data a run trains on (`hpcncf data prepare` makes the folder)."""

    path: Annotated[str, Field(min_length=1)]
    """The prepared folder, relative to the job file."""
    dataset: Dataset | None = None
    """What the folder must have been prepared from, when given; checked before submission."""


class Model(Settings):
    """Contextual NeuMF: He et al. 2017, with the context joined to the MLP's input."""

    gmf_width: Count = 8
    """Width of the MF embeddings of users and items."""
    mlp_width: Count = 32
    """Width of the MLP embeddings of users and items."""
    layers: Widths = (32, 16, 8)
    """Output widths of the MLP's layers."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout after each of the MLP's layers."""
    embedding_std: NonNegativeFloat = 0.01
    """Standard deviation of the MF embeddings at the start; the rest are torch's defaults."""


class Training(Settings):
    """How a run trains. Every field is part of the run's identity, unless it says otherwise."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto`: cuda when the run has a GPU, else cpu."""
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """torch.distributed's backend. `auto`: nccl where each rank has a GPU of its own, else gloo."""
    threads: Literal["auto"] | Count = "auto"
    """Intra-op threads of each rank. `auto`: as many as the cores it may really use."""
    interop_threads: Count = 1
    """Threads on which torch runs operations that do not depend on each other."""
    omp_wait_policy: Literal["default", "active", "passive"] = "default"
    """What OpenMP's threads do between torch's operations: `active`, spin on their core;
    `passive`, sleep. `default`: as the environment says, else a while of the one, then the other.
    Engine `native` has threads of its own."""
    pin: Literal["none", "cores", "numa"] = "none"
    """Each rank binds itself to `cpus_per_task` of the CPUs that it may use: `cores`, each on a
    core that no other rank of the node has, none shared with a hyperthread; `numa`, all of them on
    one NUMA node besides. Refused where there are too few."""
    epochs: Count = 3
    """Passes over the training positives."""
    max_steps: Count | None = None
    """Stop after this many optimiser steps, to time shapes whose epoch takes too long."""
    global_batch_size: Count | None = None
    """Positives per optimiser step over all ranks. Exactly one of the two batch sizes is given;
    neither means 256 here."""
    batch_size_per_rank: Count | None = None
    """Positives that each rank takes through the model at once; per optimiser step `accumulate`
    times as many."""
    accumulate: Count = 1
    """Engine `reference`: each rank's share of an optimiser step goes through the model in this
    many parts, and the ranks exchange gradients after the last one only (DDP's `no_sync`)."""
    negatives: Count = 4
    """Items sampled per positive, among those the user has not interacted with."""
    optimizer: Literal["adam", "lazy_adam", "sgd"] = "adam"
    """`adam`: torch.optim.Adam, betas 0.9 and 0.999, eps 1e-8. `lazy_adam`: the embedding tables by
    torch.optim.SparseAdam's rule (a row moves only when a batch has it), the layers by Adam. `sgd`:
    gradient descent without momentum."""
    lr: PositiveFloat = 0.001
    """Learning rate."""
    lr_scale: Literal["none", "linear", "sqrt"] = "none"
    """What a batch over all ranks other than `lr_base_batch` does to `lr`: nothing, times their
    ratio (Goyal et al. 2017, for SGD), or times its square root (Malladi et al. 2022, for Adam)."""
    lr_base_batch: Count = 256
    """Positives per optimiser step for which `lr` was chosen."""
    weight_decay: NonNegativeFloat = 0.0
    """Times a parameter, added to its gradient (L2). Not where rows without a gradient wait."""
    adam: Literal["default", "foreach", "fused"] = "default"
    """Which of torch's implementations of Adam engine `reference` uses: the same mathematics."""
    sparse: bool = False
    """Engine `reference`: the tables' gradients hold only the rows that a batch has, as torch's
    `nn.Embedding(sparse=True)` makes them; for `lazy_adam` and `sgd`."""
    engine: Literal["reference", "rowwise", "native"] = "reference"
    """`reference`: the paper's nn.Module with four tables, torch's own optimisers. `rowwise`: the
    same model and mathematics, but a step touches only its own rows. `native`: that in one
    compiled step, where hpcncf was installed with a C++ compiler (docs/engines.md)."""
    loader: Literal["per_sample", "batched", "vectorized", "device"] = "vectorized"
    """`per_sample`: one `__getitem__` per positive, negatives drawn one by one in Python.
    `batched`: `__getitems__`, a batch at a time. `vectorized`: no DataLoader, tensor indexing.
    `device`: all training data lie where the model trains, and batches are made there."""
    num_workers: CountOrZero = 0
    """DataLoader workers of each rank (`per_sample` and `batched`), no more than its cores."""
    workers: Literal["process", "thread"] = "process"
    """What a worker is: a process, which sends its batches through shared memory, or a thread of
    the rank's own process, which copies nothing but waits for Python's global lock."""
    persistent_workers: bool = True
    """Workers that are processes outlive an epoch; else each epoch starts them anew."""
    prefetch_factor: Count = 2
    """Batches that each worker makes ahead."""
    collate: Literal["default", "fast"] = "default"
    """Loader `per_sample`: samples become a batch by torch's `default_collate`, or by three calls
    of `torch.stack` that know what a sample is."""
    pin_memory: bool = False
    """Batches wait in page-locked memory, from which a GPU copies by itself; without one, nothing
    changes."""
    non_blocking: bool = True
    """A batch's copy to the GPU is queued, and the rank goes on; only what is pinned is."""
    prefetch_to_device: bool = False
    """The next batch is copied to the GPU on a stream of its own while this one is computed."""
    sync: Literal["dense", "rows", "local_sgd"] = "dense"
    """How ranks train one model. `dense`: DistributedDataParallel all-reduces every gradient.
    `rows`: engines `rowwise` and `native` exchange the gradients of the rows that a step read.
    `local_sgd`: each rank steps alone, and now and then all go on from the mean of their models."""
    sync_every: Count = 16
    """Steps from one mean to the next with `sync: local_sgd`; an epoch ends with one, too."""
    parallel: Literal["ddp", "data_parallel"] = "ddp"
    """Engine `reference`: how it trains on more than one device. `ddp`: DistributedDataParallel
    over the ranks. `data_parallel`: torch.nn.DataParallel over the GPUs of one rank; on CPUs, which
    it knows nothing of, torch then runs the model itself."""
    bucket_mb: PositiveFloat | None = None
    """MiB of gradients that DDP all-reduces at once. None: torch's choice, 1 and then 25."""
    gradient_as_bucket_view: bool = False
    """DDP: gradients live in the buckets that are exchanged, so that none is copied."""
    static_graph: bool = False
    """DDP: tell it that each step uses the same parameters, as ours do."""
    compile: Literal["none", "torchscript", "inductor"] = "none"
    """Engine `reference`, the model's forward and backward: as Python calls it, by
    torch.jit.script, or by torch.compile, which on a CPU needs a C++ compiler where it runs. Engine
    `rowwise`: all of a whole batch's step by torch.compile."""
    cuda_graph: bool = False
    """Engine `rowwise` with loader `device` on a GPU: a whole batch's step, from the rows it has to
    the parameters it moves, is captured as a CUDA graph and replayed by one call."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """The layers' products, in engine `reference` by torch.autocast, for float16 with a gradient
    scaler; in engine `rowwise` on GPUs. Parameters, embeddings, the loss and the optimiser stay
    float32."""
    tf32: bool = False
    """Products of float32 in training may round their factors to TensorFloat-32, 10 bits of
    mantissa, on GPUs that have it."""
    cudnn_benchmark: bool = False
    """cuDNN tries its algorithms for a convolution and keeps the fastest; this model has none, and
    the record says so."""
    evaluation: Literal["sampled", "full", "none"] = "sampled"
    """Leave-one-out against the stored sampled negatives, against all items, or not at all."""
    checkpoint_every: CountOrZero = 1
    """Epochs between checkpoints; 0 writes none, but for the one when a signal stops the run."""
    checkpoint_every_min: NonNegativeFloat = 10.0
    """Minutes after which a checkpoint is written in mid-epoch, unless `checkpoint_every` is 0;
    0 writes those of whole epochs only. Not part of a run's identity: the bits are the same."""
    profile: Literal["none", "torch", "py-spy"] = "none"
    """A look into the first rank, left beside its record: `profile_steps` steps by torch's
    profiler as a Chrome trace, or its Python as a flame graph, by py-spy. Both cost speed."""
    profile_steps: Count = 20
    """Steps that `profile: torch` watches, after the first 23."""
    profile_ranks: Literal["first", "all"] = "first"
    """Which ranks are looked into."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    """Seed of initialisation, order and negatives."""

    @model_validator(mode="after")
    def one_batch_size(self) -> Self:
        if self.global_batch_size is not None and self.batch_size_per_rank is not None:
            raise ValueError(
                "global_batch_size and batch_size_per_rank are both given; give exactly one"
            )
        return self

    def batch_over_ranks(self, world_size: int) -> int:
        """Positives per optimiser step over all ranks."""
        if self.batch_size_per_rank is not None:
            return self.batch_size_per_rank * self.accumulate * world_size
        return self.global_batch_size or 256

    def scaled(self, world_size: int) -> Self:
        """With the learning rate that `lr_scale` gives the steps of so many ranks."""
        ratio = self.batch_over_ranks(world_size) / self.lr_base_batch
        factor = {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[self.lr_scale]
        return self.model_copy(update={"lr": self.lr * factor})

    def device_for(self, resources: Resources) -> Literal["cpu", "cuda"]:
        if self.device == "auto":
            return "cuda" if resources.gpus_per_node else "cpu"
        return self.device

    def backend_for(self, resources: Resources) -> Literal["gloo", "nccl"]:
        if self.backend == "auto":
            # nccl refuses two ranks on one device.
            alone = resources.ranks_per_gpu == 1 and (
                resources.tasks_per_node <= resources.gpus_per_node
            )
            return "nccl" if self.device_for(resources) == "cuda" and alone else "gloo"
        return self.backend


SECTIONS: Final[dict[str, type[Settings]]] = {
    "resources": Resources,
    "data": Data,
    "model": Model,
    "training": Training,
}


class JobSpec(Settings):
    """One question, one experiment: a base setting and the grid around it."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    """Names the results folder: letters, digits, dot, dash, underscore."""
    site: str = "cpu"
    """A file of slurm_templates/ without its ending, a path, or one in ~/.config/hpcncf/sites."""
    workload: Workload = "ncf"
    """What each run does: train our NCF, or run a program of your own, `{command: [...]}`."""
    parameters: Parameters = {}  # noqa: RUF012
    """For a program of your own: name -> number, text or truth value, for `{name}` in its words."""
    data: Data | None = None
    """Required for ncf."""
    resources: Resources = Resources()
    model: Model = Model()
    training: Training = Training()
    grid: dict[GridKey, Annotated[list[Any], Field(min_length=1)]] = {}  # noqa: RUF012
    """Dotted setting -> values; the runs are the cross product. A program's `parameters.lr` may be
    written `lr`."""
    points: list[dict[GridKey, Any]] = []  # noqa: RUF012
    """Further single combinations, where a cross product is not the question."""
    exclude: list[dict[GridKey, Any]] = []  # noqa: RUF012
    """Combinations of the grid to leave out: every key given must match."""
    baseline: dict[GridKey, Any] | None = None
    """The point that the report compares all others with, remedy by remedy; `{}`: the base."""
    repeats: Count = 1
    """Each point this many times, in random order within each round."""
    exclusive: bool = False
    """Ask for whole nodes, so that nobody else's load disturbs the measurement."""

    @model_validator(mode="after")
    def sections_belong_to_the_workload(self) -> Self:
        varied = {key.split(".")[0] for each in [self.grid, *self.points] for key in each}
        if isinstance(self.workload, Program):
            check_braces(self.workload)
            given = (("data", None), ("model", Model()), ("training", Training()))
            foreign = [name for name, default in given if getattr(self, name) != default]
            foreign += sorted(varied & {"data", "model", "training"})
            if foreign:
                raise ValueError(
                    f"{foreign[0]}: belongs to workload ncf; a command is told its own settings "
                    "as parameters"
                )
        elif self.parameters or "parameters" in varied:
            raise ValueError("parameters: are for the words of a command; this workload is ncf")
        elif self.data is None:
            raise ValueError("data: is required and not given")
        return self


def apply_point(base: JobSpec, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The job's settings as plain data with dotted `changes` applied, not yet validated."""
    plain = base.model_dump(mode="json", include={*SECTIONS, "parameters"})
    for dotted, value in changes.items():
        section, key = dotted.split(".")
        plain[section][key] = value
    batch = {"training.global_batch_size", "training.batch_size_per_rank"} & set(changes)
    if len(batch) == 1:  # a point that names one batch size replaces the other
        other = {"global_batch_size", "batch_size_per_rank"} - {batch.pop().split(".")[1]}
        plain["training"][other.pop()] = None
    return plain
