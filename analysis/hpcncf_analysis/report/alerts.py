"""Reasons to doubt the figures of a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from hpcncf.records.schema import GROWTH_HINT
from hpcncf.text import pluralize
from hpcncf_analysis.advice.request import memory_to_request_gb
from hpcncf_analysis.configurations import (
    MAX_OTHERS_SHARE,
    Configuration,
    others_share,
)
from hpcncf_analysis.formatting import format_cores, format_mebibytes, format_percent
from hpcncf_analysis.scaling import comparison_doubts

Row = Mapping[str, Any]

# A larger share of start-up than this says more about imports than about training.
MAX_STARTUP_SHARE: Final = 0.2


def _unusable(row: Row) -> float | None:
    usable, allocated = row["cores_usable"], row["cores_allocated"]
    return 1 - usable / allocated if usable is not None and allocated else None


# What is above which limit, and the sentence about such `{runs}` and the worst of them.
CHECKS: Final[tuple[tuple[Callable[[Row], float | None], float, str], ...]] = (
    (
        _unusable,
        0.0,
        "{runs} could not use all allocated cores: run {run_id} was allocated {cores_allocated:g} "
        "and could use {cores_usable:g}. CPU affinity or a cgroup limit held it back. From Slurm "
        "22.05 to 23.02, an srun in a script of your own does not inherit --cpus-per-task: give it "
        "-c, as hpcncf does.",
    ),
    (
        lambda row: row["cpu_efficiency"],
        1.0,
        "{runs} used more cores than allocated (CPU efficiency up to {efficiency}, run {run_id}): "
        "nothing bound them.",
    ),
    (
        lambda row: float(bool(row["slurm_differs"])),
        0.0,
        "Slurm's accounting says otherwise in {runs}, as in run {run_id}: {slurm_differs}.",
    ),
    (
        lambda row: row["memory_efficiency"],
        1.0,
        "{runs} used more memory than was asked for ({peak} of mem_gb: {mem_gb:g}, run {run_id}): "
        "nothing held it to that here; where a scheduler does, it is killed. Ask for mem_gb: "
        "{enough_gb:g}.",
    ),
    (
        lambda row: row["memory_growth_mib"],
        0.0,
        f"In {{runs}} memory grew while it ran (by {{grown}} in run {{run_id}}): {GROWTH_HINT}.",
    ),
    (
        others_share,
        MAX_OTHERS_SHARE,
        "In {runs} other processes were busy on the same cores ({others} of {cores} in run "
        "{run_id}): speed and efficiency are lower than the runs' own doing. Repeat when the "
        "machine is quiet, or with exclusive: true.",
    ),
)


def find_alerts(runs: Sequence[Row], shown: Sequence[Configuration]) -> list[str]:
    """Warnings about the completed runs, the gravest first."""
    if not runs:
        return []
    alerts: list[str | None] = []
    for share, limit, sentence in CHECKS:
        above = [row for row in runs if (share(row) or 0.0) > limit]
        if above:
            worst = max(above, key=lambda row: share(row) or 0.0)
            alerts.append(sentence.format(runs=pluralize(len(above), "run"), **_words(worst)))
    alerts += [_cpu_models(runs), _mixed_code(runs), _startup(runs)]
    alerts += [*comparison_doubts(shown), _repeats(shown)]
    return [text for text in alerts if text]


def _words(row: Row) -> dict[str, Any]:
    """Columns of a run for an alert's text, some of them formatted with their unit."""
    return {
        **row,
        "efficiency": format_percent(row["cpu_efficiency"]),
        "peak": format_mebibytes(row["memory_peak_mib"]),
        "grown": format_mebibytes(row["memory_growth_mib"]),
        "others": format_cores(row["others_cores"]),
        "cores": pluralize(row["cores_allocated"], "core"),
        "enough_gb": memory_to_request_gb([row]),
    }


def _cpu_models(runs: Sequence[Row]) -> str | None:
    models = sorted({row["cpu_model"] for row in runs if row["cpu_model"]})
    if len(models) < 2:
        return None
    return f"The runs had different CPU models ({'; '.join(models)}): speeds do not compare."


def _mixed_code(runs: Sequence[Row]) -> str | None:
    """Alert if trainings ran different code, or code older than installed; otherwise None."""
    trained = [row for row in runs if row["workload"] == "ncf"]
    commits = sorted({row["commit"][:7] for row in trained if row["commit"]})
    stale = [row["stale"] for row in trained if row["stale"]]
    if len(commits) > 1:
        return f"The runs are of different code: commits {', '.join(commits)}."
    return f"{pluralize(len(stale), 'run')} may be out of date: {stale[0]}." if stale else None


def _startup(runs: Sequence[Row]) -> str | None:
    shares = [
        row["startup_s"] / row["elapsed_s"]
        for row in runs
        if row["startup_s"] is not None and row["elapsed_s"]
    ]
    most = max(shares, default=0.0)
    if most <= MAX_STARTUP_SHARE:
        return None
    return (
        f"Start-up takes up to {format_percent(most)} of a run's time, and CPU efficiency "
        "counts it; the column “in training” does not. More epochs make it matter less."
    )


def _repeats(shown: Sequence[Configuration]) -> str | None:
    single = sum(len(one.rows) == 1 and not one.command for one in shown)
    if not single:
        return None
    which = "Every configuration" if single == len(shown) else f"{single} of {len(shown)}"
    return f"{which} ran once: the scatter of its figures is unknown (repeats: 3 in the job file)."
