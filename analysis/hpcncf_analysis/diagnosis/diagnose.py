"""Apply all rules to a run and order the causes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from hpcncf.monitor.memory_growth import USUALLY
from hpcncf.paths import AttemptPaths, ResultPaths
from hpcncf.records.schema import NodeRecord, RankRecord, RecordError, read_record
from hpcncf_analysis.configurations import pluralize
from hpcncf_analysis.diagnosis import rules_program, thresholds
from hpcncf_analysis.diagnosis.evidence import Cause, Diagnosis, Evidence, Finding, Verdict
from hpcncf_analysis.diagnosis.from_records import evidence
from hpcncf_analysis.diagnosis.rules_cores import (
    checkpoint_bound,
    evaluation_bound,
    gpu_underused,
    memory_pressure,
    neighbour_load,
    one_core_confinement,
    oversubscribed,
    serial_step,
    startup_bound,
    too_short_to_judge,
)
from hpcncf_analysis.diagnosis.rules_input import input_io, python_input, worker_overhead
from hpcncf_analysis.diagnosis.rules_ranks import load_imbalance, straggler, sync_bound
from hpcncf_analysis.diagnosis.rules_time import dense_optimizer
from hpcncf_analysis.formatting import format_mebibytes, format_percent

# The costliest finding is the primary one, but for three rules of precedence:
#
# - cores that may not be used are certain from the first second; a run too short to judge is that
#   before any other finding;
# - a cause stands before what it explains, unless that costs more than twice as much: a core
# that may
#   not be used idles, and whoever shares cores with a neighbour is late;
# - where nothing was found, a run that keeps its cores busy is healthy, and any other is
# unknown.

Rule = Callable[[Evidence], Finding | None]
RULES: Final[tuple[Rule, ...]] = (
    too_short_to_judge,
    one_core_confinement,
    oversubscribed,
    neighbour_load,
    memory_pressure,
    gpu_underused,
    straggler,
    load_imbalance,
    sync_bound,
    dense_optimizer,
    worker_overhead,
    python_input,
    input_io,
    evaluation_bound,
    checkpoint_bound,
    startup_bound,
    serial_step,
)
# What the probe inside a program cannot see.
AROUND_A_PROGRAM: Final[tuple[Rule, ...]] = (
    too_short_to_judge,
    one_core_confinement,
    oversubscribed,
    neighbour_load,
    memory_pressure,
    gpu_underused,
)
# What a cause brings about: the findings that it stands before.
EXPLAINS: Final[Mapping[Cause, frozenset[Cause]]] = {
    "one_core_confinement": frozenset(
        {
            "oversubscribed",
            "serial_step",
            "python_input",
            "dense_optimizer",
            "worker_overhead",
            "sync_bound",
            "straggler",
            "evaluation_bound",
        }
    ),
    "oversubscribed": frozenset({"sync_bound", "straggler", "dense_optimizer", "serial_step"}),
    "neighbour_load": frozenset({"straggler", "sync_bound", "oversubscribed", "startup_bound"}),
    "memory_pressure": frozenset({"input_io", "straggler", "checkpoint_bound"}),
    "dense_optimizer": frozenset({"sync_bound"}),
    "python_input": frozenset({"serial_step", "gpu_underused"}),
    "input_io": frozenset({"serial_step", "gpu_underused"}),
    "worker_overhead": frozenset({"oversubscribed", "serial_step"}),
    "interpreter_lock": frozenset({"loop_code", "python_input", "input_io"}),
}


def diagnose(ranks: Sequence[RankRecord], nodes: Sequence[NodeRecord]) -> Diagnosis:
    """One attempt at one run, by the records that its ranks (one or more) and nodes left."""
    return diagnose_evidence(evidence(ranks, nodes))


def diagnose_evidence(told: Evidence) -> Diagnosis:
    findings = ordered(_find(told))
    lacking = (*_ended(told), *missing(told))
    if findings:
        first, *rest = findings
        rest_of_it = (tuple(rest), told.cores, lacking, _alerts(told))
        return Diagnosis(told.run_id, "cause", first, *rest_of_it)
    doubts = _doubts(told)
    verdict: Verdict = "unknown" if doubts or told.failed else "healthy"
    lacking = (*doubts, *lacking)
    return Diagnosis(told.run_id, verdict, None, (), told.cores, lacking, _alerts(told))


def _find(told: Evidence) -> list[Finding]:
    """All findings; of a program that the probe saw, by what it saw."""
    if any(not each.is_worker for each in told.program):
        rules: tuple[Rule, ...] = AROUND_A_PROGRAM
        found = rules_program.find(told)
    else:
        rules, found = RULES, []
    return [*(finding for rule in rules if (finding := rule(told))), *found]


def _alerts(told: Evidence) -> tuple[str, ...]:
    grown = told.memory_growth_mib
    if grown is None:
        return ()
    return (f"memory grew steadily, by {format_mebibytes(grown)}: {USUALLY}",)


def ordered(findings: Sequence[Finding]) -> list[Finding]:
    """By cost, each after what explains it."""
    rank = {"one_core_confinement": 0, "too_short_to_judge": 1}
    short = any(found.cause == "too_short_to_judge" for found in findings)
    left = sorted(findings, key=lambda f: (rank.get(f.cause, 2) if short else 0, -f.share))
    result: list[Finding] = []
    while left:
        free = next((found for found in left if not _explained(found, left)), left[0])
        left.remove(free)
        result.append(free)
    return result


def _explained(found: Finding, others: Sequence[Finding]) -> bool:
    return any(
        found.cause in EXPLAINS.get(other.cause, ())
        and thresholds.EXPLAINED * other.share >= found.share
        for other in others
    )


def _ended(told: Evidence) -> tuple[str, ...]:
    return (f"how it would have ended ({told.failed})",) if told.failed else ()


def _doubts(told: Evidence) -> tuple[str, ...]:
    """Why a run in which no cause was found cannot be called healthy."""
    usable, used = told.cores.usable, told.wanted
    if not usable or used is None:
        return ("how many cores were used",)
    if used / usable >= thresholds.BUSY or any(each.steps for each in told.program):
        return ()
    return (f"why {format_percent(1 - used / usable)} of the usable cores' time was not used",)


def missing(told: Evidence) -> tuple[str, ...]:
    """What the records do not tell, that a rule would have used."""
    lacking = []
    if len(told.ranks) < told.world_size:
        absent = pluralize(told.world_size - len(told.ranks), "rank")
        lacking.append(f"the record of {absent}")
    if not told.phases and not told.program:
        lacking.append("phases of a step (a command can report them, see docs/any-program.md)")
    if told.others_cores is None:
        lacking.append("the node's series, and so the neighbours' load")
    return tuple(lacking)


R = TypeVar("R", RankRecord, NodeRecord)


def diagnose_results(paths: ResultPaths, rows: Iterable[Mapping[str, Any]]) -> dict[str, Diagnosis]:
    """Run id -> diagnosis of its last attempt. `rows`: of the table `runs`.

    A run of which no rank has left a record is not among them; files that are no records are passed
    over, for `collect` names them.
    """
    found = {}
    for row in rows:
        if row["attempt"] is not None:
            attempt = paths.run(row["run_id"]).attempt(int(row["attempt"]))
            told = diagnose_attempt(attempt, row["run_id"])
            if told is not None:
                found[row["run_id"]] = told
    return found


def diagnose_attempt(attempt: AttemptPaths, run_id: str | None = None) -> Diagnosis | None:
    """None where no rank's record is there, or none of this run."""
    ranks = _read_records(attempt.rank_records(), RankRecord, run_id)
    if not ranks:
        return None
    return diagnose(ranks, _read_records(attempt.node_records(), NodeRecord, ranks[0].run_id))


def _read_records(files: Sequence[Path], kind: type[R], run_id: str | None) -> list[R]:
    read = []
    for path in files:
        try:
            record = read_record(path, kind)
        except RecordError:
            continue
        if run_id in (None, record.run_id):
            read.append(record)
    return read
