"""The models of a job file: its settings, their types and defaults, and a user's own program."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal, Self, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    Tag,
    ValidationError,
    model_validator,
)

from hpcncf.errors import UsageError, abbreviate, did_you_mean
from hpcncf.removed import (
    describe_removed_setting,
    describe_removed_site_setting,
    describe_removed_value,
)

M = TypeVar("M", bound=BaseModel)
# Names that pydantic puts into a location for a mapping's key and a union's alternatives.
PYDANTIC_PART: Final = re.compile(r"\[key\]$|(literal|function-[a-z]+)\[")


class Settings(BaseModel):
    """Base of everything that a user may write into a file: frozen, without unknown keys."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


def refuse(is_wrong: Callable[[Any], object], message: str) -> AfterValidator:
    """Build a validator that raises the message if the value is wrong.

    `{}` in the message is replaced by the value.
    """

    def check(value: Any) -> Any:
        if is_wrong(value):
            raise ValueError(message.format(value))
        return value

    return AfterValidator(check)


PLACEHOLDER: Final = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
# Known only at run time, and not part of what a run computes.
RUNTIME_PLACEHOLDERS: Final = ("run_id", "output", "checkpoints")
RESERVED: Final = (*RUNTIME_PLACEHOLDERS, "repeat")
PARAMETER: Final = r"[A-Za-z](?:_?[A-Za-z0-9]){0,39}"


def placeholder_names(text: str) -> list[str]:
    """List the placeholders in the text, each once. Raises ValueError for an unmatched brace."""
    found = [match for match in PLACEHOLDER.finditer(text) if match.group() not in ("{{", "}}")]
    if any(match.group(1) is None for match in found):
        raise ValueError(
            f"workload: unmatched brace in {abbreviate(text)}. Write a placeholder as {{name}}, "
            "and a brace itself as {{ or }}"
        )
    return list(dict.fromkeys(match.group(1) for match in found))


def fill_placeholders(text: str, values: Mapping[str, str]) -> str:
    """Replace the placeholders in the text by their values, and `{{` and `}}` by braces."""

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        return match.group()[0] if name is None else values[name]

    return PLACEHOLDER.sub(value, text)


def quoted_placeholder(line: str) -> str | None:
    """Find the first placeholder inside quotes of a shell line; None if there is none."""
    quote = None
    at = 0
    while at < len(line):
        found = PLACEHOLDER.match(line, at)
        if found and found.group(1) is not None and quote:
            return found.group(1)
        if line[at] == "\\" and quote != "'":
            at += 1
        elif quote is None and line[at] in "'\"":
            quote = line[at]
        elif line[at] == quote:
            quote = None
        at = found.end() if found else at + 1
    return None


def _check_scalar(value: Any) -> Any:
    if not isinstance(value, bool | int | float | str):
        raise ValueError("expected a number, text or a truth value")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("expected a finite number")
    return value


def _check_argument(text: str) -> str:
    if "\0" in text:
        raise ValueError("a NUL byte cannot be passed to a program")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("contains characters that UTF-8 cannot encode") from None
    return text


def _as_word(value: Any) -> Any:
    """Convert a number or truth value to a word, as YAML reads 3 in `--epochs, 3`."""
    if isinstance(value, dict):
        raise ValueError('expected a word; in YAML, quote a word with braces: "{lr}"')
    return scalar_text(value) if isinstance(value, bool | int | float) else value


def _check_words(value: Any) -> Any:
    if isinstance(value, str):
        raise ValueError(
            "expected a list of words, as [python, train.py]. Write a shell command as "
            "{shell: python train.py > log}"
        )
    if value == []:
        raise ValueError("expected the program and its arguments as a list of words")
    return value


def _check_line(line: str) -> str:
    if "\n" in line:
        raise ValueError("expected one line. Put longer scripts into a file, and run it as command")
    quoted = quoted_placeholder(line)
    if quoted is not None:
        raise ValueError(
            f"{{{quoted}}} is inside quotes, which its value could end. Write it outside: hpcncf "
            "quotes it for the shell"
        )
    return line


Argument = Annotated[str, AfterValidator(_check_argument)]
CommandWord = Annotated[Argument, BeforeValidator(_as_word)]
ShellLine = Annotated[Argument, Field(min_length=1), AfterValidator(_check_line)]
Scalar = Annotated[bool | int | float | Argument, BeforeValidator(_check_scalar)]
ParameterName = Annotated[
    str,
    Field(pattern=f"^{PARAMETER}$"),
    refuse(RESERVED.__contains__, "{{{}}} is reserved. Rename the parameter"),
]
Parameters = dict[ParameterName, Scalar]


class Program(Settings):
    """A user's own program, started as each rank of a run."""

    command: Annotated[list[CommandWord], BeforeValidator(_check_words)] | None = None
    """The program and its arguments as a list of words, with placeholders: `[python, train.py,
    --lr, "{lr}"]`. No shell reads them."""
    shell: ShellLine | None = None
    """Instead of `command`, one line for bash with pipes or redirections."""
    folder: str = "."
    """Working directory, relative to the job file. Not part of a run's identity."""
    probe: bool = True
    """Look into its Python processes: phases, lines, causes. Not part of a run's identity."""
    quality: Annotated[str, Field(pattern=r"^[A-Za-z]\w{0,39}$")] = "loss"
    """The reported figure that shows how good a result is: `hpcncf report` recommends no
    configuration in which it is worse. Not part of a run's identity."""
    better: Literal["lower", "higher"] = "lower"
    """Which values of `quality` are better."""
    trial: bool = False
    """End it as soon as the speed of its steps is known to 3 %, or after some 15 seconds of
    training: what `hpcncf tune` does."""

    @model_validator(mode="after")
    def one_of_the_two(self) -> Self:
        if (self.command is None) == (self.shell is None):
            raise ValueError("expected either command: [program, argument, ...] or shell: LINE")
        if self.command and not self.command[0]:
            raise ValueError("command: its first word, the program, is empty")
        if self.trial and not self.probe:
            raise ValueError("trial: is ended by the probe; remove probe: false")
        return self

    @property
    def templates(self) -> list[str]:
        """Texts of the command that may contain placeholders."""
        return self.command if self.command is not None else [self.shell or ""]


class Remedies(Settings):
    """Changes to a program of your own that are made from outside, none of its lines changed.

    Each is applied if it can be; otherwise the record has the reason.
    """

    rowwise: bool = False
    """Update embedding tables only in the rows that a batch reads, with the same results:
    `hpcncf.remedies.rowwise`."""
    threads: Annotated[int, Field(gt=0, lt=4096)] | None = None
    """Torch's threads, and OMP_NUM_THREADS and MKL_NUM_THREADS. None: as the program has it."""
    workers: Annotated[int, Field(ge=0, lt=4096)] | None = None
    """Processes of each DataLoader. None: as the program has it."""
    persistent_workers: bool = False
    """Keep them between epochs."""
    prefetch_factor: Annotated[int, Field(gt=0, lt=4096)] | None = None
    """Batches that each of them makes ahead. None: as the program has it."""
    pin_memory: bool = False
    """Keep batches in page-locked memory, if there is a GPU."""
    fused: bool = False
    """Have PyTorch's optimizers update all parameters in one kernel."""
    foreach: bool = False
    """Have PyTorch's optimizers update lists of parameters at once."""
    omp: Literal["passive", "active"] | None = None
    """OMP_WAIT_POLICY: whether threads without work sleep or spin. None: as the program has it."""

    @model_validator(mode="after")
    def exclude_each_other(self) -> Self:
        if self.fused and self.foreach:
            raise ValueError("fused and foreach exclude each other; give one")
        for name in ("persistent_workers", "prefetch_factor"):
            if self.workers == 0 and getattr(self, name):
                raise ValueError(f"{name}: needs workers, and workers is 0")
        return self

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse remedies such as `rowwise,threads=1`. Raises UsageError."""
        values: dict[str, Any] = {}
        for word in filter(None, (each.strip() for each in text.split(","))):
            name, equals, value = word.partition("=")
            field = cls.model_fields.get(name)
            if field and field.default is None and not value:
                raise UsageError(f"--with: {name}: needs a value: {name}=VALUE")
            is_whole = re.fullmatch(r"-?\d+", value, re.ASCII)
            values[name] = (int(value) if is_whole else value) if equals else True
        return validate_settings(cls, values, "--with")

    def __bool__(self) -> bool:
        return self != type(self)()

    def __str__(self) -> str:
        """Format the remedies as `--with` takes them: `rowwise,threads=1`; empty if none."""
        values = self.model_dump(exclude_defaults=True)
        return ",".join(
            name if value is True else f"{name}={value}" for name, value in values.items()
        )

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables that the remedies set for the program."""
        found = {} if self.omp is None else {"OMP_WAIT_POLICY": self.omp.upper()}
        if self.threads is not None:
            found |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(self.threads))
        return found


def _workload_kind(value: Any) -> str | None:
    if isinstance(value, dict | Program):
        return "program"
    return "ncf" if value == "ncf" else None


Workload = Annotated[
    Annotated[Literal["ncf"], Tag("ncf")] | Annotated[Program, Tag("program")],
    Discriminator(
        _workload_kind,
        custom_error_type="workload",
        custom_error_message="expected ncf, or {command: [program, argument, ...]}",
    ),
]


def scalar_text(value: bool | int | float | str) -> str:
    """Spell a value as YAML does: `true`, `0.001`, `adam`."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def placeholder_values(
    parameters: Mapping[str, Any], resources: Mapping[str, Any], repeat: int
) -> dict[str, str]:
    """Map each placeholder to its text; those known only at run time map to themselves."""
    named = {name: scalar_text(value) for name, value in parameters.items()}
    return {
        **named,
        "repeat": scalar_text(repeat),
        **{name: f"{{{name}}}" for name in RUNTIME_PLACEHOLDERS},
        **{f"resources.{name}": scalar_text(value) for name, value in resources.items()},
        **{f"parameters.{name}": value for name, value in named.items()},
    }


def build_command(program: Program, values: Mapping[str, str]) -> list[str]:
    """Build the words that start the program, placeholders replaced by `values`."""
    if program.shell is None:
        return [fill_placeholders(word, values) for word in program.templates]
    # Each value goes into a variable, so that the shell does not interpret it.
    line = program.shell
    variables = {name: f"hpcncf_{name.replace('.', '__')}" for name in placeholder_names(line)}
    assignments = [
        f"{variable}={shlex.quote(values[name])}" for name, variable in variables.items()
    ]
    references = {name: f'"${variable}"' for name, variable in variables.items()}
    return ["bash", "-c", "; ".join([*assignments, fill_placeholders(line, references)])]


def find_placeholder_problem(
    program: Program, parameters: Mapping[str, Any], known: Mapping[str, str]
) -> str:
    """Describe the first unknown placeholder or unused parameter; "" if there is none."""
    used = [name for word in program.templates for name in placeholder_names(word)]
    for name in used:
        if name not in known:
            choices = [each for each in known if not each.startswith("parameters.")]
            return (
                f"workload: unknown placeholder {{{name}}}.{did_you_mean(name, choices)} Known: "
                f"{', '.join(choices)}. Write a brace itself as {{{{ or }}}}"
            )
    for name in parameters:
        if not {name, f"parameters.{name}"} & set(used):
            return (
                f"parameters.{name}: the command does not use it. Write {{{name}}} in its place "
                "in the command, or remove it"
            )
    return ""


Dataset = Literal["frappe", "movielens", "ncf", "csv", "parquet", "synthetic"]
PAPER_DATASETS: Final = ("ncf", "movielens")
"""Formats of the NCF paper's data: `init: auto` is the paper's there."""
PAPER_STD: Final = 0.01
"""Standard deviation of all tables at the start in He et al. 2017."""


# 2^31 or more is a typing error, and torch, Slurm and clocks each fail at it.
_BELOW_2_31 = refuse(lambda number: number >= 2**31, "expected less than 2^31")
Count = Annotated[int, Field(gt=0), _BELOW_2_31]
CountOrZero = Annotated[int, Field(ge=0), _BELOW_2_31]


def suggest_setting(key: str, known: list[str]) -> str:
    """Suggest a key of another section, or a similar one: ` Did you mean 'model.dropout'?`."""
    elsewhere = [section for section in SECTIONS if key in SECTIONS[section].model_fields]
    return f" Did you mean '{elsewhere[0]}.{key}'?" if elsewhere else did_you_mean(key, known)


def _known_setting(dotted: str) -> str:
    section, key = dotted.split(".")
    if section == "parameters":
        return dotted
    known = list(SECTIONS[section].model_fields)
    if gone := describe_removed_setting(dotted):
        raise ValueError(gone)
    if key not in known:
        raise ValueError(
            f"unknown key {key!r} of {section}.{suggest_setting(key, known)} "
            f"Known keys: {', '.join(known)}"
        )
    return dotted


GridKey = Annotated[
    str,
    Field(
        pattern=rf"^((resources|data|model|training|remedies)\.[a-z0-9_]+|parameters\.{PARAMETER})$"
    ),
    AfterValidator(_known_setting),
]
Widths = Annotated[
    tuple[Count, ...],
    BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value),
    Field(min_length=1),
]


class Resources(Settings):
    """The resources of one task, in submitit's parameter names."""

    nodes: Count = 1
    """Nodes of each run."""
    tasks_per_node: Count = 1
    """Ranks (processes of torch.distributed) on each node."""
    cpus_per_task: Count = 1
    """Cores of each rank."""
    gpus_per_node: CountOrZero = 0
    """GPUs on each node."""
    mem_gb: PositiveFloat = 4.0
    """Memory per node, in GB; not enforced without Slurm. Not part of a run's identity."""
    timeout_min: Count = 30
    """Time limit of a run in minutes. Not part of a run's identity."""
    runs_per_task: Count = 1
    """Runs of one Slurm task, one after another, for sites that limit the number of jobs. Not part
    of a run's identity."""
    requeues: CountOrZero = 3
    """How often a run that reaches its time limit is requeued, to resume from its checkpoint. Not
    part of a run's identity."""
    launcher: Literal["srun", "torchrun"] = "srun"
    """Under Slurm, `srun` starts each rank, or one `torchrun` on each node starts its ranks."""
    runs_per_node: Count = 1
    """Runs that share one job and its node, each on cores of its own; the job requests the cores,
    GPUs and memory of all of them."""
    runs_per_gpu: Count = 1
    """Runs of a job that share their GPUs; without `runs_per_node`, all its runs."""
    ranks_per_gpu: Count = 1
    """Ranks of a run that share one GPU. Their backend is gloo: nccl refuses two ranks on one."""
    mps: bool = False
    """Share GPUs through NVIDIA's Multi-Process Service, started by the job: kernels of several
    runs execute at the same time. Without it they take turns."""

    @property
    def world_size(self) -> int:
        return self.nodes * self.tasks_per_node

    @property
    def cores(self) -> int:
        """Number of cores allocated to a run, over all its ranks."""
        return self.world_size * self.cpus_per_task

    @property
    def side_by_side(self) -> int:
        """Number of runs that share a job at the same time."""
        return max(self.runs_per_node, self.runs_per_gpu)

    @property
    def packed(self) -> bool:
        """Whether hpcncf itself starts and places the ranks of the job's runs."""
        return self.side_by_side > 1 or self.mps

    @property
    def node_cores(self) -> int:
        """Number of cores on each node for all runs that share it."""
        return self.side_by_side * self.tasks_per_node * self.cpus_per_task

    @property
    def node_gpus(self) -> int:
        return -(-self.side_by_side // self.runs_per_gpu) * self.gpus_per_node

    @property
    def node_mem_gb(self) -> float:
        return self.side_by_side * self.mem_gb


class Data(Settings):
    """The prepared data of a run (`hpcncf data prepare` writes the folder)."""

    path: Annotated[str, Field(min_length=1)]
    """The prepared folder, relative to the job file."""
    dataset: Dataset | None = None
    """If given, the data set that the folder must contain; checked before submission."""


class Model(Settings):
    """Contextual NeuMF: He et al. 2017, with the context appended to the MLP's input."""

    gmf_width: Count = 8
    """Width of the MF embeddings of users and items."""
    mlp_width: Count = 32
    """Width of the MLP embeddings of users and items."""
    layers: Widths = (32, 16, 8)
    """Output widths of the MLP's layers."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout after each of the MLP's layers."""
    init: Literal["auto", "torch", "paper"] | PositiveFloat = "auto"
    """Initial values of the embedding tables. `paper`: N(0, 0.01) in all four, as He et al. 2017.
    `torch`: N(0, 1) in the MLP tables, torch's default, and `embedding_std` in the MF tables. A
    number: N(0, number) in all four. `auto`: `paper` for data in NCF's and MovieLens' formats
    unless `embedding_std` is given, else `torch`. The choice decides how many epochs a model needs
    (docs/engines.md)."""
    embedding_std: NonNegativeFloat = 0.01
    """Initial standard deviation of the MF embeddings with `init: torch`."""

    @property
    def table_std(self) -> float | None:
        """Initial standard deviation of all tables; None if it differs between tables."""
        if isinstance(self.init, float | int):
            return float(self.init)
        return PAPER_STD if self.init == "paper" else None


class Training(Settings):
    """Settings of a run's training, each part of the run's identity unless stated otherwise."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto`: cuda if the run has a GPU, else cpu."""
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """torch.distributed's backend. `auto`: nccl if each rank has a GPU of its own, else gloo."""
    threads: Literal["auto"] | Count = "auto"
    """Intra-op threads of each rank. `auto`: as many as its usable cores."""
    omp_wait_policy: Literal["default", "active", "passive"] = "default"
    """OpenMP threads between torch operations: `active` spins on the core, `passive` sleeps.
    `default`: as the environment says, else spin for a while, then sleep. Engine `native` has
    threads of its own."""
    pin: Literal["none", "cores"] = "none"
    """Bind each rank to `cpus_per_task` of its usable CPUs. `cores`: each CPU on a physical core
    that no other rank or hyperthread uses. The run fails if there are too few."""
    epochs: Count = 3
    """Passes over the training positives."""
    max_steps: Count | None = None
    """Stop after this many optimiser steps, to time shapes with long epochs."""
    max_s: PositiveFloat | None = None
    """Stop training after this many seconds, within an epoch if need be, so that a study takes as
    long on a slow machine as on a fast one. An epoch that is cut short is not evaluated."""
    global_batch_size: Count | None = None
    """Positives per optimiser step over all ranks. Give at most one of the two batch sizes; without
    either, this is 256."""
    batch_size_per_rank: Count | None = None
    """Positives that each rank takes through the model at once; an optimiser step has `accumulate`
    times as many."""
    accumulate: Count = 1
    """Engine `reference`: parts in which each rank's share of an optimiser step goes through the
    model; ranks exchange gradients only after the last one (DDP's `no_sync`)."""
    negatives: Count = 4
    """Items sampled per positive from those the user has not interacted with."""
    optimizer: Literal["adam", "lazy_adam", "sgd"] = "adam"
    """`adam`: torch.optim.Adam, betas 0.9 and 0.999, eps 1e-8. `lazy_adam`: the embedding tables by
    torch.optim.SparseAdam's rule (a row moves only if a batch has it), the layers by Adam. `sgd`:
    gradient descent without momentum."""
    lr: PositiveFloat = 0.001
    """Learning rate."""
    weight_decay: NonNegativeFloat = 0.0
    """L2 penalty: this times a parameter is added to its gradient. Not available with engines or
    optimisers that skip rows without a gradient."""
    adam: Literal["default", "foreach", "fused"] = "default"
    """Torch's implementation of Adam in engine `reference`: the same mathematics."""
    sparse: bool = False
    """Engine `reference`: gradients of tables hold only the rows of the batch, as torch's
    `nn.Embedding(sparse=True)`; for `lazy_adam` and `sgd`."""
    engine: Literal["reference", "rowwise", "native"] = "reference"
    """`reference`: the paper's nn.Module with four tables and torch's optimisers. `rowwise`: the
    same model and mathematics, but a step touches only its own rows. `native`: the same in one
    compiled step; needs a C++ compiler at installation (docs/engines.md)."""
    loader: Literal["per_sample", "batched", "vectorized", "device"] = "vectorized"
    """`per_sample`: one `__getitem__` per positive, negatives drawn one by one in Python.
    `batched`: `__getitems__`, a batch at a time. `vectorized`: no DataLoader, tensor indexing.
    `device`: all training data reside on the GPU, and torch's own generator draws the batches
    there; on a CPU this is `vectorized`. Not yet measured on a GPU."""
    num_workers: CountOrZero = 0
    """DataLoader workers of each rank (`per_sample` and `batched`), at most one for each core."""
    persistent_workers: bool = True
    """Keep worker processes between epochs."""
    prefetch_factor: Count = 2
    """Batches that each worker prepares ahead."""
    pin_memory: bool = False
    """Keep batches in page-locked memory, which a GPU copies from asynchronously; no effect without
    a GPU."""
    non_blocking: bool = True
    """Do not wait for a batch's copy to the GPU; applies to pinned batches only."""
    prefetch_to_device: bool = False
    """Copy the next batch to the GPU on a separate stream during the current step."""
    sync: Literal["dense", "rows"] = "dense"
    """How ranks keep one model. `dense`: DistributedDataParallel all-reduces every gradient.
    `rows`: engines `rowwise` and `native` exchange the gradients of the rows that a step read."""
    parallel: Literal["ddp", "data_parallel"] = "ddp"
    """Engine `reference` on several devices. `ddp`: DistributedDataParallel over the ranks.
    `data_parallel`: torch.nn.DataParallel over the GPUs of one rank; on CPUs torch runs the model
    itself."""
    compile: Literal["none", "torchscript", "inductor", "reduce-overhead"] = "none"
    """Engine `reference`: compile the model's forward and backward. `torchscript`:
    torch.jit.script. `inductor`: torch.compile (on a CPU this needs a C++ compiler at run time).
    `reduce-overhead`: torch.compile in that mode, which also captures CUDA graphs on a GPU; not yet
    measured there."""
    cuda_graph: bool = False
    """Engine `reference` on a GPU: capture the model's forward and backward pass of a whole batch
    as CUDA graphs (torch.cuda.make_graphed_callables). Not yet measured."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Engine `reference`: precision of the layers' products by torch.autocast, for float16 with a
    gradient scaler. Parameters, embeddings, loss and optimiser stay float32."""
    cudnn_benchmark: bool = False
    """Let cuDNN choose the fastest algorithm for convolutions. This model has none, and the record
    says so."""
    evaluation: Literal["sampled", "full", "none"] = "sampled"
    """Rank held-out items among the stored sampled negatives, among all items, or not at all."""
    log_every: CountOrZero = 0
    """Batches after which the first rank prints a line with their loss and speed; 0 prints epochs
    only. Not part of a run's identity, since results are bit-identical."""
    checkpoint_every: CountOrZero = 1
    """Epochs between checkpoints; 0 writes one only if Slurm stops the run by a signal."""
    checkpoint_every_min: NonNegativeFloat = 10.0
    """Minutes between checkpoints within an epoch, unless `checkpoint_every` is 0; 0 writes none
    within epochs. Not part of a run's identity, since results are bit-identical."""
    profile: Literal["none", "torch", "py-spy"] = "none"
    """Profile the first rank, next to its record: `profile_steps` steps with torch's profiler as a
    Chrome trace, or a flame graph of its Python by py-spy. Both cost speed."""
    profile_steps: Count = 20
    """Steps that `profile: torch` records, after the first 23."""
    profile_rate: Annotated[int, Field(ge=1, le=1000)] = 100
    """Samples a second of `profile: py-spy`."""
    profile_native: bool = False
    """`profile: py-spy`: show functions of C and C++, too, as torch's and those of engine `native`.
    The rank pauses for each sample."""
    profile_subprocesses: bool = False
    """`profile: py-spy`: show DataLoader workers and other processes of the rank, too."""
    profile_ranks: Literal["first", "all"] = "first"
    """Ranks to profile."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    """Random seed of initialisation, order and negatives. Runs that differ in it alone are
    repeats."""

    @model_validator(mode="after")
    def one_batch_size(self) -> Self:
        if self.global_batch_size is not None and self.batch_size_per_rank is not None:
            raise ValueError(
                "global_batch_size and batch_size_per_rank are both given; give exactly one"
            )
        return self

    def batch_over_ranks(self, world_size: int) -> int:
        """Number of positives per optimizer step over all ranks."""
        if self.batch_size_per_rank is not None:
            return self.batch_size_per_rank * self.accumulate * world_size
        return self.global_batch_size or 256

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
    "remedies": Remedies,
}


class JobSpec(Settings):
    """An experiment: base settings and a grid around them."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    """Names the results folder: letters, digits, dot, dash, underscore."""
    site: str = "cpu"
    """A file of slurm_templates/ without its suffix, a path, or one in ~/.config/hpcncf/sites."""
    workload: Workload = "ncf"
    """Each run trains our NCF, or runs a program of your own, `{command: [...]}`."""
    parameters: Parameters = {}
    """For a program of your own: values of its placeholders, `{name}` -> number, text or truth
    value."""
    remedies: Remedies = Remedies()
    """For a program of your own: what the probe changes in it."""
    data: Data | None = None
    """Required for ncf."""
    resources: Resources = Resources()
    model: Model = Model()
    training: Training = Training()
    grid: dict[GridKey, Annotated[list[Any], Field(min_length=1)]] = {}
    """Dotted setting -> values; the runs are their cross product. A program's `parameters.lr` may
    be written `lr`."""
    points: list[dict[GridKey, Any]] = []
    """Single combinations in addition to the grid."""
    exclude: list[dict[GridKey, Any]] = []
    """Combinations of the grid to leave out; a combination must match every given key."""
    baseline: dict[GridKey, Any] | None = None
    """The point that the report compares all others with; `{}`: the base."""
    repeats: Count = 1
    """Runs of each point, in random order within each round."""
    code: Literal["live", "snapshot"] = "live"
    """For a program of your own: `snapshot` runs a copy of its code as it was at submission, so
    that queued runs do not see later edits. `live` runs the files as they are when a run starts."""
    exclusive: bool = False
    """Request whole nodes, so that other users' load does not disturb the measurement."""

    @model_validator(mode="after")
    def sections_belong_to_the_workload(self) -> Self:
        varied = {key.split(".")[0] for each in [self.grid, *self.points] for key in each}
        if isinstance(self.workload, Program):
            for text in self.workload.templates:
                placeholder_names(text)
            given = (("data", None), ("model", Model()), ("training", Training()))
            foreign = [name for name, default in given if getattr(self, name) != default]
            foreign += sorted(varied & {"data", "model", "training"})
            if foreign:
                raise ValueError(
                    f"{foreign[0]}: belongs to workload ncf. Pass settings to a command as "
                    "parameters"
                )
            if (self.remedies or "remedies" in varied) and not self.workload.probe:
                raise ValueError("remedies: are applied by the probe; remove workload.probe: false")
        elif self.code == "snapshot":
            raise ValueError(
                "code: snapshot copies a program of your own, but this workload is ncf: hpcncf is "
                "installed, and a run notes if it changed"
            )
        elif self.remedies or "remedies" in varied:
            raise ValueError("remedies: change a program of your own, but this workload is ncf")
        elif self.parameters or "parameters" in varied:
            raise ValueError("parameters: fill placeholders of a command, but this workload is ncf")
        elif self.data is None:
            raise ValueError("data: is required and not given")
        return self


class GridPoint(Settings):
    """The settings of one combination."""

    parameters: Parameters
    remedies: Remedies
    data: Data | None
    resources: Resources
    model: Model
    training: Training


def apply_point(base: JobSpec, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Apply dotted `changes` to the job's settings; returns plain data, not validated."""
    plain = base.model_dump(mode="json", include=set(GridPoint.model_fields))
    for dotted, value in changes.items():
        section, key = dotted.split(".")
        plain[section][key] = value
    batch = {"training.global_batch_size", "training.batch_size_per_rank"} & set(changes)
    if len(batch) == 1:  # a point that names one batch size replaces the other
        other = {"global_batch_size", "batch_size_per_rank"} - {batch.pop().split(".")[1]}
        plain["training"][other.pop()] = None
    return plain


def validate_settings(model: type[M], plain: Any, where: str) -> M:
    """Validate plain data as `model`. Raises UsageError with one line for each problem."""
    try:
        return model.model_validate(plain)
    except ValidationError as error:
        raise validation_error(model, error, lambda _: where) from None


def validation_error(
    model: type[BaseModel], error: ValidationError, where: Callable[[list[int | str]], str]
) -> UsageError:
    """Convert pydantic's error to a UsageError with one line for each problem.

    `where` returns the source of a place, which begins the line.
    """
    lines = []
    for problem in error.errors():
        loc = [part for part in problem["loc"] if not PYDANTIC_PART.match(str(part))]
        if loc[:1] == ["workload"]:
            del loc[1:2]  # which of its two forms
        elif loc[:1] == ["parameters"]:
            del loc[2:]  # which kind of scalar
        lines.append(f"{where(loc)}: {_describe_problem(model, loc, problem)}")
    return UsageError("\n".join(dict.fromkeys(lines)))


def _describe_problem(
    model: type[BaseModel], loc: list[int | str], problem: Mapping[str, Any]
) -> str:
    key = ".".join(map(str, loc))
    gone = describe_removed_setting(key) or describe_removed_value(key, problem["input"])
    if problem["type"] == "extra_forbidden" and model is not JobSpec:
        gone = gone or describe_removed_site_setting(key)
    if gone:
        return gone
    if problem["type"] == "extra_forbidden":
        known = _known_keys(model, [str(part) for part in loc[:-1]])
        section = ".".join(map(str, loc[:-1]))
        suggest = suggest_setting if model is JobSpec else did_you_mean
        return (
            f"{section + ': ' if section else ''}unknown key {loc[-1]!r}."
            f"{suggest(str(loc[-1]), known)} Known keys: {', '.join(known)}"
        )
    if problem["type"] == "missing":
        return f"{key}: is required and not given"
    came = problem["input"]
    message = str(problem["msg"]).removeprefix("Value error, ")
    # A key of the grid. Only text: YAML's anchors can make a value too large to be written out.
    if loc[:1] != ["workload"] and isinstance(came, str) and describe_removed_setting(came):
        return message
    if not loc and problem["type"] == "value_error":  # of several keys, which it names itself
        return message
    if problem["type"] == "string_pattern_mismatch":
        message = _describe_pattern(key, str(came))
    return f"{key or 'the file'}: {message}; came {abbreviate(came)} ({type(came).__name__})"


def _describe_pattern(key: str, came: str) -> str:
    """Explain in words which names the job, its parameters or grid keys may have."""
    if key == "name":
        return (
            "expected at most 64 letters, digits, dots, dashes and underscores, a letter or digit "
            "first"
        )
    if key.startswith("parameters"):
        return "expected a name of letters, digits and single underscores, a letter first"
    dotted = [f"{section}.{key}" for section in SECTIONS for key in SECTIONS[section].model_fields]
    same = [each for each in dotted if each.split(".")[1] == came.rpartition(".")[2]]
    if same:
        return f"write {same[0]}"
    close = did_you_mean(came, dotted)
    return f"expected section.key, as in resources.cpus_per_task{'.' if close else ''}{close}"


def _known_keys(model: type[BaseModel], path: list[str]) -> list[str]:
    for part in path:
        field = model.model_fields.get(part)
        below = _first_model(field.annotation) if field else None
        if below is None:
            return []
        model = below
    return list(model.model_fields)


def _first_model(annotation: Any) -> type[BaseModel] | None:
    """Find the first model among an annotation's alternatives; None if there is none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _first_model(part))), None)
