"""What the probe saw of a user's own program, as the facts that rules judge by.

Shares are of the time after start-up, the mean over the ranks.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

from hpcncf.records.schema import ProgramMoment, ProgramProfile, ProgramTable, SourceLine
from hpcncf_analysis.diagnosis import thresholds
from hpcncf_analysis.diagnosis.facts import PHASES, LoaderFacts, RankTimes, Startup, Tables
from hpcncf_analysis.diagnosis.source_lines import (
    BRIEF_S,
    CodeLocation,
    loader_places,
    places_of,
    text_of,
)

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
# The feed-forward layer of a transformer; tables of 2,000 rows and more are rarely as wide.
TALL: Final = 4


# Windows between moments of the training; each third over the one before it.
FEWEST_PARTS: Final = 6
EACH_SLOWER: Final = 1.1


@dataclass(frozen=True)
class Trend:
    """Change in the length of a step over the run."""

    ratio: float
    """The last third of the time over the first."""
    over_first: float
    """The mean over the first third."""
    phase: str
    """The phase that grows most."""


class ObservedProgram:
    """A user's program as the probe saw it: all of its ranks, and their DataLoader workers."""

    def __init__(self, profiles: Iterable[ProgramProfile]) -> None:
        profiles = list(profiles)
        self.ranks = [each for each in profiles if not each.is_worker]
        self.workers = [each for each in profiles if each.is_worker]
        self.steps = max((each.steps for each in self.ranks), default=0)
        self.longest = max(self.ranks, key=lambda each: each.seconds)

    @functools.cached_property
    def shares(self) -> dict[str, float]:
        """Phase -> share of the time after start-up, as the mean over the ranks."""
        return {
            phase: sum(share_of(each, phase) for each in self.ranks) / len(self.ranks)
            for phase in PHASES
        }

    def share(self, phase: str) -> float:
        return self.shares.get(phase, 0.0)

    def waiting(self, phase: str) -> float:
        """Share of a phase in which the training thread waited, as the mean over the ranks."""
        parts = [each.phases[phase] for each in self.ranks if phase in each.phases]
        seconds = sum(part.seconds for part in parts)
        waited = sum(part.seconds * (part.waiting or 0.0) for part in parts)
        return waited / seconds if seconds > 0 else 0.0

    def places(self, *phases: str, rank: int | None = None) -> tuple[CodeLocation, ...]:
        """Hot lines of the user's code in these phases, of `rank` or of the longest-running one.

        The line to change comes first. With `rank`, shares are of the phase instead of the
        time.
        """
        profile = next((each for each in self.ranks if each.rank == rank), self.longest)
        found = list[CodeLocation]()
        for phase in phases:
            lines = [each for each in profile.lines if each.phase == phase]
            brief = phase == "input" and _is_brief(seconds_in(profile, phase), profile)
            found += places_of(lines, self.share(phase) if rank is None else 1.0, brief)
        return tuple(found)

    @property
    def files(self) -> list[str]:
        """User's files seen at work in the samples, the main one first."""
        lines = sorted(self.longest.lines, key=lambda each: (each.depth, -each.share))
        workers = [each for worker in self.workers[:1] for each in worker.lines]
        return list(dict.fromkeys(each.file for each in [*lines, *workers]))

    def moving(self, phase: str) -> float | None:
        """Share of a phase's samples between which the training thread changed instruction.

        High for short operations. None if there were too few samples.
        """
        part = self.longest.phases.get(phase)
        return part.moving if part else None

    @property
    def nodes(self) -> int:
        """Median number of operations in the graph of a backward pass; 0 if none was seen."""
        graphs = self.longest.graphs
        return int(median(each.nodes for each in graphs)) if graphs else 0

    @property
    def node_s(self) -> float:
        """CPU seconds of the training thread per graph operation, forward and backward.

        Waits for a core are left out; 0 if unknown.
        """
        rank = self.longest
        passes = rank.backwards or rank.steps
        if not self.nodes or not passes or not rank.main_cpu_s:
            return 0.0
        share = sum(map(self.share, ("forward", "backward"))) + self.model_in_loop
        return share * rank.main_cpu_s / passes / self.nodes

    @property
    def is_functional(self) -> bool:
        """Whether the model is not a Module and computes in the program's own functions."""
        return self.model_in_loop > self.share("forward")

    @property
    def model_in_loop(self) -> float:
        """Estimated share of the time in which a model that is no Module computes.

        It computes between the phases: a forward pass takes about half as long as the backward
        pass that follows.
        """
        behind = max(0.0, self.share("backward") - self.share("forward"))
        return min(self.share("loop"), behind)

    @functools.cached_property
    def trend(self) -> Trend | None:
        """Slow-down of the steps from start to end; None if they do not or too little is known.

        Measured by the training thread's CPU time, which no neighbour takes.
        """
        moments = self.longest.moments
        parts = [
            (b.main_cpu_s - a.main_cpu_s) / (b.steps - a.steps)
            for a, b in pairwise(moments)
            if b.steps > a.steps
        ]
        if len(parts) < FEWEST_PARTS or not min(parts) > 0:
            return None
        third = len(parts) // 3
        first, mid, last = parts[:third], parts[third:-third], parts[-third:]
        begun, between, ended = median(first), median(mid), median(last)
        if not begun * EACH_SLOWER < between or not between * EACH_SLOWER < ended:
            return None
        mean = (moments[-1].main_cpu_s - moments[0].main_cpu_s) / (
            moments[-1].steps - moments[0].steps
        )
        early, late = _per_step(moments[: third + 1]), _per_step(moments[-third - 1 :])
        phase = max(late, key=lambda name: late[name] - early.get(name, 0.0), default="loop")
        return Trend(ended / begun, max(1.0, mean / begun), phase)

    @property
    def copied_mib(self) -> float:
        """Largest growth of a loader worker's private memory since its start, in MiB."""
        return max(
            (
                max(each.private_mib) - each.private_mib[0]
                for each in self.workers
                if each.private_mib
            ),
            default=0.0,
        )

    @property
    def python_objects(self) -> int:
        return max((each.python_objects or 0 for each in self.workers), default=0)

    @property
    def graphs_in_evaluation(self) -> float:
        """Share of evaluation batches that were computed with gradients switched on."""
        scored = [each for each in self.longest.loaders if each.evaluates and each.batches]
        batches = sum(each.batches for each in scored)
        return sum(each.with_graph for each in scored) / batches if batches else 0.0

    @property
    def arithmetic(self) -> tuple[float, float, float]:
        """Shares of the time in (arithmetic, Python and dispatch overhead, waits).

        A phase with too few samples, such as the backward pass, is split as the forward pass
        is.
        """
        usual = self.moving("forward")
        usual = self.moving("loop") if usual is None else usual
        parts = [0.0, 0.0, 0.0]
        for phase, share in self.shares.items():
            waits, moving = self.waiting(phase), self.moving(phase)
            moving = (usual if moving is None else moving) or 0.0
            parts[0] += share * (1 - waits) * (1 - moving)
            parts[1] += share * (1 - waits) * moving
            parts[2] += share * waits
        return parts[0], parts[1], parts[2]

    @property
    def several(self) -> bool:
        """Whether the processes are ranks of one job, which wait for each other.

        Those of a pool (joblib) do not.
        """
        return self.longest.ranks > 1

    @property
    def rank_times(self) -> tuple[RankTimes, ...]:
        """Times and work of each rank; empty if not all ranks were seen."""
        if len(self.ranks) < self.longest.ranks:
            return ()
        return tuple(
            RankTimes(
                rank=each.rank,
                node="",
                steps_s=each.seconds if each.seconds > 0 else None,
                sync_s=seconds_in(each, "sync") if each.seconds > 0 else None,
                runqueue_s=each.runqueue_s or 0.0,
                phases={phase: seconds_in(each, phase) for phase in PHASES},
                samples=each.samples,
                batches=each.batches,
                steps=each.steps,
            )
            for each in self.ranks
        )

    @property
    def startup(self) -> Startup:
        """Start-up of the rank whose first step came last."""
        rank = max(self.ranks, key=lambda each: each.startup_s)
        own_s = max(0.0, rank.startup_s - rank.startup_runqueue_s)
        whole_s = rank.elapsed_s - rank.startup_runqueue_s - (rank.runqueue_s or 0.0)
        share = min(1.0, own_s / whole_s) if whole_s > 0 else 0.0
        imports = 0.0
        if rank.startup_s > 0:
            worked = _worked_in_imports(rank.startup_lines)
            imports = max(0.0, rank.imports_s / rank.startup_s - worked)
        places = tuple(places_of(rank.startup_lines, share))
        return Startup(rank.startup_s, own_s, share, imports, places)

    @property
    def loader(self) -> LoaderFacts | None:
        """The training loader with the most batches; None if there is none."""
        trains = [each for each in self.longest.loaders if not each.evaluates]
        loader = max(trains, key=lambda each: each.batches, default=None)
        starts, waits = self.share("workers"), self.share("input")
        if loader is None:
            return LoaderFacts(0, starts, waits, False) if starts else None
        shares = [each.worker_busy for each in self.workers if each.worker_busy is not None]
        busy = shares[0] if shares else None
        places = list[CodeLocation]()
        if self.workers:
            worker = self.workers[0]
            brief = _is_brief(loader.workers * (worker.main_cpu_s or 0.0), self.longest)
            places = places_of(worker.lines, min(1.0, starts + waits), brief)
        return LoaderFacts(
            workers=loader.workers,
            starts=starts,
            waits=waits,
            is_costly=loader.workers > 0 and (busy is None or busy < 0.5),
            busy=busy,
            epochs=loader.epochs,
            persistent=loader.persistent,
            whole_batches=loader.makes_whole_batches,
            places=tuple(places),
            made_at=tuple(loader_places(self.longest.lines, min(1.0, starts + waits))),
        )

    @property
    def sparse_tables(self) -> list[ProgramTable]:
        """Embedding tables of which a step reads only few rows.

        Rows of a linear layer have no gradient if its units are dead: such a layer is seldom
        taller than TALL times its width.
        """
        return [
            each
            for each in self.longest.tables
            if each.touched is not None
            and each.touched < thresholds.SPARSE * each.rows
            and each.rows > TALL * each.width
        ]

    @property
    def tables(self) -> Tables | None:
        """Summary of all `sparse_tables`; None if there are none."""
        few, rank = self.sparse_tables, self.longest
        if not few or not rank.parameters:
            return None
        return Tables(
            rows=sum(each.rows for each in few),
            touched=sum(each.touched or 0 for each in few),
            of_parameters=sum(each.rows * each.width for each in few) / rank.parameters,
            numbers=max(each.rows * each.width for each in few),
            fused=rank.fused,
            optimizer=rank.optimizer,
        )

    @property
    def spinning(self) -> float:
        """Cores that torch's threads waste by spinning while samples are made."""
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
        """Mean number of cores used by a library's threads (BLAS) beside the Python threads."""
        return sum(_library_cpu_s(each) / each.seconds for each in self.ranks if each.seconds > 0)

    @property
    def interprets(self) -> bool:
        """Whether a program without steps mainly runs short operations, one after the other.

        Threads of a library then only wait.
        """
        return (self.longest.moved or 0.0) >= INTERPRETS

    @property
    def computes(self) -> bool:
        """Whether a program without steps mainly runs long operations on large arrays."""
        moved = self.longest.moved
        return moved is not None and moved < COMPUTES

    @functools.cached_property
    def written(self) -> list[SourceLine]:
        """Lines between the steps that write training state without `torch.save`."""
        lines = [each for each in self.longest.lines if each.phase == "loop" and self.steps]
        return [each for each in lines if each.own_share and WRITES.search(text_of(each))]

    @functools.cached_property
    def metrics(self) -> tuple[float, list[SourceLine]]:
        """Share of the time between phases spent on metrics, and the lines that compute them.

        Counted is what a function that evaluates does after its model has computed.
        """
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


def _per_step(moments: Sequence[ProgramMoment]) -> dict[str, float]:
    """Phase -> sampled seconds per step between the first and the last of the moments."""
    first, last = moments[0], moments[-1]
    steps = max(1, last.steps - first.steps)
    return {
        phase: (seconds - first.phases.get(phase, 0.0)) / steps
        for phase, seconds in last.phases.items()
    }


def seconds_in(profile: ProgramProfile, phase: str) -> float:
    return profile.phases[phase].seconds if phase in profile.phases else 0.0


def share_of(profile: ProgramProfile, phase: str) -> float:
    """Share of a rank's time after start-up that a phase takes."""
    return seconds_in(profile, phase) / profile.seconds if profile.seconds else 0.0


def _is_brief(seconds: float, profile: ProgramProfile) -> bool:
    """Whether making one sample takes too short to separate its lines by samples."""
    return seconds < BRIEF_S * (profile.samples or 0)


def _library_cpu_s(rank: ProgramProfile) -> float:
    """CPU seconds of threads that no Python code runs in; 0 where they are not known."""
    if rank.main_cpu_s is None:
        return 0.0
    python_s = rank.main_cpu_s + rank.sampler_cpu_s + sum(each.cpu_s for each in rank.threads)
    return max(0.0, rank.cpu_s - python_s)


def _worked_in_imports(lines: Sequence[SourceLine]) -> float:
    """Share of the start-up in which the user's own modules compute during their import."""
    main = {each.file for each in lines if each.depth == 0}
    modules = [each for each in lines if each.function == "<module>" and each.file not in main]
    # A comprehension is called by the line around it.
    outermost = {
        file: min(each.depth for each in modules if each.file == file)
        for file in {each.file for each in modules}
    }
    return sum(
        each.share
        for each in modules
        if each.depth == outermost[each.file]
        and (text := text_of(each))
        and not text.startswith(("import ", "from "))
    )
