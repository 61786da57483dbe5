"""One row per attempt of a run, and sums over all attempts.

A run that was interrupted has paid for each of its attempts, and the last one's record
holds only the last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from hpcncf.collect.resource_columns import distinct, elapsed
from hpcncf.collect.training_columns import Row, ratio
from hpcncf.job.plan import Run
from hpcncf.records.schema import NodeRecord, Progress, RankRecord
from hpcncf.slurm.accounting import Account, disagreements, step_at
from hpcncf.state.decide import Attempt, has_all_ranks, whole_records

SLURM: Final = (*(f"slurm_{name}" for name in Account.FIGURES), "slurm_agrees", "slurm_differs")
ATTEMPT: Final = (
    "run_id",
    "attempt",
    "outcome",
    "error",
    "launched_by",
    "slurm_job_id",
    "node",
    "started_at",
    "ended_at",
    "resumed_epoch",
    "elapsed_s",
    "cores_allocated",
    "cpu_s",
    "cpu_efficiency",
    "core_hours",
    "figures_from",
    *SLURM,
)
TOTALS: Final = (
    "attempts",
    "elapsed_all_s",
    "cpu_all_s",
    "cpu_efficiency_all",
    "core_hours_all",
    *SLURM,
)


def killed(attempt: Attempt) -> bool:
    """Whether it left no records but its last signs of life."""
    return not has_all_ranks(attempt.ranks) and not attempt.alive


def attempt_row(
    run: Run, attempt: Attempt, slurm: Account | None, nodes: Sequence[NodeRecord] = ()
) -> Row:
    """One attempt: from its ranks' records, else from the last progress before it was killed, and
    from what its `nodes` saw until then."""
    claim = attempt.claim
    row: Row = dict.fromkeys(ATTEMPT)
    row |= {"run_id": run.id, "attempt": attempt.number, "outcome": _outcome(attempt)}
    if claim is not None:
        row |= {"launched_by": claim.launched_by, "slurm_job_id": claim.slurm_job_id}
        row |= {"node": claim.node, "started_at": claim.claimed_at}
    if has_all_ranks(attempt.ranks):
        row |= _record_columns(whole_records(attempt.ranks))
    elif attempt.progress is not None and killed(attempt):
        row |= _progress_columns(run, attempt.progress, nodes)
    return row | _slurm_columns(run, attempt, slurm) if slurm else row


def step_of(attempt: Attempt, slurm: Mapping[str, Sequence[Account]]) -> Account | None:
    """The step of Slurm's that the attempt's ranks were."""
    claim = attempt.claim
    if claim is None or claim.slurm_job_id is None:
        return None
    began = datetime.fromisoformat(claim.claimed_at).timestamp()
    return step_at(slurm.get(claim.slurm_job_id, ()), began)


def _slurm_columns(run: Run, attempt: Attempt, slurm: Account) -> Row:
    row: Row = {f"slurm_{name}": value for name, value in slurm.figures().items()}
    # Where several runs share a step, its figures are those of all of them.
    shape = run.resources
    alone = shape.runs_per_task == 1 and not shape.packed and has_all_ranks(attempt.ranks)
    differ = disagreements(whole_records(attempt.ranks), slurm) if alone else None
    if differ is None:
        return row
    return row | {"slurm_agrees": not differ, "slurm_differs": "; ".join(differ) or None}


def _outcome(attempt: Attempt) -> str:
    """`completed` if every rank is; without all records, whether it may still be running."""
    if not has_all_ranks(attempt.ranks):
        return "running" if attempt.alive else "lost"
    outcomes = {record.outcome for record in attempt.ranks}
    return next((each for each in ("failed", "stopped") if each in outcomes), "completed")


def _record_columns(ranks: Sequence[RankRecord]) -> Row:
    first = ranks[0]
    failed = next((record for record in ranks if record.error), None)
    error = failed.error if failed else None
    return _shares(
        elapsed(ranks),
        sum(record.cpu.user_s + record.cpu.system_s for record in ranks),
        sum(record.cores.allocated for record in ranks),
    ) | {
        "error": f"{error.get('type')}: {error.get('message')}" if error else None,
        "node": distinct(record.node for record in ranks),
        "started_at": min((record.started_at for record in ranks), key=datetime.fromisoformat),
        "ended_at": max((record.ended_at for record in ranks), key=datetime.fromisoformat),
        "resumed_epoch": first.training.resumed_epoch if first.training else None,
        "figures_from": "records",
    }


def _progress_columns(run: Run, progress: Progress, nodes: Sequence[NodeRecord]) -> Row:
    """An estimate: the last seconds before the kill are missing, and so is what nobody measured."""
    cores = run.resources.cores
    cpu_s = None
    if len(nodes) == run.resources.nodes:
        cpu_s = sum(sum(node.tree_cpu_s) for node in nodes)
    elif progress.cpu_s is not None:  # the other ranks' are taken for equal
        cpu_s = progress.cpu_s * run.resources.world_size
    elif progress.cpu_efficiency is not None:
        cpu_s = progress.cpu_efficiency * progress.elapsed_s * cores
    return _shares(progress.elapsed_s, cpu_s, cores) | {
        "ended_at": progress.updated_at,
        "figures_from": "progress",
    }


def _shares(elapsed_s: float, cpu_s: float | None, cores: float) -> Row:
    return {
        "elapsed_s": elapsed_s,
        "cores_allocated": cores,
        "cpu_s": cpu_s,
        "cpu_efficiency": None if cpu_s is None else ratio(cpu_s, elapsed_s * cores),
        "core_hours": elapsed_s * cores / 3600,
    }


def totals(rows: Sequence[Row]) -> Row:
    """What all attempts of a run took together, None where none of them left it; Slurm's figures
    are the last one's."""
    elapsed = [row["elapsed_s"] for row in rows if row["elapsed_s"] is not None]
    measured = [row for row in rows if row["cpu_s"] is not None]
    cpu_s = sum(row["cpu_s"] for row in measured)
    core_s = sum(row["elapsed_s"] * row["cores_allocated"] for row in measured)
    hours = [row["core_hours"] for row in rows if row["core_hours"] is not None]
    return {
        "attempts": len(rows),
        "elapsed_all_s": sum(elapsed) if elapsed else None,
        "cpu_all_s": cpu_s if measured else None,
        "cpu_efficiency_all": ratio(cpu_s, core_s),
        "core_hours_all": sum(hours) if hours else None,
        **{name: rows[-1][name] if rows else None for name in SLURM},
    }


def silent(rows: Sequence[Row]) -> list[str]:
    """A warning for each earlier attempt that left no figures: totals are without it."""
    return [
        f"attempt {row['attempt']} left no figures: totals over all attempts are without it"
        for row in rows[:-1]
        if row["elapsed_s"] is None
    ]
