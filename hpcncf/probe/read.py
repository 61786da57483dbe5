"""Profiles of a program's processes, from the files that the probe wrote."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from hpcncf.records.schema import (
    LibraryTime,
    ProgramGraph,
    ProgramLoader,
    ProgramMoment,
    ProgramPhase,
    ProgramProfile,
    ProgramRemedy,
    ProgramTable,
    ProgramThread,
    SourceLine,
)

FORMAT: Final = 1
# Without a step, a process shorter or idler than this explains nothing.
LEAST_S: Final = 1.0
# Of the batches of a loader that trains, at least this share is followed by a backward pass.
TRAINS: Final = 0.1
# A no_grad block that is entered in this share of the steps is part of a step.
EACH_STEP: Final = 0.5
FEWEST_LOOKS: Final = 20
# Of a line's own time, what one function of a library must take to be what the line does.
CALLED: Final = 0.6
MOST_LINES: Final = 12
MOST_THREADS: Final = 32
LEAST_SHARE: Final = 0.02
LEAST_LIBRARY_SHARE: Final = 0.05

# Functions of the standard library in which a thread waits.
WAITS: Final = frozenset(
    {"wait", "acquire", "accept", "recv", "select", "poll", "_wait_for_tstate_lock", "join"}
)
# Where a worker waits for the next indices, and for room in the queue of its batches.
WAITING_IN: Final = frozenset(
    {"queues", "connection", "selectors", "synchronize", "process", "popen_fork", "threading"}
)

# A phase, the user's frames in it, the library's function if there are none, seconds.
ThreadSample = tuple[str, Sequence[Sequence[Any]], str, float]
# The probe's names for phases -> those of the profile.
NAMES: Final = {
    "workers_start": "workers",
    "workers_stop": "workers",
}


def read_profiles(folder: Path) -> tuple[list[ProgramProfile], list[str]]:
    """Read the profiles of the processes that did the work; also return reading problems.

    Profiles are in the order of ranks. They are of the processes that took steps, or else of those
    that used most CPU time: a launcher or a shell of Python around them has nothing to explain. One
    DataLoader worker of each rank is included.
    """
    seen, problems = [], []
    for path in sorted(folder.glob("*.json")):
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
            if raw["format"] != FORMAT:
                raise ValueError(f"format {raw['format']}, expected {FORMAT}")
            seen.append((raw, profile(raw)))
        except (OSError, ValueError, LookupError, TypeError, ArithmeticError) as error:
            problems.append(f"{path.name}: not readable: {type(error).__name__}: {error}")
    return working(each for _, each in seen), problems


def working(seen: Iterable[ProgramProfile]) -> list[ProgramProfile]:
    """Choose the profiles of processes that did the work, as `read_profiles` describes it."""
    profiles = list(seen)
    workers = [each for each in profiles if each.is_worker]
    programs = [each for each in profiles if not each.is_worker]
    stepped = [each for each in programs if each.steps]
    if not stepped:
        longest = max((each.cpu_s for each in programs), default=0.0)
        stepped = [
            each
            for each in programs
            if each.cpu_s >= 0.5 * longest and (each.elapsed_s >= LEAST_S or each.remedies)
        ]
    stepped.sort(key=lambda each: (each.rank, -each.elapsed_s))
    workers.sort(key=lambda each: -each.elapsed_s)
    return [*stepped, *workers[: max(1, len(stepped))]]


class ProcessUse(NamedTuple):
    """Resources that one process had used when the probe last wrote, and where it ran."""

    node: str
    place: Mapping[str, str]
    """Variables of its launcher."""
    program: str
    started_at: float
    elapsed_s: float
    user_s: float
    system_s: float
    memory_peak_mib: float
    cpus: int
    """CPUs of its affinity mask."""


def read_processes(folder: Path) -> list[ProcessUse]:
    """Read what each process used that the probe has seen; unreadable files are left out."""
    found = []
    for path in sorted(folder.glob("*.json")):
        with suppress(OSError, ValueError, LookupError, TypeError):
            raw = json.loads(path.read_text(encoding="utf-8"))
            user_s, system_s = raw["spent_s"]
            found.append(
                ProcessUse(
                    str(raw["node"]),
                    dict(raw["place"]),
                    str(raw["program"]),
                    float(raw["started_at"]),
                    float(raw["elapsed_s"]),
                    float(user_s),
                    float(system_s),
                    float(raw["memory_peak_mib"] or 0.0),
                    int(raw["cores"] or 1),
                )
            )
    return found


def take_profiles(folder: Path) -> tuple[list[ProgramProfile], list[str]]:
    """Read the profiles as `read_profiles` does, then delete the files if all were readable."""
    if not folder.is_dir():
        return [], []
    profiles, problems = read_profiles(folder)
    if not problems:
        shutil.rmtree(folder, ignore_errors=True)
    return profiles, problems


def shares_so_far(profiles: Sequence[ProgramProfile]) -> tuple[int, dict[str, float]]:
    """Return the steps and phase -> share of the time, of the first rank that takes steps.

    The program may still be running. Without such a rank, it returns 0 and an empty dictionary.
    """
    for each in profiles:
        if each.steps and each.seconds > 0:
            shares = {name: part.seconds / each.seconds for name, part in each.phases.items()}
            return each.steps, {name: round(share, 4) for name, share in shares.items()}
    return 0, {}


def profile(raw: Mapping[str, Any]) -> ProgramProfile:
    """Build the profile of one process from its raw data.

    Raises KeyError, TypeError or ValueError if the file is not the probe's.
    """
    steps = raw["steps"] or 0
    start_up = raw["start_up"] or {}
    rank, ranks = raw["rank"] or (0, 1)
    role = _Roles(raw, steps)
    weights = _weights(raw["stacks"], role)
    phases, exchanged = _phases(raw, role, weights)
    stacks = [
        (role.of(phase, doing), stack, library, s)
        for phase, doing, stack, library, s in raw["stacks"]
    ]
    if exchanged:
        backward = [each for each in stacks if each[0] == "backward"]
        stacks += [("sync", stack, library, exchanged * s) for _, stack, library, s in backward]
    if raw["kind"] == "worker":
        stacks = [each for each in stacks if not _starts(each[1])]
    at_start = start_up.get("stacks", raw["stacks"])
    imports_s = sum(s for _, doing, _, _, s in at_start if doing == "import")
    # A line that imports what it needs is the one to change only where imports are what takes long.
    imports = 2 * imports_s >= sum(s for *_, s in at_start)
    startup = [
        ("startup", stack, "", s)
        for _, doing, stack, _, s in at_start
        if start_up and (imports or doing != "import")
    ]
    ready_s = _main_figures(raw)
    trains = [each for each in role.loaders if not each.evaluates]
    sizes = {each.batch_size for each in trains}
    batches = sum(each.batches for each in trains)
    size = sizes.pop() if len(sizes) == 1 else None
    tables = raw["tables"]
    return ProgramProfile(
        program=raw["program"],
        pid=raw["pid"],
        rank=rank,
        ranks=ranks,
        is_worker=raw["kind"] == "worker",
        python=raw["python"],
        torch=raw["torch"],
        elapsed_s=raw["elapsed_s"],
        startup_s=start_up.get("seconds", 0.0),
        startup_runqueue_s=_startup_runqueue(raw) if start_up else 0.0,
        imports_s=imports_s,
        seconds=sum(each.seconds for each in phases.values()),
        cpu_s=raw["since_cpu_s"],
        steps=steps,
        batches=batches,
        samples=batches * size if size else None,
        phases=phases,
        lines=_with_calls(source_lines(stacks), raw.get("calls", []), role),
        libraries=library_times(stacks),
        startup_lines=source_lines(startup),
        loaders=role.loaders,
        tables=[
            ProgramTable(rows=rows, width=width, touched=touched, sparse=sparse)
            for each in tables
            for rows, width, touched, sparse in each["tables"]
        ],
        parameters=sum(each["parameters"] for each in tables) if tables else None,
        optimizer=tables[0]["optimizer"] if tables else None,
        fused=any(each["fused"] for each in tables),
        torch_threads=raw["torch_threads"],
        cpus=raw["cores"],
        main_cpu_s=None if ready_s is None else ready_s[0],
        runqueue_s=None if ready_s is None else ready_s[1],
        moved=_moved(raw) if not steps else None,
        threads=_threads(raw),
        graphs=[
            ProgramGraph(**dict(zip(ProgramGraph.model_fields, each, strict=True)))
            for each in raw.get("graphs", [])
        ],
        moments=_moments(raw, role),
        backwards=raw.get("backwards"),
        options=raw.get("options", []),
        **_threads_given(raw),
        private_mib=raw.get("private_mib", []),
        python_objects=raw.get("blocks"),
        worker_busy=_worker_busy(raw) if raw["kind"] == "worker" else None,
        gpu_busy=_gpu_busy(raw["gpu"]),
        samples_taken=raw["sampler"][0],
        sampler_cpu_s=raw["sampler"][1],
        remedies=[
            ProgramRemedy(remedy=remedy, applied=applied, to=to, count=count)
            for remedy, applied, to, count in raw.get("remedies", [])
        ],
        complete=raw["final"],
        from_outside=raw.get("from_outside", False),
        problems=list(raw["problems"]),
    )


def _moved(raw: Mapping[str, Any]) -> float | None:
    looks, moved = raw["moves"]
    return moved / looks if looks >= FEWEST_LOOKS else None


def _moving(raw: Mapping[str, Any], role: _Roles) -> dict[str, float]:
    """Compute how often the training thread moved between samples: phase -> share.

    The share is that of pairs of samples between which the thread reached another instruction.
    """
    looks: dict[str, int] = defaultdict(int)
    moved: dict[str, int] = defaultdict(int)
    for phase, doing, pairs, went_on in raw.get("moves_in", []):
        name = role.of(phase, doing)
        looks[name] += pairs
        moved[name] += went_on
    return {
        name: moved[name] / number
        for name, number in looks.items()
        if number >= FEWEST_LOOKS and name != "backward"
    }


def _moments(raw: Mapping[str, Any], role: _Roles) -> list[ProgramMoment]:
    found = []
    for elapsed_s, steps, main_cpu_s, sampled in raw.get("moments", []):
        phases: dict[str, float] = defaultdict(float)
        for phase, doing, seconds in sampled:
            phases[role.of(phase, doing)] += seconds
        found.append(
            ProgramMoment(
                elapsed_s=elapsed_s, steps=steps, main_cpu_s=main_cpu_s, phases=dict(phases)
            )
        )
    return found


def _threads_given(raw: Mapping[str, Any]) -> dict[str, Any]:
    given, later = raw.get("thread_environment", ({}, {}))
    own = {name: value for name, value in later.items() if given.get(name) != value}
    return {"threads_given": given, "threads_set": own}


def _with_calls(
    lines: Iterable[SourceLine], calls: Iterable[Sequence[Any]], role: _Roles
) -> list[SourceLine]:
    """Add to each line the library function in which most of its own time was spent."""
    lines = list(lines)
    spent: dict[tuple[Any, ...], float] = defaultdict(float)
    whole: dict[str, float] = defaultdict(float)
    for phase, doing, place, called, seconds in calls:
        spent[(role.of(phase, doing), *place, called)] += seconds
    by_line: dict[tuple[Any, ...], tuple[str, float]] = {}
    for (*place, called), seconds in spent.items():
        if seconds > by_line.get(tuple(place), ("", 0.0))[1]:
            by_line[tuple(place)] = called, seconds
    for phase, doing, _, _, seconds in role.stacks:
        whole[role.of(phase, doing)] += seconds
    found = []
    for each in lines:
        called, seconds = by_line.get((each.phase, each.file, each.line, each.function), ("", 0.0))
        most = seconds >= CALLED * each.own_share * whole[each.phase] > 0
        found.append(each.model_copy(update={"called": called}) if called and most else each)
    return found


class _Roles:
    """Assigns each phase of the probe to a phase of the profile."""

    def __init__(self, raw: Mapping[str, Any], steps: int) -> None:
        self._steps = steps
        self.stacks = raw["stacks"]
        self._evaluates = [
            steps > 0 and each["batches"] > 0 and each["followed"] < TRAINS * each["batches"]
            for each in raw["loaders"]
        ]
        self._each_step = [
            each["steps"] >= EACH_STEP * steps if steps else True for each in raw["no_grad"]
        ]
        grouped: dict[tuple[Any, ...], ProgramLoader] = {}
        for each, evaluates in zip(raw["loaders"], self._evaluates, strict=True):
            key = (each["dataset"], each["batch_size"], each["workers"], evaluates)
            if key not in grouped:
                grouped[key] = ProgramLoader(
                    workers=each["workers"],
                    persistent=each["persistent"],
                    dataset=each["dataset"],
                    batch_size=each["batch_size"],
                    epochs=0,
                    batches=0,
                    evaluates=evaluates,
                    makes_whole_batches=each.get("makes_whole_batches"),
                    length=each.get("length"),
                )
            if grouped[key].length != each.get("length"):
                grouped[key].length = None
            grouped[key].epochs += each["iterators"]
            grouped[key].with_graph += each.get("with_graph", 0)
            grouped[key].batches += each["batches"]
        self.loaders = list(grouped.values())

    def of(self, phase: str, doing: str) -> str:
        """Return the phase of the profile. `doing` is what a sample saw: `forward` or `import`."""
        kind, _, number = phase.partition(":")
        at = int(number) if number.isdigit() else None
        if kind in ("input", "rest") and at is not None and self._evaluates[at]:
            return "evaluation"
        if kind == "no_grad" and at is not None and not self._each_step[at]:
            return "evaluation"
        if kind in ("rest", "no_grad"):
            return doing if doing in ("forward", "optimizer") else "loop"
        return NAMES.get(kind, kind)


def _weights(stacks: Iterable[Sequence[Any]], role: _Roles) -> dict[str, dict[str, float]]:
    """Sum the sampled seconds: phase of the probe -> phase of the profile -> seconds."""
    weights: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for phase, doing, _, _, seconds in stacks:
        weights[phase][role.of(phase, doing)] += seconds
    return weights


def _phases(
    raw: Mapping[str, Any], role: _Roles, weights: Mapping[str, Mapping[str, float]]
) -> tuple[dict[str, ProgramPhase], float]:
    """Build the profile's phases; also return the exchange's share of the backward pass.

    The exchange is the ranks' wait for one another's gradients.
    """
    seconds: dict[str, float] = defaultdict(float)
    waited: dict[str, float] = defaultdict(float)
    measured: dict[str, float] = defaultdict(float)
    entered: dict[str, int] = defaultdict(int)
    for phase, (wall, waits_s, measured_s, times) in _figures(raw).items():
        if phase == "probe":
            continue
        parts = weights.get(phase) or {role.of(phase, "forward" if raw["steps"] else ""): 1.0}
        whole = sum(parts.values()) or 1.0
        for name, weight in parts.items():
            part = weight / whole
            seconds[name] += part * wall
            measured[name] += part * measured_s
            waited[name] += part * waits_s
            entered[name] += times
    share = {
        name: min(1.0, waited[name] / measured[name]) for name in seconds if measured[name] > 0
    }
    exchanged = 0.0
    if raw["rank"] and raw["rank"][1] > 1 and share.get("backward"):
        # DDP waits for its all-reduce inside the backward pass.
        exchanged = share["backward"]
        exchange = seconds["backward"] * exchanged
        waits = exchange + seconds["sync"] * share.get("sync", 1.0)
        seconds["backward"] -= exchange
        seconds["sync"] += exchange
        share |= {"backward": 0.0, "sync": waits / seconds["sync"]}
    moving = _moving(raw, role)
    phases = {
        name: ProgramPhase(
            seconds=seconds[name],
            waiting=share.get(name),
            entered=entered[name],
            moving=moving.get(name),
        )
        for name in sorted(seconds, key=lambda name: -seconds[name])
    }
    return phases, exchanged


def _figures(raw: Mapping[str, Any]) -> dict[str, tuple[float, float, float, int]]:
    """Return for each phase of the probe: seconds, waited and measured seconds, and entries.

    Measured seconds are those of which waiting is known. Steps that were not timed are
    included: long ones as they were sampled, the rest as the short ones that were timed.
    """
    timed = dict(raw["phases"])
    untimed, *_ = timed.pop("untimed", (0.0,))
    short, long = raw["short_steps"], raw["long_steps"]
    short = short or {name: wall for name, (wall, *_) in timed.items()}  # too few of them
    short_s = sum(short.values())
    rest = max(0.0, untimed - sum(wall for wall, *_ in long.values()))
    figures = {}
    for phase in {**timed, **short, **long}:
        wall, cpu, clocked, entered = timed.get(phase, (0.0, 0.0, 0.0, 0))
        wall += rest * short.get(phase, 0.0) / short_s if short_s else 0.0
        waits_s = max(0.0, clocked - cpu) * wall / clocked if clocked > 0 else 0.0
        figures[phase] = (wall, waits_s, wall if clocked > 0 else 0.0, entered)
    # Ready without a core looks like waiting. Of long steps it is known, else taken from every wait
    # alike.
    _, ready_s = _main_figures(raw) or (0.0, 0.0)
    ready_s = max(0.0, ready_s - sum(ready for *_, ready in long.values()))
    whole_s = sum(waits_s for _, waits_s, _, _ in figures.values())
    left = max(0.0, 1 - ready_s / whole_s) if whole_s > 0 else 1.0
    for phase, (wall, waits_s, measured_s, entered) in figures.items():
        sampled, cpu, clocked, ready = long.get(phase, (0.0, 0.0, 0.0, 0.0))
        waits_s = left * waits_s + max(0.0, clocked - cpu - ready)
        figures[phase] = (wall + min(untimed, sampled), waits_s, measured_s + clocked, entered)
    return figures


def _main_figures(raw: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return the training thread's seconds on a CPU and in the run queue; None if unknown."""
    figures = raw["threads"].get(raw["main_thread"])
    if figures is None:
        return None
    ran, ready, ran_before, ready_before = figures
    return max(0.0, ran - ran_before), max(0.0, ready - ready_before)


def _startup_runqueue(raw: Mapping[str, Any]) -> float:
    figures = raw["threads"].get(raw["main_thread"])
    return float(figures[3]) if figures else 0.0


def source_lines(samples: Iterable[ThreadSample]) -> list[SourceLine]:
    """Return the user's lines with their shares of each phase, without the smallest shares."""
    whole: dict[str, float] = defaultdict(float)
    inclusive: dict[tuple[str, str, int, str], float] = defaultdict(float)
    own: dict[tuple[str, str, int, str], float] = defaultdict(float)
    depths: dict[tuple[str, str, int, str], float] = defaultdict(float)
    outside: dict[tuple[str, str, int, str], float] = defaultdict(float)
    for phase, stack, library, seconds in samples:
        whole[phase] += seconds
        seen = set()
        for depth, (file, line, function) in enumerate(stack):
            key = (phase, file, line, function)
            if key not in seen:
                seen.add(key)
                inclusive[key] += seconds
                depths[key] += depth * seconds
                outside[key] += seconds if library else 0.0
        if stack:
            own[(phase, *stack[-1])] += seconds
    kept: dict[str, list[SourceLine]] = defaultdict(list)
    for key in sorted(inclusive, key=lambda key: -inclusive[key]):
        phase, file, line, function = key
        share = inclusive[key] / whole[phase]
        if share >= LEAST_SHARE and len(kept[phase]) < MOST_LINES:
            kept[phase].append(
                SourceLine(
                    phase=phase,
                    file=file,
                    line=line,
                    function=function,
                    share=share,
                    own_share=own.get(key, 0.0) / whole[phase],
                    depth=round(depths[key] / inclusive[key]),
                    outside=outside[key] > 0.5 * inclusive[key],
                )
            )
    return [line for lines in kept.values() for line in lines]


def library_times(samples: Iterable[ThreadSample]) -> list[LibraryTime]:
    """Return library functions with their shares of each phase, without the smallest shares."""
    whole: dict[str, float] = defaultdict(float)
    spent: dict[tuple[str, str], float] = defaultdict(float)
    for phase, _, library, seconds in samples:
        whole[phase] += seconds
        if library:
            spent[phase, library] += seconds
    found = [
        LibraryTime(phase=phase, name=name, share=seconds / whole[phase])
        for (phase, name), seconds in sorted(spent.items(), key=lambda each: -each[1])
    ]
    return [each for each in found if each.share >= LEAST_LIBRARY_SHARE]


def _threads(raw: Mapping[str, Any]) -> list[ProgramThread]:
    """Return Python threads other than the training thread, the busiest first.

    Those that ended count as one, with the CPU time that no other thread used: a pool may start
    new threads in each step.
    """
    places: dict[str | None, dict[Any, float]] = defaultdict(lambda: defaultdict(float))
    # The system gives a thread's identity to a later one.
    lasting = raw["threads"].keys() - set(raw.get("reused", ()))
    ended = set()
    for ident, name, stack, seconds in raw["others"]:
        if name in WAITS:
            continue
        if ident not in lasting:
            ended.add(ident)
        place = tuple(stack[0]) if stack else (None, None, name)
        places[ident if ident in lasting else None][place] += seconds
    used = {ident: max(0.0, ran - before) for ident, (ran, _, before, _) in raw["threads"].items()}
    ready = {ident: max(0.0, now - before) for ident, (_, now, _, before) in raw["threads"].items()}
    threads = []
    for of, seen in places.items():
        # A user's line before one of the library's, in which a thread may wait.
        (file, line, function), _ = max(
            seen.items(), key=lambda each: (each[0][0] is not None, each[1])
        )
        seconds = sum(each for (name, *_), each in seen.items() if (name is None) == (file is None))
        also = [
            (share, at)
            for (of_file, at, name), each in seen.items()
            if (of_file, name) == (file, function)
            and file is not None
            and at != line
            and (share := each / seconds) >= LEAST_SHARE
        ]
        left = max(0.0, raw["since_cpu_s"] - sum(used[each] for each in lasting))
        cpu_s = used[of] if of is not None else min(sum(seen.values()), left)
        ready_s = ready[of] if of is not None else 0.0
        threads.append(
            ProgramThread(
                threads=1 if of is not None else len(ended),
                function=function,
                file=file,
                line=line,
                also=[at for _, at in sorted(also, reverse=True)[:MOST_LINES]],
                cpu_s=cpu_s,
                runqueue_s=ready_s,
                seen_s=seconds,
            )
        )
    return sorted(threads, key=lambda each: -each.cpu_s)[:MOST_THREADS]


def _worker_busy(raw: Mapping[str, Any]) -> float | None:
    """Return the share of time in which a DataLoader worker was busy; None without samples.

    A worker without work waits in its queue: a sample without a line of the user's.
    """
    whole = sum(seconds for *_, seconds in raw["stacks"])
    idle = sum(
        seconds
        for _, _, stack, library, seconds in raw["stacks"]
        if _starts(stack) or (not stack and library.split(" ")[0] in WAITING_IN)
    )
    return 1 - idle / whole if whole > 0 else None


def _starts(stack: Iterable[Sequence[Any]]) -> bool:
    """Return whether a stack is that of a spawned worker which still imports its program."""
    return any(function == "<module>" for *_, function in stack)


def _gpu_busy(figures: Mapping[str, float] | None) -> float | None:
    if not figures or not figures["elapsed_s"]:
        return None
    return min(1.0, figures["gpu_s"] / figures["elapsed_s"])
