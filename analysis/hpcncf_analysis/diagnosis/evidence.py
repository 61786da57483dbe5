"""The figures of a run that rules judge by, and the shape of a diagnosis."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, cast, get_args

from hpcncf.collect.node_means import IDLE_MIB_S
from hpcncf.records.schema import ProgramProfile
from hpcncf_analysis.diagnosis import thresholds
from hpcncf_analysis.diagnosis.facts import LoaderFacts, RankTimes, Startup, Tables
from hpcncf_analysis.diagnosis.program_facts import ObservedProgram
from hpcncf_analysis.diagnosis.source_lines import CodeLocation
from hpcncf_analysis.formatting import format_number, format_percent

Cause = Literal[
    "one_core_confinement",
    "oversubscribed",
    "neighbour_load",
    "python_input",
    "input_io",
    "worker_overhead",
    "dense_optimizer",
    "serial_step",
    "sync_bound",
    "straggler",
    "load_imbalance",
    "evaluation_bound",
    "startup_bound",
    "checkpoint_bound",
    "memory_pressure",
    "too_short_to_judge",
    "gpu_underused",
    "loop_code",
    "interpreter_lock",
    "too_few_workers",
    "memory_growth",
    "small_operations",
    "slowing_steps",
    "excess_arithmetic",
    "costly_option",
    "frequent_call",
    "worker_memory",
]
CAUSES: Final[tuple[Cause, ...]] = get_args(Cause)

RemedyCode = Literal[
    "rowwise",
    "threads",
    "workers",
    "persistent_workers",
    "prefetch_factor",
    "pin_memory",
    "fused",
    "foreach",
    "omp",
    "BatchLoader",
    "NegativeSampler",
    "settings",
    "edit_line",
    "other",
]
"""Names of `--with`; classes of hpcncf.remedies; `settings` of a job file; `edit_line`: the first
of the places."""
IN_PROGRAM: Final = ("BatchLoader", "NegativeSampler")
# A sentence that advises a remedy of `--with`, or a call that does the same.
WITH: Final = re.compile(r"(?:hpcncf run |\()--with ([a-z_]+(?:=\w+)?)|hpcncf\.remedies\.rowwise\b")

DiagnosisVerdict = Literal["cause", "healthy", "unknown"]


@dataclass(frozen=True)
class Gain:
    """Expected effect of a remedy on one figure: a ratio, after over before."""

    factor: float
    low: float
    high: float
    what: Literal["instances_per_s", "core_hours"] = "instances_per_s"
    """`instances_per_s` grows by the factor; `core_hours`, of the same work, shrink to it."""


@dataclass(frozen=True)
class Finding:
    """One cause with the numbers that speak for it."""

    cause: Cause
    share: float
    """What it costs: 0.0 to 1.0 of the elapsed time, or of the cores allocated."""
    of: Literal["time", "cores", "memory"]
    evidence: tuple[str, ...]
    remedy: str
    """One sentence."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Dotted settings of a job file that apply the remedy; empty where no setting does."""
    gain: Gain | None = None
    """None where the record gives no ground for a figure."""
    places: tuple[CodeLocation, ...] = ()
    """The user's own lines, the first one being the one to change."""

    @property
    def with_remedies(self) -> tuple[str, ...]:
        """Remedies as `hpcncf run --with` takes them, the first one advised first."""
        words = [each.group(1) or "rowwise" for each in WITH.finditer(self.remedy)]
        return tuple(dict.fromkeys(words))

    @property
    def remedy_codes(self) -> tuple[RemedyCode, ...]:
        """Ways to apply the remedy, the one that changes least first."""
        names = [each.partition("=")[0] for each in self.with_remedies]
        names += [name for name in IN_PROGRAM if f"hpcncf.remedies.{name}" in self.remedy]
        names += ["settings"] * bool(self.changes) + ["edit_line"] * bool(self.places)
        return cast("tuple[RemedyCode, ...]", tuple(names) or ("other",))

    @property
    def placed_evidence(self) -> tuple[str, ...]:
        """Evidence followed by the line to change, if known: `train.py:88 sample_negatives`."""
        return (*self.evidence, *(each.name for each in self.places[:1]))


@dataclass(frozen=True)
class CoreCounts:
    """Cores of all ranks together: what was granted, what could be used, what was used."""

    allocated: float | None
    usable: float | None
    used: float | None
    """CPU seconds over elapsed seconds."""


@dataclass(frozen=True)
class Diagnosis:
    """Why one run was no faster."""

    run_id: str
    verdict: DiagnosisVerdict
    primary: Finding | None
    """None unless the verdict is `cause`."""
    secondary: tuple[Finding, ...]
    """What else was found, the costliest first; of a `healthy` run nothing."""
    cores: CoreCounts
    missing: tuple[str, ...] = ()
    """Causes that could not be judged, because the records lack their figures."""
    alerts: tuple[str, ...] = ()
    """What costs no time yet, and will end the run."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        return (*([self.primary] if self.primary else []), *self.secondary)


@dataclass(frozen=True)
class Gpus:
    """Mean use of the GPUs of a run, over all of them."""

    number: int
    busy: float
    """Share of the time with a kernel of the run on the GPU."""
    watts: float | None = None
    """Of one."""
    training: bool = False
    """Whether it covers the time in training alone, else the whole run."""


# Engines whose step costs what its rows cost.
OF_ROWS: Final = frozenset({"rowwise", "native"})

# A node's counters: other jobs on a shared node are in them, RDMA is not.
LIMIT: Final = 0.5
"""Share of a link's capacity, both directions, from which it is the limit: protocols and pauses
between messages take the rest. An all-reduce in a ring sends as much as it receives."""


@dataclass(frozen=True)
class Traffic:
    """MiB/s of the busiest node while the ranks trained; of a command, over all of its time."""

    network: float
    """Received and sent."""
    loopback: float
    disk: float
    """Read and written."""
    link: float | None = None
    """What the fastest network link carries in one direction; None if not known."""

    def describe_exchange(self, nodes: int, sync_share: float) -> str:
        """Sentence part on how much of the network link the ranks' exchange uses.

        `sync_share`: share of the time that the exchange takes.
        """
        if nodes < 2 and self.loopback < IDLE_MIB_S:
            return "the exchange stays in the node's memory: no network is the limit"
        if nodes < 2:
            over = f"{format_number(self.loopback)} MiB/s over loopback"
            return f"the exchange stays on the node, {over}: no network is the limit"
        text = f"a node received and sent {format_number(self.network)} MiB/s over the network"
        if self.link is None or sync_share <= 0:
            return f"{text}; the speed of its link is not known"
        used = self.network / sync_share / (2 * self.link)
        text += f", {format_percent(min(used, 1.0))} of what its link carries while the ranks "
        if used >= LIMIT:
            return f"{text}exchange: the network is the limit"
        return f"{text}exchange: latency or a slow rank is the limit, not its bandwidth"

    def describe_files(self) -> str:
        """Disk and network rates while the run waited for files; empty if both are low."""
        if max(self.network, self.disk) < IDLE_MIB_S:
            return ""
        text = (
            f"meanwhile the node's disks read and wrote {format_number(self.disk)} MiB/s, its "
            f"network carried {format_number(self.network)} MiB/s"
        )
        if self.network >= self.disk:
            text += ": the files come over the network"
            is_limit = self.link is not None and self.network >= LIMIT * self.link
            text += ", which is the limit" if is_limit else ""
        return text


@dataclass(frozen=True)
class Evidence:
    """Everything that the rules know about one run; figures that the records lack are None.

    Shares are 0.0 to 1.0; cores and seconds of CPU time are sums over the ranks.
    """

    run_id: str
    elapsed_s: float
    """Of the slowest rank."""
    cores: CoreCounts
    ranks: tuple[RankTimes, ...]
    world_size: int = 1
    trained: bool = False
    """Whether it is our own training, whose settings `training` holds."""
    training: Mapping[str, Any] = field(default_factory=dict)
    resources: Mapping[str, Any] = field(default_factory=dict)
    used_in_training: float | None = None
    """Cores in use between the slowest rank's first step and its last, from the nodes' series."""
    threads: int | None = None
    """Threads that one rank was set to compute with."""
    runnable: float | None = None
    """Threads that ran or were ready to, mean over the time, of all ranks."""
    runqueue_s: float | None = None
    involuntary_per_s: float | None = None
    affinity_changed: bool = False
    throttled_s: float | None = None
    startup_s: float | None = None
    training_s: float | None = None
    evaluation_s: float | None = None
    checkpoint_s: float | None = None
    phases: Mapping[str, float] = field(default_factory=dict)
    """Phase -> share of the steps' time, mean over the ranks; empty if none are recorded."""
    counted_steps: int | None = None
    epochs: int = 1
    """That this attempt computed."""
    first_batch_s: float | None = None
    """Waits for an epoch's first batch, summed over the epochs of this attempt."""
    running_step: float | None = None
    """A step that is not an epoch's first, over the mean of the counted ones; None if the record
    does not separate them."""
    parameters: int | None = None
    """Trainable ones, tables included."""
    sync_how: str | None = None
    sync_over: str | None = None
    sync_bytes_per_step: float | None = None
    rows_per_step: float | None = None
    table_rows: int | None = None
    workers: int = 0
    children_s: float | None = None
    system_s: float | None = None
    """CPU seconds in the kernel."""
    read_mib: float | None = None
    iowait_s: float | None = None
    blocked_s: float | None = None
    major_faults: int | None = None
    others_cores: float | None = None
    steal: float | None = None
    memory_peak_mib: float | None = None
    memory_limit_mib: float | None = None
    memory_pressure_s: float | None = None
    memory_growth_mib: float | None = None
    """Where it grew as long as the run went on."""
    swap_peak_mib: float | None = None
    gpus: Gpus | None = None
    traffic: Traffic | None = None
    program: tuple[ProgramProfile, ...] = ()
    """What the probe saw of a command's processes; empty for our own training."""
    failed: str | None = None
    """How the run ended, where it did not complete."""

    @functools.cached_property
    def inside(self) -> ObservedProgram | None:
        """Program as seen by the probe; None for our own training or if the probe saw nothing."""
        if all(each.is_worker for each in self.program):
            return None
        return ObservedProgram(self.program)

    @property
    def steps(self) -> float:
        """Share of the judged time spent in steps, 0 to 1.

        The judged time is the elapsed time; for a program that the probe saw, the time after
        its start-up.
        """
        if self.inside:
            return 1.0
        if self.training_s is None or self.elapsed_s <= 0:
            return 0.0
        return min(1.0, self.training_s / self.elapsed_s)

    @property
    def steps_counted(self) -> int:
        return self.inside.steps if self.inside else self.counted_steps or 0

    @property
    def of_steps(self) -> Mapping[str, float]:
        """Phase -> share of the steps' time, mean over the ranks, from the probe or the records."""
        return self.inside.shares if self.inside else self.phases

    def of_time(self, phase: str) -> float:
        """Share of the judged time that a phase takes; 0 if it is not recorded."""
        if self.inside:
            return self.inside.share(phase)
        if phase == "evaluation":
            return min(1.0, self.of_elapsed(self.evaluation_s))
        if phase == "checkpoint":
            return min(1.0, self.of_elapsed(self.checkpoint_s))
        return self.phases.get(phase, 0.0) * self.steps

    def of_elapsed(self, seconds: float | None) -> float:
        """Convert seconds to a share of the elapsed time; 0 if they are not recorded."""
        return (seconds or 0.0) / self.elapsed_s if self.elapsed_s > 0 else 0.0

    def worth(self, share: float) -> bool:
        """Whether a share of the judged time is large enough to report.

        It is measured against the time after start-up, but at least half of the total: more of
        the same training would not repeat the start-up.
        """
        startup = 0.0 if self.inside else self.of_elapsed(self.startup_s)
        return share >= thresholds.WORTH * max(0.5, 1 - startup)

    def waiting(self, phase: str) -> float:
        """Share of a phase in which no thread computed, 0 to 1.

        For our own training it is known for the input alone, and otherwise 0.
        """
        if self.inside:
            return self.inside.waiting(phase)
        share = self.of_time(phase)
        if phase != "input" or share <= 0:
            return 0.0
        return min(share, max(0.0, self.idle - self.phases.get("sync", 0.0))) / share

    def places(self, *phases: str, rank: int | None = None) -> tuple[CodeLocation, ...]:
        """Hot lines of the user's code in these phases; empty if the probe did not look."""
        return self.inside.places(*phases, rank=rank) if self.inside else ()

    @property
    def startup(self) -> Startup:
        """Time until the first step ended, with and without waits for neighbours' cores."""
        if self.inside:
            return self.inside.startup
        seconds = own_s = self.startup_s or 0.0
        if self.others_cores and self.runqueue_s:
            # Imports, which compute, are as slow beside a neighbour as anything else.
            own_s *= max(0.0, 1 - self.starved_by_others / self.world_size)
        return Startup(seconds, own_s, min(1.0, self.of_elapsed(own_s)))

    @property
    def loader(self) -> LoaderFacts | None:
        """Data loader that makes the training batches; None if unknown or if there is none."""
        if self.inside:
            return self.inside.loader
        if not self.workers:
            return None
        starts = self.of_elapsed(self.first_batch_s)
        waits = max(0.0, self.of_time("input") - starts)
        # Threads that make batches spend the rank's own CPU time, which no counter splits.
        threads = self.training.get("workers") == "thread"
        known = self.children_s is not None and self.training_s and not threads
        computed = self.computed_by_workers if known else None
        costly = computed is not None and self.phases.get("input", 0.0) >= computed
        return LoaderFacts(self.workers, starts, waits, costly, computed, epochs=self.epochs)

    @property
    def computed_by_workers(self) -> float:
        """CPU time of all workers without their starts, as a share of the steps' time.

        Sending is included, so it is the most that a rank would take if it made its batches
        itself.
        """
        anew = self.training.get("persistent_workers") is False
        starts = self.workers * self.world_size * (self.epochs if anew else 1)
        own_s = max(0.0, (self.children_s or 0.0) - thresholds.WORKER_START_S * starts)
        return own_s / ((self.training_s or 1.0) * self.world_size)

    @property
    def tables(self) -> Tables | None:
        """Tables whose optimizer walks far more rows than a step reads; None if there are none.

        None, too, if the engine or a setting updates only rows that were read, or needs all of
        them.
        """
        if self.inside:
            return self.inside.tables
        training, rows, read = self.training, self.table_rows, self.rows_per_step
        by_rows = training.get("engine") in OF_ROWS or training.get("sparse")
        if not rows or not read or read / rows > thresholds.SPARSE:
            return None
        if by_rows or training.get("weight_decay"):
            return None
        return Tables(rows, read, optimizer="the optimizer")

    @property
    def rank_times(self) -> Sequence[RankTimes]:
        """Times and work of each rank; empty if those of a rank are missing."""
        if not self.inside:
            return self.ranks
        reported = {each.rank: each for each in self.ranks}
        return tuple(
            replace(each, instances=known.instances, node=known.node)
            if (known := reported.get(each.rank))
            else each
            for each in self.inside.rank_times
        )

    @property
    def step_threads(self) -> int | None:
        """Number of threads with which one rank computes; None if unknown."""
        return self.inside.longest.torch_threads if self.inside else self.threads

    @property
    def several(self) -> bool:
        """Whether several ranks train together."""
        return self.world_size > 1 or bool(self.inside and self.inside.several)

    @property
    def used(self) -> float | None:
        """Mean number of cores in use during training if known, otherwise during the whole run."""
        return self.cores.used if self.used_in_training is None else self.used_in_training

    @property
    def starved(self) -> float:
        """Mean number of threads that were ready but had no core; 0 if not measured."""
        return self.of_elapsed(self.runqueue_s)

    @property
    def starved_by_others(self) -> float:
        """Mean number of threads kept off the cores by other processes.

        Those that waited for threads of their own run are not counted. If it was not measured,
        it is the number of threads that the run was set to use but did not keep busy.
        """
        usable = self.cores.usable or 0.0
        if self.runqueue_s is not None:
            return max(0.0, self.starved - max(0.0, (self.runnable or 0.0) - usable))
        asked = min((self.threads or 1) * self.world_size, usable)
        return max(0.0, asked - (self.cores.used or 0.0))

    @property
    def wanted(self) -> float | None:
        """Mean number of cores that the run would have used without neighbours; None if unknown."""
        return None if self.used is None else self.used + self.starved

    @property
    def idle(self) -> float:
        """Share of a rank's time in which none of its threads computed or waited for a core."""
        return 0.0 if self.wanted is None else max(0.0, 1 - self.wanted / self.world_size)

    @property
    def idle_cores(self) -> float:
        """Mean number of usable cores that neither the run nor a neighbour used."""
        busy = (self.cores.used or 0.0) + (self.others_cores or 0.0)
        return max(0.0, (self.cores.usable or 0.0) - busy)

    @property
    def wanted_by_steps(self) -> float:
        """Mean number of cores that a program would have used without neighbours.

        Estimated from the time for which its training thread waited for a core: the probe's own
        thread waits, too, and computes little.
        """
        used, rank = self.cores.used or 0.0, self.inside.longest if self.inside else None
        if rank and rank.main_cpu_s and rank.runqueue_s:
            used *= 1 + rank.runqueue_s / rank.main_cpu_s
        return min(used, self.wanted or 0.0)
