"""`hpcncf tune`: find the best configuration of a job file or a program within a budget."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hpcncf.cli.output import Retired, format_path, print_json, table_layout, warn
from hpcncf.cli.plan import missing_programs, warn_of_job
from hpcncf.cli.submit import warn_of_launch
from hpcncf.errors import UsageError
from hpcncf.text import pluralize
from hpcncf.worker.__main__ import add_setting_argument

if TYPE_CHECKING:
    from hpcncf.tune.job_file import JobFile
    from hpcncf.tune.outcome import Outcome, ProgramRequest
    from hpcncf.tune.program import Programs
    from hpcncf.tune.tuning import Now, Tuning

EPILOG = """\
A program is tried for some seconds with other cores, threads, workers and remedies. Its losses
must stay the same. The call ends with what to ask for and what to change.
Of a job file, each call submits the next runs; repeat it, or use --wait, until the best is found.
Runs lie in results/<name>-tune. Exit code 3: not finished, or the budget is spent.
example: hpcncf tune -- python train.py
example: hpcncf tune jobs/engines.yaml --budget 0.5 --wait
"""
DEFAULT_BUDGET: Final = 0.5
OBJECTIVES: Final = {
    "knee": "the fastest whose epoch costs at most 1.4 times the cheapest's, as the report advises",
    "fastest": "the fewest seconds for an epoch",
    "cheapest": "the fewest core-hours for an epoch",
}
# Rounds of the same runs sent again: then something is wrong that sending does not mend.
IN_VAIN: Final = 3
# Two digits of a budget may be less than it.
ROUNDED_UP: Final = 1.05
MOST_ROWS: Final = 30
SHOWN: Final = ("fate", "error", "memory_mib", "cores_used", "core_hours", "hr10")


def positive(text: str) -> float:
    """Parse a command-line number above 0."""
    with contextlib.suppress(ValueError):
        if 0 < float(text) < 1e9:
            return float(text)
    raise argparse.ArgumentTypeError(f"expected a number above 0, came {text}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("job", nargs="+", metavar="JOB.yaml | -- COMMAND", help="a job file, or a program")
    add_setting_argument(parser, "override a setting, as in -s training.epochs=1; may be repeated")
    add(
        "--budget",
        type=positive,
        metavar="CORE_HOURS",
        help="what all of its runs may cost together (default of a program: 0.5)",
    )
    add("--cores", type=int, metavar="N", help="most cores of a program (default: the usable ones)")
    add("--mem-gb", type=positive, default=8.0, help="memory of a program's trials under Slurm")
    add("--site", help="site file for a program's trials under Slurm")
    add(
        "--objective",
        choices=list(OBJECTIVES),
        default="knee",
        help="at held quality; "
        + "; ".join(f"{name}: {meaning}" for name, meaning in OBJECTIVES.items()),
    )
    add("--wait", action="store_true", help="go on until the best is known")
    add(
        "--cluster",
        choices=["auto", "local", "slurm"],
        default="auto",
        help="auto: slurm if sbatch is installed, else local (default)",
    )
    add("--results", type=Path, metavar="DIR", help="default: results/<the job's name>-tune")
    add("--json", action="store_true", help="print JSON instead of sentences")
    instead = "Points with and without GPUs are tuned apart: -s grid.resources.gpus_per_node=[1]"
    add("--gpu-hour", action=Retired, const=instead)


def run(args: argparse.Namespace) -> int:
    from hpcncf.tune.tuning import find_study, read_state, send

    args.program = len(args.job) > 1 or not args.job[0].endswith((".yaml", ".yml"))
    asked: Tuning = _program(args) if args.program else _job_file(args)
    in_vain = 0
    while True:
        tuning, changed = find_study(asked)
        if changed:
            there = format_path(tuning.paths.folder)
            _show(args, f"{', '.join(changed)} changed: new trials in {there}; earlier ones stay")
        now = read_state(tuning)
        if now.step.kind == "done":
            return _end(args, now)
        if now.step.kind == "send":
            _show(args, _sending(now))
            launched = send(now)
            warn_of_launch(launched)
            in_vain = 0 if now.step.asks else in_vain + 1
            if not launched.runs or in_vain > IN_VAIN:
                warn(
                    "these runs are not taken, or end without a record: see hpcncf status, then "
                    "call again"
                )
                return _later(args, now)
        else:
            under_way = sum(trial.fate == "under way" for trial in now.known.trials)
            _show(args, f"{now.step.why}: {pluralize(under_way, 'run')}")
        if not args.wait and not args.program:
            return _later(args, now)
        _wait(args, now)


def _job_file(args: argparse.Namespace) -> JobFile:
    from hpcncf.launch.submit import choose_cluster, limits_of
    from hpcncf.paths import ResultPaths
    from hpcncf.tune.job_file import JobFile, grid_of, job_of

    if not args.budget:
        raise UsageError("tune: --budget CORE_HOURS is required for a job file")
    cluster = choose_cluster(args.cluster)
    job = job_of(Path(args.job[0]), args.settings)
    warn_of_job(job)
    limits = limits_of(job, cluster)
    paths = ResultPaths((args.results or Path("results") / job.name).resolve())
    grid = grid_of(job, cluster, limits)
    warn(*(f"left out: {line}" for line in grid.left_out))
    return JobFile(paths, grid, args.objective, args.budget, cluster, limits)


def _program(args: argparse.Namespace) -> Programs:
    from hpcncf.launch.submit import choose_cluster
    from hpcncf.monitor.cgroup import usable
    from hpcncf.tune.program import build_tuning

    if args.settings:
        raise UsageError("tune: -s changes a job file, and this is a program")
    cluster, most = choose_cluster(args.cluster), int(usable())
    if args.cores is None and cluster == "slurm":
        raise UsageError(
            "tune: trials run under Slurm, for sbatch is installed: give --cores N, the most cores "
            "of a trial; or --cluster local for trials on this machine"
        )
    cores = args.cores or most
    if cores < 1 or (cluster == "local" and cores > most):
        raise UsageError(f"tune: --cores {cores}: expected 1 to {most}")
    budget = args.budget or DEFAULT_BUDGET
    tuning = build_tuning(
        args.job, args.results, cores, budget, args.objective, cluster, args.site, args.mem_gb
    )
    missing = missing_programs([tuning.unchanged_run()])
    if missing and cluster == "local":
        raise UsageError("\n".join(f"tune: {line}" for line in missing))
    warn(*missing)  # compute nodes, or the site's container, may have it
    return tuning


def _show(args: argparse.Namespace, text: str) -> None:
    """Print a progress message: to standard error with JSON or a program, else to output."""
    print(text, file=sys.stderr if args.json or args.program else sys.stdout, flush=True)


def _sending(now: Now) -> str:
    number = len(now.step.asks) + sum(trial.fate == "open" for trial in now.known.trials)
    price = "" if now.step_core_h is None else f", about {now.step_core_h:.2g} core-hours"
    return (
        f"{now.step.why}: {pluralize(number, 'run')}{price} "
        f"({now.known.spent_h:.2g} of {now.tuning.core_hours:g} spent)"
    )


def _wait(args: argparse.Namespace, now: Now) -> None:
    """Wait for all runs of the tuning that are under way, whichever call submitted them."""
    from hpcncf.cli.wait import wait
    from hpcncf.records.plan_file import read_plan
    from hpcncf.state import status

    paths = now.tuning.paths
    states = status.states(paths, read_plan(paths))
    asked = [state.run.id for state in states if state.state in status.UNDER_WAY]
    wait(paths, asked, quiet=args.json or args.program)


def _later(args: argparse.Namespace, now: Now) -> int:
    if args.json:
        print_json("tune", _plain(now))
        return 3
    again = shlex.join(["hpcncf", *args.words])
    there = format_path(now.tuning.paths.folder)
    print(f"look with: hpcncf status {there}\nwhen they have ended, go on: {again}")
    return 3


def _end(args: argparse.Namespace, now: Now) -> int:
    from hpcncf.tune.outcome import find_outcome

    found = find_outcome(now)
    if found and found.job_yaml:
        from hpcncf.files import write_text
        from hpcncf.records.plan_file import writing

        with writing(now.tuning.paths.folder):
            write_text(now.tuning.paths.best, found.job_yaml)
    if args.json:
        print_json("tune", _plain(now, found))
    else:
        there = format_path(now.tuning.paths.folder)
        lines = _lines(now, found, args.job) if found else _lines_of_none(now)
        print(*lines, _spent(now), f"every run: hpcncf report {there}", sep="\n")
    if found is None:
        return 1  # no point could be measured: calling again changes nothing
    return 0 if now.step.verified and not now.step.why else 3


def _plain(now: Now, found: Outcome | None = None) -> dict[str, Any]:
    """Plain data of the tuning for `--json`, without the losses of a program's steps."""
    from hpcncf.tune.outcome import left_out

    tuning, known = now.tuning, now.known
    labels = {point.index: point.label for point in known.points}
    plain = {
        "results": str(tuning.paths.folder),
        "step": now.step.kind,
        "why": now.step.why,
        "budget_core_hours": tuning.core_hours,
        "spent_core_hours": known.spent_h,
        "trials": [
            {
                "run_id": tuning.grid.run(trial.ask).id,
                "point": labels.get(trial.ask.point),
                "settings": tuning.grid.settings[trial.ask.point],
                **tuning.named(trial.ask.point),
                "steps": trial.ask.steps,
                "repeat": trial.ask.repeat,
                f"{tuning.work}_s": trial.epoch_s,
                **{name: getattr(trial, name) for name in SHOWN},
                "left_out": trial.reason or None,
            }
            for trial in known.trials
        ],
        "left_out": left_out(now),
        "best": None,
    }
    if found is None:
        return plain
    best, ratio, program = found.best, found.against_unchanged, found.program
    about = asdict(found)
    for name in ("best", "base", "against_unchanged", "job_yaml", "program"):
        del about[name]
    return plain | {
        "best": about
        | tuning.named(best.point.index)
        | {
            "point": best.point.label,
            f"{tuning.work}_s": best.epoch_s,
            "speedup": ratio and ratio.value,
            "verdict": ratio and ratio.verdict,
            "trials": best.runs,
            "trials_unchanged": found.base.runs if found.base else 0,
            "job_file": str(tuning.paths.best) if found.job_yaml else None,
            "mem_gb": program.mem_gb if program else None,
            "changes": program.changes if program else (),
            "left": program.costs if program else (),
        }
    }


def _spent(now: Now) -> str:
    points = now.tuning.grid.points
    return (
        f"spent: {now.known.spent_h:.3g} of {now.tuning.core_hours:g} core-hours on "
        f"{pluralize(len(now.known.trials), 'run')} of {pluralize(len(points), 'point')}"
        + "; hours of GPUs are not counted"
        * any(point.gpus for point in points)
    )


def _lines_of_none(now: Now) -> list[str]:
    from hpcncf.tune.outcome import left_out

    failed = [trial for trial in now.known.trials if trial.reason]
    runs = [now.tuning.grid.run(trial.ask).id for trial in failed[:1]]
    again = f"hpcncf retry {format_path(now.tuning.paths.folder)} --wait"
    return [
        f"not measured: {now.step.why}",
        *(f"out: {line}" for line in left_out(now)),
        *(f"its output: hpcncf logs {run}" for run in runs),
        f"once mended, try again: {again}",
    ]


def _lines(now: Now, found: Outcome, command: Sequence[str]) -> list[str]:
    """Describe the outcome: the table, the best point, how sure that is, and what to ask for."""
    lines = [*_table(now, found), *_headline(now, found), *_doubts(found)]
    if found.unseen:
        of = f"{len(found.unseen)} of {len(now.known.points)} points"
        lines.append(f"not measured, for the budget had no room: {of}, as {found.unseen[0]}")
    if found.job_yaml:
        lines.append(f"go on with: hpcncf submit {format_path(now.tuning.paths.best)}")
    elif found.program:
        lines += _request(found.program, command)
    lines += [f"not finished: {now.step.why}"] if now.step.why else []
    if found.enough_core_h:
        lines.append(
            f"to go on, call it again with --budget {ROUNDED_UP * found.enough_core_h:.2g} or "
            "more: a look at every point and whole runs of the best would take that in all"
        )
    return lines


def _table(now: Now, found: Outcome) -> list[str]:
    """Lay out the measured points, the fastest first, and the points that cannot win."""
    from hpcncf.tune.outcome import left_out

    known, base, work = now.known, found.base, now.tuning.work
    unit, scale = ("ms", 1000.0) if work == "step" else ("s", 1.0)
    figures = sorted(known.figures.values(), key=lambda one: one.epoch_s)
    rows = []
    for one in figures[:MOST_ROWS]:
        own = [trial for trial in known.trials_of(one.point.index) if trial.epoch_s]
        used = [trial.cores_used for trial in own if trial.cores_used is not None]
        memory = [trial.memory_mib for trial in own if trial.memory_mib is not None]
        rows.append(
            [
                one.point.label,
                _digits(one.epoch_s * scale),
                f"{_digits(one.low * scale)}-{_digits(one.high * scale)}",
                _digits(one.price * scale),
                *([f"{base.epoch_s / one.epoch_s:.2f}x"] if base else []),
                f"{used[0]:.2f}" if used else "",
                f"{max(memory):,.0f}" if memory else "",
                f"{one.runs}{'' if one.whole else ' (cut)'}",
            ]
        )
    holder = "GPU" if found.best.point.gpus else "core"
    heads = ["point", f"{unit}/{work}", "interval", f"{holder}-{unit}/{work}"]
    heads += [*(["speed"] if base else []), "cores used", "MiB", "runs"]
    hidden = len(figures) - len(rows)
    return [
        table_layout(heads, rows),
        *([f"and {hidden} more, slower ones"] if hidden else []),
        *(f"out: {line}" for line in left_out(now)),
        "",
    ]


def _headline(now: Now, found: Outcome) -> list[str]:
    """Name the best point, its gain over the unchanged program, and how sure that is."""
    from hpcncf.tune.program import MIN_GAIN

    best, base, ratio, gain = found.best, found.base, found.against_unchanged, ""
    unfinished = bool(now.step.why)
    if base and ratio and best.point.values:
        cores = f" with {base.point.cores} cores" * (base.point.cores > 1)
        gain = f", {ratio.value:.2f} times as fast as unchanged{cores}"
    elif found.program and not unfinished and not found.unsettled:
        gain = f": no remedy is known to make it {100 * (MIN_GAIN - 1):.0f} % faster"
    runs, notes = f"  trials: {best.runs}", list[str]()
    if not found.verified:
        notes.append("NOT verified: it did not run as the job file has it, nor was it evaluated")
    elif found.hr10 is not None:
        notes.append(f"verified: it ran as the job file has it, HR@10 {found.hr10:.3f}")
    elif base and ratio and base is not best:
        runs += f" ({base.point.label}: {base.runs})"
        notes.append(str(ratio.verdict))
    notes += ["the search is not finished"] if unfinished else []
    head = f"{now.tuning.objective}{', so far' * unfinished}: {best.point.label}{gain}"
    return [head, f"{runs}; {'; '.join(notes)}"] if notes else [head]


def _doubts(found: Outcome) -> list[str]:
    lines = []
    if found.unsettled:
        lines.append(f"faster so far, but not settled: {'; '.join(found.unsettled)}")
    few = [label for label in found.left_open if found.verdicts[label] == "too few repeats"]
    alike = [label for label in found.left_open if label not in few]
    if alike:
        lines.append(f"no significant difference from: {'; '.join(alike)}")
    if few:
        lines.append(f"too few repeats to tell it from: {'; '.join(few)}")
    if found.disturbed:
        lines.append("neighbours used much of its cores: repeat on a quiet machine")
    if found.models:
        lines.append(
            f"its runs had different models of CPU or GPU ({'; '.join(found.models)}): which point "
            "is faster may be the machines' doing; ask for one model (the site file's constraint)"
        )
    return lines


def _request(request: ProgramRequest, command: Sequence[str]) -> list[str]:
    setup = request.setup
    remedies = f"hpcncf run --with {setup.remedies} -- " if setup.remedies else ""
    lines = [
        "",
        "#SBATCH --ntasks=1",
        f"#SBATCH --cpus-per-task={setup.cores}",
        f"#SBATCH --mem={request.mem_gb}G",
        f"srun {remedies}{shlex.join(command)}",
    ]
    if request.changes:
        lines += ["", "for good, in the program:", *(f"  {line}" for line in request.changes)]
    if request.costs:
        lines += ["", "what still costs time:", *(f"  {line}" for line in request.costs)]
    return lines


def _digits(value: float) -> str:
    """Format a value with three significant digits: `1,910` or `0.408`."""
    return f"{float(f'{value:.3g}'):,.12g}"
