"""What the probe saw of a user's own program: shares of its time, its cores, and its hot lines.

Shares are of the time after start-up, the mean over the ranks.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from hpcncf.errors import HpcncfError
from hpcncf.lint.python_script import check_python
from hpcncf.lint.rules import Complaint
from hpcncf.records.schema import (
    ProgramProfile,
    ProgramThread,
    RecordError,
    SourceLine,
    read_regular,
)
from hpcncf_analysis.diagnosis.evidence import Evidence, Place

PHASES: Final = (
    "input",
    "forward",
    "backward",
    "optimizer",
    "sync",
    "evaluation",
    "checkpoint",
    "workers",
    "loop",
)
# The line that itself takes at least this share of its phase is the one to change, else the first
# of a function whose own lines take HOT together, else the deepest that takes HOT with its calls.
HOT_ITSELF: Final = 0.3
HOT: Final = 0.4
MOST_PLACES: Final = 3
# Of pairs of looks: 0.49 to 1.0 in six Python loops of benchmarks/corpus, 0.0 to 0.13 in two
# programs of arrays there.
INTERPRETS: Final = 0.35
COMPUTES: Final = 0.2
# Functions whose time after `no_grad` is evaluation as well.
EVALUATES: Final = re.compile(r"eval|valid|test|metric", re.IGNORECASE)
# Lines that write a state to a file without `torch.save`.
WRITES: Final = re.compile(
    r"\b(pickle|joblib|json)\.dump\(|fsync|\bsavez?(_compressed|_file|_pretrained)?\(|"
    r"\.to_(csv|parquet|pickle|hdf)\("
)
# C code of these lines lets go of the interpreter's lock, and takes samples that were due on the
# lines before. If those of the function took this much of its own, one of them is the line to
# change: a comprehension, which repeats, before one that runs once.
HANDS_OVER: Final = re.compile(
    r"\b(torch|np|numpy)\.(tensor|as_tensor|from_numpy|stack|array|asarray|\w*Tensor)\(|\.put\("
)
ABSORBED: Final = 0.5
# They come up to 0.1 ms late: of functions that take hardly longer, most fall on that line.
BRIEF_S: Final = 2e-4
ABSORBED_IN_BRIEF: Final = 0.15
REPEATS: Final = re.compile(r"\bfor\b.*\bin\b")
LARGEST_SOURCE: Final = 1024**2


class Program:
    """The ranks of a program together, and one worker of theirs."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.ranks = [each for each in evidence.program if not each.is_worker]
        self.workers = [each for each in evidence.program if each.is_worker]
        self.steps = max((each.steps for each in self.ranks), default=0)
        self.longest = max(self.ranks, key=lambda each: each.seconds)

    @property
    def idle_cores(self) -> float:
        """Usable cores that neither it nor a neighbour used."""
        cores = self.evidence.cores
        busy = (cores.used or 0.0) + (self.evidence.others_cores or 0.0)
        return max(0.0, (cores.usable or 0.0) - busy)

    @property
    def wanted(self) -> float:
        """Cores that it would have used without neighbours, by how long its training thread waited
        for one: the probe's own thread waits, too, and computes little."""
        used, rank = self.evidence.cores.used or 0.0, self.longest
        if rank.main_cpu_s and rank.runqueue_s:
            used *= 1 + rank.runqueue_s / rank.main_cpu_s
        return min(used, self.evidence.wanted or 0.0)

    @property
    def spinning(self) -> float:
        """Cores of torch's threads that wait for work without sleeping while samples are made: what
        they used beyond the other phases."""
        cores = 0.0
        for rank in self.ranks:
            if rank.torch_threads is None or rank.seconds <= 0:
                continue
            computes_s = rank.seconds - seconds_in(rank, "input")
            spun_s = _library_cpu_s(rank) - (rank.torch_threads - 1) * computes_s
            cores += max(0.0, spun_s) / rank.seconds
        return cores

    @property
    def library_cores(self) -> float:
        """Cores of the threads that a library (BLAS) has beside the Python ones."""
        return sum(_library_cpu_s(each) / each.seconds for each in self.ranks if each.seconds > 0)

    @property
    def interprets(self) -> bool:
        """Whether a program without steps goes from one short operation to the next, so that
        threads of a library only wait."""
        return (self.longest.moved or 0.0) >= INTERPRETS

    @property
    def computes(self) -> bool:
        """Whether a program without steps makes one operation on large arrays after the other."""
        moved = self.longest.moved
        return moved is not None and moved < COMPUTES

    @property
    def several(self) -> bool:
        """Whether its processes are ranks: those of a pool (joblib) do not wait for each other."""
        return self.evidence.world_size > 1 or self.longest.ranks > 1

    def share(self, phase: str) -> float:
        """Of the time after start-up, the mean over the ranks."""
        return sum(share_of(each, phase) for each in self.ranks) / len(self.ranks)

    def waiting(self, phase: str) -> float:
        """Share of a phase in which the training thread waited, the mean over the ranks."""
        parts = [each.phases[phase] for each in self.ranks if phase in each.phases]
        seconds = sum(part.seconds for part in parts)
        waited = sum(part.seconds * (part.waiting or 0.0) for part in parts)
        return waited / seconds if seconds > 0 else 0.0

    def places(self, *phases: str, rank: ProgramProfile | None = None) -> tuple[Place, ...]:
        """The user's lines of these phases, the hottest first."""
        profile = rank or self.longest
        found = list[Place]()
        for phase in phases:
            lines = [each for each in profile.lines if each.phase == phase]
            brief = phase == "input" and is_brief(seconds_in(profile, phase), profile)
            found += places_of(lines, self.share(phase) if rank is None else 1.0, brief)
        return tuple(found)

    @functools.cached_property
    def written(self) -> list[SourceLine]:
        """Lines between the steps that write a state without `torch.save`."""
        lines = [each for each in self.longest.lines if each.phase == "loop" and self.steps]
        return [each for each in lines if each.own_share and WRITES.search(text_of(each))]

    @functools.cached_property
    def metrics(self) -> tuple[float, list[SourceLine]]:
        """Share of the time between the phases in which a function that evaluates goes on without
        its model, as for a metric; and its lines, by their share of that."""
        lines = self.longest.lines
        steps = ("input", "forward", "backward", "optimizer")
        trains = {(each.file, each.function) for each in lines if each.phase in steps}
        scores = {
            (each.file, each.function) for each in lines if each.phase == "evaluation"
        } - trains
        loop = [each for each in lines if each.phase == "loop"]
        calls = [
            each
            for each in loop
            if (each.file, each.function) in scores and EVALUATES.search(each.function)
        ]
        depth = min((each.depth for each in calls), default=0)
        share = min(1.0, sum(each.share for each in calls if each.depth == depth))
        return share, [
            each.model_copy(
                update={"share": min(1.0, each.share / share), "own_share": each.own_share / share}
            )
            for each in loop
            if share and each.depth >= depth and (each.file, each.function) not in trains
        ]


def seconds_in(profile: ProgramProfile, phase: str) -> float:
    return profile.phases[phase].seconds if phase in profile.phases else 0.0


def share_of(profile: ProgramProfile, phase: str) -> float:
    """Of the rank's own time."""
    return seconds_in(profile, phase) / profile.seconds if profile.seconds else 0.0


def is_brief(seconds: float, profile: ProgramProfile) -> bool:
    """Whether making one sample takes too short to separate its lines by samples."""
    return seconds < BRIEF_S * (profile.samples or 0)


def _library_cpu_s(rank: ProgramProfile) -> float:
    """CPU seconds of threads that no Python code runs in; 0 where they are not known."""
    if rank.main_cpu_s is None:
        return 0.0
    python_s = rank.main_cpu_s + rank.sampler_cpu_s + sum(each.cpu_s for each in rank.threads)
    return max(0.0, rank.cpu_s - python_s)


def places_of(lines: Sequence[SourceLine], share: float, brief: bool = False) -> list[Place]:
    """The hot line, one inside the phase if there is any, then those that take most themselves."""
    first = None
    for side in ([each for each in lines if not each.outside], lines):
        first = max(side, key=lambda each: each.own_share, default=None)
        if first is None or first.own_share < HOT_ITSELF:
            hot = [each for each in side if each.share >= HOT]
            first = _of_hot_function(side) or max(
                hot, key=lambda each: (each.depth, each.share), default=None
            )
        if first is not None:
            break
    others = [each for each in lines if each.own_share >= 0.05]
    others.sort(key=lambda each: -each.own_share)
    first = first or (others[0] if others else None)
    if first is not None:
        first = _before_hand_over(first, lines, ABSORBED_IN_BRIEF if brief else ABSORBED)
    chosen = [*([first] if first else []), *(each for each in others if each is not first)]
    return [place(each, share) for each in chosen[:MOST_PLACES] if each.share >= 0.1]


def _of_hot_function(lines: Sequence[SourceLine]) -> SourceLine | None:
    """The line that takes most itself of a function whose lines together take HOT themselves."""
    own: dict[tuple[str, str], list[SourceLine]] = {}
    for each in lines:
        own.setdefault((each.file, each.function), []).append(each)
    hot = max(own.values(), key=lambda of: sum(each.own_share for each in of), default=[])
    if sum(each.own_share for each in hot) < HOT:
        return None
    return max(hot, key=lambda each: each.own_share)


def _before_hand_over(
    first: SourceLine, lines: Sequence[SourceLine], absorbed: float
) -> SourceLine:
    """The line itself, or the one whose samples it took."""
    if not HANDS_OVER.search(text_of(first)):
        return first
    before = [
        each
        for each in lines
        if (each.file, each.function) == (first.file, first.function)
        and not HANDS_OVER.search(text_of(each))
    ]
    if sum(each.own_share for each in before) < absorbed * first.own_share:
        return first
    return max(
        before, key=lambda each: each.own_share * (4 if REPEATS.search(text_of(each)) else 1)
    )


def text_of(line: SourceLine) -> str:
    """The line's text; empty if the file is not there."""
    text, _ = _source(line.file)
    return text[line.line - 1].strip() if 0 < line.line <= len(text) else ""


def place(line: SourceLine, share: float = 1.0) -> Place:
    """A line with its text and its lint, if the file is there."""
    _, complaints = _source(line.file)
    return Place(
        file=line.file,
        line=line.line,
        function=line.function,
        share=line.share * share,
        source=text_of(line) or None,
        advice=complaints[line.line].message if line.line in complaints else None,
    )


def line_of_thread(thread: ProgramThread) -> SourceLine:
    """Where it was found most often; only for a thread that was found in the user's code."""
    assert thread.file is not None
    assert thread.line is not None
    found = [
        SourceLine(
            phase="threads",
            file=thread.file,
            line=line,
            function=thread.function,
            share=1.0,
            own_share=1.0,
            depth=0,
        )
        for line in (thread.line, *thread.also)
    ]
    # Threads that take turns keep the lock for 5 ms, or until C code lets go of it.
    return _before_hand_over(found[0], found, ABSORBED)


def loader_places(lines: Iterable[SourceLine], share: float) -> list[Place]:
    """Where the DataLoader with workers is made, if a file of these lines has one such call."""
    for file in dict.fromkeys(each.file for each in lines):
        if call := _loader_with_workers(file):
            line, name = call
            return [Place(file, line, name, share, _source(file)[0][line - 1].strip())]
    return []


@functools.lru_cache(maxsize=64)
def _loader_with_workers(file: str) -> tuple[int, str] | None:
    """The line and the name of the only call with workers."""
    try:
        tree = ast.parse("\n".join(_source(file)[0]))
    except (SyntaxError, ValueError, RecursionError):
        return None
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and any(
            word.arg == "num_workers" and getattr(word.value, "value", None) != 0
            for word in node.keywords
        )
    ]
    return (calls[0].lineno, ast.unparse(calls[0].func)) if len(calls) == 1 else None


def lines_that_keep_graphs(lines: Iterable[SourceLine]) -> tuple[Place, ...]:
    found = list[Place]()
    for file in dict.fromkeys(each.file for each in lines):
        text, complaints = _source(file)
        found += [
            Place(file, number, "", 0.0, text[number - 1].strip(), complaint.message)
            for number, complaint in complaints.items()
            if complaint.rule == "kept-graph"
        ]
    return tuple(found[:MOST_PLACES])


@functools.lru_cache(maxsize=64)
def _source(file: str) -> tuple[list[str], Mapping[int, Complaint]]:
    """Lines of the file, and line -> complaint."""
    try:
        text = read_regular(Path(file), LARGEST_SOURCE).decode("utf-8", "replace")
    except (OSError, ValueError, RecordError):  # ValueError: a null character in the name
        return [], {}
    try:
        complaints = {each.line: each for each in check_python(text)}
    except HpcncfError:
        complaints = {}
    return text.splitlines(), complaints
