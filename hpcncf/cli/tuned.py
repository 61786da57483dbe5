"""What `hpcncf tune` says at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpcncf.cli import layout

if TYPE_CHECKING:
    from hpcncf.tune.going import Going, Now
    from hpcncf.tune.outcome import Outcome, Worse


# Two digits of a budget may be less than it.
ROUNDED_UP: Final = 1.05


def sentences(tuning: Going, now: Now, found: Outcome | None) -> str:
    if found is None:
        reasons = [f"  {trial.reason}" for trial in now.trials if trial.reason]
        return "\n".join([f"{now.step.why} ({_spent(tuning, now)})", *dict.fromkeys(reasons)])
    lines = [_best(tuning, found), *_beside(found), *_short(tuning, now, found)]
    return "\n".join([*lines, _spent(tuning, now), *_whole_grid(found, now), *_next(tuning, found)])


def _best(tuning: Going, found: Outcome) -> str:
    best = found.best
    costs = [f"{best.point.cores * best.epoch_s:.3g} core-s/epoch"]
    costs += [f"{best.point.gpus * best.epoch_s:.3g} GPU-s/epoch"] * (best.point.gpus > 0)
    over = f" over {best.runs} runs" if best.runs > 1 else ""
    spread = f" [{best.low:.3g}-{best.high:.3g}{over}]" if best.runs > 1 else ""
    quality = "" if found.hr10 is None else f", HR@10 {found.hr10:.3f}"
    lines = [
        f"{tuning.objective}: {best.point.label}",
        f"  {best.epoch_s:.3g} s/epoch{spread}, {', '.join(costs)}{quality}",
    ]
    if found.verified and found.glimpsed_s:
        apart = best.epoch_s / found.glimpsed_s - 1
        lines.append(
            f"  verified: it ran as the job file has it, {apart:+.0%} against what its longest cut "
            "run told"
        )
    elif found.verified:
        lines.append("  verified: it ran as the job file has it")
    else:
        lines.append("  NOT verified: it did not run as the job file has it, nor was it evaluated")
    return "\n".join(lines)


def _beside(found: Outcome) -> list[str]:
    told = []
    if found.runner_up:
        label, epoch_s = found.runner_up
        longer = epoch_s / found.best.epoch_s
        told.append(f"second: {label}, whose epoch takes {longer:.2f} times as long")
    if found.disturbed:
        told.append("neighbours used much of its cores: repeat on a quiet machine")
    if found.models:
        told.append(
            f"its runs had different models of CPU or GPU ({'; '.join(found.models)}): which point "
            "is faster may be the machines' doing; ask for one model (the site file's constraint)"
        )
    if found.left_open:
        told.append(f"not told apart from: {'; '.join(found.left_open)}")
    told += [_worse(each) for each in found.unsound]
    return told + [f"not measured: {line}" for line in found.failed]


def _short(tuning: Going, now: Now, found: Outcome) -> list[str]:
    """What the budget was too small for, and which would do."""
    told = []
    if found.unseen:
        of = f"{len(found.unseen)} of {len(tuning.grid.points)} points"
        told.append(f"not measured, for the budget had no room: {of}, as {found.unseen[0]}")
    told += [now.step.why] if now.step.why else []
    if found.enough_core_h:
        told.append(
            f"to go on, call it again with --budget {ROUNDED_UP * found.enough_core_h:.2g} or "
            "more: a look at every point and whole runs of the best would take that in all"
        )
    return told


def _worse(left: Worse) -> str:
    more = f", and {left.points - 1} more that train the same model" if left.points > 1 else ""
    score = "" if left.hr10 is None else f" (HR@10 {left.hr10:.3f})"
    return f"left out for its quality{score}: {left.label}{more}"


def _spent(tuning: Going, now: Now) -> str:
    number = len(now.trials)
    return (
        f"spent: {now.spent_core_h:.3g} of {tuning.core_hours:g} core-hours on {number} "
        f"run{'s' * (number != 1)} of {len(tuning.grid.points)} points{_gpus(tuning)}"
    )


def _gpus(tuning: Going) -> str:
    if not tuning.has_gpus:
        return ""
    if not tuning.gpu_hour:
        return "; hours of its GPUs are not counted (--gpu-hour)"
    return f"; an hour of a GPU counts as {tuning.gpu_hour:g} core-hours"


def _whole_grid(found: Outcome, now: Now) -> list[str]:
    if not found.grid_core_h:
        return []
    share = now.spent_core_h / found.grid_core_h
    return [
        f"each point once, whole, would cost about {found.grid_core_h:.3g} core-hours; this tuning "
        f"spent {share:.0%} of that"
    ]


def _next(tuning: Going, found: Outcome) -> list[str]:
    there = layout.shown(tuning.paths.folder)
    told = [f"every run of it: hpcncf report {there}"]
    if found.advice:
        file = layout.shown(tuning.paths.best)
        told = [f"go on with: hpcncf submit {file}", *told]
    return told
