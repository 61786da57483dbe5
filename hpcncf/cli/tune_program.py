"""`hpcncf tune -- python train.py`: what to ask for, and what to change in any program."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING, Any

from hpcncf.cli.output import format_path
from hpcncf.errors import UsageError, plural

if TYPE_CHECKING:
    from hpcncf.records.submissions import Cluster
    from hpcncf.tune.program import Advice, Programs, Tried
    from hpcncf.tune.tuning import Now

DEFAULT_BUDGET = 0.5


def build(args: argparse.Namespace, cluster: Cluster) -> Programs:
    from hpcncf.monitor.cgroup import usable
    from hpcncf.tune.program import build_tuning

    if args.settings:
        raise UsageError("tune: -s changes a job file, and this is a program")
    most = int(usable())
    if args.cores is None and cluster == "slurm":
        raise UsageError(
            "tune: give --cores N, the most cores of a trial under Slurm; or --cluster local for "
            "trials on this machine"
        )
    cores = args.cores or most
    if cores < 1 or (cluster == "local" and cores > most):
        raise UsageError(f"tune: --cores {cores}: expected 1 to {most}")
    budget = args.budget = args.budget or DEFAULT_BUDGET
    return build_tuning(
        args.job, args.results, cores, budget, args.objective, cluster, args.site, args.mem_gb
    )


def outcome(args: argparse.Namespace, now: Now) -> tuple[dict[str, Any], str]:
    """As JSON, and in words."""
    from hpcncf.tune.program import Programs, Tried, advise

    assert isinstance(now.tuning, Programs)
    tried = Tried(now.tuning, now.known)
    advice = None if now.step.chosen is None else advise(tried, now.step.chosen)
    spent = f"{now.spent_core_h:.2g} of {now.tuning.core_hours:g} core-hours"
    lines = [
        *(table(tried) if advice else []),
        *([""] if advice else []),
        *([] if advice is None else sentences(tried, args, advice)),
        *([f"{'not finished' if advice else 'not measured'}: {now.step.why}"] * bool(now.step.why)),
        f"spent: {spent} on {plural(len(now.trials), 'trial')}",
        f"every trial: hpcncf report {format_path(now.tuning.paths.folder)}",
    ]
    return {"best": _plain(advice)}, "\n".join(lines)


def plain_trials(now: Now) -> list[dict[str, Any]]:
    """Without losses, which stay in the trials' own files."""
    return [
        {
            "run_id": now.tuning.grid.run(one.ask).id,
            "cores": setup.cores,
            "with": str(setup.remedies),
            "repeat": one.ask.repeat,
            "step_s": one.epoch_s,
            "error": one.error,
            "memory_mib": getattr(one, "memory_mib", None),
            "cores_used": getattr(one, "used", None),
            "left_out": one.reason or None,
        }
        for one in now.trials
        for setup in [now.tuning.setups[one.ask.point]]  # type: ignore[attr-defined]
    ]


def table(tried: Tried) -> list[str]:
    """Each setup: milliseconds of a step, their interval, gain, cores used, memory."""
    from hpcncf.tune.program import Setup

    base = tried.figure(Setup(tried.tuning.cores))
    rows = [["setup", "ms/step", "interval", "speed", "cores used", "MiB", "trials"]]
    for one in sorted(tried.known.of.values(), key=lambda one: one.epoch_s):
        own = tried.of(tried.tuning.setups[one.point.index])
        used = [each.used for each in own if each.used is not None]
        rows.append(
            [
                one.point.label,
                _in_ms(one.epoch_s),
                f"{_in_ms(one.low)}-{_in_ms(one.high)}",
                f"{base.epoch_s / one.epoch_s:.2f}x" if base else "",
                f"{used[0]:.2f}" if used else "",
                f"{max(each.memory_mib for each in own):,.0f}",
                f"{len(own)}",
            ]
        )
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    text = [
        "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    points = tried.known.points
    failed = {each.ask.point: each.reason for each in tried.known.trials if each.fate == "failed"}
    out = [f"out: {points[at].label}: {why}" for at, why in failed.items()]
    return text + out


def sentences(tried: Tried, args: argparse.Namespace, advice: Advice) -> list[str]:
    setup, words = advice.setup, shlex.join(args.job)
    gain = ""
    if not setup.remedies:
        gain = ": no remedy is known to make it faster"
    elif advice.speedup is not None:
        gain = f", {advice.speedup:.2f} times as fast as unchanged"
        gain += f" with {tried.tuning.cores} cores" if tried.tuning.cores > 1 else ""
    lines = [f"{args.objective}: {setup.label}{gain}"]
    if advice.left_open:
        lines.append(f"no significant difference from: {'; '.join(advice.left_open)}")
    if advice.disturbed:
        lines.append("neighbours used much of its cores: repeat on a quiet machine")
    with_ = f"hpcncf run --with {setup.remedies} -- " if setup.remedies else ""
    lines += [
        "",
        "#SBATCH --ntasks=1",
        f"#SBATCH --cpus-per-task={setup.cores}",
        f"#SBATCH --mem={advice.mem_gb}G",
        f"srun {with_}{words}",
    ]
    if advice.changes:
        lines += ["", "for good, in the program:", *(f"  {line}" for line in advice.changes)]
    if advice.left:
        lines += ["", "what still costs time:", *(f"  {line}" for line in advice.left)]
    return lines


def _plain(advice: Advice | None) -> dict[str, Any] | None:
    if advice is None:
        return None
    return {
        "cores": advice.setup.cores,
        "with": str(advice.setup.remedies),
        "step_s": advice.figure.epoch_s,
        "speedup": advice.speedup,
        "mem_gb": advice.mem_gb,
        "changes": list(advice.changes),
        "left": list(advice.left),
        "left_open": list(advice.left_open),
        "disturbed": advice.disturbed,
        "settings": advice.setup.settings,
    }


def _in_ms(seconds: float) -> str:
    """With three digits, as `1,910` and `0.408`."""
    return f"{float(f'{1000 * seconds:.3g}'):,.12g}"
