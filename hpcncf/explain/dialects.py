"""Read phrases without a label, and allow for the habits of the tools that print figures.

A dialect decides where labels disagree, and adds what is known of how its figures are counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from hpcncf.explain.drafts import Draft, Drafts
from hpcncf.explain.fields import OUT_OF_TIME, RUNNING, JobFields, state_word
from hpcncf.explain.moments import elapsed_between
from hpcncf.explain.structured import tres_figure
from hpcncf.explain.units import match_duration, match_memory

# Phrases: a value before its word, or a sentence with a meaning of its own.


def _number(name: str, weight: int = 0) -> Callable[[re.Match[str], Draft], None]:
    def see(found: re.Match[str], draft: Draft) -> None:
        value = float(found[1])
        if 0 < value < 1e7 or (value == 0 and name in ("signal", "gpus")):
            draft.see(name, value, weight)

    return see


def _state(word: str, weight: int = 1) -> Callable[[re.Match[str], Draft], None]:
    return lambda _, draft: draft.see("state", word, weight)


def _share(name: str) -> Callable[[re.Match[str], Draft], None]:
    return lambda found, draft: draft.see(name, float(found[1]) / 100, 0)


def _exit(found: re.Match[str], draft: Draft) -> None:
    draft.see("exit_code", (int(found[1]), 0), 2)
    if found[0].startswith("Exited"):
        draft.see("state", "EXIT" if int(found[1]) else "DONE", 1)


def _requested_and_used(found: re.Match[str], draft: Draft) -> None:
    draft.see("limit_s", float(found[1]), 0)
    draft.see("elapsed_s", float(found[2]), 0)


def _used_of_cores(found: re.Match[str], draft: Draft) -> None:
    draft.see("cores", float(found[2]), 1)
    if int(found[2]):
        draft.see("printed_efficiency", float(found[1]) / int(found[2]), 1)


def _gnu_time(found: re.Match[str], draft: Draft) -> None:
    draft.see("user_s", float(found[1]), 0)
    draft.see("system_s", float(found[2]), 0)
    if elapsed := match_duration(found[3]):
        draft.see("elapsed_s", elapsed[0], 0)


def _condor_row(found: re.Match[str], draft: Draft) -> None:
    """Read a resource row of HTCondor, `Cpus : 0.12 1 1`: usage, request and allocation."""
    name, usage, allocated = found[1].lower(), found[2], found[4]
    if name == "cpus":
        draft.see("cores", float(allocated), 3)
        if usage and float(allocated):
            draft.see("printed_efficiency", float(usage) / float(allocated), 3)
    elif name == "gpus":
        draft.see("gpus", float(allocated), 3)
        if usage and float(allocated):
            draft.see("gpu_efficiency", float(usage) / float(allocated), 2)
    else:
        if usage:
            draft.see("memory_mib", float(usage), 2)
        draft.see("memory_asked_mib", float(allocated), 2)


def _ran_for(found: re.Match[str], draft: Draft) -> None:
    if elapsed := match_duration(found[1]):
        draft.see("elapsed_s", elapsed[0], 0)


def _memory_of(found: re.Match[str], draft: Draft) -> None:
    for name, amount in zip(("memory_mib", "memory_asked_mib"), found.groups(), strict=True):
        if held := match_memory(amount):
            draft.see(name, held[0], 1)


def _stopped(_: re.Match[str], draft: Draft) -> None:
    draft.see("state", "CANCELLED", 0)


def _time_of(name: str) -> Callable[[re.Match[str], Draft], None]:
    def see(found: re.Match[str], draft: Draft) -> None:
        if amount := match_duration(found[1]):
            draft.see(name, amount[0], 0)

    return see


def _oar_cores(found: re.Match[str], draft: Draft) -> None:
    draft.see("cores", float(found[1]) * float(found[2]), 1)


def _of_load(found: re.Match[str], draft: Draft) -> None:
    """Read the message of LONI and LSU `fewer cores (load) than allocated (1.03 < 20)`."""
    draft.see("cores", float(found[2]), 1)
    if float(found[2]):
        draft.see("printed_efficiency", float(found[1]) / float(found[2]), 1)


def _status(found: re.Match[str], draft: Draft) -> None:
    draft.see("exit_code", (int(found[1]), 0), 1)


def _over_memory(found: re.Match[str], draft: Draft) -> None:
    """Read the message of LONI and LSU `using more memory (GB) than allocated (9 > 3)`."""
    draft.see("memory_mib", float(found[1]) * 1024, 1)
    draft.see("memory_asked_mib", float(found[2]) * 1024, 1)


def _share_of_cores(found: re.Match[str], draft: Draft) -> None:
    draft.see("printed_efficiency", float(found[1]) / 100, 1)
    draft.see("cores", float(found[2]), 1)


_BUSY: Final = re.compile(r"(\d{1,6}(?:\.\d{1,3})?) (?:CPU[ -])?(?:cores?|cpus)\b", re.IGNORECASE)
_NODES: Final = re.compile(r"(\d{1,5}) nodes?\b", re.IGNORECASE)


def _listed(found: re.Match[str], draft: Draft) -> None:
    """Read amounts in a row, `requested: 2 nodes, 64 cores, 02:00:00, 240 GB`, or what was used."""
    used = found[1].lower() == "used"
    for part in re.split(r"[,;] ", found[2]):
        if cores := _BUSY.match(part):
            draft.see("cores_busy" if used else "cores", float(cores[1]), 1)
        elif nodes := _NODES.match(part):
            draft.see("nodes_busy" if used else "nodes", float(nodes[1]), 1)
        elif (lasted := match_duration(part)) is not None:
            draft.see("elapsed_s" if used else "limit_s", lasted[0], 1)
        elif (held := match_memory(part)) is not None:
            draft.see("memory_mib" if used else "memory_asked_mib", held[0], 1)


def _exit_of(found: re.Match[str], draft: Draft) -> None:
    draft.see("exit_code", (int(found[1] or found[2]), 0), 1)


def _word(weight: int) -> Callable[[re.Match[str], Draft], None]:
    return lambda found, draft: draft.see("state", state_word(found[1]), weight)


See = Callable[[re.Match[str], Draft], None]


def _phrases(*rows: tuple[str, See]) -> tuple[tuple[re.Pattern[str], See], ...]:
    return tuple((re.compile(pattern, re.IGNORECASE), see) for pattern, see in rows)


_NUMBERED: Final = r"(?<![\w.,:/-])(\d{1,6})(?:\s|\(s\)|-)+(?:(?:allocated|requested|compute)\s)?"
_PERCENT: Final = r"(?<![\d.])(\d{1,4}(?:\.\d+)?)\s?%\s+(?:\w+\s)?"
_USE: Final = r"[ -](?:efficien\w+|utili[sz]\w+|usage|use|load)"
_USED: Final = r"(?:used|using|utili[sz]\w+)\s(?:only\s)?(\d{1,4}(?:\.\d+)?)\s?%\sof\s"
_LASTING: Final = (
    r"(?<![\w.])(\d[\d:.-]{0,15}(?:\s?(?:days?|hours?|hrs?|h|minutes?|min|seconds?|sec|s))?)\s"
)
_FOR: Final = r"(\d[\d.:]{0,10}\s?(?:days?|hours?|hrs?|h|minutes?|min))\b"
_YOUR: Final = r"(?:the|your|its|allocated|requested|\s)*"
# What is said of this job, wherever it stands.
_SAID: Final = _phrases(
    (r"Allocated (\d{1,9}) Slot", _number("cores", 3)),
    (r"Started (\d{1,9}) (?:Task|Processor)", _number("cores", 2)),
    (r"#BSUB\s+-n\s+(\d{1,9})", _number("cores", 1)),
    (r"\b(\d{1,9}) (?:Task\(s\)|Processors Requested)", _number("cores", 1)),
    (r"\((\d{1,9}) physical", _number("physical_cores", 1)),
    (r"parallel environment:\s+\S+ range: (\d{1,9})\s*$", _number("cores", 1)),
    (r"^\s*#\$ -pe \S+ (\d{1,9})\s*$", _number("cores", 1)),
    (r"Dedicated Resources Per Task: PROCS: (\d{1,4})\b", _number("cpus_per_task", 1)),
    (r"(?:Total Requested Tasks|TaskCount): (\d{1,7})\b", _number("tasks", 2)),
    (r"Slurm data: \d.*\s\d+ \d+ (\d{1,7}) \d+ [01] \d+ \d+ \d+ \d+\s*$", _number("tasks")),
    (r"\bexited (?:normally )?with status (\d{1,5})\b", _status),
    (r"#BSUB\s+-gpu\s+\"?num=(\d{1,9})", _number("gpus", 1)),
    (r"(?:running|runs|ran) for (?:more than )?(\d.{1,30})", _ran_for),
    (r"memory \(GB\) than allocated \((\d{1,6}) ?> ?(\d{1,6})\)", _over_memory),
    (r"^\W*(requested|allocated|reserved|used)[ \t]*:[ \t]*(\d.{3,200}\d.*)$", _listed),
    (r"host=(\d{1,9})/core=(\d{1,9})", _oar_cores),
    (r"requested (\d{1,9}) seconds and used (\d{1,9}) seconds", _requested_and_used),
    (
        r"cores?[^()<>]{0,30}(?:\(load\))?[^()<>]{0,30}\((\d{1,9}(?:\.\d{1,6})?) ?< ?(\d{1,9})\)",
        _of_load,
    ),
    (r"(?:by|with|on|\() ?(?:Linux )?signal (\d{1,2})\b", _number("signal", 1)),
    (r"Exited with exit code (\d{1,9})", _exit),
    (r"Elapsed \(wall clock\) time \(h:mm:ss or m:ss\): (\S{4,20})", _ran_for),
    (r"\(return value (\d{1,9})\)|with exit[- ]code (\d{1,9})", _exit_of),
    (r"\b(TERM_(?:MEMLIMIT|RUNLIMIT|OWNER|ADMIN))\b", _word(3)),
    (
        r"Successfully completed|Done successfully|Normal termination \(return value 0\)",
        _state("DONE"),
    ),
    (
        r"oom[-_]kill event|Out Of Memory(?! \()|Exceeded job memory limit|oom[ -]killed"
        r"|over (?:the |its )?(?:cgroup )?memory limit",
        _state("OUT_OF_MEMORY", 4),
    ),
    (
        r"DUE TO TIME LIMIT|walltime \d+ exceeded|job killed: walltime"
        r"|exceeded (?:its |the )?(?:wall ?(?:clock)? ?time|run ?time|time)[ -]?limit",
        _state("TIMEOUT", 4),
    ),
    (r"CANCELLED AT \S+ DUE TO PREEMPTION", _state("PREEMPTED", 4)),
    (r"CANCELLED AT \S+ DUE TO NODE FAIL", _state("NODE_FAIL", 4)),
    (r"\*\*\* (?:JOB|STEP) \S+ ON \S+ CANCELLED AT", _state("CANCELLED", 2)),
    (r"srun: error: .*Exited with exit code [1-9]", _state("FAILED", 0)),
    (
        r"Job\S* .{0,80}(?<!be )\b(Began|Ended|Failed|COMPLETED|TIMEOUT|CANCELLED|OUT_OF_MEMORY"
        r"|NODE_FAIL)\b",
        _word(0),
    ),
    (
        r"(?-i:\b(COMPLETED|FAILED|TIMEOUT|OUT_OF_MEMORY|NODE_FAIL|PREEMPTED)\b)(?!\s*by)",
        _word(0),
    ),
    (r"(\d{1,9}(?:\.\d+)?)user (\d{1,9}(?:\.\d+)?)system (\S{1,20})elapsed", _gnu_time),
    (
        r"^\s*(Cpus|Gpus|Memory \(MB\))(?: \(Average\))?\s*:\s*"
        r"(\d{1,9}(?:\.\d{1,6})?)?\s+(\d{1,9})[ \t]+(\d{1,9})\s*$",
        _condor_row,
    ),
)
# What may also be a rule of the site ("each node has 96 cores").
_PROSE: Final = _phrases(
    (
        r"\b(\d{1,9}(?:\.\d{1,6})?) ?(?:of|out of|/) ?(?:the |your )?(\d{1,9}) "
        r"(?:allocated |requested |reserved )?(?:CPU[ -])?(?:cores|cpus)\b",
        _used_of_cores,
    ),
    (
        _NUMBERED
        + r"(?:CPU[ -]?)?(?:cores?|cpus|slots|processors|vcpus)\b(?!\s+(?:per|each|on each))",
        _number("cores"),
    ),
    (_NUMBERED + r"(?:NVIDIA\s)?(?:[AHV]\d{2,3}\s)?GPUs?\b(?!\s+(?:per|hours?))", _number("gpus")),
    (_NUMBERED + r"nodes?\b(?!\s+(?:per|hours?))", _number("nodes")),
    (r"\bGPUs?:? +(\d{1,4}) ?x ?[A-Z]", _number("gpus")),
    (
        r"(?<![\d.])(\d{1,4}(?:\.\d{1,6})?)\s?% of (?:the |your |its )?(\d{1,9}) "
        r"(?:allocated |requested |reserved )?(?:CPU[ -])?(?:cores|cpus)\b",
        _share_of_cores,
    ),
    (r"\b(?:cores?|cpus) for " + _FOR, _time_of("elapsed_s")),
    (_PERCENT + "CPU" + _USE, _share("printed_efficiency")),
    (_PERCENT + "GPU" + _USE, _share("gpu_efficiency")),
    (_USED + _YOUR + "(?:CPU|cores)", _share("printed_efficiency")),
    (
        r"\b(?:runs?|running|ran|work\w*) (?:on|at|with) (?:an? )?"
        r"(?:about |around |only |roughly )*"
        r"(\d{1,3}(?:\.\d+)?)\s?% (?:overall |mean |average )?efficiency",
        _share("printed_efficiency"),
    ),
    (
        r"cores? \((\d{1,6})\) than (?:it |they |you )?(?:requested|allocated|reserved|asked for)"
        r" \((\d{1,6})\)",
        _of_load,
    ),
    (r"\bcores? (?:over|in|during) the (?:last|past) " + _FOR, _time_of("elapsed_s")),
    (
        r"(\d[\d.]*\s?[KMGT]i?B) of (?:the |its |your )*(\d[\d.]*\s?[KMGT]i?B)"
        r"(?: that)?(?: it| you)?(?: was| were)? (?:reserved|requested|allocated|asked for)",
        _memory_of,
    ),
    (
        r"\b(?:your|the) (?:processes|jobs?)\b[^.]{0,60} (?:was|were|been) (cancelled|killed)\b",
        _stopped,
    ),
    (_LASTING + r"of (?:total )?CPU[ -]time\b", _time_of("cpu_s")),
    (
        _LASTING + r"of (?:wall(?:[ -]?clock)?(?:[ -]?time)?|elapsed time|run ?time)\b",
        _time_of("elapsed_s"),
    ),
    (_USED + _YOUR + "GPU", _share("gpu_efficiency")),
)
_CONDOR_ID: Final = re.compile(r"^\s*0\d\d \((\d{1,9}\.\d{1,6})\.\d+\) ")
_SGE_ID: Final = re.compile(r"^\s*Job(?:-array task)? (\d{1,9}(?:\.\d+)?) \(")
# A line of PBS's accounting: date and time, what happened, the job.
_PBS_ID: Final = re.compile(r"^\s*\d\d/\d\d/\d{4} [\d:]+;\w+;(\d{1,12}[\w.\[\]-]{0,80});")
# One word of each phrase, in lower case: most lines have none.
_HINTS: Final = (
    *(
        "slot",
        "task",
        "processor",
        "core",
        "cpu",
        "gpu",
        "node",
        "physical",
        "seconds and",
        "slurm data",
        "parallel",
        "-pe",
        "signal",
        "used",
        "requested",
        "exit",
    ),
    *(
        "return value",
        "term_",
        "success",
        "done",
        "normal term",
        "oom",
        "memory",
        "limit",
        "exceeded",
    ),
    *(
        "running for",
        "ran for",
        "core=",
        "num=",
        "cancelled",
        "completed",
        "failed",
        "timeout",
        "ended",
        "elapsed",
        "preempt",
        "began",
        "killed",
    ),
)


def read_phrases(line: str, drafts: Drafts, told: str) -> None:
    """Read known phrases of a line into the job's draft.

    `told`: the part of the line before the first sentence on what the site wants.
    """
    if found := _CONDOR_ID.match(line) or _SGE_ID.match(line) or _PBS_ID.match(line):
        drafts.of(found[1])
    lowered = line.lower()
    if not any(hint in lowered for hint in _HINTS):
        return
    for pattern, see in _SAID:
        if found := pattern.search(line):
            see(found, drafts.here())
    for pattern, see in _PROSE if told else ():
        if found := pattern.search(told):
            see(found, drafts.aside())


# Dialects.

# What Slurm's exit code has in the place of a signal where a job was killed for its memory.
OUT_OF_MEMORY_MARK: Final = 125

SEFF_RUNNING: Final = (
    "seff reads Slurm's accounting, which counts the steps that have ended: of a running job these "
    "are too few, and left out"
)
ESTIMATE: Final = "seff calls its memory an estimate: the largest task's times the number of tasks"
NOTHING_ASKED: Final = "LSF writes MEM Efficiency 0.00% where the job asked for no memory"
NOT_YET: Final = "LSF has not looked at it yet: its CPU peak is over 0 seconds"
DERIVED: Final = "the number of cores is CPU PEAK over CPU PEAK EFFICIENCY: the text has none"
LSF_MEMORY: Final = (
    "LSF samples memory now and then and does not count shared or mapped memory everywhere "
    "(batches of DataLoader workers, memory-mapped files)"
)
PBS_HOSTS: Final = (
    "PBS counts what runs under its own daemons: processes that ssh or another launcher started on "
    "further nodes are missing"
)
PER_CORE: Final = (
    "seff-array prints the CPU time of one core, and its memory shares are a known fault of the "
    "tool: only cores and CPU efficiency are used"
)
VIRTUAL: Final = "maxvmem is address space, not memory: it says nothing of what is needed"
BETWEEN: Final = "run time is from its start to its end: time in which it was suspended counts"
TO_LAST_LOOK: Final = "run time is from its start to the scheduler's last look at it"
MEAN_OF: Final = "the figures are means over several jobs"
OVERFLOWED: Final = (
    "its memory is more than any machine has: the accounting overflowed, nothing follows from it"
)
PER_NODE: Final = "memory is that of the busiest node"
INFERRED: Final = "the number of cores is CPU time / (run time x CPU efficiency): the text has none"

# The first whose mark is in the job's lines; a table names its source itself.
_DIALECTS: Final = tuple(
    (name, re.compile(mark, re.IGNORECASE | re.MULTILINE))
    for name, mark in (
        ("nn_seff", r"Job Wall-?time:\s+\d+(?:\.\d+)?%"),
        ("seff-array", r"Average CPU Utili[sz]ed"),
        ("seff", r"CPU Utili[sz]ed:|core-walltime|Cores per node:"),
        ("jobstats", r"Slurm Job Statistics|CPU utilization\s+\[|CPU utilization per node"),
        ("slurm-mail", r"Wallclock Accuracy"),
        ("PBS", r"resources_used|Resource_List|NCPUs Requested|PBS Job Id|cput=|\bpbs|[.-]pbs"),
        (
            "LSF",
            r"CPU (?:average|peak) efficiency|Resource usage summary:\s*$|CPU time used is|\bLSF\b"
            r"|Turnaround time|TERM_[A-Z]+LIMIT|executed on host",
        ),
        ("DCGM", r"SM Utili[sz]ation \(%\)"),
        ("Grid Engine", r"ru_wallclock|ru_utime|qname|Max vmem"),
        (
            "HTCondor",
            r"Partitionable Resources|Remote Usage|Normal termination|RemoteWallClock|Condor job",
        ),
        (
            "OAR",
            r"\bOAR\b|oarstat|assigned_resources|wanted_resources"
            r"|job type = (?:PASSIVE|INTERACTIVE)",
        ),
    )
)


# Until Slurm 21.08 sacct wrote `4Gn` per node, `4Gc` per core; sites write `4G/core`.
_PER: Final = re.compile(r"(?<=[KMGT])[nc]$|(?:/core|/cpu|/node|/task)$", re.IGNORECASE)


def finish(draft: Draft) -> JobFields:
    """Build a job's fields from its draft, with the habits of the text's source applied."""
    text = "\n".join(draft.text)
    source = draft.source or next((name for name, mark in _DIALECTS if mark.search(text)), "text")
    seen = draft.values
    habit = _HABITS.get(source)
    if habit:
        habit(draft, text)
    _drop_impossible_memory(draft)
    _spread(draft)
    if "elapsed_s" not in seen and (draft.id or "cpu_s" in seen):
        if ran := elapsed_between(text):
            draft.see("elapsed_s", ran, 0)
            draft.notes.append(BETWEEN)
        elif _is_looked_at(draft) and (ran := elapsed_between(text, running=True)):
            draft.see("elapsed_s", ran, 0)
            draft.notes.append(TO_LAST_LOOK)
    job = JobFields(source=source, id=draft.id, notes=list(dict.fromkeys(draft.notes)))
    code, by_signal = seen.get("exit_code", (None, 0))
    job.exit_code, job.signal = _end(code, by_signal)
    if "signal" in seen and job.signal is None:
        job.signal = int(seen["signal"]) or None
    job.state = str(seen.get("state", ""))
    if by_signal == OUT_OF_MEMORY_MARK and job.state in ("", "FAILED"):
        job.state = "OUT_OF_MEMORY"
    for name in ("jobs", "nodes", "tasks", "physical_cores", "gpus", "gpus_unused", "nodes_unused"):
        if name in seen:
            setattr(job, name, int(seen[name]))
    for name in (
        *("elapsed_s", "limit_s", "cpu_s", "printed_efficiency", "peak_efficiency", "memory_mib"),
        *("memory_asked_mib", "printed_memory_efficiency", "printed_time_efficiency"),
        *("gpu_efficiency", "gpu_memory_efficiency", "lost_core_hours"),
    ):
        if name in seen:
            setattr(job, name, float(seen[name]))
    job.peak_s = seen.get("cpu_peak_s") or None
    job.memory_counted = str(seen.get("memory_counted", ""))
    job.attempts = int(seen["attempts"]) if "attempts" in seen else None
    job.nodes = job.nodes or None
    if job.gpus is None and "gpus_per_node" in seen:
        job.gpus = int(seen["gpus_per_node"]) * (job.nodes or 1) or None
    job.cores = _cores(draft, job)
    if "cores_busy" in seen and job.cores and job.printed_efficiency is None:
        job.printed_efficiency = float(seen["cores_busy"]) / job.cores
    _per_node_or_core(draft, job)
    if job.jobs and MEAN_OF not in job.notes:
        job.notes.append(MEAN_OF)
    stopped = job.signal in (9, 15, 24) and job.state in ("", "EXIT", "FINISHED", "COMPLETED")
    if stopped and job.limit_s and job.elapsed_s and job.elapsed_s >= 0.995 * job.limit_s:
        job.state = "TIMEOUT"
    if job.state in OUT_OF_TIME or job.state in RUNNING:
        job.exit_code = job.exit_code or None
    return _inferred(job)


def _is_looked_at(draft: Draft) -> bool:
    """Return whether a running job has CPU time, and no CPU efficiency of the scheduler's own."""
    seen = draft.values
    return seen.get("state") in RUNNING and "cpu_s" in seen and "printed_efficiency" not in seen


def _per_node_or_core(draft: Draft, job: JobFields) -> None:
    """Multiply memory figures that are per node, core or task, so that they are of the job."""
    used = _PER.search(str(draft.values.get("memory_mib.per", "")))
    if used and used[0] == "/node":
        job.memory_counted = job.memory_counted or "node"
        if (job.nodes or 1) > 1 and PER_NODE not in job.notes:
            job.notes.append(PER_NODE)
    elif used:  # a mean, or the largest: it does not say which
        job.memory_mib = None
    asked = _PER.search(str(draft.values.get("memory_asked_mib.per", "")))
    if not asked or job.memory_asked_mib is None:
        return
    if asked[0] in ("n", "/node"):
        times: int | None = 1 if job.memory_counted == "node" else job.nodes or 1
    else:
        times = job.tasks if asked[0] == "/task" else job.cores
    job.memory_asked_mib = job.memory_asked_mib * times if times else None


def says_something(job: JobFields) -> bool:
    """Return whether the job has enough figures to be worth reporting.

    A phrase such as `4 cores` alone, anywhere in a text, is no job.
    """
    figures = (
        *(job.efficiency, job.cores_used, job.memory_efficiency, job.gpu_efficiency),
        *(job.gpus_unused, job.nodes_unused, job.time_efficiency),
    )
    if any(each is not None for each in figures):
        return True
    # Alone, a time or an amount of memory may be of anything.
    amounts = (job.cpu_s, job.memory_mib, job.elapsed_s)
    is_of_job = job.id or job.source != "text" or job.exit_code is not None or job.signal
    if sum(each is not None for each in amounts) >= (1 if is_of_job else 2):
        return True
    return bool(job.id and (job.state or job.elapsed_s is not None)) or bool(
        job.state and job.elapsed_s is not None
    )


def _end(code: int | None, by_signal: int) -> tuple[int | None, int | None]:
    """Split a job's exit code into exit code and signal; None for each that it lacks.

    sacct prints `0:9`. A shell adds 128 to a signal's number, PBS adds 256.
    """
    if code is None or code < 0:  # below 0 it is PBS's own reason
        return None, by_signal or None
    if by_signal > 64:  # Slurm's `0:125` is its own mark
        return code or None, None
    if by_signal:
        return None if code == 0 else code, by_signal
    if 256 < code <= 256 + 64:
        return None, code - 256
    if 128 < code <= 128 + 64:
        return code, code - 128
    return code, None


def _cores(draft: Draft, job: JobFields) -> int | None:
    """Return the job's number of cores from the most reliable figures; None if unknown."""
    seen, weights = draft.values, draft.weights
    if seen.get("cores") and weights["cores"] >= 2:
        return round(float(seen["cores"])) or None
    chunk = _chunks(str(seen.get("select", "")))
    total = tres_figure(str(seen.get("tres", "")), "cpu")
    if total:
        return int(total)
    if chunk[0]:
        return chunk[0]
    walltime = seen.get("core_walltime_s")
    if walltime and job.elapsed_s:
        ratio = walltime / job.elapsed_s
        if ratio >= 0.5 and abs(ratio - round(ratio)) <= 0.02 * ratio + 1 / job.elapsed_s * ratio:
            return round(float(ratio))
    if seen.get("cores"):
        return round(float(seen["cores"])) or None
    if seen.get("cores_per_node") and job.nodes:
        return int(float(seen["cores_per_node"])) * job.nodes
    if seen.get("cores_per_gpu") and job.gpus:
        return int(seen["cores_per_gpu"]) * job.gpus
    if seen.get("cpus_per_task") and job.tasks:
        return int(seen["cpus_per_task"]) * job.tasks
    return None


def _chunks(text: str) -> tuple[int, int]:
    """Count cores and GPUs in a PBS request such as `2:ncpus=16:ngpus=1+1:ppn=4`."""
    cores = gpus = 0
    for chunk in text.split("+"):
        each = re.search(r"(?:ncpus|ppn)=(\d{1,6})", chunk)
        cards = re.search(r"gpus=(\d{1,4})", chunk)
        many = re.match(r"(\d{1,6})(?::|$)", chunk)
        times = int(many[1]) if many else 1
        if each or many:
            cores += times * (int(each[1]) if each else 1)
        gpus += times * int(cards[1]) if cards else 0
    return (cores, gpus) if text else (0, 0)


def _spread(draft: Draft) -> None:
    """Derive fields from figures that are no fields themselves, such as user and system time."""
    seen = draft.values
    if "cpu_s" not in seen and ("user_s" in seen or "system_s" in seen):
        draft.see("cpu_s", seen.get("user_s", 0.0) + seen.get("system_s", 0.0), 1)
    if "ave_cpu_s" in seen and "cpu_s" not in seen:
        draft.see("cpu_s", seen["ave_cpu_s"] * (seen.get("tasks") or 1), 1)
    tres = str(seen.get("tres", ""))
    for name, key in (("gpus", "gres/gpu"), ("nodes", "node")):
        if (value := tres_figure(tres, key)) is not None:
            draft.see(name, value, 2)
    if "memory_asked_mib" not in seen and (held := tres_figure(tres, "mem")):
        draft.see("memory_asked_mib", held / 2**20, 2)
    _see_hosts(str(seen.get("hosts", "")), draft)
    gpus = _chunks(str(seen.get("select", "")))[1]
    if gpus:
        draft.see("gpus", float(gpus), 1)
    if cards := seen.pop("card_shares", None):
        draft.see("gpus", float(len(cards)), 1)
        draft.see("gpu_efficiency", sum(cards) / len(cards), 3)
        draft.see("gpus_unused", float(sum(not each for each in cards)), 3)
    share, count = seen.get("gpu_efficiency"), seen.get("gpus") or 1
    if share is not None and share > 1.05 and count > 1:  # Slurm adds up the cards of a task
        seen["gpu_efficiency"] = min(share / count, 1.0)
    peak, of_peak = seen.get("cpu_peak"), seen.get("peak_efficiency")
    if "cores" not in seen and peak and of_peak:
        draft.see("cores", float(max(round(peak / of_peak), 1)), 1)
        draft.notes.append(DERIVED)


def _see_hosts(text: str, draft: Draft) -> None:
    """Count nodes and cores in hosts such as `n1/0-3+n2/0*4`: of each its slots, or how many."""
    parts = [part for part in text.split("+") if part]
    if not parts:
        return
    draft.see("nodes", float(len({part.partition("/")[0] for part in parts})), 0)
    slots = [part.partition("/")[2] for part in parts]
    counts = [_slots(each) for each in slots]
    if all(counts):
        draft.see("cores", float(sum(counts)), 1)


def _slots(text: str) -> int:
    """Count the slots of a host: 4 in `0-3`, 3 in `0,2,5`, 28 in `0*28`; 0 where it says none."""
    total = 0
    for part in text.split(",") if text else ():
        found = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5})|\*(\d{1,5}))?", part)
        if not found:
            return 0
        total += int(found[3]) if found[3] else int(found[2] or found[1]) - int(found[1]) + 1
    return total


def _seff(draft: Draft, text: str) -> None:
    if draft.values.get("state") in RUNNING:
        for name in ("cpu_s", "printed_efficiency", "memory_mib", "printed_memory_efficiency"):
            draft.values.pop(name, None)
        draft.notes.append(SEFF_RUNNING)
    if "estimated maximum" in text:
        draft.see("memory_counted", "task x tasks", 3)
        draft.notes.append(ESTIMATE)


def _seff_array(draft: Draft, _: str) -> None:
    for name in (
        *(
            "cpu_s",
            "core_walltime_s",
            "memory_mib",
            "memory_asked_mib",
            "printed_memory_efficiency",
        ),
        "mean_memory_mib",
    ):
        draft.values.pop(name, None)
    draft.notes.append(PER_CORE)


def _slurm_mail(draft: Draft, text: str) -> None:
    """Correct figures of a slurm-mail message: its "Wallclock" is the time limit.

    Its memory is that of one node.
    """
    found = re.search(r"(?m)^\W*Wallclock:\s+(\S.*)$", text)
    limit = match_duration(found[1].strip()) if found else None
    if limit:
        draft.see("limit_s", limit[0], 3)
    elapsed = re.search(r"(?m)^\W*Elapsed:\s+(\S.*)$", text)
    ran = match_duration(elapsed[1].strip()) if elapsed else None
    if ran:
        draft.see("elapsed_s", ran[0], 3)
    if "Max memory usage per node" in text:
        draft.see("memory_counted", "node", 3)
        draft.notes.append(PER_NODE)


_NODE_TIME: Final = re.compile(
    r"^\s*\S+: +(\S+?)/(\S+) \(efficiency=(\d{1,4}(?:\.\d{1,3})?)%", re.M
)
_NODE_MEMORY: Final = re.compile(
    r"^\s*[\w.-]+: +(\d[\d.]*[KMGTP]?B)/(\d[\d.]*[KMGTP]?B)\b(?! \(\d[\d.]*%)", re.M
)
_CARD: Final = re.compile(r"^\s*\S+ \(GPU \S+\): +(\d[\d.]*)%", re.M)
_TOTAL_TIME: Final = re.compile(r"Total used/runtime: (\S+?)/(\S+?),")
_TOTAL_MEMORY: Final = re.compile(r"Total used/allocated: (\S+?)/(\S+)")


def _jobstats(draft: Draft, text: str) -> None:
    """Sum CPU time and memory over the nodes that jobstats lists, one per line.

    For example `node-g2: 1-21:41:20/18-16:46:24 (efficiency=10.2%)`.
    """
    total = _TOTAL_TIME.search(text)
    pairs = (
        [total.groups()] if total else [found.group(1, 2) for found in _NODE_TIME.finditer(text)]
    )
    times = [(match_duration(used), match_duration(held)) for used, held in pairs]
    if times and all(used and held for used, held in times):
        draft.see("cpu_s", sum(used[0] for used, _ in times if used), 3)
    whole = _TOTAL_MEMORY.search(text)
    amounts = [
        (match_memory(used), match_memory(held))
        for used, held in (
            [whole.groups()] if whole else [each.groups() for each in _NODE_MEMORY.finditer(text)]
        )
    ]
    if amounts and all(used and held for used, held in amounts):
        draft.see("memory_mib", sum(used[0] for used, _ in amounts if used), 3)
        draft.see("memory_asked_mib", sum(held[0] for _, held in amounts if held), 3)
    cards = [float(found[1]) / 100 for found in _CARD.finditer(text)]
    if cards:
        draft.see("gpu_efficiency", sum(cards) / len(cards), 3)
        draft.see("gpus_unused", float(sum(not each for each in cards)), 3)
    if re.search(r"MIG jobs", text):
        draft.values.pop("gpu_efficiency", None)
    if times:
        named = len(re.findall(r"CPU node was not used", text))
        # A batch shell leaves seconds: jobstats prints them as 0.0%.
        nothing = [found[3] for found in _NODE_TIME.finditer(text) if not float(found[3])]
        draft.see("nodes_unused", float(max(named, len(nothing))), 3)


# `Started on 4 Hosts/Processors <2*n1> <2*n2>`, `Dispatched to <n1>`, `Started 8 Task(s) on ...`.
_LSF_STARTED: Final = re.compile(
    r"(?:Started|Dispatched)(?: \d{1,7} Task\(s\))? (?:on|to)"
    r"(?: \d{1,7})?(?: Host(?:s/Processors|\(s\)))? ((?:<[^<>]{1,90}> ?){1,500})"
)


def _lsf(draft: Draft, text: str) -> None:
    seen = draft.values
    ran_on = text.partition("executed on host(s)")[2].partition("Your job looked like")[0]
    hosts = re.findall(r"<(\d{1,6})\*([\w.-]+)>", ran_on)
    if not hosts and (started := _LSF_STARTED.search(text)):
        hosts = re.findall(r"<(?:(\d{1,6})\*)?([\w.-]+)>", started[1])
        hosts = [(each or "1", host) for each, host in hosts]
    if slots := sum(int(each) for each, _ in hosts):
        draft.see("cores", float(slots), 2)
        draft.see("nodes", float(len({host for _, host in hosts})), 0)
    watched = seen.get("cpu_peak_s")
    if watched == 0:
        for name in ("printed_efficiency", "peak_efficiency"):
            if not seen.get(name):
                seen.pop(name, None)
        draft.notes.append(NOT_YET)
    if seen.get("printed_memory_efficiency") == 0:
        seen.pop("printed_memory_efficiency")
        if seen.get("memory_mib"):
            draft.notes.append(NOTHING_ASKED)
    if seen.get("memory_mib") is not None:
        draft.see("memory_counted", "LSF", 3)
        draft.notes.append(LSF_MEMORY)
    if not seen.get("peak_efficiency"):
        seen.pop("peak_efficiency", None)


PBS_OWN: Final = (
    "Exit_status {code} is PBS's own: it could not start the job, or ended it (pbs_mom's log and "
    "the job's comment say why)"
)


# `tracejob` of PBS Pro has a row of each node, and the job's total in the row of its end.
_TRACE: Final = r"\W*\d\d/\d\d/\d{4} [\d:.]{8,15}\s+[A-Z]\s+"
TRACE_NODE: Final = re.compile(_TRACE + r"([\w.-]+) cput=(\S+) mem=\S+\s*$")
_TRACE_END: Final = re.compile("^" + _TRACE + "Exit_status=", re.MULTILINE)


def _pbs(draft: Draft, text: str) -> None:
    if nodes := draft.values.get("cpu_of_nodes"):
        draft.see("cpu_s", sum(nodes.values()), 0)
        draft.see("nodes", float(len(nodes)), 0)
    if draft.values.get("state", "RUNNING") in RUNNING and _TRACE_END.search(text):
        draft.see("state", "FINISHED", 3)
    code = draft.values.get("exit_code", (0, 0))[0]
    if code < 0:
        draft.notes.append(PBS_OWN.format(code=code))
        draft.see("state", "ABORTED", 0)
    if (draft.values.get("nodes") or 1) > 1 and not nodes:
        draft.notes.append(PBS_HOSTS)


def _oar(draft: Draft, _: str) -> None:
    """Correct figures of OAR, whose "walltime" is the requested time limit."""
    if "elapsed_s" in draft.values:
        draft.see("limit_s", draft.values.pop("elapsed_s"), 3)


def _grid_engine(draft: Draft, _: str) -> None:
    if "virtual_mib" in draft.values and "memory_mib" not in draft.values:
        draft.notes.append(VIRTUAL)


def _dcgm(draft: Draft, _: str) -> None:
    """Drop the memory of `dcgmi stats`: it is the GPU's."""
    for name in ("printed_memory_efficiency", "memory_mib", "mean_memory_mib"):
        draft.values.pop(name, None)


# JobStatus of a ClassAd (HTCondor's manual, "Job ClassAd Attributes").
_CONDOR_STATES: Final[Mapping[int, str]] = {
    1: "IDLE",
    2: "RUNNING",
    3: "REMOVED",
    4: "COMPLETED",
    5: "HELD",
    7: "SUSPENDED",
}


def _condor(draft: Draft, _: str) -> None:
    """Read the attributes of a ClassAd: memory in KiB and MiB, the state as a number."""
    seen = draft.values
    if "resident_kib" in seen:
        draft.see("memory_mib", seen["resident_kib"] / 1024, 2)
    if "request_mib" in seen:
        draft.see("memory_asked_mib", seen["request_mib"], 2)
    if state := _CONDOR_STATES.get(int(seen.get("condor_status", 0))):
        draft.see("state", state, 3)
    if seen.get("state") in RUNNING and not seen.get("elapsed_s"):
        seen.pop("elapsed_s", None)  # it is written when the job ends
    if not draft.id and "cluster_id" in seen:
        draft.id = f"{seen['cluster_id']:.0f}.{seen.get('proc_id', 0):.0f}"


# No job has a PiB of memory: Slurm has printed a number below 0 as a huge one.
_MOST_MIB: Final = 2.0**30


def _drop_impossible_memory(draft: Draft) -> None:
    if draft.values.get("memory_mib", 0.0) > _MOST_MIB:
        draft.notes.append(OVERFLOWED)
        for name in ("memory_mib", "printed_memory_efficiency"):
            draft.values.pop(name, None)


_HABITS: Final[Mapping[str, Callable[[Draft, str], None]]] = {
    "seff": _seff,
    "nn_seff": _seff,
    "seff-array": _seff_array,
    "slurm-mail": _slurm_mail,
    "jobstats": _jobstats,
    "LSF": _lsf,
    "PBS": _pbs,
    "Grid Engine": _grid_engine,
    "DCGM": _dcgm,
    "HTCondor": _condor,
    "OAR": _oar,
}

# A share is printed in per cent with two digits; and how far from a whole number of cores the three
# figures may be that it follows from.
_HALF_DIGIT: Final = 0.5e-4
_INEXACT: Final = 0.4


def _inferred(job: JobFields) -> JobFields:
    """Infer the job's number of cores from its CPU time, run time and CPU efficiency.

    For example 8,566 s / (8,570 s x 20.00 %) = 5. The job is unchanged if no whole number fits.
    """
    if job.cores or not job.printed_efficiency or not job.elapsed_s or not job.cpu_s:
        return job
    exact = job.cpu_s / (job.elapsed_s * job.printed_efficiency)
    doubt = exact * (_HALF_DIGIT / job.printed_efficiency + 1 / job.elapsed_s + 1 / job.cpu_s)
    if exact < 0.5 or doubt > _INEXACT or abs(exact - round(exact)) > max(doubt, _INEXACT / 4):
        return job
    job.cores = round(exact)
    job.notes.append(INFERRED)
    return job
