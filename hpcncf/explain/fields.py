"""The fields of a job, and the labels under which schedulers, tools and sites print them.

`LABELS` is the one table of what can be read: to understand a further site's mail, add its words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any, Final


@dataclass
class JobFields:
    """Figures that a text gives for a whole job, over all nodes and ranks; None if missing."""

    source: str = "text"
    """Who wrote it: `seff`, `sacct`, `LSF`, `PBS`, ..., or `text`."""
    id: str = ""
    state: str = ""
    """The scheduler's own word in upper case, without what follows it; PBS's letters spelled out.
    """
    exit_code: int | None = None
    """Of the job script."""
    signal: int | None = None
    """The signal that ended it."""
    jobs: int | None = None
    """Of how many jobs the figures are the mean, where they are one."""
    nodes: int | None = None
    tasks: int | None = None
    cores: int | None = None
    """Allocated; as the scheduler counts them, so hardware threads on some sites."""
    physical_cores: int | None = None
    elapsed_s: float | None = None
    limit_s: float | None = None
    cpu_s: float | None = None
    """User and system, of all processes."""
    printed_efficiency: float | None = None
    """CPU efficiency as the text has it, 0 to 1."""
    peak_efficiency: float | None = None
    """CPU efficiency of its busiest moment; only LSF has it."""
    peak_s: float | None = None
    """How long that moment lasted."""
    memory_mib: float | None = None
    """Peak; of several nodes together if `memory_counted` does not say otherwise."""
    memory_asked_mib: float | None = None
    memory_counted: str = ""
    """How, where the text or its dialect tells: `task x tasks`, `mean`, `node`, `virtual`.

    Of an array `largest`: that of the task with the largest peak. `one task`: the largest task's,
    of an unknown number, so the least that the job can have used.
    """
    printed_memory_efficiency: float | None = None
    printed_time_efficiency: float | None = None
    gpus: int | None = None
    gpu_efficiency: float | None = None
    """Share of time in which a kernel ran, mean of the job's GPUs, 0 to 1."""
    gpus_unused: int | None = None
    gpu_memory_efficiency: float | None = None
    nodes_unused: int | None = None
    attempts: int | None = None
    """How often it started, where it was requeued."""
    lost_core_hours: float | None = None
    """Of the attempts before the last."""
    notes: list[str] = field(default_factory=list)
    """Reasons to trust these figures less."""

    @property
    def efficiency(self) -> float | None:
        """CPU efficiency: CPU seconds / (elapsed x cores), as in seff; else the printed one."""
        if self.cpu_s is not None and self.elapsed_s and self.cores:
            return self.cpu_s / (self.elapsed_s * self.cores)
        return self.printed_efficiency

    @property
    def cores_used(self) -> float | None:
        """Mean number of busy cores: CPU seconds / elapsed seconds; None if unknown."""
        if self.cpu_s is not None and self.elapsed_s:
            return self.cpu_s / self.elapsed_s
        if self.printed_efficiency is not None and self.cores:
            return self.printed_efficiency * self.cores
        return None

    @property
    def memory_efficiency(self) -> float | None:
        if self.memory_counted == ONE_TASK:
            return None
        if self.memory_mib is not None and self.memory_asked_mib:
            return self.memory_mib / self.memory_asked_mib
        return self.printed_memory_efficiency

    @property
    def time_efficiency(self) -> float | None:
        if self.elapsed_s is not None and self.limit_s:
            return self.elapsed_s / self.limit_s
        return self.printed_time_efficiency

    @property
    def core_hours_idle(self) -> float | None:
        """Core-hours that were reserved but not used, at least 0; None if unknown."""
        if self.efficiency is None or not self.cores or not self.elapsed_s:
            return None
        return max(1 - self.efficiency, 0.0) * self.cores * self.elapsed_s / 3600

    @property
    def is_waiting(self) -> bool:
        return self.state in WAITING

    @property
    def is_running(self) -> bool:
        return self.state in RUNNING

    @property
    def is_completed(self) -> bool:
        """Whether the text says that the job ran to its own end, without a failure."""
        return self.state in COMPLETED and not self.exit_code and not self.signal

    def plain(self) -> dict[str, Any]:
        """Return the fields, and figures computed from them, as a dictionary for JSON."""
        derived = (
            "efficiency",
            "cores_used",
            "memory_efficiency",
            "time_efficiency",
            "core_hours_idle",
        )
        return {**asdict(self), **{name: getattr(self, name) for name in derived}}


LARGEST: Final = "largest"
ONE_TASK: Final = "one task"
# States by scheduler, upper case. A word that is none of these is not a state.
WAITING: Final = frozenset(
    ("PENDING", "PEND", "QUEUED", "HELD", "WAITING", "IDLE", "PSUSP", "CONFIGURING")
)
RUNNING: Final = frozenset(
    (
        *("RUNNING", "RUN", "COMPLETING", "SUSPENDED", "SSUSP", "USUSP", "EXITING", "BEGUN"),
        *("STOPPED", "RESIZING", "IN_PROGRESS"),
    )
)
COMPLETED: Final = frozenset(("COMPLETED", "COMPLETE", "DONE", "FINISHED", "TERMINATED"))
OUT_OF_MEMORY: Final = frozenset(("OUT_OF_MEMORY", "TERM_MEMLIMIT"))
OUT_OF_TIME: Final = frozenset(("TIMEOUT", "TERM_RUNLIMIT", "DEADLINE"))
FAILED: Final = frozenset(("FAILED", "EXIT", "ERROR", "ABORTED", "LAUNCH_FAILED", "BOOT_FAIL"))
STOPPED: Final = frozenset(
    ("CANCELLED", "PREEMPTED", "NODE_FAIL", "REMOVED", "REVOKED", "TERM_OWNER", "TERM_ADMIN")
)
STATES: Final = WAITING | RUNNING | COMPLETED | OUT_OF_MEMORY | OUT_OF_TIME | FAILED | STOPPED
# Short forms: squeue's, sacct's, and those that sacct cuts to ten letters.
SHORT_STATES: Final[Mapping[str, str]] = {
    "BEGAN": "RUNNING",
    "BF": "BOOT_FAIL",
    "CA": "CANCELLED",
    "CANCELED": "CANCELLED",
    "CD": "COMPLETED",
    "CG": "COMPLETING",
    "DL": "DEADLINE",
    "ENDED": "COMPLETED",
    "F": "FAILED",
    "NF": "NODE_FAIL",
    "OOM": "OUT_OF_MEMORY",
    "OUT_OF_ME": "OUT_OF_MEMORY",
    "PD": "PENDING",
    "PR": "PREEMPTED",
    "R": "RUNNING",
    "SUCCESS": "COMPLETED",
    "SUCCESSFUL": "COMPLETED",
    "TO": "TIMEOUT",
}
# qstat's letters (qstat(1B), "Job states"; C is Torque's).
PBS_LETTERS: Final[Mapping[str, str]] = {
    "B": "BEGUN",
    "C": "COMPLETED",
    "E": "EXITING",
    "F": "FINISHED",
    "H": "HELD",
    "Q": "QUEUED",
    "R": "RUNNING",
    "S": "SUSPENDED",
    "W": "WAITING",
    "X": "FINISHED",
}


def state_word(text: str) -> str:
    """Return the job state at the beginning of a text; empty if there is none.

    For example `CANCELLED` of `CANCELLED by 1000`.
    """
    words = re.match(r"[\s\[('\"<]*([A-Za-z]+(?:[ _][A-Za-z]+){0,2})", text)
    if not words:
        return ""
    parts = re.split(r"[ _]", words[1].upper())
    for length in (3, 2, 1):
        word = "_".join(parts[:length])
        if len(parts) >= length and (word in STATES or word in SHORT_STATES):
            return SHORT_STATES.get(word, word)
    return ""


@dataclass(frozen=True)
class Label:
    """The field that a printed label stands for, and how to read the value behind it."""

    field: str
    kind: str
    """`duration`, `memory`, `share`, `count`, or a name in `read.COMPOSITES`."""
    unit: str = ""
    """Of a bare number: `s`, `min`, `h`; `B`, `K`, `M`, `G`; `%`. Empty: a bare number is none."""
    weight: int = 1
    """Of two labels of one field that disagree, the heavier one wins; then the first."""


def _labels(*rows: tuple[str, str, str]) -> dict[str, list[Label]]:
    """Build the table of labels from rows of field, kind and comma-separated labels.

    The kind may have a unit and a weight: `duration:s!2`.
    """
    table: dict[str, list[Label]] = {}
    for name, how, words in rows:
        kind, _, weight = how.partition("!")
        kind, _, unit = kind.partition(":")
        for label in words.replace("\n", ",").split(","):
            if key := " ".join(label.split()):
                table.setdefault(key, []).append(Label(name, kind, unit, int(weight or 1)))
    return table


# Most labels are composed: of what was used ("average CPU utilization"), and of what was there
# ("memory requested", "allocated cores"). Field of its share, field and kind of its amount, words.
_USED: Final = (
    ("printed_efficiency", "cpu_s", "duration:s", "cpu, cpus, core, cores, cpu core"),
    (
        "printed_memory_efficiency",
        "memory_mib",
        "memory!2",
        "memory, mem, ram, cpu memory, cpu mem, memory size",
    ),
    ("gpu_efficiency", "", "", "gpu, gpus, gpu sm, gpu compute, sm"),
    ("gpu_memory_efficiency", "gpu_memory_mib", "memory", "gpu memory, gpu mem, vram"),
    (
        "printed_time_efficiency",
        "elapsed_s",
        "duration:s",
        "time, walltime, wall clock, wall clock time, job walltime, elapse time, elapsed time",
    ),
)
# A bare number below one of the first four is a percentage.
_MEASURES: Final = ("efficiency", "eff", "utilization", "util", "utilized", "usage", "use", "used")
_MEANS: Final = ("", "avg ", "average ", "mean ", "overall ", "total ", "job ", "program ")
_PEAKS: Final = ("max ", "maximum ", "peak ")
_THERE: Final = (
    ("nodes", "count", "nodes, node count, number of nodes, node num"),
    (
        "cores",
        "count",
        """cores, cpus, ncpus, cpu cores, processors, procs, slots, number of cpus,
        number of cores, cpu num""",
    ),
    ("gpus", "count", "gpus, ngpus, gcds, number of gpus"),
    ("memory_asked_mib", "memory", "memory, mem, ram, memory size"),
    (
        "limit_s",
        "duration:s",
        "walltime, wall clock time, wall clock, time, run time, elapse time, elapsed time",
    ),
)
# A request may be rounded up: what was allocated weighs more.
_GRANTED: Final = (
    *(("requested", 1), ("request", 1), ("req", 1), ("asked", 1)),
    *(("allocated", 2), ("alloc", 2), ("reserved", 2), ("assigned", 2), ("limit", 2)),
)


def _composed() -> list[tuple[str, str, str]]:
    rows: list[tuple[str, str, str]] = []
    for share, amount, kind, words in _USED:
        for subject in words.split(", "):
            for measure in _MEASURES:
                weight = 2 if measure.startswith("eff") else 1
                unit = ":%" if measure in _MEASURES[:4] else ""
                for mean in _MEANS:
                    rows.append((share, f"share{unit}!{weight}", f"{mean}{subject} {measure}"))
                    if amount and mean not in ("avg ", "average ", "mean "):
                        rows.append((amount, kind, f"{mean}{subject} {measure}"))
                    elif amount == "memory_mib":
                        rows.append(("mean_memory_mib", "memory", f"{mean}{subject} {measure}"))
                for peak in _PEAKS:
                    if share == "printed_efficiency":
                        rows.append(("peak_efficiency", "share", f"{peak}{subject} {measure}"))
                    elif amount:
                        rows.append((share, "share", f"{peak}{subject} {measure}"))
                        rows.append((amount, kind, f"{peak}{subject} {measure}"))
    for name, kind, words in _THERE:
        for resource in re.split(r",\s+", words):
            for granted, weight in _GRANTED:
                if granted == "limit" and name not in ("memory_asked_mib", "limit_s"):
                    continue
                rows.append((name, f"{kind}!{weight}", f"{granted} {resource}"))
                rows.append((name, f"{kind}!{weight}", f"{resource} {granted}"))
                rows.append((name, f"{kind}!{weight}", f"total {resource} {granted}"))
                rows.append((name, f"{kind}!{weight}", f"total {granted} {resource}"))
    return rows


# Words in lower case; in a text any of `_-./`, a blank or nothing may be between them, and -ization
# is -isation. A label may have several fields: the first whose value fits what follows has it. What
# follows a share ("16.5% 00:00:29 of 00:03:00") is read with it.
LABELS: Final[dict[str, list[Label]]] = _labels(
    (
        "id",
        "id",
        "job id, slurm job id, pbs job id, lsf job id, job number, job identifier",
    ),
    ("id", "id!2", "array job id"),
    ("id", "bare id", "job, id"),
    ("state", "state!2", "state, job state, exit state, final state"),
    ("state", "state", "status, stat, job status"),
    (
        "exit_code",
        "exit",
        """exit code, exit status, return value, exit value, exited with exit code,
        exit status of job""",
    ),
    ("jobs", "count", "jobs, number of jobs, total jobs"),
    # What it had.
    (
        "nodes",
        "count!2",
        "nodes, nnodes, num nodes, nodes used, number of nodes, nodect, resource list nodect",
    ),
    ("nodes_unused", "count", "nodes unused, unused nodes, idle nodes"),
    ("tasks", "count", "tasks, ntasks, num tasks, number of tasks, ranks, mpi ranks"),
    (
        "cores",
        "count!2",
        """cores, cpu cores, cpus, ncpus, num cpus, number of cores, number of cpus, total cores,
        total cpus, ncpus used, slots""",
    ),
    (
        "cores",
        "count",
        """processors, procs, cpu count, avg cores, average cores, resource list ncpus,
        resources used ncpus, bsub n""",
    ),
    ("cores_per_node", "count", "cores per node, cpus per node, processors per node"),
    ("cpus_per_task", "count", "cpus per task, cpus task, cores per task"),
    ("gpus_per_node", "count", "gpus per node"),
    ("cores_per_gpu", "count", "cores per gpu, cpus per gpu"),
    # Time.
    ("elapsed_s", "used of time", "walltime"),
    (
        "cpu_s",
        "duration:s!2",
        """cpu utilized, cpu time used, used cpu time, total cpu, total cpu time, cput, cpu t,
        resources used cput, cpu time consumed""",
    ),
    (
        "cpu_s",
        "duration:s",
        "cpu time, cpu, cpu seconds, the cpu time used is, cpu time total",
    ),
    ("user_s", "duration:s", "ru utime, user time, user cpu, user cpu time, usr"),
    ("system_s", "duration:s", "ru stime, system time, system cpu, system cpu time, sys"),
    ("ave_cpu_s", "duration", "ave cpu"),
    ("core_walltime_s", "duration:s", "core walltime, cpu time available"),
    (
        "elapsed_s",
        "duration:s!2",
        """elapsed, elapsed raw, elapsed time, elapsed walltime, time elapsed, job wall clock time,
        job walltime, walltime used, used walltime, resources used walltime, ru wallclock,
        wall clock time, run time, time execute""",
    ),
    (
        "elapsed_s",
        "duration:s",
        """wallclock, used time, duration, job duration, job runtime, job run time, avg runtime,
        average runtime, real, real time, walltime consumed, execution time""",
    ),
    ("elapsed_s", "duration:h", "hours, run hours, hours elapsed"),
    # HTCondor's ClassAds: all attempts together.
    ("cluster_id", "bare number", "cluster id"),
    ("proc_id", "bare number", "proc id"),
    ("elapsed_s", "duration:s!3", "remote wall clock time"),
    ("user_s", "duration:s!2", "cumulative remote user cpu"),
    ("system_s", "duration:s!2", "cumulative remote sys cpu"),
    ("user_s", "duration:s", "remote user cpu, remote user cpu time"),
    ("system_s", "duration:s", "remote sys cpu, remote system cpu time"),
    ("resident_kib", "bare number", "resident set size raw"),
    ("request_mib", "bare number", "request memory"),
    ("condor_status", "bare number", "job status"),
    ("task", "task", "taskid"),
    # What a scheduler says of the hosts: `n1/0-3+n2/0*4`, `n1+n2`.
    ("hosts", "hosts", "exec host, exec hosts, assigned hostnames"),
    ("limit_s", "duration:s!2", "resource list walltime"),
    ("limit_s", "duration:min!2", "timelimit raw, runlimit, run limit"),
    ("limit_s", "duration!2", "time limit, wall limit, max walltime, job time limit"),
    ("limit_s", "duration:s", "h rt, s rt, max run time"),
    ("limit_s", "duration:h m", "bsub w"),
    ("printed_time_efficiency", "share", "walltime, wallclock accuracy, job walltime"),
    # Cores.
    (
        "printed_efficiency",
        "share:%!2",
        "cpu average efficiency, cpu time used, cores used",
    ),
    ("printed_efficiency", "share!2", "cpu load, core load"),  # without a sign it is a load
    ("peak_efficiency", "share", "cpu peak efficiency"),
    ("cpu_peak", "number", "cpu peak"),
    ("cpu_peak_s", "duration", "cpu peak duration"),
    # Memory.
    (
        "memory_mib",
        "memory!2",
        "max memory, max mem, max rss, peak memory, peak mem, memory peak, maximum memory",
    ),
    ("memory_mib", "memory:K!2", "resources used mem, ru maxrss, maxrss size"),
    ("memory_mib", "memory:G!2", "maxmemory in gib"),
    (
        "memory_mib",
        "memory",
        "max memory usage per node, memory used max, maximum resident set size",
    ),
    ("memory_mib", "used of memory", "mem, memory, ram"),
    ("mean_memory_mib", "memory", "average memory, avg mem, ave rss"),
    ("virtual_mib", "memory", "max vmem, vmem, resources used vmem, max vm size"),
    ("memory_asked_mib", "memory:M!2", "req mem"),
    (
        "memory_asked_mib",
        "memory!2",
        "total requested memory, resource list mem, cpu memory, total memory",
    ),
    # Grid Engine's limit of address space, of each slot: no request of memory.
    ("h_vmem_mib", "memory", "h vmem"),
    ("printed_memory_efficiency", "share", "mem, memory, ram, max memory"),
    # GPUs.
    ("gpus", "count", "gpus, ngpus, num gpus, gpu count, number of gpus, avg requested gpus"),
    ("gpus", "count", "resource list ngpus, ngpus used, no of gpus"),
    ("gpus_unused", "count", "gpus unused, unused gpus, idle gpus"),
    ("gpu_efficiency", "share", "gpu, gpu load"),
    ("gpu_efficiency", "share:%!2", "average sm utilization"),
    ("gpu_memory_efficiency", "share:%", "gpu memory, gpu mem, gpumem"),
    ("gpu_memory_mib", "memory", "gpu mem used max"),
    # Values with a grammar of their own.
    ("tres", "tres", "alloc tres, tres, req tres, alloc gres"),
    ("tres_used", "tres", "tres usage in ave, tres usage in tot, tres usage in max"),
    ("select", "select", "resource list select, resource list nodes, neednodes, nodes"),
    ("efficiency_of", "share", "efficiency, utilization"),
    # German and French sites.
    ("cores", "count!2", "kerne, cpu kerne, coeurs, cœurs"),
    ("elapsed_s", "duration!2", "laufzeit, temps écoulé, durée"),
    ("limit_s", "duration!2", "zeitlimit, limite de temps, temps demandé"),
    ("printed_efficiency", "share!2", "cpu effizienz, cpu auslastung, efficacité cpu"),
    ("printed_efficiency", "share!2", "utilisation cpu, utilisation du cpu"),
    ("memory_mib", "used of memory", "speicher, arbeitsspeicher, mémoire, mémoire utilisée"),
    ("printed_memory_efficiency", "share", "speichereffizienz, efficacité mémoire"),
    ("gpu_efficiency", "share!2", "gpu auslastung, utilisation gpu, efficacité gpu"),
    ("id", "id", "auftragsnummer, jobnummer, identifiant du travail"),
    ("nodes", "count!2", "knoten, anzahl knoten, nœuds, noeuds, nombre de nœuds, nombre de noeuds"),
    ("cores", "count!2", "anzahl kerne, nombre de cœurs, nombre de coeurs"),
    ("cpu_s", "duration!2", "cpu zeit, rechenzeit"),
    # Spanish, Italian and Portuguese sites.
    ("cores", "count!2", "núcleos, núcleos reservados, núcleos asignados, core richiesti"),
    ("nodes", "count!2", "nodos, nodi, nós"),
    ("state", "state", "estado, stato, état"),
    ("elapsed_s", "duration!2", "tiempo de ejecución, durata, tempo de execução, duração"),
    ("elapsed_s", "duration!2", "tempo di esecuzione, temps d'exécution"),
    ("limit_s", "duration!2", "tiempo límite, límite de tiempo, tempo limite, limite di tempo"),
    ("cpu_s", "duration!2", "tiempo de cpu, tempo di cpu, tempo de cpu, temps cpu"),
    ("printed_efficiency", "share!2", "eficiencia de cpu, eficiencia cpu, uso de cpu, uso cpu"),
    ("printed_efficiency", "share!2", "efficienza cpu, efficienza della cpu, utilizzo cpu"),
    ("printed_efficiency", "share!2", "eficiência da cpu, eficiência de cpu, uso da cpu"),
    ("memory_mib", "used of memory", "memoria, memoria usata, memoria máxima, memoria usada"),
    ("memory_mib", "used of memory", "memória, memória usada, memória máxima, memoria massima"),
    ("printed_memory_efficiency", "share", "eficiencia de memoria, efficienza memoria"),
    ("gpu_efficiency", "share!2", "uso de gpu, utilizzo gpu, uso da gpu"),
    # Japanese and Chinese sites.
    ("id", "id", "ジョブid, 作业id, 作业号"),
    ("cores", "count!2", "コア数, cpu数, 核数, cpu核数, 核心数"),
    ("nodes", "count!2", "ノード数, 节点数"),
    ("elapsed_s", "duration!2", "経過時間, 実行時間, 运行时间"),
    ("limit_s", "duration!2", "制限時間, 时间限制"),
    ("cpu_s", "duration!2", "cpu時間, cpu时间"),
    ("printed_efficiency", "share!2", "cpu使用率, cpu利用率, cpu効率, cpu效率"),
    ("memory_mib", "used of memory", "最大メモリ, メモリ使用量, 最大内存, 内存使用量"),
    ("gpu_efficiency", "share!2", "gpu使用率, gpu利用率"),
    *_composed(),
)
# Columns that mean something else than the same words in a line.
COLUMNS: Final[dict[str, list[Label]]] = _labels(
    ("id", "id", "job id raw, name"),
    ("state", "state", "st, s"),
    ("printed_efficiency", "share:%", "cpu, effic"),
    ("cpu_s", "duration", "time use"),
    ("percent_used", "share", "percent used"),
    ("memory_mib", "memory:B!2", "max rss"),
    ("memory_asked_mib", "memory:M", "cpu mem"),
    ("memory_asked_mib", "memory:M!2", "req mem"),
    ("elapsed_s", "duration", "time"),
    ("limit_s", "duration", "time allocated"),
    ("id", "id", "native id"),
    ("exit_code", "exit", "exit"),
    ("elapsed_s", "duration", "elap"),
    ("elapsed_s", "duration!3", "realtime"),
    ("memory_mib", "memory!3", "peak rss"),
    ("cores", "count", "core, cpu count"),
    ("nodes_or_name", "count", "node"),
)


@cache
def labels_by_letters() -> dict[str, list[Label]]:
    """Return `LABELS` with spaces removed from each label, such as `cpuefficiency`."""
    table: dict[str, list[Label]] = {}
    for words, rows in LABELS.items():
        table.setdefault(words.replace(" ", ""), []).extend(rows)
    return table


def letters(head: str) -> str:
    """Reduce a column's head to lower-case letters, the form in which labels are looked up."""
    return re.sub(r"[\W\d_]", "", head.lower()).replace("isation", "ization")
