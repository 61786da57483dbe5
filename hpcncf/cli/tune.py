"""`hpcncf tune`: find the best configuration of a job file or a program within a budget."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
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
    from hpcncf.tune.outcome import Outcome, ProgramOutcome
    from hpcncf.tune.program import Programs, Tried
    from hpcncf.tune.search import Figure, Trial
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
    from hpcncf.tune.tuning import read_state, send

    args.program = len(args.job) > 1 or not args.job[0].endswith((".yaml", ".yml"))
    asked: Tuning = _program(args) if args.program else _job_file(args)
    in_vain = 0
    while True:
        now = read_state(_of_present_files(args, asked))
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


def _of_present_files(args: argparse.Namespace, asked: Tuning) -> Tuning:
    from hpcncf.tune.program import Programs, of_present_files

    if not isinstance(asked, Programs):
        return asked
    tuning, changed = of_present_files(asked)
    if changed:
        there = format_path(tuning.paths.folder)
        _show(args, f"{', '.join(changed)} changed: new trials in {there}, the earlier ones stay")
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
        print_json(_plain(now))
        return 3
    again = shlex.join(["hpcncf", *args.words])
    there = format_path(now.tuning.paths.folder)
    print(f"look with: hpcncf status {there}\nwhen they have ended, go on: {again}")
    return 3


def _end(args: argparse.Namespace, now: Now) -> int:
    from hpcncf.tune.job_file import JobFile
    from hpcncf.tune.program import Programs

    if isinstance(now.tuning, JobFile):
        plain, lines = _job_file_outcome(now.tuning, now)
    else:
        assert isinstance(now.tuning, Programs)
        plain, lines = _program_outcome(now.tuning, now, args.job)
    there = format_path(now.tuning.paths.folder)
    lines = [*lines, _spent(now), f"every run: hpcncf report {there}"]
    if args.json:
        print_json(_plain(now) | plain)
    else:
        print("\n".join(lines))
    if now.step.chosen is None:
        return 1  # no point could be measured: calling again changes nothing
    return 0 if now.step.verified and not now.step.why else 3


def _plain(now: Now) -> dict[str, Any]:
    from hpcncf.tune.program import Programs

    tuning, known = now.tuning, now.known
    of_program = isinstance(tuning, Programs)
    trials = [
        {"run_id": tuning.grid.run(trial.ask).id}
        | (_plain_trial(tuning, trial) if isinstance(tuning, Programs) else asdict(trial))
        for trial in known.trials
    ]
    return {
        "results": str(tuning.paths.folder),
        "step": now.step.kind,
        "why": now.step.why,
        "budget_core_hours": tuning.core_hours,
        "spent_core_hours": known.spent_h,
        "trials" if of_program else "runs": trials,
    }


def _plain_trial(tuning: Programs, trial: Trial) -> dict[str, Any]:
    """Plain data of a program's trial for `--json`, without the losses of its steps."""
    setup = tuning.setups[trial.ask.point]
    return {
        "cores": setup.cores,
        "with": str(setup.remedies),
        "repeat": trial.ask.repeat,
        "step_s": trial.epoch_s,
        "error": trial.error,
        "memory_mib": getattr(trial, "memory_mib", None),
        "cores_used": getattr(trial, "used", None),
        "left_out": trial.reason or None,
    }


def _spent(now: Now) -> str:
    points = now.tuning.grid.points
    return (
        f"spent: {now.known.spent_h:.3g} of {now.tuning.core_hours:g} core-hours on "
        f"{pluralize(len(now.known.trials), 'run')} of {pluralize(len(points), 'point')}"
        + "; hours of GPUs are not counted"
        * any(point.gpus for point in points)
    )


def _table(now: Now, heads: Sequence[str], cells: Callable[[Figure], Sequence[str]]) -> list[str]:
    """Lay out the measured points, the fastest first, and the points that cannot win.

    `heads` are the columns' titles; `cells` gives the values of a figure after its label.
    """
    from hpcncf.tune.outcome import left_out

    figures = sorted(now.known.figures.values(), key=lambda one: one.epoch_s)
    rows = [[one.point.label, *cells(one)] for one in figures[:MOST_ROWS]]
    hidden = len(figures) - len(rows)
    return [
        table_layout(heads, rows),
        *([f"and {hidden} more, slower ones"] if hidden else []),
        *(f"out: {line}" for line in left_out(now)),
        "",
    ]


def _doubts(found: Outcome | ProgramOutcome) -> list[str]:
    lines = []
    few = [label for label in found.left_open if found.verdicts[label] == "too few repeats"]
    alike = [label for label in found.left_open if label not in few]
    if alike:
        lines.append(f"no significant difference from: {'; '.join(alike)}")
    if few:
        lines.append(f"too few repeats to tell it from: {'; '.join(few)}")
    if found.disturbed:
        lines.append("neighbours used much of its cores: repeat on a quiet machine")
    return lines


def _job_file_outcome(tuning: JobFile, now: Now) -> tuple[dict[str, Any], list[str]]:
    """Outcome of a job file's tuning as plain data for `--json` and as lines of text.

    It also writes the job file to go on with, if there is one.
    """
    from hpcncf.files import write_text
    from hpcncf.records.plan_file import writing
    from hpcncf.tune.outcome import find_outcome, left_out

    found = find_outcome(tuning, now)
    if found is None:
        return {}, [now.step.why, *(f"out: {line}" for line in left_out(now))]
    if found.advice:
        with writing(tuning.paths.folder):
            write_text(tuning.paths.best, found.advice.job_yaml)
    best = found.best
    kept = asdict(replace(found, advice=None))
    del kept["advice"]
    plain = kept | {
        "best": best.point.label,
        "settings": tuning.grid.settings[best.point.index],
        "epoch_s": best.epoch_s,
        "job_file": str(tuning.paths.best) if found.advice else None,
        "left_out": left_out(now),
    }
    cost = "GPU-s/epoch" if best.point.gpus else "core-s/epoch"
    lines = [
        *_table(
            now,
            ["point", "s/epoch", "interval", cost, "runs"],
            lambda one: [
                f"{one.epoch_s:.3g}",
                f"{one.low:.3g}-{one.high:.3g}",
                f"{one.price:.3g}",
                f"{one.runs}{'' if one.whole else ' (cut)'}",
            ],
        ),
        f"{tuning.objective}: {best.point.label}",
        "  verified: it ran as the job file has it"
        if found.verified
        else "  NOT verified: it did not run as the job file has it, nor was it evaluated",
        *([] if found.hr10 is None else [f"  HR@10 {found.hr10:.3f}"]),
        *_doubts(found),
    ]
    if found.models:
        lines.append(
            f"its runs had different models of CPU or GPU ({'; '.join(found.models)}): which point "
            "is faster may be the machines' doing; ask for one model (the site file's constraint)"
        )
    if found.unseen:
        of = f"{len(found.unseen)} of {len(now.known.points)} points"
        lines.append(f"not measured, for the budget had no room: {of}, as {found.unseen[0]}")
    lines += [now.step.why] if now.step.why else []
    if found.enough_core_h:
        lines.append(
            f"to go on, call it again with --budget {ROUNDED_UP * found.enough_core_h:.2g} or "
            "more: a look at every point and whole runs of the best would take that in all"
        )
    if found.advice:
        lines.append(f"go on with: hpcncf submit {format_path(tuning.paths.best)}")
    return plain, lines


def _program_outcome(
    tuning: Programs, now: Now, command: Sequence[str]
) -> tuple[dict[str, Any], list[str]]:
    """Outcome of a program's tuning as plain data for `--json` and as lines of text."""
    from hpcncf.tune.outcome import find_program_outcome
    from hpcncf.tune.program import MIN_GAIN, Tried

    found, tried = find_program_outcome(tuning, now), Tried(tuning, now.known)
    if found is None:
        again = f"hpcncf retry {format_path(tuning.paths.folder)} --wait"
        return {"best": None}, [f"not measured: {now.step.why}", f"once mended, try again: {again}"]
    setup, base = found.setup, tried.figures.get(tried.base)
    against = found.against_unchanged
    plain = {
        "cores": setup.cores,
        "with": str(setup.remedies),
        "step_s": found.best.epoch_s,
        "speedup": against.value if against else None,
        "verdict": against.verdict if against else None,
        "mem_gb": found.mem_gb,
        "changes": found.changes,
        "left": found.costs,
        "trials": found.trials[0],
        "trials_unchanged": found.trials[1],
        "unsettled": found.unsettled,
        "left_open": found.left_open,
        "verdicts": found.verdicts,
        "disturbed": found.disturbed,
        "settings": setup.settings,
    }

    def cells(one: Figure) -> list[str]:
        own = tried.trials(tuning.setups[one.point.index])
        used = next((f"{each.used:.2f}" for each in own if each.used is not None), "")
        return [
            _in_ms(one.epoch_s),
            f"{_in_ms(one.low)}-{_in_ms(one.high)}",
            f"{base.epoch_s / one.epoch_s:.2f}x" if base else "",
            used,
            f"{max(each.memory_mib for each in own):,.0f}",
            f"{len(own)}",
        ]

    gain, unfinished, faster = "", bool(now.step.why), "; ".join(found.unsettled)
    if not setup.remedies:
        if not unfinished and not faster:
            gain = f": no remedy is known to make it {100 * (MIN_GAIN - 1):.0f} % faster"
    elif against is not None:
        gain = f", {against.value:.2f} times as fast as unchanged"
        gain += f" with {tuning.cores} cores" if tuning.cores > 1 else ""
    remedies = f"hpcncf run --with {setup.remedies} -- " if setup.remedies else ""
    heads = ["setup", "ms/step", "interval", "speed", "cores used", "MiB", "trials"]
    lines = [
        *_table(now, heads, cells),
        f"{tuning.objective}{', so far' * unfinished}: {setup.label}{gain}",
        *_certainty(tried, found, unfinished),
        *([f"faster so far, but not settled: {faster}"] if faster else []),
        *_doubts(found),
        "",
        "#SBATCH --ntasks=1",
        f"#SBATCH --cpus-per-task={setup.cores}",
        f"#SBATCH --mem={found.mem_gb}G",
        f"srun {remedies}{shlex.join(command)}",
    ]
    if found.changes:
        lines += ["", "for good, in the program:", *(f"  {line}" for line in found.changes)]
    if found.costs:
        lines += ["", "what still costs time:", *(f"  {line}" for line in found.costs)]
    return {"best": plain}, [*lines, *([f"not finished: {now.step.why}"] if now.step.why else [])]


def _certainty(tried: Tried, found: ProgramOutcome, unfinished: bool) -> list[str]:
    """Number of trials, verdict against the unchanged program, and whether the search ended.

    It is one line, or none if there is nothing to note.
    """
    of_it, of_base = found.trials
    is_base, ratio = found.setup == tried.base, found.against_unchanged
    notes = [] if is_base or ratio is None else [str(ratio.verdict)]
    notes += ["the search is not finished"] if unfinished else []
    compared = "" if is_base else f" ({tried.base.label}: {of_base})"
    return [f"  trials: {of_it}{compared}; {'; '.join(notes)}"] if notes else []


def _in_ms(seconds: float) -> str:
    """Format seconds as milliseconds with three significant digits: `1,910` or `0.408`."""
    return f"{float(f'{1000 * seconds:.3g}'):,.12g}"
