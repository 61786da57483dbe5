"""Profiles of programs from samples that were taken outside of them, without counts of steps.

The samples are brought into the form of the probe's file, and read as that is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final

from hpcncf.probe.read import FORMAT, profile, working
from hpcncf.records.schema import ProgramProfile

Frame = Sequence[Any]
"""Function, file, line."""

# A frame that begins a phase: the phase, the end of its file's name, its function. The outermost
# one counts, but for what an optimizer or a forward pass calls: a closure, a collective.
MARKS: Final = tuple(
    (phase, re.compile(file), re.compile(function))
    for phase, file, function in (
        ("input", r"torch/utils/data/dataloader\.py$", r"__next__|_next_data"),
        ("backward", r"torch/(_tensor|autograd/(__init__|graph))\.py$", r"_?backward|_engine_\w+"),
        ("optimizer", r"torch/optim/\w+\.py$", r"step|wrapper|profile_hook_step|zero_grad"),
        ("checkpoint", r"torch/serialization\.py$", r"save"),
        ("sync", r"torch/distributed/distributed_c10d\.py$", r"\w+"),
        ("forward", r"torch/nn/modules/module\.py$", r"_call_impl|_wrapped_call_impl"),
        ("forward", r"torch/nn/functional\.py$", r"\w+"),
    )
)
INNER: Final = {
    "optimizer": ("input", "forward", "backward"),
    "forward": ("sync", "backward"),
}
WORKER: Final = re.compile(r"torch/utils/data/_utils/worker\.py$")
PACKAGE: Final = re.compile(r"/(?:site|dist)-packages/([^/]+)")
STANDARD: Final = re.compile(r"/lib(?:64)?/python3\.\d+\w*/|/lib/python3\d*\.zip/")
INLINE: Final = frozenset(("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>", "<lambda>"))
MOST_FRAMES: Final = 8
# So many samples show no line with any certainty.
FEWEST: Final = 10


def profiles(raw: Mapping[str, Any]) -> list[ProgramProfile]:
    """Build the profiles of the processes that did the work on one node."""
    seen = {one["pid"]: one for one in raw["processes"]}
    inside = [program for program in raw["programs"] if program.get("inside")]
    outside = [
        in_probes_form(program, seen[program["pid"]], raw)
        for program in raw["programs"]
        if not program.get("inside")
        and program["pid"] in seen
        and sum(one[0] for one in program["stacks"]) >= FEWEST
    ]
    return working(profile(each) for each in [*inside, *outside])


def in_probes_form(
    program: Mapping[str, Any], process: Mapping[str, Any], raw: Mapping[str, Any]
) -> dict[str, Any]:
    """Convert the samples of one process to what the probe would have written."""
    main = _main_thread(program)
    stacks = [(n, frames) for n, thread, frames in program["stacks"] if thread == main]
    seconds = raw["elapsed_s"]
    per_sample = seconds / (sum(n for n, _ in stacks) or 1)
    is_worker = any(WORKER.search(frame[1]) for _, frames in stacks for frame in frames)
    placed = [(n * per_sample, *place(frames)) for n, frames in stacks]
    computing = [
        (n * per_sample, *place(frames))
        for n, thread, frames in program["computing"]
        if thread == main
    ]
    threads = {
        str(each["thread"]): [each["ran_s"], each["ready_s"] or 0.0, 0.0, 0.0]
        for each in process["busiest"]
    }
    ran, ready, *_ = threads.get(str(main), [seconds, 0.0])
    ranks = program["ranks"]
    return {
        "format": FORMAT,
        "final": False,
        "kind": "worker" if is_worker else "program",
        "pid": program["pid"],
        "program": PurePath(_script(process["command"])).name,
        "python": process["python"] or "",
        "torch": None,
        "elapsed_s": seconds,
        "cores": len(raw["cores"]["cpus"]),
        "rank": ranks if ranks and ranks[1] > 1 else None,
        "torch_threads": None,
        "start_up": None,
        "since_cpu_s": process["cpu_s"],
        "steps": 0,
        "phases": _phases(placed, computing, max(0.0, seconds - ran - ready), ready),
        "short_steps": {},
        "long_steps": {},
        "loaders": [],
        "no_grad": [],
        "moves": [0, 0],
        "stacks": [[phase, doing, stack, library, s] for s, phase, doing, stack, library in placed],
        "others": _others(program, main, per_sample),
        "main_thread": str(main),
        "threads": threads,
        "tables": [],
        "gpu": None,
        "sampler": [sum(n for n, _ in stacks), 0.0],
        "from_outside": True,
        "problems": [],
    }


def _phases(
    placed: Sequence[Sequence[Any]],
    computing: Sequence[Sequence[Any]],
    waits_s: float,
    ready_s: float,
) -> dict[str, list[Any]]:
    """Return each phase's seconds, its CPU seconds, the seconds once more, and 0 entries.

    How long the thread waited and was ready in all, the kernel says; in which phase it waited, the
    samples in which it did not compute. As in the probe's file, being ready looks like waiting.
    """
    whole: dict[str, float] = {}
    idle: dict[str, float] = {}
    for s, phase, *_ in placed:
        whole[phase] = whole.get(phase, 0.0) + s
        idle[phase] = idle.get(phase, 0.0) + s
    for s, phase, *_ in computing:
        idle[phase] = max(0.0, idle.get(phase, 0.0) - s)
    weights = idle if sum(idle.values()) > 0 else whole
    off_core = (waits_s + ready_s) / sum(weights.values())
    return {phase: [s, max(0.0, s - off_core * weights[phase]), s, 0] for phase, s in whole.items()}


def _main_thread(program: Mapping[str, Any]) -> int:
    """The program's first thread, whose number is the process's; else the one seen most."""
    threads = [thread for _, thread, _ in program["stacks"]]
    return int(program["pid"] if program["pid"] in threads else threads[0])


def _script(command: Sequence[str]) -> str:
    words = [word for word in command[1:] if not word.startswith("-")]
    return words[0] if words else command[0]


def _others(program: Mapping[str, Any], main: int, per_sample: float) -> list[list[Any]]:
    """Samples of the other threads: thread, innermost function, the user's line in it, seconds."""
    found = []
    for n, thread, frames in program["stacks"]:
        if thread != main:
            stack = users(frames)[-1:]
            found.append([str(thread), _plain(frames[-1][0]), stack, n * per_sample])
    return found


def place(frames: Sequence[Frame]) -> tuple[str, str, list[list[Any]], str]:
    """Return the phase of a stack, what is done in it, the user's frames there, and a library's.

    The user's frames inside the phase; where there are none, those around it, and the function of
    the library.
    """
    phase, at = "rest:-", -1
    for depth, (function, file, _) in enumerate(frames):
        name = _plain(function)
        for mark, path, functions in MARKS:
            if path.search(file) and functions.fullmatch(name):
                if phase == "rest:-" or mark in INNER.get(phase, ()):
                    phase, at = mark, depth
                break
    doing = "import" if any(each[1].startswith("<frozen importlib") for each in frames) else ""
    if phase == "forward":  # the probe names it so: between its phases, a module computes
        phase, doing = "rest:-", "forward"
    inside = users(frames[at + 1 :])
    if inside:
        return phase, doing, inside, ""
    last = next((each for each in reversed(frames) if not is_user(each[1])), None)
    return phase, doing, users(frames[: at + 1]), _library_name(last) if last else ""


def users(frames: Iterable[Frame]) -> list[list[Any]]:
    """Return the frames of the user's code as (file, line, function), the outermost first.

    A comprehension or lambda belongs to the function around it.
    """
    found: list[list[Any]] = []
    for function, file, line in frames:
        if not is_user(file):
            continue
        name = _plain(function)
        if name in INLINE and found and found[-1][0] == file:
            found[-1] = [file, line, found[-1][2]]
        else:
            found.append([file, line, name])
    return found[-MOST_FRAMES:]


def is_user(file: str) -> bool:
    """Return whether a file is the user's: not of Python or of an installed package."""
    if file.startswith("<"):
        return file in ("<string>", "<stdin>") or file.startswith("<ipython")
    return not PACKAGE.search(file) and not STANDARD.search(file) and os.sep in file


def _plain(function: str) -> str:
    """Remove the class or outer function that py-spy puts before a function's name."""
    return function.rpartition(".")[2]


def _library_name(frame: Frame) -> str:
    function, file, _ = frame
    package = PACKAGE.search(file)
    module = package[1] if package else PurePath(file).name
    return f"{module.removesuffix('.py')} {_plain(function)}"
