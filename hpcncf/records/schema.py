"""The schema of a run's records, written complete or not at all, and read by version."""

from __future__ import annotations

import contextlib
import json
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from hpcncf.errors import abbreviate
from hpcncf.records.plain import GROWTH_HINT as GROWTH_HINT
from hpcncf.records.plain import (
    LARGEST_METRIC,
    LONGEST_REPORTED,
    MOST_REPORTED,
    SCHEMA_VERSION,
    write_plain,
    write_plain_with_retries,
)
from hpcncf.records.plain import TOO_SHORT_S as TOO_SHORT_S
from hpcncf.records.plain import RecordError as RecordError
from hpcncf.records.plain import Reported as Reported
from hpcncf.records.plain import read_regular as read_regular
from hpcncf.records.plain import utc_now as utc_now

LONGEST_TEXT: Final = 10_000

RankOutcome = Literal["completed", "failed", "stopped"]


def _moment(text: str) -> str:
    """Check that a moment has its time zone, since times of several hosts are compared."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("expected a moment with its time zone, as 2026-01-31T12:00:00+00:00")
    if not 1970 < moment.year < 9999:
        raise ValueError(f"expected a year after 1970, came {moment.year}")
    return text


def _shortened(text: Any) -> Any:
    """Cut the middle out of a long text: of an error, the beginning and the end matter."""
    if not isinstance(text, str) or len(text) <= LONGEST_TEXT:
        return text
    half = LONGEST_TEXT // 2
    return f"{text[:half]} ... {text[-half:]}"


# Validated here, so that reading reports a broken file. Wider than anything that is measured, and
# so narrow that sums and products stay finite.
Moment = Annotated[str, AfterValidator(_moment)]
LongText = Annotated[str, BeforeValidator(_shortened)]
# The keys that readers look up, whatever a foreign record lacks.
ErrorText = Annotated[
    dict[str, LongText],
    AfterValidator(lambda error: {"type": "error", "message": "", "traceback": ""} | error),
]
Integer = Annotated[int, Field(ge=-(2**53), le=2**53)]
PositiveInteger = Annotated[int, Field(ge=1, le=2**53)]
ProcessId = Annotated[int, Field(ge=1, lt=2**31)]
WorldSize = Annotated[int, Field(ge=1, le=2**20)]
Number = Annotated[float, Field(ge=-1e15, le=1e15)]
PositiveNumber = Annotated[float, Field(gt=0, le=1e15)]
Metric = Annotated[float, Field(ge=-LARGEST_METRIC, le=LARGEST_METRIC)]
Share = Annotated[float, Field(ge=0, le=1)]
# Slurm gets it as an argument.
SlurmJobId = Annotated[str, Field(pattern=r"^[0-9A-Za-z_][0-9A-Za-z_+.-]{0,63}$")]
ReportedText = Annotated[str, Field(max_length=LONGEST_REPORTED)]
BoundedReported = Annotated[
    dict[ReportedText, bool | Integer | Metric | ReportedText], Field(max_length=MOST_REPORTED)
]


class RecordPart(BaseModel):
    """Base of records and their parts. Unknown keys are kept: a later version may add some."""

    model_config = ConfigDict(
        extra="allow",
        allow_inf_nan=False,
        str_max_length=LONGEST_TEXT + 10,
        defer_build=True,  # no command reads records of all kinds
        use_attribute_docstrings=True,
    )


class Record(RecordPart):
    """Base of the records in a results folder, each a file; `kind` tells their kinds apart."""

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: str


class AttemptRecord(Record):
    """Base of the records of one attempt at a run."""

    run_id: str
    attempt: Integer


class Cores(RecordPart):
    """Allocated, usable and used cores of a rank."""

    allocated: PositiveNumber
    """Cores that Slurm (or the local launcher) granted this rank; without either, usable cores."""
    usable: Number
    """Cores that CPU affinity and the cgroup's quota allow this rank."""
    used: Number | None
    """CPU seconds over elapsed seconds. Not a count of busy cores."""
    cpus: list[Integer]
    """The CPUs of the affinity mask when the rank started."""
    affinity_changed: bool
    """Whether the mask was different at the end."""
    quota: Number | None
    """Cores' worth of time that cgroup v1 or v2 allows (`cpu.max`); None: no limit."""
    threads_per_core: Integer | None
    on_node: Integer
    """CPUs (hardware threads) that the node has."""
    pinned: str | None = None
    """`cores` (earlier `numa`, too), if the rank bound itself to `cpus` (`training.pin`)."""
    numa_nodes: list[Integer] | None = None
    """NUMA nodes of `cpus`; None if the kernel reports none."""


class Cpu(RecordPart):
    """CPU time of the process tree: this rank, its DataLoader workers, and children that ended."""

    user_s: Number
    system_s: Number
    efficiency: Number | None
    """(user_s + system_s) / (elapsed_s x cores.allocated), as seff; may exceed 1, never clipped."""
    efficiency_peak: Number | None
    """The largest over windows of `peak_window_s`; None if the run was shorter than one."""
    peak_window_s: Number
    context_switches_voluntary: Integer
    context_switches_involuntary: Integer
    threads_peak: Integer
    processes_peak: Integer
    main_s: Number | None = None
    """CPU seconds of the rank's own process alone; of a command's, its first process."""
    children_s: Number | None = None
    """CPU seconds of its other processes: DataLoader workers, helpers, those that ended."""
    throttled_s: Number | None = None
    """Seconds for which a quota throttled its cgroup, summed over CPUs as the kernel does
    (`cpu.stat`, v1 and v2): of the cgroup with the most, so of the whole job. None: not
    reported."""
    runnable_mean: Number | None = None
    """Mean number of the tree's threads in state R: on a CPU or ready for one. From each thread's
    time in both (`schedstat`), so not sampled; None if the kernel does not count it."""
    runqueue_s: Number | None = None
    """Thread-seconds ready to run and waiting for a CPU, over the tree: 0 if every thread had a
    core of its own. From `schedstat`, as `runnable_mean`."""
    iowait_s: Number | None = None
    """Thread-seconds waiting for reads and writes, including swap, over the tree (field 42 of
    /proc/<pid>/stat). None if the kernel does not count it: `kernel.task_delayacct` is 0."""


class Memory(RecordPart):
    rss_peak_mib: Number
    """Resident memory of the process tree, the largest sample; mapped data counts."""
    anonymous_peak_mib: Number | None
    """The same without mapped files and shared memory."""
    limit_mib: Number | None
    """The smallest limit of the cgroups above the process; None: no limit."""
    major_faults: Integer | None = None
    """Page faults of the tree that had to read from a disk: mapped files not in the page cache,
    pages from swap."""
    pressure_s: Number | None = None
    """Seconds in which some thread waited for memory (PSI, `some` of `memory.pressure`), of the
    job's cgroup; with cgroup v1 of the whole node, including other users' threads."""
    swap_peak_mib: Number | None = None
    """Swapped out of the tree, the largest sample (VmSwap)."""


class Io(RecordPart):
    """Bytes that went through the process tree's read and write calls to storage."""

    read_mib: Number | None
    write_mib: Number | None
    pressure_s: Number | None = None
    """Seconds in which some thread waited for a disk, counted as `memory.pressure_s`."""
    blocked_s: Number | None = None
    """Process-seconds in state D, over the tree: a process's first thread waiting for a disk or a
    network file system. Sampled five times a second, and too high if CPUs are oversubscribed: the
    sampler gets one when a process begins to wait. None without /proc."""


class Phases(RecordPart):
    """Seconds of the counted steps by phase; they add up to the steps' time."""

    input_s: Number
    """Waiting for the next batch."""
    forward_s: Number
    backward_s: Number
    sync_s: Number
    """The exposed wait for other ranks; DDP overlaps the rest with backward."""
    optimizer_s: Number
    other_s: Number
    fused_s: Number = 0.0
    """A whole step in one compiled call (engine native), which has no separate phases."""


class Sync(RecordPart):
    """The cost of keeping one model over all ranks, in the counted steps."""

    how: str
    """`dense` or `rows` (earlier `local_sgd`, too), as `training.sync`."""
    over: str
    """`gloo` or `nccl` (earlier `shared memory`, too)."""
    exchanges: Integer
    """Collectives, or messages to all."""
    bytes: Integer
    """Of this rank's gradients, rows and parameters, counted once for any number of receivers:
    network traffic depends on how the library distributes them."""
    seconds: Number
    """Exposed wait, as `phases.sync_s`: without the overlap with backward."""


class Epoch(RecordPart):
    epoch: Integer
    """0 is the first."""
    training_s: Number
    evaluation_s: Number
    checkpoint_s: Number
    first_batch_s: Number
    """Wait for the epoch's first batch: the cost of starting the workers, once per epoch."""
    steps: Integer
    instances: Integer
    """Of all ranks together: positives and sampled negatives."""
    loss: Metric
    """Mean binary cross entropy over this epoch's instances of all ranks."""
    evaluation_pairs: Integer | None = None
    """Pairs of user and item that the evaluation scored, over all ranks."""
    hr10: Share | None = None
    ndcg10: Share | None = None
    mrr: Share | None = None
    hr10_unseen: Share | None = None
    """HR@10 over the test pairs that do not occur in training."""


class Batches(RecordPart):
    """The time of every `every` steps, in order, to reveal pauses."""

    every: PositiveInteger
    seconds: list[Number]
    pauses: list[dict[str, Number]]
    """`epoch`, `step`, `seconds` of steps that took far longer than the median."""


class TrainingRecord(RecordPart):
    """Figures of the NCF workload's training on one rank."""

    device: str
    backend: str
    threads: Integer
    parameters: Integer
    """Trainable parameters of the model."""
    lr: Metric | None = None
    """Learning rate of the steps."""
    skipped_steps: Integer | None = None
    """With `precision: float16` and engine reference: steps that this attempt skipped because a
    gradient was not finite. None if steps cannot be skipped."""
    startup_s: Number
    """From the process's start to the first step: imports, joining the group, loading."""
    training_s: Number
    evaluation_s: Number
    checkpoint_s: Number
    steps: Integer
    instances: Integer
    """This rank's own."""
    warmup_steps: Integer
    """Steps at the start that `phases` and the two counts below exclude."""
    counted_steps: Integer
    counted_instances: Integer
    """This rank's own, in the counted steps."""
    counted_s: Number
    """The time of the counted steps, without evaluation and checkpoints."""
    phases: Phases
    sync: Sync | None = None
    """None for one rank."""
    epochs: list[Epoch]
    batches: Batches
    model_sha256: str | None
    """Of all parameters' bytes: equal bits have equal digests."""
    resumed_epoch: Integer | None
    """The first epoch that this attempt computed; None if it did not resume."""
    resumed_step: Integer | None = None
    """Steps of that epoch that earlier attempts had done; None if it did not resume."""
    baseline: dict[str, Number] | None = None
    """`hr10` and `ndcg10` of the table of counts on the same test rows."""
    unseen_test_rows: Integer | None = None
    rows_per_step: Number | None = None
    """Mean number of distinct embedding rows, users and items, in a step of this rank, counted over
    a sample of its steps."""
    table_rows: Integer | None = None
    """Number of embedding rows: users and items."""
    waiting_s: Number | None = None
    """Waiting for other ranks outside of steps: at an epoch's start and end, in evaluation and for
    a checkpoint. In neither `phases.sync_s` nor `training_s`; None for one rank."""


class Packed(RecordPart):
    """The co-located runs that were started together on one node, including this one."""

    runs: list[str]
    """Their ids."""
    runs_per_gpu: Integer
    """Most runs that shared a GPU; 1 if each had its own, or none."""
    mps: bool
    """Whether NVIDIA's Multi-Process Service was running."""
    mps_missing: str | None = None
    """Why it was not running although it was requested."""


class SourceLine(RecordPart):
    """A line of the user's program, with all that it called."""

    phase: str
    file: str
    line: Integer
    function: str
    share: Number
    """Of the phase's time, 0.0 to 1.0; lines that call each other each have their callees' share,
    too."""
    own_share: Number
    """The same without the user's lines that it called."""
    depth: Integer
    """User frames between the phase's begin and this line; 0 is the outermost."""
    outside: bool = False
    """Whether it began the phase, or led there, while no line of the user's ran inside."""
    called: str | None = None
    """The library's function that the line called for most of its own time, as `copy deepcopy`."""


class LibraryTime(RecordPart):
    """A library's function that took time of a phase in which no line of the user's ran."""

    phase: str
    name: str
    """The package and the function, as `torch default_collate`."""
    share: Number
    """Of the phase's time, 0.0 to 1.0. `lines` has it at the line that began the phase."""


class ProgramPhase(RecordPart):
    """One phase of a program, without the phases inside it."""

    seconds: Number
    waiting: Number | None
    """Share of the seconds in which the training thread neither ran nor wanted a core; None if the
    CPU clock was not read."""
    entered: Integer
    moving: Number | None = None
    """Share of pairs of looks, 0.1 ms apart, between which the training thread had gone on to
    another instruction of Python: it was not inside an operation with enough to do. None where it
    was looked at too seldom, and of a backward pass, which runs in C++."""


class ProgramGraph(RecordPart):
    """The graph of operations that a backward pass began with."""

    backward: Integer
    """The number of the pass after the first step."""
    nodes: Integer
    is_cut: bool
    """Whether there are more nodes, or it took too long to count them."""
    leaves: Integer
    """Parameters that get a gradient."""
    numbers: Integer
    """Numbers in the parameters that get a gradient."""
    unowned: Integer
    """Those of them that no optimizer updates."""
    doubles: Integer
    """Those of them in float64."""
    in_double: bool
    """Whether the loss is of float64."""
    hooks: Integer
    """Hooks registered by then on modules and tensors, removed or not."""


class ProgramMoment(RecordPart):
    """Steps that a program had taken at one moment of its training, and their cost."""

    elapsed_s: Number
    steps: Integer
    main_cpu_s: Number
    """CPU seconds of the training thread, start-up included."""
    phases: dict[str, Number]
    """Phase -> sampled seconds since the first step."""


class ProgramTable(RecordPart):
    """An embedding table at one step."""

    rows: Integer
    width: Integer
    touched: Integer | None
    """Rows with a gradient, estimated; None for a sparse gradient or on a GPU."""
    sparse: bool
    """Whether only rows with a gradient are updated: a sparse gradient, or `rowwise`."""


class ProgramThread(RecordPart):
    """A Python thread of the program other than the training thread; or all those that ended."""

    threads: PositiveInteger = 1
    """How many: those that ended are seen together."""
    function: str
    """The user's function that it was mostly seen in when it did not wait, or a library's."""
    file: str | None
    line: Integer | None
    also: list[Integer] = []
    """Other lines of that function in which it was seen, the one of most samples first."""
    cpu_s: Number
    runqueue_s: Number = 0.0
    """Seconds in which it was ready and had no core."""
    seen_s: Number
    """Seconds that it was seen in the user's code, on a core or not; for a thread without any, in a
    library's."""


class ProgramLoader(RecordPart):
    """A DataLoader, or all those over data sets of one class."""

    workers: Integer
    persistent: bool
    dataset: str
    batch_size: Integer | None
    epochs: Integer
    """Iterators that were made of it."""
    batches: Integer
    evaluates: bool
    """Whether no backward pass followed its batches."""
    with_graph: Integer = 0
    """Batches after which no `no_grad` was entered, nor was it in force."""
    length: Integer | None = None
    """Batches of one pass over the data; None if it is not known."""
    makes_whole_batches: bool | None = None
    """Whether its data set can be indexed by many rows at once; None if it is not known."""


class ProgramRemedy(RecordPart):
    """Remedy that `hpcncf run --with` requested, and its outcome."""

    remedy: str
    """As `--with` has it: `workers=2`."""
    applied: bool
    to: str
    """What it was applied to, or why it was not."""
    count: Integer


class ProgramProfile(RecordPart):
    """Time of one process of a user's program by phase and line, as the probe in it saw.

    Seconds are of the time after its first step, unless said otherwise; of all its time for a
    program without steps.
    """

    program: str
    pid: Integer
    rank: Integer
    ranks: Integer
    is_worker: bool
    python: str
    torch: str | None
    elapsed_s: Number
    """From the start of the process on."""
    startup_s: Number
    """Until the end of the first step; 0 for a program without steps."""
    imports_s: Number
    """Of the start-up, of all the time if no step was seen; estimated from samples."""
    startup_runqueue_s: Number = 0.0
    """Of the start-up, in which the training thread was ready and had no core."""
    seconds: Number
    """The time that the phases share."""
    cpu_s: Number
    """CPU seconds of the process in that time."""
    steps: Integer
    batches: Integer
    samples: Integer | None
    """Batches times their size, of the loaders that train; None if the size is not known."""
    phases: dict[str, ProgramPhase]
    """`input`, `forward`, `backward`, `optimizer`, `sync`, `evaluation`, `checkpoint`, `workers`
    (their start and stop), `loop` (the program's own code between them)."""
    lines: list[SourceLine]
    libraries: list[LibraryTime] = []
    startup_lines: list[SourceLine]
    loaders: list[ProgramLoader]
    tables: list[ProgramTable]
    parameters: Integer | None
    optimizer: str | None
    fused: bool = False
    """Whether one of its optimizers updates all parameters in one kernel."""
    torch_threads: Integer | None
    cpus: Integer | None
    main_cpu_s: Number | None
    """CPU seconds of the training thread."""
    runqueue_s: Number | None
    """Seconds in which the training thread was ready and had no core."""
    moved: Number | None = None
    """Of a program without steps: share of pairs of looks, 0.1 ms apart, between which it went on
    to another instruction: in a Python loop, and not within operations on large arrays."""
    threads: list[ProgramThread]
    graphs: list[ProgramGraph] = []
    moments: list[ProgramMoment] = []
    backwards: Integer | None = None
    """Backward passes after the first step."""
    options: list[str] = []
    """What was seen switched on: `detect_anomaly`, `deterministic`, `profiler`."""
    threads_given: dict[str, Integer] = {}
    """Variable -> threads that the environment gave as the program began, as OMP_NUM_THREADS."""
    threads_set: dict[str, Integer] = {}
    """The same of variables that the program itself has set."""
    private_mib: list[Number] = []
    """Of a DataLoader's worker: memory that it shares with no other process, as it began and every
    two seconds: pages that it has copied, and what it makes."""
    python_objects: Integer | None = None
    """Of a DataLoader's worker: blocks of memory of Python's own allocator as it began."""
    worker_busy: Number | None
    """Share of a DataLoader worker's time in which it made batches; None for other processes."""
    gpu_busy: Number | None
    """GPU time over elapsed time of sampled steps; None without CUDA."""
    samples_taken: Integer
    sampler_cpu_s: Number
    remedies: list[ProgramRemedy] = []
    """None if nothing was asked for."""
    complete: bool
    """Whether the program wrote it at its end; else it is of some seconds before."""
    from_outside: bool = False
    """Whether it was sampled from outside, for some seconds: steps were not counted then."""
    problems: list[LongText]


def _only(key: str) -> AfterValidator:
    """Keep one key: to hold the dictionaries of thousands of records takes time and memory."""
    return AfterValidator(lambda whole: {key: whole.get(key)})


class RankEnd(AttemptRecord):
    """The part of a rank's record that its run's state follows from.

    `status` reads no more of the records of thousands of runs.
    """

    model_config = ConfigDict(extra="ignore")

    kind: Literal["rank"] = "rank"
    rank: Integer
    world_size: WorldSize
    node: str
    node_index: Integer
    slurm_job_id: SlurmJobId | None
    """`123` or `123_4`."""
    outcome: RankOutcome
    exit_code: Integer | None
    error: ErrorText | None
    """`type`, `message`, `traceback` (its last lines; empty for errors that a user can fix, and for
    a command)."""
    started_at: Moment
    """UTC, ISO 8601; when the process started."""
    ended_at: Moment
    elapsed_s: Number
    run: Annotated[dict[str, Any], _only("data_key")]
    environment: Annotated[dict[str, Any], _only("commit")]
    cores: Cores
    warnings: list[LongText]
    """Reasons to trust this record less, in words."""


class NodeUse(RecordPart):
    """Use of one node by processes of the job that were no children of its command.

    A launcher such as `srun` started them. Seen by the probe: only processes of Python.
    """

    node: str
    allocated: Number | None
    """Cores of the job on this node; None if Slurm does not say."""
    processes: Integer
    cpu_s: Number
    memory_peak_mib: Number
    """Sum of the processes' largest resident memory; shared pages count for each."""


class RankRecord(RankEnd):
    """The record of one rank, written however it ends."""

    model_config = ConfigDict(extra="allow")

    run: dict[str, Any]
    """The run as planned: its settings, data key, resources."""
    environment: dict[str, Any]
    """Versions, code commit, CPU model, and the variables of an allowed list."""
    local_rank: Integer
    pid: ProcessId
    launched_by: Literal["local", "slurm", "torchrun", "run", "train", "debug", "attach"]
    """`attach`: of a program that was running already. All figures are of the seconds in which it
    was watched, and so is `outcome`: that of the watch."""
    cpu: Cpu
    memory: Memory
    io: Io
    training: TrainingRecord | None
    """None for a command, and for a rank that failed before it trained."""
    reported: BoundedReported = {}
    """Metrics that a command reported: the last value of each key."""
    program: list[ProgramProfile] = []
    """Where a command's time went, for each of its processes that the probe saw at work."""
    by_launcher: list[NodeUse] = []
    """By node: processes that a launcher started for the command, as `srun` in a batch script.
    `cores`, `cpu` and `memory` count them, too."""
    packed: Packed | None = None
    """None for a run that was not co-located with others in its job."""


class GpuProcess(RecordPart):
    """The use of a GPU by one process, over the time that the node was monitored."""

    pid: Integer
    """On the host; inside a container a process has another."""
    ours: bool | None
    """Whether it belongs to the run; None in a container, where that is unknown."""
    busy: Number | None
    """Mean share of the time; None if NVML did not report it, as under MIG."""
    memory_peak_mib: Number | None


class Gpu(RecordPart):
    """One GPU of a node, as NVML reports it; series are lists over the node's windows.

    None marks values that NVML did not report.
    """

    index: Integer
    """NVML's, in the order of the PCI bus; CUDA_VISIBLE_DEVICES does not renumber it."""
    uuid: str
    name: str
    memory_total_mib: Number
    busy: list[Number | None]
    """Share of the window in which any process's kernel was on the GPU, however little of it the
    kernel filled (`nvmlDeviceGetUtilizationRates`)."""
    ours: list[Number | None]
    """The same of the run's own processes (`nvmlDeviceGetProcessUtilization`)."""
    memory_mib: list[Number | None]
    """In use at the window's end by all processes."""
    ours_memory_mib: list[Number | None]
    """Of the run's own processes."""
    energy_j: list[Number | None]
    """Joules in the window: the GPU's own counter, else its power x time."""
    sm_mhz: list[Number | None]
    """Clock of the multiprocessors, mean of the samples."""
    throttled: dict[str, list[Number | None]]
    """Reason -> share of the window's samples in which it reduced the clocks: `power`, `thermal`,
    `hardware`, `other`; idle GPUs and configured clocks do not count."""
    processes: list[GpuProcess] = []
    """All processes seen on it, whoever's, the busiest first."""

    def series(self) -> list[list[float | None]]:
        plain = [self.busy, self.ours, self.memory_mib, self.ours_memory_mib, self.energy_j]
        return [*plain, self.sm_mhz, *self.throttled.values()]


class NodeRecord(AttemptRecord):
    """A node's CPUs, memory and network while a run was on it.

    At most 600 windows; they widen as the run grows. Series are lists over windows.
    """

    kind: Literal["node"] = "node"
    node: str
    node_index: Integer
    started_at: Moment
    start_s: list[Number]
    """Each window's start, in seconds since `started_at`."""
    length_s: list[Number]
    cpus: list[Integer]
    """The CPUs of `busy` and `ours`, by the kernel's number."""
    busy: list[list[Number]]
    """[cpu][window]: share of the window the CPU was busy, whoever used it."""
    ours: list[list[Number]]
    """[cpu][window]: share of the run's processes. An estimate: a thread's time is attributed to
    the CPU that it ran on last."""
    steal: list[Number]
    """[window]: mean share over `cpus` that the hypervisor took."""
    others_cores: list[Number]
    """[window]: cores' worth of `cpus` that other processes used."""
    tree_cpu_s: list[Number]
    """[window]: CPU seconds of the run's process tree on this node (of local rank 0's, where the
    ranks are not its children)."""
    rss_mib: list[Number]
    """[window]: resident memory of the same tree at the window's end."""
    anonymous_mib: list[Number] | None = None
    """[window]: the same without mapped files and shared memory; 0 without /proc."""
    memory_used_mib: list[Number]
    """[window]: of the whole node, at the window's end."""
    network_mib: list[Number]
    """[window]: received and sent, all interfaces but loopback."""
    network_link_mib_s: Number | None = None
    """What the fastest physical interface carries in one direction; None if it does not say."""
    loopback_mib: list[Number]
    disk_mib: list[Number]
    """[window]: read and written by the whole node."""
    gpus: list[Gpu] | None = None
    """GPUs that the run may use; None without NVML (optional extra `gpu`)."""

    @model_validator(mode="after")
    def every_series_is_whole(self) -> Self:
        windows = len(self.start_s)
        series = [self.length_s, self.steal, self.others_cores, self.tree_cpu_s, self.rss_mib]
        series += [self.memory_used_mib, self.network_mib, self.loopback_mib, self.disk_mib]
        series += [*self.busy, *self.ours]
        series += [self.anonymous_mib] if self.anonymous_mib is not None else []
        lengths = {len(each) for each in series}
        lengths |= {len(each) for gpu in self.gpus or [] for each in gpu.series()}
        if lengths != {windows}:
            raise ValueError(f"a series does not have the {windows} windows of start_s")
        if not len(self.busy) == len(self.ours) == len(self.cpus):
            raise ValueError(f"busy and ours do not have the {len(self.cpus)} CPUs of cpus")
        return self


class Progress(AttemptRecord):
    """A run's progress, rewritten every few seconds by rank 0."""

    kind: Literal["progress"] = "progress"
    updated_at: Moment
    elapsed_s: Number
    phase: Literal["startup", "training", "evaluation", "checkpoint", "command"]
    epoch: Integer
    epochs: Integer
    step: Integer
    """Completed steps of this epoch."""
    evaluated: Number | None = None
    """In phase `evaluation`: share of rank 0's test rows that are ranked."""
    steps_per_epoch: Integer
    reported: BoundedReported = {}
    """Metrics that a command has reported so far."""
    instances_per_s: Number | None
    cpu_efficiency: Number | None
    cores_usable: Number | None = None
    """Cores that rank 0 may use, by affinity and quota."""
    cores_allocated: Number | None = None
    """Cores that rank 0 was granted."""
    cpu_s: Number | None = None
    """CPU seconds of rank 0's process tree so far: the only account of a killed attempt."""
    rss_mib: Number | None = None
    """Resident memory of rank 0's process tree now."""
    pid: ProcessId | None = None
    """The command's process, by which it is found after `hpcncf run` was killed."""
    process_started: Number | None = None
    """When `pid` started, in seconds since boot."""
    slurm_step: str | None = None
    """SLURM_STEP_ID of the command: None in a batch script, or without Slurm."""
    phases: dict[str, Number] = {}
    """Phase -> share of the time since start-up, as the probe has seen it so far."""


class Claim(AttemptRecord):
    """The process that runs this attempt; created with its folder, so that no other claims it."""

    kind: Literal["claim"] = "claim"
    node: str
    pid: ProcessId
    process_started: Number
    """In seconds since boot (of 0.1.0 since 1970), to recognise a later process of its number."""
    claimed_at: Moment
    launched_by: str
    slurm_job_id: SlurmJobId | None
    slurm_restart: Integer | None = None
    """The job's start: 0 is the first, a requeue begins the next."""


EndReason = Literal["exited", "timeout", "cancelled"]


class End(AttemptRecord):
    """End of an attempt, noted by its local launcher and written after the last rank has ended."""

    kind: Literal["end"] = "end"
    reason: EndReason
    exit_codes: list[Integer | None]
    """By rank; negative is the signal that ended it."""
    ended_at: Moment


R = TypeVar("R", bound=RecordPart)


def write_record(path: Path, record: BaseModel) -> None:
    """Write a record as JSON. Raises ValueError for NaN and infinity, which are our bug."""
    write_plain(path, record.model_dump(mode="json"))


def read_record(path: Path, kind: type[R]) -> R:
    """Read one record.

    Raises RecordError if the file is missing, torn, of a later version or something else.
    """
    try:
        text = read_regular(path)
        with contextlib.suppress(ValidationError):  # reported below
            record = kind.model_validate_json(text)
            if "kind" in record.model_fields_set:
                return record
        plain = json.loads(text.decode())
        # Half of a surrogate pair, as JSON may have it, could be written and printed nowhere.
        whole = json.dumps(plain, ensure_ascii=False).encode("utf-8", "replace")
        plain = json.loads(whole)
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror}") from None
    except RecursionError:
        raise RecordError(f"{path}: not a record: nested too deeply") from None
    except ValueError as error:  # JSON and UTF-8 both
        raise RecordError(f"{path}: not JSON: {error}") from None
    wanted = kind.model_fields["kind"].default
    if not isinstance(plain, dict) or plain.get("kind") != wanted:
        came = plain.get("kind") if isinstance(plain, dict) else type(plain).__name__
        raise RecordError(f"{path}: expected a record of kind {wanted!r}, came {abbreviate(came)}")
    version = plain.get("schema_version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise RecordError(
            f"{path}: written by a later hpcncf (schema {version}; this one reads up to "
            f"{SCHEMA_VERSION}). Upgrade hpcncf to read it"
        )
    try:
        return kind.model_validate(plain)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        message = problem["msg"].removeprefix("Value error, ")
        raise RecordError(f"{path}: {where[:100]}: {message[:200]}") from None


def read_optional(path: Path, kind: type[R]) -> R | None:
    """Read one record; None if it is missing or cannot be read."""
    try:
        return read_record(path, kind)
    except RecordError:
        return None


def write_record_with_retries(path: Path, record: BaseModel) -> None:
    """Write a record, waiting for a full disk or a lost file server: see `plain`."""
    write_plain_with_retries(path, record.model_dump(mode="json"))
