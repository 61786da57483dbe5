"""Apply all rules to a run and order the causes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from hpcncf.errors import UsageError
from hpcncf.paths import AttemptPaths, ResultPaths, RunPaths
from hpcncf.records.schema import (
    GROWTH_HINT,
    NodeRecord,
    RankRecord,
    RecordError,
    read_record,
)
from hpcncf.text import pluralize
from hpcncf_analysis.diagnosis import thresholds
from hpcncf_analysis.diagnosis.evidence import Cause, Diagnosis, DiagnosisVerdict, Evidence, Finding
from hpcncf_analysis.diagnosis.from_records import evidence
from hpcncf_analysis.diagnosis.rules_cores import (
    gpu_underused,
    memory_pressure,
    neighbour_load,
    one_core_confinement,
    oversubscribed,
)
from hpcncf_analysis.diagnosis.rules_input import (
    input_io,
    python_input,
    too_few_workers,
    worker_overhead,
)
from hpcncf_analysis.diagnosis.rules_overhead import (
    costly_option,
    excess_arithmetic,
    frequent_call,
    slowing_steps,
    small_operations,
    worker_memory,
)
from hpcncf_analysis.diagnosis.rules_python import (
    batch_thread,
    interpreter_lock,
    loop_code,
)
from hpcncf_analysis.diagnosis.rules_ranks import sync_bound, unequal_ranks
from hpcncf_analysis.diagnosis.rules_step import dense_optimizer, memory_growth, serial_step
from hpcncf_analysis.diagnosis.rules_time import (
    checkpoint_bound,
    evaluation_bound,
    startup_bound,
    too_short_to_judge,
)
from hpcncf_analysis.formatting import format_mebibytes, format_percent

# The costliest finding is the primary one, but for three rules of precedence:
#
# - cores that may not be used are certain from the first second; a run too short to judge is that
#   before any other finding;
# - a cause stands before what it explains, unless that costs more than twice as much: a core that
#   may not be used idles, and whoever shares cores with a neighbour is late;
# - if nothing was found, a run that keeps its cores busy is healthy, and any other is unknown.

Rule = Callable[[Evidence], Finding | None]
# What lies around a program, and what a run too short for the rest shows all the same.
AROUND: Final[tuple[Rule, ...]] = (
    too_short_to_judge,
    one_core_confinement,
    oversubscribed,
    neighbour_load,
    memory_pressure,
    gpu_underused,
)
INSIDE: Final[tuple[Rule, ...]] = (
    startup_bound,
    interpreter_lock,
    python_input,
    batch_thread,
    input_io,
    too_few_workers,
    worker_overhead,
    dense_optimizer,
    unequal_ranks,
    sync_bound,
    evaluation_bound,
    checkpoint_bound,
    slowing_steps,
    costly_option,
    excess_arithmetic,
    small_operations,
    frequent_call,
    loop_code,
    serial_step,
    memory_growth,
    worker_memory,
)
RULES: Final = (*AROUND, *INSIDE)
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
            "loop_code",
        }
    ),
    "oversubscribed": frozenset({"sync_bound", "straggler", "dense_optimizer", "serial_step"}),
    "neighbour_load": frozenset({"straggler", "sync_bound", "oversubscribed", "startup_bound"}),
    "memory_pressure": frozenset(
        {"input_io", "straggler", "checkpoint_bound", "loop_code", "python_input"}
    ),
    "dense_optimizer": frozenset({"sync_bound"}),
    "python_input": frozenset({"serial_step", "gpu_underused"}),
    "input_io": frozenset({"serial_step", "gpu_underused"}),
    "worker_overhead": frozenset({"oversubscribed", "serial_step"}),
    "interpreter_lock": frozenset({"loop_code", "python_input", "input_io"}),
}


def diagnose(ranks: Sequence[RankRecord], nodes: Sequence[NodeRecord]) -> Diagnosis:
    """Diagnose one attempt of a run from the records of its ranks (one or more) and nodes."""
    return diagnose_evidence(evidence(ranks, nodes))


def diagnose_evidence(evidence: Evidence) -> Diagnosis:
    findings = ordered(find(evidence), inside=evidence.inside is not None)
    first = findings[0] if findings else None
    doubts = [] if first else _doubts(evidence)
    failed = [f"how it would have ended ({evidence.failed})"] if evidence.failed else []
    missing = (*doubts, *failed, *missing_records(evidence))
    # Steps that the probe saw are judged however the program ended: by Ctrl-C, for instance.
    judged = not failed or any(
        each.steps and each.seconds >= thresholds.SHORT_S for each in evidence.program
    )
    verdict: DiagnosisVerdict = (
        "cause" if first else "healthy" if judged and not doubts else "unknown"
    )
    grown = evidence.memory_growth_mib
    alert = f"memory grew steadily, by {format_mebibytes(grown)}: {GROWTH_HINT}"
    return Diagnosis(
        run_id=evidence.run_id,
        verdict=verdict,
        primary=first,
        secondary=tuple(findings[1:]),
        cores=evidence.cores,
        missing=missing,
        alerts=() if grown is None else (alert,),
    )


def find(evidence: Evidence) -> list[Finding]:
    """Apply all rules and return their findings, unordered."""
    inside = find_inside(evidence)
    seen = [each for each in inside if each.of == "time"]
    if evidence.inside and seen and too_short_to_judge(evidence):
        return seen  # a hot line is one however short the run
    around = [finding for rule in AROUND if (finding := rule(evidence))]
    return [replace(f, evidence=(*f.evidence, *_traffic(f, evidence))) for f in [*around, *inside]]


def find_inside(evidence: Evidence) -> list[Finding]:
    """Findings on causes within the program itself, unordered."""
    found = [finding for rule in INSIDE if (finding := rule(evidence))]
    return [_without_gain(each, evidence) for each in found]


def _without_gain(finding: Finding, evidence: Evidence) -> Finding:
    """Drop the finding's expected gain, with a remark, if too few steps were counted."""
    steps = evidence.steps_counted
    few = 0 < steps < thresholds.SHORT_STEPS and evidence.elapsed_s < thresholds.LONG_S
    if not evidence.inside or not few or finding.gain is None:
        return finding
    fact, *others = finding.evidence
    remark = f"only {pluralize(steps, 'step')} counted, too few to expect a gain"
    return replace(finding, gain=None, evidence=(f"{fact}; {remark}", *others))


def _traffic(finding: Finding, evidence: Evidence) -> list[str]:
    text = ""
    if evidence.traffic and finding.cause in ("input_io", "checkpoint_bound"):
        text = evidence.traffic.describe_files()
    elif evidence.traffic and finding.cause == "sync_bound":
        nodes = len({rank.node for rank in evidence.ranks})
        sync = evidence.of_steps.get("sync", finding.share)
        text = evidence.traffic.describe_exchange(nodes, sync)
    return [text] if text else []


def ordered(findings: Sequence[Finding], inside: bool = False) -> list[Finding]:
    """Sort findings by cost, the highest first, each after any finding that explains it.

    `inside`: the probe saw the program. Its own causes can be changed, so the neighbour stands
    behind all that it does not explain.
    """
    # Start-up is of this run alone: a longer one repeats what its steps cost, and not that.
    rank: dict[str, float] = {"neighbour_load": 3, "startup_bound": 2.5} if inside else {}
    if any(finding.cause == "too_short_to_judge" for finding in findings):
        rank |= {"one_core_confinement": 0, "too_short_to_judge": 1}
    left = sorted(findings, key=lambda f: (rank.get(f.cause, 2), -f.share))
    result: list[Finding] = []
    while left:
        free = (finding for finding in left if not _is_explained(finding, left, inside))
        result.append(next(free, left[0]))
        left.remove(result[-1])
    return result


def _is_explained(finding: Finding, others: Sequence[Finding], inside: bool) -> bool:
    return any(
        finding.cause in EXPLAINS.get(other.cause, ())
        and (
            # The probe has taken the waits for a core out, but for those of an exchange's threads
            # and of threads for each other; the steps beside it are slower as well, so about half
            # of the neighbour counts.
            finding.cause in ("sync_bound", "oversubscribed")
            and (1 - other.share / 2) * finding.share < thresholds.WORTH
            if inside and other.cause == "neighbour_load"
            else thresholds.EXPLAINED * other.share >= finding.share
        )
        for other in others
    )


def _doubts(evidence: Evidence) -> list[str]:
    """Reasons why a run without findings cannot be called healthy; empty if it can."""
    usable, used = evidence.cores.usable, evidence.wanted
    if not usable or used is None:
        return ["how many cores were used"]
    if used / usable >= thresholds.BUSY or any(each.steps for each in evidence.program):
        return []
    return [f"why {format_percent(1 - used / usable)} of the usable cores' time was not used"]


def missing_records(evidence: Evidence) -> list[str]:
    """Figures that rules need but the records lack, in words."""
    missing = []
    if len(evidence.ranks) < evidence.world_size:
        absent = pluralize(evidence.world_size - len(evidence.ranks), "rank")
        missing.append(f"the record of {absent}")
    if not evidence.of_steps and not evidence.program:
        missing.append("phases of a step (a command can report them, see docs/any-program.md)")
    if evidence.others_cores is None:
        missing.append("the node's series, and so the neighbours' load")
    return missing


R = TypeVar("R", RankRecord, NodeRecord)


def diagnose_results(paths: ResultPaths, rows: Iterable[Mapping[str, Any]]) -> dict[str, Diagnosis]:
    """Diagnose the last attempt of each run of the table `runs`; run id -> diagnosis.

    Without runs of which no rank has left a record, and without files that are no records, which
    `collect` names.
    """
    tried = [row for row in rows if row["attempt"] is not None]
    found = {
        row["run_id"]: diagnose_attempt(
            paths.run(row["run_id"]).attempt(int(row["attempt"])), row["run_id"]
        )
        for row in tried
    }
    return {run_id: diagnosis for run_id, diagnosis in found.items() if diagnosis}


def diagnose_attempt(attempt: AttemptPaths, run_id: str | None = None) -> Diagnosis | None:
    """Diagnose an attempt; None if it has no rank's record of the run `run_id`."""
    ranks, nodes = read_attempt(attempt, run_id)
    return diagnose(ranks, nodes) if ranks else None


def read_attempt(
    attempt: AttemptPaths, run_id: str | None = None
) -> tuple[list[RankRecord], list[NodeRecord]]:
    """Read the records of an attempt's ranks and nodes; empty if none is of run `run_id`."""
    ranks = _read_records(attempt.rank_records(), RankRecord, run_id)
    if not ranks:
        return [], []
    return ranks, _read_records(attempt.node_records(), NodeRecord, ranks[0].run_id)


def _read_records(files: Sequence[Path], kind: type[R], run_id: str | None) -> list[R]:
    found = []
    for path in files:
        with suppress(RecordError):
            record = read_record(path, kind)
            if run_id in (None, record.run_id):
                found.append(record)
    return found


def diagnose_file(path: Path) -> Diagnosis:
    """Diagnose from a rank's record and those beside it, or from `hpcncf run --json` output.

    Raises RecordError if it is neither.
    """
    try:
        plain: Any = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        plain = None  # its problem is named when it is read as a record
    if isinstance(plain, dict) and {"rank", "node"} <= set(plain) and "kind" not in plain:
        try:
            rank = RankRecord.model_validate(plain["rank"])
            return diagnose([rank], [NodeRecord.model_validate(plain["node"])])
        except ValidationError as error:
            where = ".".join(str(part) for part in error.errors()[0]["loc"])
            raise UsageError(f"{path}: {where}: {error.errors()[0]['msg']}") from None
    record = read_record(path, RankRecord)
    beside = diagnose_attempt(AttemptPaths(path.parent), record.run_id)
    return beside or diagnose([record], [])


def diagnose_folder(folder: Path) -> Diagnosis:
    """Diagnose an attempt's folder, or the last recorded attempt in a run's folder.

    Raises UsageError if no rank left one.
    """
    attempts = RunPaths(folder).attempts() or [AttemptPaths(folder)]
    for attempt in reversed(attempts):
        diagnosis = diagnose_attempt(attempt)
        if diagnosis is not None:
            return diagnosis
    raise UsageError(
        f"{folder}: no record of a rank here; expected a results folder (it has a plan.json), a "
        "run's folder, an attempt's, or a file rank-0.json"
    )
