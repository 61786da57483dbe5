"""One row per attempt of a run, and sums over all attempts.

A run that was interrupted has paid for each of its attempts, and the last one's record
holds only the last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from hpcncf.collect.node_means import ratio
from hpcncf.collect.resource_columns import distinct, elapsed, start_and_end
from hpcncf.collect.training_columns import Row
from hpcncf.job.plan import Run
from hpcncf.records.schema import NodeRecord, RankEnd
from hpcncf.slurm.accounting import Account, disagreements, step_at
from hpcncf.state.decide import Attempt, has_all_ranks, whole_records

SLURM: Final = (*(f"slurm_{name}" for name in Account.FIGURES), "slurm_agrees", "slurm_differs")
ATTEMPT: Final = (
    *("run_id", "attempt", "outcome", "error", "launched_by", "slurm_job_id", "node"),
    *("started_at", "ended_at", "resumed_epoch", "elapsed_s", "cores_allocated", "cpu_s"),
    *("cpu_efficiency", "core_hours", "figures_from"),
    *SLURM,
)
TOTALS: Final = (
    *("attempts", "elapsed_all_s", "cpu_all_s", "cpu_efficiency_all", "core_hours_all"),
    *SLURM,
)


def was_killed(attempt: Attempt) -> bool:
    """Whether the attempt ended without writing all of its records."""
    return not has_all_ranks(attempt.ranks) and not attempt.alive


def attempt_row(
    run: Run, attempt: Attempt, slurm: Account | None, nodes: Sequence[NodeRecord] = ()
) -> Row:
    """Build the row of one attempt in the table of attempts.

    Its figures come from the ranks' records; for an attempt that was killed, from its last
    progress and from what the monitors of its `nodes` had written by then.
    """
    row: Row = dict.fromkeys(ATTEMPT)
    row |= {"run_id": run.id, "attempt": attempt.number}
    if claim := attempt.claim:
        row |= {"launched_by": claim.launched_by, "slurm_job_id": claim.slurm_job_id}
        row |= {"node": claim.node, "started_at": claim.claimed_at}
    if has_all_ranks(attempt.ranks):
        row |= _record_columns(attempt)
    else:
        row["outcome"] = "running" if attempt.alive else "lost"
        if was_killed(attempt):
            row |= _progress_columns(run, attempt, nodes)
    if slurm is None:
        return row
    row |= {f"slurm_{name}": value for name, value in slurm.figures().items()}
    # Where several runs share a step, its figures are those of all of them.
    shape = run.resources
    alone = shape.runs_per_task == 1 and not shape.packed and has_all_ranks(attempt.ranks)
    differ = disagreements(whole_records(attempt.ranks), slurm) if alone else None
    if differ is None:
        return row
    return row | {"slurm_agrees": not differ, "slurm_differs": "; ".join(differ) or None}


def step_of(attempt: Attempt, slurm: Mapping[str, Sequence[Account]]) -> Account | None:
    """Find the Slurm step that ran the attempt's ranks; None if unknown."""
    claim = attempt.claim
    if claim is None or claim.slurm_job_id is None:
        return None
    began = datetime.fromisoformat(claim.claimed_at).timestamp()
    return step_at(slurm.get(claim.slurm_job_id, ()), began)


def _record_columns(attempt: Attempt) -> Row:
    ranks = whole_records(attempt.ranks)
    outcomes = {record.outcome for record in ranks}
    started, ended = start_and_end(ranks)
    training = ranks[0].training
    cpu_s = sum(record.cpu.user_s + record.cpu.system_s for record in ranks)
    return _shares(elapsed(ranks), cpu_s, sum(record.cores.allocated for record in ranks)) | {
        "outcome": next((each for each in ("failed", "stopped") if each in outcomes), "completed"),
        "error": next((text for record in ranks if (text := error_text(record))), None),
        "node": distinct(record.node for record in ranks),
        "started_at": started,
        "ended_at": ended,
        "resumed_epoch": training.resumed_epoch if training else None,
        "figures_from": "records",
    }


def error_text(record: RankEnd) -> str | None:
    error = record.error
    return f"{error.get('type')}: {error.get('message')}" if error else None


def _progress_columns(run: Run, attempt: Attempt, nodes: Sequence[NodeRecord]) -> Row:
    """Estimate the figures of a killed attempt from its last progress report.

    The last seconds before the kill are missing.
    """
    progress, cores = attempt.progress, run.resources.cores
    if progress is None:
        return {}
    cpu_s = None
    if len(nodes) == run.resources.nodes:
        cpu_s = sum(sum(node.tree_cpu_s) for node in nodes)
    elif progress.cpu_s is not None:  # the other ranks' are taken for equal
        cpu_s = progress.cpu_s * run.resources.world_size
    elif progress.cpu_efficiency is not None:
        cpu_s = progress.cpu_efficiency * progress.elapsed_s * cores
    shares = _shares(progress.elapsed_s, cpu_s, cores)
    return shares | {"ended_at": progress.updated_at, "figures_from": "progress"}


def _shares(elapsed_s: float, cpu_s: float | None, cores: float) -> Row:
    return {
        "elapsed_s": elapsed_s,
        "cores_allocated": cores,
        "cpu_s": cpu_s,
        "cpu_efficiency": None if cpu_s is None else ratio(cpu_s, elapsed_s * cores),
        "core_hours": elapsed_s * cores / 3600,
    }


def totals(rows: Sequence[Row]) -> Row:
    """Sum the figures of all attempts of a run.

    A sum is None if no attempt left the figure.
    """
    known = [row for row in rows if row["elapsed_s"] is not None]
    measured = [row for row in known if row["cpu_s"] is not None]
    cpu_s = sum(row["cpu_s"] for row in measured)
    core_s = sum(row["elapsed_s"] * row["cores_allocated"] for row in measured)
    return {
        "attempts": len(rows),
        "elapsed_all_s": sum(row["elapsed_s"] for row in known) if known else None,
        "cpu_all_s": cpu_s if measured else None,
        "cpu_efficiency_all": ratio(cpu_s, core_s),
        "core_hours_all": sum(row["core_hours"] for row in known) if known else None,
        **{name: rows[-1][name] if rows else None for name in SLURM},
    }


def silent(rows: Sequence[Row]) -> list[str]:
    """Warn about earlier attempts without figures, which the totals do not include."""
    return [
        f"attempt {row['attempt']} left no figures: totals over all attempts are without it"
        for row in rows[:-1]
        if row["elapsed_s"] is None
    ]
