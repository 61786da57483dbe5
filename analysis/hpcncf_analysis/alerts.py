"""What a reader must know before the figures: anything that makes them worth less. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from hpcncf_analysis import words
from hpcncf_analysis.summary import Configuration, counted

Row = Mapping[str, Any]

# A larger share of start-up than this says more about imports than about training.
STARTUP: Final = 0.2
# Others on more than this share of a run's cores are worth a word.
OTHERS: Final = 0.1


def alerts(runs: Sequence[Row], shown: Sequence[Configuration]) -> list[str]:
    """`runs`: the completed ones; the gravest first."""
    checks: list[Callable[[Sequence[Row], Sequence[Configuration]], str | None]] = [
        _usable,
        _above_one,
        _others,
        _cpu_models,
        _code,
        _startup,
        _repeats,
    ]
    return [text for check in checks if (text := check(runs, shown))]


def _usable(runs: Sequence[Row], _: Sequence[Configuration]) -> str | None:
    short = [
        row
        for row in runs
        if row["cores_usable"] is not None and row["cores_usable"] < row["cores_allocated"]
    ]
    if not short:
        return None
    worst = min(short, key=lambda row: row["cores_usable"] / row["cores_allocated"])
    return (
        f"{counted(len(short), 'run')} could not use all allocated cores: run {worst['run_id']} "
        f"was allocated {worst['cores_allocated']:g} and could use {worst['cores_usable']:g}. "
        "CPU affinity or a cgroup limit held it back. Under Slurm 22.05 to 23.02, srun does not "
        "inherit --cpus-per-task: set SRUN_CPUS_PER_TASK."
    )


def _above_one(runs: Sequence[Row], _: Sequence[Configuration]) -> str | None:
    above = [row for row in runs if (row["cpu_efficiency"] or 0) > 1]
    if not above:
        return None
    most = max(above, key=lambda row: row["cpu_efficiency"])
    return (
        f"{counted(len(above), 'run')} used more cores than allocated (CPU efficiency up to "
        f"{words.percent(most['cpu_efficiency'])}, run {most['run_id']}): nothing bound them."
    )


def _cpu_models(runs: Sequence[Row], _: Sequence[Configuration]) -> str | None:
    models = sorted({row["cpu_model"] for row in runs if row["cpu_model"]})
    if len(models) < 2:
        return None
    return f"The runs had different CPU models ({'; '.join(models)}): speeds do not compare."


def _code(runs: Sequence[Row], _: Sequence[Configuration]) -> str | None:
    """Different code among the runs, or older than what is installed now."""
    commits = sorted({row["commit"][:7] for row in runs if row["commit"]})
    stale = [row["stale"] for row in runs if row["stale"] and row["workload"] != "command"]
    if len(commits) > 1:
        return f"The runs are of different code: commits {', '.join(commits)}."
    if stale:
        return f"{counted(len(stale), 'run')} may be out of date: {stale[0]}."
    return None


def _others(runs: Sequence[Row], _: Sequence[Configuration]) -> str | None:
    """Whoever shares the cores slows the run and takes none of the blame."""
    disturbed = [
        row for row in runs if (row["others_cores"] or 0) > OTHERS * row["cores_allocated"]
    ]
    if not disturbed:
        return None
    worst = max(disturbed, key=lambda row: row["others_cores"] / row["cores_allocated"])
    return (
        f"In {counted(len(disturbed), 'run')} other processes were busy on the same cores "
        f"({words.cores(worst['others_cores'])} of {worst['cores_allocated']:g} cores in run "
        f"{worst['run_id']}): speed and efficiency are lower than the runs' own doing. Repeat "
        "when the machine is quiet, or with exclusive: true."
    )


def _startup(runs: Sequence[Row], _: Sequence[Configuration]) -> str | None:
    shares = [row["startup_s"] / row["elapsed_s"] for row in runs if row["startup_s"]]
    if not shares or max(shares) <= STARTUP:
        return None
    return (
        f"Start-up takes up to {words.percent(max(shares))} of a run's time, and CPU efficiency "
        "counts it; the column “in training” does not. More epochs make it matter less."
    )


def _repeats(_: Sequence[Row], shown: Sequence[Configuration]) -> str | None:
    single = sum(len(one.rows) == 1 and not one.is_command for one in shown)
    if not single:
        return None
    which = "Every configuration" if single == len(shown) else f"{single} of {len(shown)}"
    return (
        f"{which} ran once: no interval tells how far its figures scatter "
        "(repeats: 3 in the job file)."
    )
