"""`hpcncf tune -- python train.py`: what to ask for, and what to change in any program."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hpcncf.cli.output import format_path
from hpcncf.errors import UsageError

if TYPE_CHECKING:
    from hpcncf.tune.program import Advice, State, Tuning


def run(args: argparse.Namespace) -> int:
    from hpcncf.cli.wait import wait
    from hpcncf.launch.submit import choose_cluster, describe_refusals
    from hpcncf.monitor.cgroup import usable
    from hpcncf.tune import program

    if args.settings:
        raise UsageError("tune: -s changes a job file, and this is a program")
    cluster = choose_cluster(args.cluster)
    most = int(usable())
    if args.cores is None and cluster == "slurm":
        raise UsageError("tune: give --cores N, the most cores of a trial under Slurm")
    cores = args.cores or most
    if cores < 1 or (cluster == "local" and cores > most):
        raise UsageError(f"tune: --cores {cores}: expected 1 to {most}")
    tuning = program.build_tuning(
        args.job, args.results, cores, args.budget, args.objective, cluster, args.site, args.mem_gb
    )
    finished = True
    while True:
        state = program.judge(tuning, program.read_trials(tuning))
        wanted = program.next_round(state)
        if wanted is None:
            break
        fits = program.fitting(state, wanted)
        if fits is None:
            finished = False
            break
        labels = [setup.label for setup, _ in fits.wanted]
        _show(f"{fits.why}: {'; '.join(dict.fromkeys(labels))}")
        launched = program.send(tuning, fits)
        refused = {each.run.id: each.reason for each in launched.left_out("refused")}
        for line in [*describe_refusals(refused), *launched.notes]:
            _show(f"hpcncf: {line}")
        wait(tuning.paths, [one.id for one in launched.runs], quiet=True)
        if len(program.read_trials(tuning)) == len(state.seen):
            _show(f"hpcncf: these trials left no record: hpcncf status {tuning.paths.folder}")
            finished = False
            break
    return _end(args, state, program.advise(state), finished)


def _show(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _end(args: argparse.Namespace, state: State, advice: Advice | None, finished: bool) -> int:
    if args.json:
        print(json.dumps(_plain(state, advice), indent=2))
    else:
        print("\n".join([*table(state), "", *sentences(state.tuning, args.job, advice)]))
        spent = f"{state.spent_core_h:.2g} of {state.tuning.core_hours:g} core-hours"
        print(f"spent: {spent} on {len(state.seen)} trials{'' if finished else '; not finished'}")
        print(f"every trial: hpcncf report {format_path(state.tuning.paths.folder)}")
    if advice is None:
        return 1
    return 0 if finished else 3


def table(state: State) -> list[str]:
    """Each setup: milliseconds of a step, their interval, gain, cores used, memory."""
    from hpcncf.tune.program import Setup

    base = state.figure(Setup(state.tuning.cores))
    rows = [["setup", "ms/step", "interval", "speed", "cores used", "MiB", "trials"]]
    ranked = sorted(state.figures.values(), key=lambda one: one.epoch_s)
    for one in ranked:
        own = state.of(state.setups[one.point.index])
        used = [each.used for each in own if each.used is not None]
        rows.append(
            [
                one.point.label,
                f"{1000 * one.epoch_s:.3g}",
                f"{1000 * one.low:.3g}-{1000 * one.high:.3g}",
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
    return text + [f"out: {setup.label}: {why}" for setup, why in state.left_out.items()]


def sentences(tuning: Tuning, command: Sequence[str], advice: Advice | None) -> list[str]:
    if advice is None:
        return ["no trial could be measured"]
    setup, words = advice.setup, shlex.join(command)
    gain = "" if advice.speedup is None else f", {advice.speedup:.2f} times as fast as unchanged "
    gain += f"with {tuning.cores} cores" if gain and tuning.cores > 1 else ""
    lines = [f"{tuning.objective}: {setup.label}{gain.rstrip()}"]
    with_ = f" --with {setup.remedies}" if setup.remedies else ""
    lines += [
        "",
        "#SBATCH --ntasks=1",
        f"#SBATCH --cpus-per-task={setup.cores}",
        f"#SBATCH --mem={advice.mem_gb}G",
        f"srun hpcncf run{with_} -- {words}",
    ]
    if advice.changes:
        lines += ["", "for good, in the program:", *(f"  {line}" for line in advice.changes)]
    return lines


def _plain(state: State, advice: Advice | None) -> dict[str, Any]:
    """Without losses, which stay in the trials' own files."""
    trials = [
        {
            "run_id": each.run_id,
            "cores": each.setup.cores,
            "with": str(each.setup.remedies),
            "repeat": each.repeat,
            "step_s": each.step_s,
            "error": each.error,
            "memory_mib": each.memory_mib,
            "cores_used": each.used,
            "left_out": state.left_out.get(each.setup),
        }
        for each in state.seen
    ]
    best = None
    if advice is not None:
        best = {
            "cores": advice.setup.cores,
            "with": str(advice.setup.remedies),
            "step_s": advice.figure.epoch_s,
            "speedup": advice.speedup,
            "mem_gb": advice.mem_gb,
            "changes": list(advice.changes),
            "settings": advice.setup.settings,
        }
    return {
        "results": str(state.tuning.paths.folder),
        "budget_core_hours": state.tuning.core_hours,
        "spent_core_hours": state.spent_core_h,
        "trials": trials,
        "best": best,
    }
