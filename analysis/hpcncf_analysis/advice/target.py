"""What a job needs, from its records or from what the scheduler says, for its own batch script.

Nothing is sized from a figure that was not counted, from a run that was too short, disturbed or
did not come to its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from hpcncf.batch.resize import RequestedAmount, Target
from hpcncf.explain.conclude import (
    ENOUGH_RUNS,
    LEAST_MARGIN_S,
    LEAST_MIB,
    MODEST,
    ROOM,
    SHORT_S,
    TIME_MARGIN,
    Explanation,
)
from hpcncf.paths import AttemptPaths
from hpcncf.records.schema import NodeRecord, RankRecord
from hpcncf.text import format_duration, pluralize
from hpcncf_analysis.advice.request import HPCNCF_MIB
from hpcncf_analysis.diagnosis.diagnose import diagnose, read_attempt
from hpcncf_analysis.diagnosis.format import disturbance
from hpcncf_analysis.formatting import THIN, format_cores, format_mebibytes, format_percent

# A peak above the mean by this much means that fewer cores would slow a part of the run.
BURST_CORES: Final = 0.5
SOME_CORES: Final = 0.15


@dataclass(frozen=True)
class TargetEvidence:
    """The target, and what is missing for the figures that it lacks."""

    target: Target
    missing: tuple[str, ...] = ()


def from_explanations(explanations: Sequence[Explanation]) -> TargetEvidence:
    """Derive the target request from the scheduler's figures of one job.

    With no or several jobs the target is empty, and `missing` says why.
    """
    if len(explanations) != 1:
        count = pluralize(len(explanations), "job")
        return TargetEvidence(Target(), (f"{count}: one is needed",))
    (one,) = explanations
    job, request = one.job, one.request
    named = f"job {job.id}: " if job.id else ""
    if one.confidence == "none":
        return TargetEvidence(Target(), (f"{named}{one.confidence_reason}",))
    texts = {each.code: each.text.replace(THIN, " ") for each in one.conclusions}

    def figure(value: float | None, *codes: str) -> RequestedAmount | None:
        if value is None:
            return None
        code = next((each for each in codes if each in texts), "")
        said = texts.get(code, "as the scheduler says").removesuffix(".")
        is_least = code in ("out_of_memory", "time_limit_reached")
        return RequestedAmount(value, f"{named}{said}", is_least)

    target = Target(
        cores=figure(request.cores, "never_a_second_core"),
        memory_mib=figure(request.memory_mib, "memory_oversized", "out_of_memory"),
        limit_s=figure(request.limit_s, "time_limit_reached"),
        nodes=figure(request.nodes, "nodes_unused"),
        had_cores=job.cores,
    )
    missing = []
    if target.cores is None:
        idle = ("one_core", "almost_idle", "some_idle", "half_of_cores")
        seen = next((texts[code] for code in idle if code in texts), "")
        if seen:
            missing.append(
                f"cores: {named}{seen} A scheduler's mean does not show whether fewer would be as "
                "fast: hpcncf run -- COMMAND in the script does"
            )
    for code in ("memory_not_counted", "memory_impossible", "memory_low", "memory_at_limit"):
        if code in texts:
            missing.append(f"memory: {named}{texts[code]}")
    return TargetEvidence(target, tuple(missing))


@dataclass(frozen=True)
class _Run:
    ranks: list[RankRecord]
    nodes: list[NodeRecord]

    @property
    def is_complete(self) -> bool:
        return all(each.exit_code == 0 and each.outcome == "completed" for each in self.ranks)

    @property
    def elapsed_s(self) -> float:
        return max(each.elapsed_s for each in self.ranks)


def from_attempts(attempts: Sequence[AttemptPaths], limit_s: float | None) -> TargetEvidence:
    """Derive the target request from the records of a script's runs, one attempt for each.

    `limit_s`: the time limit of today's script.
    """
    runs = [_Run(*read) for each in attempts if (read := read_attempt(each))[0]]
    ended = [each for each in runs if each.is_complete]
    if not runs:
        return TargetEvidence(Target(), ("no record of a rank",))
    if not ended:
        return TargetEvidence(Target(), ("no run came to its end with exit code 0",))
    if max(each.elapsed_s for each in ended) < SHORT_S:
        text = f"too short: {format_duration(ended[-1].elapsed_s)}; a run of ten minutes shows more"
        return TargetEvidence(Target(), (text,))
    last = ended[-1]
    had = round(sum(each.cores.allocated for each in last.ranks))
    cores, no_cores = _cores(last)
    memory, no_memory = _memory(ended)
    limit, no_limit = _limit(ended, limit_s)
    missing = tuple(each for each in (no_cores, no_memory, no_limit) if each)
    return TargetEvidence(Target(cores, memory, limit, had_cores=had), missing)


def _cores(run: _Run) -> tuple[RequestedAmount | None, str]:
    """Cores per rank needed by the busiest rank, or None and the reason."""
    diagnosis = diagnose(run.ranks, run.nodes)
    if disturbed := disturbance(diagnosis):
        return None, f"cores: {disturbed}"
    used = [each.cores.used for each in run.ranks]
    if any(each is None for each in used):
        return None, "cores: their use was not measured"
    rank = max(run.ranks, key=lambda each: each.cores.used or 0.0)
    mean, allocated = rank.cores.used or 0.0, rank.cores.allocated
    if rank.cores.usable < allocated:
        return None, (
            f"cores: {format_cores(rank.cores.usable)} of {format_cores(allocated)} could be used "
            "at all (binding): mend that first"
        )
    need = max(ceil(mean - SOME_CORES), 1)
    if need >= allocated:
        return None, ""
    peak = (rank.cpu.efficiency_peak or 0.0) * allocated
    if rank.cpu.efficiency_peak is None or peak > need + BURST_CORES:
        return None, (
            f"cores: {format_cores(mean)} of {format_cores(allocated)} on average, but "
            f"{format_cores(peak)} over its busiest {rank.cpu.peak_window_s:g} s: fewer may slow "
            "that part; hpcncf tune tries it"
        )
    of_rank = f"rank {rank.rank} of {len(run.ranks)}, which " if len(run.ranks) > 1 else ""
    return RequestedAmount(
        need,
        f"hpcncf run: {of_rank}used {format_cores(mean)} of {format_cores(allocated)} cores on "
        f"average, {format_cores(peak)} over its busiest {rank.cpu.peak_window_s:g} s",
    ), ""


def _memory(runs: Sequence[_Run]) -> tuple[RequestedAmount | None, str]:
    """Memory per node: the highest peak of all runs plus a margin, or None and the reason.

    The reason is empty if the current limit fits.
    """
    by_node: list[float] = []
    for run in runs:
        names = {each.node for each in run.ranks}
        by_node += [
            sum(each.memory.rss_peak_mib + HPCNCF_MIB for each in run.ranks if each.node == name)
            for name in names
        ]
    peak = max(by_node)
    if peak < LEAST_MIB:
        return None, f"memory: {format_mebibytes(peak)} at the peak is less than torch takes"
    limits = [each.memory.limit_mib for run in runs for each in run.ranks if each.memory.limit_mib]
    if limits and peak >= 0.95 * min(limits):
        return None, "memory: at its limit, which is no proof of need"
    size = ceil(ROOM * peak / 1024) * 1024.0
    if limits and size > MODEST * min(limits):
        return None, ""  # it fits
    return RequestedAmount(
        size,
        f"hpcncf run: {format_mebibytes(peak)} at the peak of "
        f"{pluralize(len(runs), 'run')}, and {format_percent(ROOM - 1)} more",
    ), ""


def _limit(runs: Sequence[_Run], limit_s: float | None) -> tuple[RequestedAmount | None, str]:
    longest = max(each.elapsed_s for each in runs)
    needed = max(longest * (1 + TIME_MARGIN), longest + LEAST_MARGIN_S)
    if limit_s is not None and MODEST * limit_s <= needed <= limit_s:
        return None, ""
    if len(runs) < ENOUGH_RUNS:
        if limit_s is not None and needed <= limit_s:
            return None, (
                f"time: {pluralize(len(runs), 'run')} ended within half of the limit; "
                f"{ENOUGH_RUNS} show how long the longest takes"
            )
        return None, "" if limit_s is not None else f"time: {ENOUGH_RUNS} runs are needed"
    return RequestedAmount(
        needed,
        f"hpcncf run: the longest of {len(runs)} runs took {format_duration(longest)}, and "
        f"{format_percent(TIME_MARGIN)} more",
    ), ""
