"""The fields of all records, and reading and writing them whole."""

from __future__ import annotations

import contextlib
import errno
import json
import time
from datetime import UTC, datetime
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, model_validator

from hpcncf.errors import HpcncfError
from hpcncf.paths import make_folder, set_shared_mode

SCHEMA_VERSION: Final = 1
# What a run cannot begin or end without is worth waiting for room on the disk.
# So is a file server that is away for a moment, or came back read-only.
TRANSIENT_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ESTALE, errno.EIO)
RETRY_S: Final = 180.0
RETRY_EVERY_S: Final = 1.0

Outcome = Literal["completed", "failed", "stopped"]
Reported = dict[str, bool | int | float | str]


class RecordError(HpcncfError):
    """A file that is not the record it should be. Readers of many files name, skip and count it."""


def _moment(text: str) -> str:
    """ValueError where it is none; with its zone, for moments of several hosts are compared."""
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("expected a moment with its time zone, as 2026-01-31T12:00:00+00:00")
    return text


def _process_id(number: int) -> int:
    if not 0 < number < 2**31:
        raise ValueError(f"expected a process id, came {number}")
    return number


def _some(number: float) -> float:
    if number <= 0:
        raise ValueError(f"expected more than 0, came {number}")
    return number


# Checked here, so that a broken file is named where it is read; the schema's types stay plain.
Moment = Annotated[str, AfterValidator(_moment)]
ProcessId = Annotated[int, AfterValidator(_process_id)]
PositiveNumber = Annotated[float, AfterValidator(_some)]


class RecordPart(BaseModel):
    """Base of a record's parts. Unknown keys are kept: a later minor version may add some."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False, use_attribute_docstrings=True)


class Cores(RecordPart):
    """Three counts told apart: what was granted, what the process may use, what it used."""

    allocated: PositiveNumber
    """What Slurm (or the local launcher) granted this rank; without either, what is usable."""
    usable: float
    """What CPU affinity and the cgroup's quota allow this rank."""
    used: float | None
    """CPU seconds over elapsed seconds. Not a count of busy cores."""
    cpus: list[int]
    """The CPUs of the affinity mask when the rank started."""
    affinity_changed: bool
    """True when the mask was another at the end."""
    quota: float | None
    """Cores' worth of time that cgroup v1 or v2 allows (`cpu.max`); None: no limit."""
    threads_per_core: int | None
    on_node: int
    """CPUs (hardware threads) that the node has."""
    pinned: str | None = None
    """`cores` or `numa`, where the rank bound itself to `cpus` (`training.pin`)."""
    numa_nodes: list[int] | None = None
    """NUMA nodes that `cpus` belong to; None where the kernel tells of none."""


class Cpu(RecordPart):
    """What the process tree spent: this rank, its DataLoader workers, and children that ended."""

    user_s: float
    system_s: float
    efficiency: float | None
    """(user_s + system_s) / (elapsed_s x cores.allocated), as seff; may exceed 1, never clipped."""
    efficiency_peak: float | None
    """The largest over windows of `peak_window_s`; None when the run was shorter than one."""
    peak_window_s: float
    context_switches_voluntary: int
    context_switches_involuntary: int
    threads_peak: int
    processes_peak: int
    main_s: float | None = None
    """CPU seconds of the rank's own process alone; of a command's, its first process."""
    children_s: float | None = None
    """CPU seconds of all the others of its tree: DataLoader workers, helpers, those that ended."""
    throttled_s: float | None = None
    """Seconds for which a quota held its cgroup back, summed over CPUs as the kernel does
    (`cpu.stat`, v1 and v2): of the cgroup with the most, so of the whole job. None: none tells."""
    runnable_mean: float | None = None
    """Mean number of the tree's threads in state R: on a CPU or ready for one. From each thread's
    time in both (`schedstat`), so not sampled; None where the kernel keeps no such account."""
    runqueue_s: float | None = None
    """Thread-seconds ready to run and waiting for a CPU, over the tree: 0 where every thread had a
    core of its own. From `schedstat`, as `runnable_mean`."""
    iowait_s: float | None = None
    """Thread-seconds waiting for reads and writes to end, swapping included, over the tree (field
    42 of /proc/<pid>/stat). None where the kernel does not count: `kernel.task_delayacct` is 0."""


class Memory(RecordPart):
    rss_peak_mib: float
    """Resident memory of the process tree, the largest sample; mapped data counts."""
    anonymous_peak_mib: float | None
    """The same without mapped files and shared memory."""
    limit_mib: float | None
    """The smallest limit of the cgroups above the process; None: no limit."""
    major_faults: int | None = None
    """Page faults of the tree that had to read from a disk: mapped files not in the page cache,
    pages from swap."""
    pressure_s: float | None = None
    """Seconds in which some thread waited for memory (PSI, `some` of `memory.pressure`), of the
    job's cgroup, or where that keeps none (v1) of the whole node, others' threads included."""
    swap_peak_mib: float | None = None
    """Swapped out of the tree, the largest sample (VmSwap)."""


class Io(RecordPart):
    """Bytes that went through the process tree's read and write calls to storage."""

    read_mib: float | None
    write_mib: float | None
    pressure_s: float | None = None
    """Seconds in which some thread waited for a disk, told as `memory.pressure_s` is."""
    blocked_s: float | None = None
    """Process-seconds in state D, over the tree: a process's first thread waiting for a disk or a
    network file system. Sampled five times a second, and too high where CPUs are short: the
    sampler gets one when a process begins to wait. None where there is no /proc."""


class Phases(RecordPart):
    """Where the time of the counted steps went, in seconds; they add up to the steps' time."""

    input_s: float
    """Waiting for the next batch."""
    forward_s: float
    backward_s: float
    sync_s: float
    """The exposed wait for other ranks; DDP overlaps the rest with backward."""
    optimizer_s: float
    other_s: float
    fused_s: float = 0.0
    """All of a step in one compiled call (engine native), which cannot be told apart."""


class Sync(RecordPart):
    """What keeping the ranks one model took, in the counted steps."""

    how: str
    """`dense`, `rows` or `local_sgd`, as `training.sync`."""
    over: str
    """`gloo`, `nccl` or `shared memory`."""
    every: int
    """Steps from one exchange to the next."""
    exchanges: int
    """Collectives, or messages to all."""
    bytes: int
    """Of this rank's gradients, rows and parameters that went into them, once, to however many
    ranks: what a network carries depends on how the library passes them on."""
    seconds: float
    """Exposed, as `phases.sync_s`: what overlaps with backward is not in it."""


class Epoch(RecordPart):
    epoch: int
    """0 is the first."""
    training_s: float
    evaluation_s: float
    checkpoint_s: float
    first_batch_s: float
    """Wait for the epoch's first batch: what starting the workers costs, once per epoch."""
    steps: int
    instances: int
    """Of all ranks together: positives and sampled negatives."""
    loss: float
    """Mean binary cross entropy over this epoch's instances of all ranks."""
    evaluation_pairs: int | None = None
    """Pairs of user and item that the evaluation scored, over all ranks."""
    hr10: float | None = None
    ndcg10: float | None = None
    mrr: float | None = None
    hr10_unseen: float | None = None
    """HR@10 over the test pairs that do not occur in training."""


class Batches(RecordPart):
    """The time of every `every` steps, in order, so that pauses can be seen."""

    every: int
    seconds: list[float]
    pauses: list[dict[str, float]]
    """`epoch`, `step`, `seconds` of the steps that took far longer than the median."""


class TrainingRecord(RecordPart):
    """What one rank of the NCF workload did."""

    device: str
    backend: str
    threads: int
    parameters: int
    """Trainable parameters of the model."""
    lr: float | None = None
    """Learning rate of the steps, after `lr_scale`."""
    skipped_steps: int | None = None
    """With `precision: float16` and engine reference: steps that this attempt did not take, because
    a gradient was not finite. None where none can be skipped."""
    startup_s: float
    """From the process's start to the first step: imports, joining the group, loading."""
    training_s: float
    evaluation_s: float
    checkpoint_s: float
    steps: int
    instances: int
    """This rank's own."""
    warmup_steps: int
    """Steps at the start that neither `phases` nor the two figures below count."""
    counted_steps: int
    counted_instances: int
    """This rank's own, in the counted steps."""
    counted_s: float
    """The time of the counted steps, evaluation and checkpoints excluded."""
    phases: Phases
    sync: Sync | None = None
    """None for one rank, which has nobody to exchange with."""
    epochs: list[Epoch]
    batches: Batches
    model_sha256: str | None
    """Of all parameters' bytes: equal bits, equal digest."""
    resumed_epoch: int | None
    """The first epoch that this attempt computed, when it resumed; else None."""
    resumed_step: int | None = None
    """How many steps of that epoch earlier attempts had done; None when it did not resume."""
    baseline: dict[str, float] | None = None
    """`hr10` and `ndcg10` of the table of counts on the same test rows."""
    unseen_test_rows: int | None = None
    rows_per_step: float | None = None
    """Mean number of distinct embedding rows, users and items, that a step of this rank reads:
    counted over a sample of the steps that it took."""
    table_rows: int | None = None
    """Embedding rows that there are: users and items."""
    waiting_s: float | None = None
    """Waiting for other ranks outside of the steps: at an epoch's begin and end, in the evaluation
    and for a checkpoint. In neither `phases.sync_s` nor `training_s`; None for one rank."""


class Packed(RecordPart):
    """The runs that were begun side by side on one node, this one among them."""

    runs: list[str]
    """Their ids."""
    runs_per_gpu: int
    """So many of them at most shared a GPU; 1 where they had none, or each its own."""
    mps: bool
    """Whether NVIDIA's Multi-Process Service ran for them."""
    mps_missing: str | None = None
    """Why it did not, where it was asked for."""


class RankRecord(RecordPart):
    """What one rank leaves when it ends, however it ends."""

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["rank"] = "rank"
    run_id: str
    attempt: int
    rank: int
    local_rank: int
    world_size: int
    node: str
    node_index: int
    pid: ProcessId
    launched_by: Literal["local", "slurm", "torchrun", "run", "train", "debug"]
    slurm_job_id: str | None
    """`123` or `123_4`."""
    outcome: Outcome
    exit_code: int | None
    error: dict[str, str] | None
    """`type`, `message`, `traceback` (its last lines; empty where a user can mend what the message
    says, and for a command)."""
    started_at: Moment
    """UTC, ISO 8601; when the process started."""
    ended_at: Moment
    elapsed_s: float
    run: dict[str, Any]
    """The run as planned: its settings, data key, resources."""
    environment: dict[str, Any]
    """Versions, code commit, CPU model, and the variables of an allowed list."""
    cores: Cores
    cpu: Cpu
    memory: Memory
    io: Io
    training: TrainingRecord | None
    """None for a command, and for a rank that failed before it trained."""
    reported: Reported = {}
    """What a command told of itself: the last value of each key."""
    packed: Packed | None = None
    """None for a run that shared its job with no other at the same time."""
    warnings: list[str]
    """What makes this record worth less, in words."""


class GpuProcess(RecordPart):
    """What one process did on a GPU, over the time that the node was watched."""

    pid: int
    """The machine's; in a container a process knows itself by another."""
    ours: bool | None
    """Whether it is one of the run's; None in a container, where that cannot be told."""
    busy: float | None
    """Mean share of the time; None where NVML did not tell, as under MIG."""
    memory_peak_mib: float | None


class Gpu(RecordPart):
    """What one GPU of a node did, by NVML; series are lists over the node's windows.

    A value is None where NVML did not tell.
    """

    index: int
    """NVML's, in the order of the PCI bus; CUDA_VISIBLE_DEVICES does not renumber it."""
    uuid: str
    name: str
    memory_total_mib: float
    busy: list[float | None]
    """Share of the window in which a kernel was on the GPU, whoever's, however little of it it
    filled (`nvmlDeviceGetUtilizationRates`)."""
    ours: list[float | None]
    """The same of the run's own processes (`nvmlDeviceGetProcessUtilization`)."""
    memory_mib: list[float | None]
    """In use at the window's end, whoever's."""
    ours_memory_mib: list[float | None]
    """Of the run's own processes."""
    energy_j: list[float | None]
    """Joules in the window: the GPU's own counter, or where it has none its power x time."""
    sm_mhz: list[float | None]
    """Clock of the multiprocessors, mean of the samples."""
    throttled: dict[str, list[float | None]]
    """Reason -> share of the window's samples in which it held the clocks down: `power`,
    `thermal`, `hardware`, `other`; idle GPUs and clocks that were set so are no reason."""
    processes: list[GpuProcess] = []
    """All that were seen on it, whoever's, the busiest first."""

    def series(self) -> list[list[float | None]]:
        told = [self.busy, self.ours, self.memory_mib, self.ours_memory_mib, self.energy_j]
        return [*told, self.sm_mhz, *self.throttled.values()]


class NodeRecord(RecordPart):
    """What one node's CPUs, memory and network did while a run was on it.

    At most 600 windows; they widen as the run grows. Series are lists over windows.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["node"] = "node"
    run_id: str
    attempt: int
    node: str
    node_index: int
    started_at: Moment
    start_s: list[float]
    """Each window's start, in seconds since `started_at`."""
    length_s: list[float]
    cpus: list[int]
    """The CPUs told below, by the kernel's number."""
    busy: list[list[float]]
    """[cpu][window]: share of the window the CPU was busy, whoever used it."""
    ours: list[list[float]]
    """[cpu][window]: share that was ours. An estimate: a thread's time is given to the CPU it
    ran on last."""
    steal: list[float]
    """[window]: mean share over `cpus` that the hypervisor took."""
    others_cores: list[float]
    """[window]: cores' worth of `cpus` that processes other than ours used."""
    tree_cpu_s: list[float]
    """[window]: CPU seconds of the run's process tree on this node (of local rank 0's, where the
    ranks are not its children)."""
    rss_mib: list[float]
    """[window]: resident memory of the same tree at the window's end."""
    anonymous_mib: list[float] | None = None
    """[window]: the same without mapped files and shared memory; 0 where there is no /proc."""
    memory_used_mib: list[float]
    """[window]: of the whole node, at the window's end."""
    network_mib: list[float]
    """[window]: received and sent, all interfaces but loopback."""
    loopback_mib: list[float]
    disk_mib: list[float]
    """[window]: read and written by the whole node."""
    gpus: list[Gpu] | None = None
    """Those that the run may use; None where NVML is not there (optional extra `gpu`)."""

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
            raise ValueError(f"a series is not of {windows} windows, as start_s is")
        if not len(self.busy) == len(self.ours) == len(self.cpus):
            raise ValueError(f"busy and ours are not of {len(self.cpus)} CPUs, as cpus is")
        return self


class Progress(RecordPart):
    """How far a run is; rewritten whole every few seconds by rank 0."""

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["progress"] = "progress"
    run_id: str
    attempt: int
    updated_at: Moment
    elapsed_s: float
    phase: Literal["startup", "training", "evaluation", "checkpoint", "command"]
    epoch: int
    epochs: int
    step: int
    """Steps of this epoch that are done."""
    evaluated: float | None = None
    """In `evaluation`: share of rank 0's test rows that are ranked."""
    steps_per_epoch: int
    reported: Reported = {}
    """What a command told of itself so far."""
    instances_per_s: float | None
    cpu_efficiency: float | None
    cores_usable: float | None = None
    """Cores that rank 0 may use, by affinity and quota."""
    cores_allocated: float | None = None
    """Cores that rank 0 was granted."""
    cpu_s: float | None = None
    """CPU seconds of rank 0's process tree so far: all that is known of an attempt killed hard."""


class Claim(RecordPart):
    """Who runs this attempt: made with its folder, so that no second task takes the run."""

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["claim"] = "claim"
    run_id: str
    attempt: int
    node: str
    pid: ProcessId
    process_started: float
    """psutil's `create_time` of `pid`: a later process of the same number is not it."""
    claimed_at: Moment
    launched_by: str
    slurm_job_id: str | None
    slurm_restart: int | None = None
    """Which start of that job: 0 is the first, a requeue begins the next."""


class End(RecordPart):
    """How an attempt ended as its local launcher saw it: written after the last rank is gone."""

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["end"] = "end"
    run_id: str
    attempt: int
    reason: Literal["exited", "timeout", "cancelled"]
    exit_codes: list[int | None]
    """By rank; negative is the signal that ended it."""
    ended_at: Moment


R = TypeVar("R", bound=RecordPart)


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def write_text(path: Path, text: str) -> None:
    """Write all of the file or none of it: others may read it meanwhile, two may write it."""
    make_folder(path.parent)
    partial = NamedTemporaryFile(  # noqa: SIM115
        "w",
        dir=path.parent,
        prefix=f".{path.name}.",
        delete=False,
        encoding="utf-8",
        errors="backslashreplace",  # a file's name that is not UTF-8
    )
    try:
        with partial:
            partial.write(text)
            set_shared_mode(partial.fileno(), path.parent)  # a temporary file is 0600
        Path(partial.name).replace(path)
    except BaseException:
        Path(partial.name).unlink(missing_ok=True)
        raise


def write_record(path: Path, record: BaseModel) -> None:
    """Write a record as JSON. NaN and infinity are our bug, and refused."""
    text = json.dumps(record.model_dump(mode="json"), allow_nan=False)
    write_text(path, text + "\n")


def read_record(path: Path, kind: type[R]) -> R:
    """Read one record.

    Raises RecordError where the file is missing, torn, of a later version or something else.
    """
    try:
        if path.is_fifo():
            raise RecordError(f"{path}: a pipe, not a file")
        text = path.read_bytes()
        with contextlib.suppress(ValidationError):  # what is wrong with it is told below
            record = kind.model_validate_json(text)
            if "kind" in record.model_fields_set:
                return record
        plain = json.loads(text.decode())
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror}") from None
    except RecursionError:
        raise RecordError(f"{path}: not a record: nested too deeply") from None
    except ValueError as error:  # JSON and UTF-8 both
        raise RecordError(f"{path}: not JSON: {error}") from None
    wanted = kind.model_fields["kind"].default
    if not isinstance(plain, dict) or plain.get("kind") != wanted:
        came = plain.get("kind") if isinstance(plain, dict) else type(plain).__name__
        raise RecordError(f"{path}: expected a record of kind {wanted!r}, came {came!r}")
    version = plain.get("schema_version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise RecordError(
            f"{path}: written by a later hpcncf (schema {version}; this one reads up to "
            f"{SCHEMA_VERSION}): upgrade hpcncf to read it"
        )
    try:
        return kind.model_validate(plain)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        message = problem["msg"].removeprefix("Value error, ")
        raise RecordError(f"{path}: {where}: {message}") from None


def write_record_with_retries(path: Path, record: BaseModel) -> None:
    """As `write`; what may pass is waited for, since a run would fail for want of it."""
    until = time.monotonic() + RETRY_S
    while True:
        try:
            return write_record(path, record)
        except OSError as error:
            if error.errno not in TRANSIENT_ERRORS or time.monotonic() > until:
                raise
        time.sleep(RETRY_EVERY_S)
