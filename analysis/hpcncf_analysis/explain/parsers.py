"""Read summaries of seff, reportseff, sacct and job logs, in the units that schedulers print."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from math import isfinite
from typing import Final

from hpcncf.slurm import query

_MIB: Final = {"": 2**-20, "K": 2**-10, "M": 1.0, "G": 2.0**10, "T": 2.0**20, "P": 2.0**30}
_MEMORY: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGTP]?)(?:i?B|bytes?|b)?", re.IGNORECASE)
# As a locale with a decimal comma writes a share: Perl's and LSF's printf follow LC_NUMERIC.
COMMA: Final = re.compile(r"\b\d+,\d{1,2}\s?%")


def number(text: str) -> float | None:
    """No sign, no exponent: none of the schedulers writes one."""
    if not re.fullmatch(r"\d+(?:\.\d+)?", text):
        return None
    value = float(text)
    return value if isfinite(value) else None


def parse_count(text: str) -> int | None:
    """A count of cores or nodes, at least 1; `-5` or `4G` is none."""
    return int(text) if re.fullmatch(r"0*[1-9]\d{0,8}", text) else None


def share(text: str) -> float | None:
    """`20.00%` or `20.00 %`: 0.2. May exceed 1, as efficiencies do."""
    found = re.match(r"\s*(\d+(?:\.\d+)?)\s?%", text)
    value = number(found[1]) if found else None
    return None if value is None else value / 100


def mebibytes(text: str) -> float | None:
    """`153364K`, `4.00 GB`, `982 Mbytes`, `16777216kb`; a bare number is bytes, as in Slurm, PBS.

    All of them count in powers of 1024.
    """
    found = _MEMORY.fullmatch(text.strip())
    value = number(found[1]) if found else None
    return None if found is None or value is None else value * _MIB[found[2].upper()]


def seconds(text: str) -> float | None:
    """Slurm's and PBS's `[DD-][[HH:]MM:]SS[.mmm]`; None for UNLIMITED, say."""
    value = query.parse_duration(text) if ":" in text else number(text)
    return value if value is not None and isfinite(value) else None


# Words of Slurm, LSF and PBS (qstat's letters) for a job that has not ended.
WAITING: Final = ("PENDING", "PEND", "Q", "H", "W")
AT_WORK: Final = ("RUNNING", "RUN", "R", "COMPLETING", "SUSPENDED", "SSUSP", "USUSP", "S", "E")
# Words for one that ended because something was too small.
OUT_OF_MEMORY: Final = ("OUT_OF_MEMORY", "TERM_MEMLIMIT")
OUT_OF_TIME: Final = ("TIMEOUT", "TERM_RUNLIMIT")
# qstat's letters (qstat(1B), "Job states"; C is Torque's).
LETTERS: Final = {
    "B": "begun",
    "C": "completed",
    "E": "exiting",
    "F": "finished",
    "H": "held",
    "Q": "queued",
    "R": "running",
    "S": "suspended",
    "W": "waiting",
    "X": "finished",
}


@dataclass(frozen=True)
class Job:
    """Figures of one job; None if the text does not have them."""

    source: str
    """`seff`, `reportseff`, `sacct`, `LSF`, `PBS`, `log`, or `text` for a sentence."""
    id: str = ""
    state: str = ""
    """The scheduler's own word, without what follows it."""
    exit_code: int | None = None
    """As the scheduler prints it; of a job that a signal ended, its number and 128 (PBS: 256)."""
    nodes: int | None = None
    cores: int | None = None
    elapsed_s: float | None = None
    limit_s: float | None = None
    cpu_s: float | None = None
    """User and system, of all its processes."""
    printed_efficiency: float | None = None
    """As the text has it, 0 to 1."""
    peak_efficiency: float | None = None
    """Of its busiest moment; only LSF has it."""
    memory_mib: float | None = None
    memory_asked_mib: float | None = None
    printed_memory_efficiency: float | None = None
    printed_time_efficiency: float | None = None
    notes: tuple[str, ...] = ()
    """Reasons to trust these figures less."""

    @property
    def efficiency(self) -> float | None:
        """CPU seconds / (elapsed x cores), as seff; as printed, if it is."""
        if self.printed_efficiency is not None:
            return self.printed_efficiency
        if self.cpu_s is None or not self.elapsed_s or not self.cores:
            return None
        return self.cpu_s / (self.elapsed_s * self.cores)

    @property
    def cores_used(self) -> float | None:
        """CPU seconds / elapsed, on average."""
        if self.cpu_s is not None and self.elapsed_s:
            return self.cpu_s / self.elapsed_s
        if self.printed_efficiency is not None and self.cores:
            return self.printed_efficiency * self.cores
        return None

    @property
    def cores_at_peak(self) -> float | None:
        if self.peak_efficiency is None or not self.cores:
            return None
        return self.peak_efficiency * self.cores

    @property
    def memory_efficiency(self) -> float | None:
        if self.printed_memory_efficiency is not None:
            return self.printed_memory_efficiency
        if self.memory_mib is None or not self.memory_asked_mib:
            return None
        return self.memory_mib / self.memory_asked_mib

    @property
    def time_efficiency(self) -> float | None:
        if self.printed_time_efficiency is not None:
            return self.printed_time_efficiency
        return self.elapsed_s / self.limit_s if self.elapsed_s and self.limit_s else None

    @property
    def core_hours_idle(self) -> float | None:
        """Core-hours reserved and not used, at least 0."""
        if self.efficiency is None or not self.cores or not self.elapsed_s:
            return None
        return max(1 - self.efficiency, 0.0) * self.cores * self.elapsed_s / 3600

    @property
    def state_name(self) -> str:
        """The state, with PBS's letters spelled out."""
        return LETTERS.get(self.state, self.state)

    @property
    def is_waiting(self) -> bool:
        return self.state in WAITING

    @property
    def is_at_work(self) -> bool:
        return self.state in AT_WORK


_EFFICIENCY: Final = re.compile(
    r"\bCPU[ -]efficiency\b(?:\s*[:=]|\s+(?:of|is|was))?\s*(\d+(?:\.\d+)?\s?%)", re.IGNORECASE
)


def read_sentence(text: str) -> list[Job]:
    """Of an e-mail, or a line of seff alone: `a CPU efficiency of 20 %`."""
    return [Job("text", printed_efficiency=share(found)) for found in _EFFICIENCY.findall(text)]


# Source: contribs/seff/seff in Slurm's repository, its print statements. `Cores per node` is
# cut to a whole number there, so the cores come from core-walltime over wall-clock time where both
# are printed.

ONLY_ENDED: Final = (
    "seff reads Slurm's accounting, which counts the steps that have ended: of a running job "
    "these are too few, and left out"
)

LONGEST: Final = 300


def read_seff(text: str) -> list[Job]:
    """Every `Job ID:` block with more than its id."""
    return [_job(fields) for fields in _blocks(text) if len(fields) > 2]


def _blocks(text: str) -> Iterator[dict[str, str]]:
    fields: dict[str, str] = {}
    for line in text.splitlines():
        # A longer line is none of seff's, and matching it would take its length squared.
        found = re.match(r"\s*([A-Z][A-Za-z/ -]*?)\s*:\s+(\S.*?)\s*$", line[:LONGEST])
        if found and found[1] == "Job ID":
            yield fields
            fields = {"Job ID": found[2]}
        elif found and fields:
            fields.setdefault(found[1], found[2])
        elif fields and "Efficiency not available" in line:
            fields["CPU Efficiency"] = "not available"
    yield fields


def _job(fields: Mapping[str, str]) -> Job:
    state, *_ = fields.get("State", "").split() or [""]
    exit_code = re.search(r"\(exit code (\d+)\)", fields.get("State", ""))
    elapsed_s = seconds(fields.get("Job Wall-clock time", ""))
    nodes = parse_count(fields.get("Nodes", "1"))
    memory, used = fields.get("Memory Efficiency", ""), fields.get("Memory Utilized", "")
    job = Job(
        source="seff",
        id=fields.get("Array Job ID", fields["Job ID"]),
        state=state,
        exit_code=parse_count(exit_code[1]) if exit_code else None,
        nodes=nodes,
        cores=_cores(fields, nodes, elapsed_s),
        elapsed_s=elapsed_s,
        memory_asked_mib=mebibytes(memory.partition(" of ")[2].split("(")[0]),
    )
    if state == "RUNNING":
        return replace(job, notes=(ONLY_ENDED,))
    return replace(
        job,
        cpu_s=seconds(fields.get("CPU Utilized", "")),
        printed_efficiency=share(fields.get("CPU Efficiency", "")),
        memory_mib=mebibytes(used.split("(")[0]),
        printed_memory_efficiency=share(memory),
        notes=("seff calls its memory an estimate",) if "estimated" in used else (),
    )


def _cores(fields: Mapping[str, str], nodes: int | None, elapsed_s: float | None) -> int | None:
    walltime = re.search(r"of (\S+) core-walltime", fields.get("CPU Efficiency", ""))
    reserved_s = seconds(walltime[1]) if walltime else None
    if reserved_s and elapsed_s:
        return round(reserved_s / elapsed_s)
    if "Cores" in fields:
        return parse_count(fields["Cores"])
    each = parse_count(fields.get("Cores per node", ""))
    return nodes * each if nodes and each else None


# Source: the sacct manual. `--parsable` ends a line with its delimiter, `--parsable2` does not;
# without them columns stand under dashes, and a cell that was cut ends in `+`. A job's row is
# followed by those of its steps (`123.batch`, `123.0`), which alone have memory, and with `--long`
# CPU time, as the mean of their tasks.

Row = dict[str, str]

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_DASHES = re.compile(r"\s*-{2,}(?:\s+-+)*\s*")

ONLY_ENDED_SACCT: Final = (
    "sacct counts the CPU time of a running job's ended steps only, which is left out here"
)
NO_STEPS: Final = "sacct -X (--allocations) leaves the steps out, and with them CPU time and memory"
CPU_TIME: Final = "CPUTime is cores x elapsed, what was reserved and not what was used"
MEAN: Final = "CPU seconds are the steps' AveCPU x NTasks: --long has no TotalCPU"
TASKS: Final = "memory is the largest task's x the number of tasks, an upper bound"


def read_sacct(text: str) -> list[Job]:
    """One for every job or array element, in the order of its first row."""
    grouped: dict[str, list[Row]] = {}
    for row in _rows(text, _is_of_sacct):
        job_id = _id(row).partition(".")[0]
        if job_id[:1].isdecimal():
            grouped.setdefault(job_id, []).append(row)
    return [_job_sacct(job_id, rows) for job_id, rows in grouped.items()]


def _is_of_sacct(names: Sequence[str]) -> bool:
    return "State" in names and ("JobID" in names or "JobIDRaw" in names) and "CPUEff" not in names


def _rows(text: str, is_header: Callable[[Sequence[str]], bool]) -> Iterator[Row]:
    """Each line under such a header, by column, to the next empty line.

    Lines of another number of cells are passed over: a name with a `|` in it, a node's own line.
    """
    lines = [_COLOUR.sub("", line) for line in text.splitlines()]
    cut: Callable[[str], list[str]] = str.split
    names: list[str] = []
    for line, following in zip_longest(lines, lines[1:], fillvalue=""):
        cells = _cells(line, following)
        if is_header(heads := cells(line)):
            cut, names = cells, heads
        elif not line.strip():
            names = []
        elif names and len(found := cut(line)) == len(names) and not _DASHES.fullmatch(line):
            yield dict(zip(names, found, strict=True))


def _cells(header: str, below: str) -> Callable[[str], list[str]]:
    """How a line is cut into cells, by its header and the line below that."""
    if "|" in header:
        # `--parsable2` ends a line with `|` where its last cell is empty.
        end = "|" if header.rstrip().endswith("|") else ""
        return lambda line: [cell.strip() for cell in line.rstrip().removesuffix(end).split("|")]
    if not _DASHES.fullmatch(below):
        return str.split
    columns = [slice(*found.span()) for found in re.finditer("-+", below)]
    columns[-1] = slice(columns[-1].start, None)  # the last cell reaches to the line's end
    return lambda line: [line[column].strip() for column in columns]


def _id(row: Row) -> str:
    return row.get("JobID") or row.get("JobIDRaw", "")


def _job_sacct(job_id: str, rows: Sequence[Row]) -> Job:
    of_job = [row for row in rows if "." not in _id(row)]
    whole_job = of_job[-1] if of_job else {}  # `-D` shows every start of a requeued job
    steps = [row for row in rows if "." in _id(row)]
    allocated = re.search(r"(?:^|,)cpu=(\d+)", whole_job.get("AllocTRES", ""))
    cores = _count(whole_job, "AllocCPUS", "NCPUS") or parse_count(
        allocated[1] if allocated else ""
    )
    nodes = _count(whole_job, "NNodes", "AllocNodes")
    raw_s, raw_min = (number(whole_job.get(name, "")) for name in ("ElapsedRaw", "TimelimitRaw"))
    cpu_s, how = _cpu(whole_job, steps)
    state = _state(whole_job, steps)
    at_work = state == "RUNNING"
    memory_mib, tasks = (None, 1) if at_work else _memory(steps)
    code, _, signal = whole_job.get("ExitCode", "").partition(":")
    killed = parse_count(signal)
    return Job(
        source="sacct",
        id=job_id,
        state=state,
        # `1:0` is an exit code, `0:9` a signal, to which a shell adds 128.
        exit_code=128 + killed if killed else parse_count(code),
        nodes=nodes,
        cores=cores,
        elapsed_s=seconds(whole_job.get("Elapsed", "")) if raw_s is None else raw_s,
        limit_s=seconds(whole_job.get("Timelimit", "")) if raw_min is None else 60 * raw_min,
        cpu_s=None if at_work else cpu_s,
        memory_mib=memory_mib,
        memory_asked_mib=_requested_memory(whole_job.get("ReqMem", ""), nodes, cores),
        notes=tuple(
            note for note in (how, tasks > 1 and TASKS, at_work and ONLY_ENDED_SACCT) if note
        ),
    )


def _count(row: Row, *names: str) -> int | None:
    return next((value for name in names if (value := parse_count(row.get(name, "")))), None)


def _state(row: Row, steps: Sequence[Row]) -> str:
    """OUT_OF_MEMORY if a step was: it leaves its job FAILED, or even COMPLETED."""
    words = (row or (steps[0] if steps else {})).get("State", "").split()
    word = words[0].rstrip("+") if words else ""
    states = [word, *(step["State"] for step in steps)]
    return "OUT_OF_MEMORY" if any(each.startswith("OUT_OF_ME") for each in states) else word


def _cpu(row: Row, steps: Sequence[Row]) -> tuple[float | None, str]:
    """CPU seconds, and a note on them."""
    total = seconds(row.get("TotalCPU", ""))
    if total is None and any("TotalCPU" in step for step in steps):
        total = sum(seconds(step.get("TotalCPU", "")) or 0.0 for step in steps)
    if total is not None:
        return (total, "") if total or steps else (None, NO_STEPS)
    known = [
        mean * tasks
        for step in steps
        if (mean := seconds(step.get("AveCPU", ""))) is not None
        and (tasks := parse_count(step.get("NTasks", ""))) is not None
    ]
    if known:
        return sum(known), MEAN
    return None, CPU_TIME if "CPUTime" in row or "CPUTimeRAW" in row else ""


def _memory(steps: Sequence[Row]) -> tuple[float | None, int]:
    """Of the step with the most, all its tasks together; and how many those are."""
    peaks = [
        (largest, parse_count(step.get("NTasks", "")) or 1)
        for step in steps
        if (largest := mebibytes(step.get("MaxRSS", "")))
    ]
    most = max(peaks, key=lambda each: each[0] * each[1], default=None)
    return (most[0] * most[1], most[1]) if most else (None, 1)


def _requested_memory(text: str, nodes: int | None, cores: int | None) -> float | None:
    """For the whole job: until Slurm 21.08 sacct wrote `4Gn` per node, `4Gc` per core."""
    per = {"n": nodes, "c": cores}.get(text[-1:], 1)
    amount = mebibytes(text.rstrip("nc"))
    return amount * per if amount and per else None


# Source: reportseff's README (columns since 1.0: JobID, State, Elapsed, TimeEff, CPUEff, MemEff;
# before that Name, State, Time, CPU, Memory); `---` if unknown. `--format` may add sacct's columns.

BEFORE: Final = {
    "Name": "JobID",
    "State": "State",
    "Time": "Elapsed",
    "CPU": "CPUEff",
    "Memory": "MemEff",
}


def read_reportseff(text: str) -> list[Job]:
    return [
        _job_reportseff({BEFORE.get(name, name): cell for name, cell in row.items()})
        for row in _rows(text, _is_of_reportseff)
        if re.search(r"\d", row.get("JobID") or row.get("Name", ""))
    ]


def _is_of_reportseff(names: Sequence[str]) -> bool:
    return list(names) == list(BEFORE) or ("CPUEff" in names and "JobID" in names)


def _job_reportseff(row: Row) -> Job:
    state, *_ = row.get("State", "").split() or [""]
    return Job(
        source="reportseff",
        id=row["JobID"],
        state=state.rstrip("+"),
        nodes=_count(row, "NNodes"),
        cores=_count(row, "AllocCPUS", "NCPUS"),
        elapsed_s=seconds(row.get("Elapsed", "")),
        limit_s=seconds(row.get("Timelimit", "")),
        printed_efficiency=share(row.get("CPUEff", "")),
        memory_asked_mib=mebibytes(row.get("ReqMem", "")),
        printed_memory_efficiency=share(row.get("MemEff", "")),
        printed_time_efficiency=share(row.get("TimeEff", "")),
    )


# Source: slurmstepd's and srun's messages (src/slurmd/slurmstepd in Slurm's repository), and the
# file names that sbatch (`slurm-%j.out`), submitit (`123_4_log.out`) and reportseff know.

_ENDS: Final = (
    (r"oom[-_]kill event|Out Of Memory|Exceeded job memory limit", "OUT_OF_MEMORY"),
    (r"CANCELLED AT \S+ DUE TO TIME LIMIT", "TIMEOUT"),
    (r"CANCELLED AT \S+ DUE TO PREEMPTION", "PREEMPTED"),
    (r"CANCELLED AT \S+ DUE TO NODE FAIL", "NODE_FAIL"),
    (r"\*\*\* (?:JOB|STEP) \S+ ON \S+ CANCELLED AT", "CANCELLED"),
    (r"srun: error: .*Exited with exit code [1-9]", "FAILED"),
)
_NAME: Final = re.compile(r"(?:^|[-_.])(\d{1,12}(?:_\d{1,8})?)(?:_\d+)?(?:_log)?\.(?:out|err|log)$")


def read_logs(files: Mapping[str, str]) -> list[Job]:
    """One for every job that a file is named after, in the order of the names; `files`: its text.

    The state is empty if Slurm wrote nothing, as at the end of a job that ended well.
    """
    found: dict[str, str] = {}
    for name in sorted(files):
        if job_id := job_id_from_name(name):
            ends = (word for pattern, word in _ENDS if re.search(pattern, files[name]))
            found[job_id] = found.get(job_id) or next(ends, "")
    return [Job(source="log", id=job_id, state=state) for job_id, state in found.items()]


def job_id_from_name(name: str) -> str:
    """`slurm-123.out`, `slurm-123_4.out`, `123_4_0_log.err`, `train_123.log`; empty for others."""
    found = _NAME.search(name)
    return found[1] if found else ""
