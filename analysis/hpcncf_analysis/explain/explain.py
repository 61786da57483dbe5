"""Find summaries in a text, and state what follows from them and what stays open."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from hpcncf_analysis.configurations import pluralize
from hpcncf_analysis.explain.lsf_pbs import read_lsf, read_pbs
from hpcncf_analysis.explain.parsers import (
    COMMA,
    OUT_OF_MEMORY,
    OUT_OF_TIME,
    Job,
    read_logs,
    read_reportseff,
    read_sacct,
    read_seff,
    read_sentence,
)
from hpcncf_analysis.formatting import (
    NONE,
    THIN,
    format_core_time,
    format_duration,
    format_mebibytes,
)

READERS: Final = (read_seff, read_reportseff, read_sacct, read_lsf, read_pbs)
POSSIBLE: Final = (
    "seff; reportseff; sacct with its header (default, --long, --format, --parsable); LSF's "
    "bjobs -l, bhist -l and job report; PBS's qstat -f; a folder of Slurm's logs; "
    "'CPU efficiency 20 %'"
)


@dataclass(frozen=True)
class Reading:
    jobs: tuple[Job, ...]
    problems: tuple[str, ...]
    """Texts that look like a summary and were not understood, each with the way out."""


def read_text(text: str) -> Reading:
    jobs = tuple(job for read in READERS for job in read(text)) or tuple(read_sentence(text))
    problems = []
    if comma := COMMA.search(text):
        problems.append(
            f"{comma[0]}: a decimal comma is not understood; print it once more with LC_ALL=C"
        )
    if not jobs and re.search(r"(?m)^\d+(?:_\d+)?(?:\.\w+)?\|", text):
        problems.append("rows of sacct without their header; leave --noheader (-n) out")
    return Reading(jobs, tuple(problems))


def read_log_folder(files: Mapping[str, str]) -> Reading:
    """Of a folder's logs by name: the summaries in them, else the jobs in the files' names."""
    readings = {name: read_text(text) for name, text in sorted(files.items())}
    jobs = [job for reading in readings.values() for job in reading.jobs]
    known = {job.id for job in jobs}
    jobs += [job for job in read_logs(files) if job.id not in known]
    problems = [
        f"{name}: {problem}" for name, reading in readings.items() for problem in reading.problems
    ]
    return Reading(tuple(jobs), tuple(problems))


# From here to here one core was busy, start-up and pauses included.
ONE: Final = (0.85, 1.15)
BUSY: Final = 0.9
HARDLY: Final = 0.5

NO_CPU: Final = "how many of its cores it used: the text lacks CPU time or elapsed time"
NO_CORES: Final = "how many cores it had: give it with --cores N"
WAITED: Final = (
    "what it waited for (files, the network, a GPU, other processes), or where its work was counted"
)
BUSY_WITH: Final = (
    "whether the busy cores did useful work: threads that wait for one another spin, and the "
    "kernel counts that as work",
    "how fast it was, and whether fewer cores would be as fast",
)
SEVERAL: Final = "whether that was one core all the time, or several for a part of it"
ONE_BUSY: Final = (
    "whether the job was held to fewer cores (affinity, cgroup, srun without --cpus-per-task) or "
    "its work is done by one thread",
    "if it was not held: whether input, the training step, evaluation or waiting takes the time",
)
SOME_BUSY: Final = (
    "whether some ranks or threads work while others wait, or all pause together",
    "where the time goes: input, the training step, synchronisation, evaluation",
)
NEIGHBOURS: Final = "whether others were busy on the same cores"
NODES: Final = "which node or rank waited for which"


def kept_to_one(job: Job, cores: int) -> bool:
    """Whether its busiest moment had no second core; only LSF reports one."""
    return job.peak_efficiency is not None and job.peak_efficiency * cores <= ONE[1]


def left_open(job: Job) -> list[str]:
    """Questions that the figures do not answer."""
    if job.is_waiting:
        return []
    used, efficiency = job.cores_used, job.efficiency
    if efficiency is None and (used is None or job.cores is not None):
        return [NO_CPU]
    asked = [NO_CORES] if job.cores is None else []
    one_busy = used is not None and ONE[0] <= used <= ONE[1]
    if efficiency is None:
        return [*asked, *([*ONE_BUSY, SEVERAL] if one_busy else ()), NEIGHBOURS]
    if efficiency >= BUSY and job.cores == 1:
        asked.append("whether a second core would make it faster")
    elif efficiency >= BUSY:
        asked += BUSY_WITH
    elif (used is not None and used < HARDLY) or job.cores == 1:
        asked += [WAITED, NEIGHBOURS]
    else:
        asked += ONE_BUSY if used is None or used <= ONE[1] else SOME_BUSY
        asked += [SEVERAL] if one_busy and not kept_to_one(job, job.cores or 1) else []
        asked.append(NEIGHBOURS)
    return [*asked, NODES] if job.nodes and job.nodes > 1 else asked


RUN: Final = "hpcncf run -- COMMAND"
FIELDS: Final = (
    "JobID,State,NNodes,AllocCPUS,Elapsed,Timelimit,TotalCPU,NTasks,MaxRSS,ReqMem,ExitCode"
)
# This close to a whole number of cores is called exact: the figures have two digits.
EXACT: Final = 0.02
# A share is printed in per cent with two digits; and how far from a whole number of cores the three
# figures may be that it follows from.
HALF_DIGIT: Final = 0.5e-4
INEXACT: Final = 0.4
# LSF's CPU_PEAK_SAMPLE_DURATION.
SAMPLE: Final = "60 s unless the site says otherwise"
# Below this a job's start says more than its work (jobstats judges none under 300 s).
SHORT_S: Final = 60.0
# What a request needs above the peak that was seen.
ROOM: Final = 1.25
# More memory or time than this share of what was asked for is no waste worth a word.
MODEST: Final = 0.5


@dataclass(frozen=True)
class Explanation:
    job: Job
    follows: tuple[str, ...]
    unknown: tuple[str, ...]
    """What these figures leave open."""
    command: str
    """The one that would answer it; empty if there is nothing to ask."""
    why: str
    """What that command shows."""

    def plain(self) -> dict[str, Any]:
        """For JSON: the job's figures as they were read, and what was derived."""
        derived = ("efficiency", "cores_used", "cores_at_peak", "memory_efficiency")
        more = ("time_efficiency", "core_hours_idle")
        read = {name: value for name, value in asdict(self.job).items() if "printed_" not in name}
        return {
            **read,
            **{name: getattr(self.job, name) for name in (*derived, *more)},
            "follows": list(self.follows),
            "unknown": list(self.unknown),
            "command": self.command,
        }


INFERRED: Final = "the number of cores is CPU time / (run time x CPU efficiency): the text has none"


def infer_cores(job: Job) -> Job:
    """The job with its number of cores where the text has none but CPU time, run time and CPU
    efficiency, whose printed digits leave one whole number: 8,566 s / (8,570 s x 20.00 %) = 5."""
    efficiency, elapsed_s, cpu_s = job.printed_efficiency, job.elapsed_s, job.cpu_s
    if job.cores or not efficiency or not elapsed_s or not cpu_s:
        return job
    exact = cpu_s / (elapsed_s * efficiency)
    doubt = exact * (HALF_DIGIT / efficiency + 1 / elapsed_s + 1 / cpu_s)
    if exact < 0.5 or doubt > INEXACT or abs(exact - round(exact)) > max(doubt, INEXACT / 4):
        return job
    return replace(job, cores=round(exact), notes=(*job.notes, INFERRED))


def explain(job: Job) -> Explanation:
    job = infer_cores(job)
    checks: Sequence[Callable[[Job], list[str]]] = (_cores, _peak, _idle, _memory, _time, _end)
    follows = [text for check in checks for text in check(job)]
    notes = [f"note: {note}" for note in job.notes]
    command, why = _command(job)
    return Explanation(job, (*follows, *notes), tuple(left_open(job)), command, why)


def _two(value: float | None) -> str:
    """A share as the schedulers print it: `20.00 %`."""
    return NONE if value is None else f"{100 * value:.2f}{THIN}%"


def _cores(job: Job) -> list[str]:
    used, cores, efficiency = job.cores_used, job.cores, job.efficiency
    if efficiency is None:
        of_how_many = "cores used on average; of how many, the text does not say"
        return [] if used is None or cores else [f"{used:.2f} {of_how_many}"]
    if cores is None or used is None:
        text = f"{_two(efficiency)} of the cores reserved"
        likely = round(1 / efficiency) if efficiency > 0 else 0
        if 2 <= likely <= 256 and abs(efficiency * likely - 1) <= EXACT:
            return [f"{text}: with {likely} cores this is {_one_busy(job, likely)}, 1/{likely}"]
        return [f"{text} were used"]
    text = f"{used:.2f} of {pluralize(cores, 'core')} used on average ({_two(efficiency)})"
    return [f"{text}: {_pattern(used, cores, _one_busy(job, cores))}"]


def _one_busy(job: Job, cores: int) -> str:
    """What an average of one core means: several can have been busy, unless a peak excludes it."""
    return "one core busy" if kept_to_one(job, cores) else "as much as one core busy all the time"


def _pattern(used: float, cores: int, one_busy: str) -> str:
    """What the number of cores used looks like."""
    if used > cores * (1 + EXACT):
        return "more than it was given: nothing held it to its cores, or threads share them"
    if used >= BUSY * cores:
        return "the cores were busy"
    if abs(used - 1) <= EXACT and cores > 1:
        return f"exactly {one_busy}, 1/{cores} of what was reserved"
    if cores > 1 and ONE[0] <= used <= ONE[1]:
        return f"about {one_busy}, of {cores}"
    if used < HARDLY:
        return (
            "almost no CPU used: the job was waiting, or its work ran in processes that were not "
            "counted"
        )
    if cores % 2 == 0 and abs(used - cores / 2) <= EXACT * cores:
        return "half of them; where a core counts as two hardware threads, each core had one"
    return "some of them idle, or all of them some of the time"


def _peak(job: Job) -> list[str]:
    peak, at_peak = job.peak_efficiency, job.cores_at_peak
    if peak is None:
        return []
    if at_peak is None:
        return [f"at its busiest {_two(peak)}"]
    text = f"at its busiest {at_peak:.2f} cores ({_two(peak)}, a mean over {SAMPLE})"
    alone = job.cores and job.cores > 1 and kept_to_one(job, job.cores)
    return [f"{text}: never a second core" if alone else text]


def _idle(job: Job) -> list[str]:
    idle = job.core_hours_idle
    if not idle or job.is_at_work:
        return []
    return [f"{format_core_time(idle)} reserved and not used"]


def _memory(job: Job) -> list[str]:
    used, asked, share = job.memory_mib, job.memory_asked_mib, job.memory_efficiency
    if used is None and share is None:
        return []
    if used is None:
        return [f"memory: {_two(share)} of what was asked for"]
    text = f"memory: {format_mebibytes(used)} at most"
    if not asked or share is None:
        return [text]
    text += f" of {format_mebibytes(asked)} asked for ({_two(share)})"
    if share < MODEST and job.state not in OUT_OF_MEMORY and not job.is_at_work:
        text += f"; {format_mebibytes(ROOM * used)} would do, a quarter above the peak"
    return [text]


def _time(job: Job) -> list[str]:
    if job.elapsed_s is None and job.time_efficiency is None:
        return []
    text = f"time: {format_duration(job.elapsed_s)}" if job.elapsed_s is not None else "time:"
    if job.time_efficiency is not None:
        limit = f" of {format_duration(job.limit_s)}" if job.limit_s else ""
        text += f"{limit} ({_two(job.time_efficiency)} of the limit)"
    if job.elapsed_s is not None and job.elapsed_s < SHORT_S and not job.is_at_work:
        text += "; too short to judge: start-up counts as much as the work"
    return [text]


def _end(job: Job) -> list[str]:
    if job.state in OUT_OF_MEMORY:
        return [f"{job.state}: it was killed for its memory; the peak it needed is not known"]
    if job.state in OUT_OF_TIME:
        return [f"{job.state}: it reached its time limit; how long it needed is not known"]
    if job.is_waiting:
        return [f"{job.state}: it has not started, there is nothing to judge"]
    if job.is_at_work:
        return [f"{job.state}: it has not ended, the figures are those so far"]
    if job.exit_code:
        return [f"it ended with exit code {job.exit_code}{_signal(job.exit_code)}"]
    return [f"{job.state}: how it ended"] if job.source == "log" and job.state else []


def _signal(exit_code: int) -> str:
    """A shell adds 128 to a signal's number, PBS 256."""
    number = exit_code - (256 if exit_code > 256 else 128)
    known = {each.value: each.name for each in signal.Signals}
    return f", signal {number}: {known[number]} ended it" if number in known else ""


def _command(job: Job) -> tuple[str, str]:
    if job.is_waiting:
        return "", ""
    if job.efficiency is None and job.source in ("sacct", "seff", "log", "reportseff") and job.id:
        ended = ", once it has ended" if job.is_at_work else ""
        return asked_of_sacct([job.id]), f"CPU time, memory and time of the job's steps{ended}"
    return RUN, (
        "in the job script, where COMMAND stands now: cores allocated, usable and used, each core "
        "over time, memory and neighbours"
    )


def command_for(explanations: Sequence[Explanation]) -> tuple[str, str]:
    """The one command for all of them: sacct's where it is the first thing missing."""
    asked = [each for each in explanations if each.command.startswith("sacct")]
    if asked:
        return asked_of_sacct([each.job.id for each in asked]), asked[0].why
    return next(((each.command, each.why) for each in explanations if each.command), ("", ""))


def asked_of_sacct(ids: Sequence[str]) -> str:
    return f"sacct -j {','.join(ids)} --parsable2 --format={FIELDS} | hpcncf explain -"
