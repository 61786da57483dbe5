"""The summary of one start of a command: built once from its records, then only shown.

`hpcncf run` prints it and writes it as JSON, so that it is in a job's log, too; `hpcncf diagnose`
of a job id shows it again. No schema is loaded for a command in which the probe saw no program: a
short one would wait for that longer than it ran.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from hpcncf.collect.node_means import mean_over_windows
from hpcncf.records.plain import TOO_SHORT_S

if TYPE_CHECKING:
    from hpcncf.records.schema import NodeRecord, RankRecord
    from hpcncf_analysis.diagnosis.evidence import Diagnosis, Evidence

FULL_SHARE: Final = 0.85
IDLE_CORES: Final = 0.3
# With so much taken by others, what a command used does not show what it needs.
DISTURBED_CORES: Final = 0.5


@dataclass(frozen=True)
class CoreShares:
    """Shares of the time in which one CPU was used, 0 to 1."""

    cpu: int
    ours: float
    """By this command, estimated."""
    busy: float
    """By anybody."""


@dataclass(frozen=True)
class RequestedRemedy:
    """Outcome of a change that `--with` requested."""

    name: str
    is_applied: bool
    places: Mapping[str, int]
    """Where it was made, or why not -> how often."""


@dataclass(frozen=True)
class SeenProgram:
    """A program that the probe observed, with the diagnosis of it."""

    evidence: Evidence
    diagnosis: Diagnosis


@dataclass(frozen=True)
class Summary:
    """Everything that is reported about one start of a command, whether as text or as JSON."""

    ranks: Sequence[RankRecord]
    """The first is the one whose figures are shown."""
    nodes: Sequence[NodeRecord]
    cores: Sequence[CoreShares]
    """Of the first node."""
    remedies: Sequence[RequestedRemedy]
    """Of the first rank's processes."""
    program: SeenProgram | None
    """None if the probe saw none, or none that is more than a loader's worker."""
    conclusion: str
    """How many cores the next request should have, in one or two sentences."""

    @property
    def rank(self) -> RankRecord:
        return self.ranks[0]

    @property
    def node(self) -> NodeRecord:
        return self.nodes[0]

    @property
    def name(self) -> str:
        """The name that the command was given, or else its words."""
        run = self.rank.run
        return run.get("varied", {}).get("run.command") or shlex.join(run["workload"]["command"])

    def plain(self) -> dict[str, Any]:
        """Conclusion and diagnosis as plain data; the diagnosis is None without a program."""
        found = None
        if self.program:
            from hpcncf_analysis.diagnosis import format

            found = format.plain(self.program.diagnosis)
        return {"conclusion": self.conclusion, "diagnosis": found}


def summarize(ranks: Sequence[RankRecord], nodes: Sequence[NodeRecord]) -> Summary:
    """Build the summary from the records of an attempt's ranks and nodes, one of each or more."""
    return Summary(
        ranks=ranks,
        nodes=nodes,
        cores=share_cores(nodes[0]),
        remedies=requested_remedies(ranks[0]),
        program=judge_program(ranks, nodes),
        conclusion=conclude_cores(ranks[0], nodes[0]),
    )


def import_diagnosis() -> None:
    """Import what `judge_program` and the text of a program need."""
    for name in ("diagnose", "from_records", "program_text"):
        import_module(f"hpcncf_analysis.diagnosis.{name}")


def judge_program(ranks: Sequence[RankRecord], nodes: Sequence[NodeRecord]) -> SeenProgram | None:
    if all(each.is_worker for rank in ranks for each in rank.program):
        return None
    from hpcncf_analysis.diagnosis.diagnose import diagnose_evidence
    from hpcncf_analysis.diagnosis.from_records import evidence

    seen = evidence(ranks, nodes)
    return SeenProgram(seen, diagnose_evidence(seen))


def requested_remedies(rank: RankRecord) -> tuple[RequestedRemedy, ...]:
    """Return the outcome of each requested remedy in the rank's processes, applied ones first."""
    if not any((rank.run.get("remedies") or {}).values()):
        return ()
    from hpcncf.job.spec import Remedies

    asked = str(Remedies.model_validate(rank.run["remedies"]))
    seen = [each for program in rank.program if not program.is_worker for each in program.remedies]
    if not seen:
        nowhere = {"the probe saw no program that uses torch": 1}
        return tuple(RequestedRemedy(each, False, nowhere) for each in asked.split(","))
    found: dict[tuple[str, bool], dict[str, int]] = {}
    for each in seen:
        counts = found.setdefault((each.remedy, each.applied), {})
        counts[each.to] = counts.get(each.to, 0) + each.count
    applied_first = sorted(found.items(), key=lambda each: not each[0][1])
    return tuple(RequestedRemedy(*known, counts) for known, counts in applied_first)


def share_cores(node: NodeRecord) -> tuple[CoreShares, ...]:
    """Shares of each CPU of the node's record; empty if it was never sampled."""
    found = []
    for cpu, *series in zip(node.cpus, node.ours, node.busy, strict=True):
        ours, busy = (mean_over_windows(each, node.length_s) for each in series)
        if ours is not None and busy is not None:
            found.append(CoreShares(cpu, ours, busy))
    return tuple(found)


def conclude_cores(rank: RankRecord, node: NodeRecord) -> str:
    """Conclude in one or two sentences how many cores the next request should have."""
    cores, used = rank.cores, rank.cores.used
    if used is None and rank.elapsed_s >= TOO_SHORT_S:
        return "How it uses its cores was not seen."
    if used is None or rank.elapsed_s < TOO_SHORT_S:
        return "Too short to say how it uses its cores."
    others = mean_over_windows(node.others_cores, node.length_s) or 0.0
    if others >= DISTURBED_CORES:
        return _disturbed(rank, others)
    if cores.usable < cores.allocated and used >= FULL_SHARE * cores.usable:
        return (
            f"The {cores.usable:g} usable of {cores.allocated:g} allocated cores did all the work: "
            "the rest was paid for and out of reach."
        )
    if used >= FULL_SHARE * cores.allocated:
        return f"{_all_of(cores.allocated)} at work: more might help, fewer would slow it down."
    if used < IDLE_CORES:
        return (
            f"It mostly waited: {used:.2f} of {cores.allocated:g} cores' worth of work. Look at "
            "its disk, network, locks and sleeps, not at its cores."
        )
    return _partly(cores.allocated, used, rank)


def _disturbed(rank: RankRecord, others: float) -> str:
    alone = "when they rest" if rank.slurm_job_id is None else "on a node of its own (--exclusive)"
    return (
        f"The number of cores it needs is unknown: other processes held {others:.1f} of its "
        f"{rank.cores.usable:g} cores, and it may have waited for them. Measure again {alone}."
    )


def _all_of(allocated: float) -> str:
    return "Its one core was" if allocated == 1 else f"All {allocated:g} cores were"


def _partly(allocated: float, used: float, rank: RankRecord) -> str:
    enough = max(1, math.ceil(used - 0.15))
    if enough >= allocated:
        return f"It used {used:.1f} of {allocated:g} cores: it waits part of the time."
    work = "One" if enough == 1 else f"{enough}"
    peak = rank.cpu.efficiency_peak
    high = (
        f" (at its peak {peak * allocated:.1f})"
        if peak is not None and peak * allocated > used + 0.5
        else ""
    )
    ask = "1 core" if enough == 1 else f"{enough} cores"
    return (
        f"{work} of {allocated:g} cores did the work{high}: ask for {ask}, or make it use more "
        "of them (threads, ranks, workers)."
    )
