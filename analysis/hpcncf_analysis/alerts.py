"""Reasons to doubt the figures of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pandas as pd

from hpcncf.monitor.memory_growth import USUALLY
from hpcncf_analysis.advice.request import memory_to_request_gb
from hpcncf_analysis.configurations import Configuration, pluralize
from hpcncf_analysis.formatting import format_cores, format_mebibytes, format_percent
from hpcncf_analysis.scaling import comparison_doubts

Row = Mapping[str, Any]

# A larger share of start-up than this says more about imports than about training.
MAX_STARTUP_SHARE: Final = 0.2
# Others on more than this share of a run's cores are worth a word.
MAX_OTHERS_SHARE: Final = 0.1


def find_alerts(runs: pd.DataFrame, shown: Sequence[Configuration]) -> list[str]:
    """`runs`: the completed ones; the gravest first."""
    if runs.empty:
        return []
    limits = (_usable, _over_allocation, _accounting, _memory, _memory_growth)
    checks = (*limits, _neighbours, _cpu_models, _mixed_code, _startup)
    alerts = [*(check(runs) for check in checks), *comparison_doubts(shown), _repeats(shown)]
    return [text for text in alerts if text]


def _count_above(runs: pd.DataFrame, share: pd.Series[float], limit: float) -> tuple[int, Any]:
    """How many runs' share is above the limit, and the run with the largest."""
    return int((share > limit).sum()), runs.iloc[int(share.fillna(0).argmax())]


def _usable(runs: pd.DataFrame) -> str | None:
    number, worst = _count_above(runs, 1 - runs["cores_usable"] / runs["cores_allocated"], 0)
    if not number:
        return None
    return (
        f"{pluralize(number, 'run')} could not use all allocated cores: run {worst['run_id']} "
        f"was allocated {worst['cores_allocated']:g} and could use {worst['cores_usable']:g}. "
        "CPU affinity or a cgroup limit held it back. From Slurm 22.05 to 23.02, an srun in a "
        "script of your own does not inherit --cpus-per-task: give it -c, as hpcncf does."
    )


def _over_allocation(runs: pd.DataFrame) -> str | None:
    number, most = _count_above(runs, runs["cpu_efficiency"], 1)
    if not number:
        return None
    return (
        f"{pluralize(number, 'run')} used more cores than allocated (CPU efficiency up to "
        f"{format_percent(most['cpu_efficiency'])}, run {most['run_id']}): nothing bound them."
    )


def _accounting(runs: pd.DataFrame) -> str | None:
    """Two who measured the same and differ: one of them is wrong."""
    differ = runs[runs["slurm_differs"].notna()]
    if differ.empty:
        return None
    first = differ.iloc[0]
    return (
        f"Slurm's accounting says otherwise in {pluralize(len(differ), 'run')}, as in run "
        f"{first['run_id']}: {first['slurm_differs']}."
    )


def _memory(runs: pd.DataFrame) -> str | None:
    number, most = _count_above(runs, runs["memory_efficiency"], 1)
    if not number:
        return None
    return (
        f"{pluralize(number, 'run')} used more memory than was asked for "
        f"({format_mebibytes(most['memory_peak_mib'])} of mem_gb: {most['mem_gb']:g}, run "
        f"{most['run_id']}): nothing held it to that here; where a scheduler does, it is killed. "
        f"Ask for mem_gb: {memory_to_request_gb([most]):g}."
    )


def _memory_growth(runs: pd.DataFrame) -> str | None:
    number, most = _count_above(runs, runs["memory_growth_mib"], 0)
    if not number:
        return None
    return (
        f"In {pluralize(number, 'run')} memory grew as long as it ran (by "
        f"{format_mebibytes(most['memory_growth_mib'])} in run {most['run_id']}): {USUALLY}."
    )


def is_disturbed(row: Row) -> bool:
    """Whether others were busy on more of the run's cores than a speed can bear."""
    others, allocated = row["others_cores"], row["cores_allocated"]
    return bool(others is not None and allocated and others / allocated > MAX_OTHERS_SHARE)


def _neighbours(runs: pd.DataFrame) -> str | None:
    """Whoever shares the cores slows the run and takes none of the blame."""
    number, worst = _count_above(
        runs, runs["others_cores"] / runs["cores_allocated"], MAX_OTHERS_SHARE
    )
    if not number:
        return None
    return (
        f"In {pluralize(number, 'run')} other processes were busy on the same cores "
        f"({format_cores(worst['others_cores'])} of "
        f"{pluralize(worst['cores_allocated'], 'core')} in "
        f"run {worst['run_id']}): speed and efficiency are lower than the runs' own doing. Repeat "
        "when the machine is quiet, or with exclusive: true."
    )


def _cpu_models(runs: pd.DataFrame) -> str | None:
    models = sorted(runs["cpu_model"].dropna().unique())
    if len(models) < 2:
        return None
    return f"The runs had different CPU models ({'; '.join(models)}): speeds do not compare."


def _mixed_code(runs: pd.DataFrame) -> str | None:
    """Different code among the runs, or older than what is installed now; not of commands."""
    runs = runs[runs["workload"] == "ncf"]
    commits = sorted({commit[:7] for commit in runs["commit"].dropna()})
    stale = runs["stale"].dropna()
    if len(commits) > 1:
        return f"The runs are of different code: commits {', '.join(commits)}."
    if len(stale):
        return f"{pluralize(len(stale), 'run')} may be out of date: {stale.iloc[0]}."
    return None


def _startup(runs: pd.DataFrame) -> str | None:
    most = (runs["startup_s"] / runs["elapsed_s"]).max()
    if not most > MAX_STARTUP_SHARE:
        return None
    return (
        f"Start-up takes up to {format_percent(most)} of a run's time, and CPU efficiency "
        "counts it; the column “in training” does not. More epochs make it matter less."
    )


def _repeats(shown: Sequence[Configuration]) -> str | None:
    single = sum(len(one.rows) == 1 and not one.by_hand for one in shown)
    if not single:
        return None
    which = "Every configuration" if single == len(shown) else f"{single} of {len(shown)}"
    return f"{which} ran once: the scatter of its figures is unknown (repeats: 3 in the job file)."
