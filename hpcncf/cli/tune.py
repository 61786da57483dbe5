"""`hpcncf tune`: find the best configuration of a grid within a budget."""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hpcncf.cli import tune_program
from hpcncf.cli.output import format_path
from hpcncf.cli.plan import warn
from hpcncf.errors import UsageError, plural
from hpcncf.worker.__main__ import add_setting_argument

if TYPE_CHECKING:
    from hpcncf.launch.submit import Launched
    from hpcncf.records.submissions import Cluster
    from hpcncf.tune.job_file import JobFile
    from hpcncf.tune.outcome import Outcome, Worse
    from hpcncf.tune.tuning import Now, Tuning


# Two digits of a budget may be less than it.
ROUNDED_UP: Final = 1.05


def sentences(tuning: JobFile, now: Now, found: Outcome | None) -> str:
    if found is None:
        reasons = [f"  {trial.reason}" for trial in now.trials if trial.reason]
        return "\n".join([f"{now.step.why} ({_spent(tuning, now)})", *dict.fromkeys(reasons)])
    lines = [_best(tuning, found), *_beside(found), *_short(tuning, now, found)]
    return "\n".join(
        [*lines, _spent(tuning, now), *_describe_whole_grid(found, now), *_next(tuning, found)]
    )


def _best(tuning: JobFile, found: Outcome) -> str:
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
            f"  verified: it ran as the job file has it, {apart:+.0%} against its longest cut run"
        )
    elif found.verified:
        lines.append("  verified: it ran as the job file has it")
    else:
        lines.append("  NOT verified: it did not run as the job file has it, nor was it evaluated")
    return "\n".join(lines)


def _beside(found: Outcome) -> list[str]:
    lines = []
    if found.runner_up:
        label, epoch_s = found.runner_up
        longer = epoch_s / found.best.epoch_s
        lines.append(f"second: {label}, whose epoch takes {longer:.2f} times as long")
    if found.disturbed:
        lines.append("neighbours used much of its cores: repeat on a quiet machine")
    if found.models:
        lines.append(
            f"its runs had different models of CPU or GPU ({'; '.join(found.models)}): which point "
            "is faster may be the machines' doing; ask for one model (the site file's constraint)"
        )
    if found.left_open:
        lines.append(f"no significant difference from: {'; '.join(found.left_open)}")
    lines += [_worse(each) for each in found.unsound]
    return lines + [f"not measured: {line}" for line in found.failed]


def _short(tuning: JobFile, now: Now, found: Outcome) -> list[str]:
    """What the budget was too small for, and which would do."""
    lines = []
    if found.unseen:
        of = f"{len(found.unseen)} of {len(tuning.grid.points)} points"
        lines.append(f"not measured, for the budget had no room: {of}, as {found.unseen[0]}")
    lines += [now.step.why] if now.step.why else []
    if found.enough_core_h:
        lines.append(
            f"to go on, call it again with --budget {ROUNDED_UP * found.enough_core_h:.2g} or "
            "more: a look at every point and whole runs of the best would take that in all"
        )
    return lines


def _worse(left: Worse) -> str:
    more = f", and {left.points - 1} more that train the same model" if left.points > 1 else ""
    score = "" if left.hr10 is None else f" (HR@10 {left.hr10:.3f})"
    return f"left out for its quality{score}: {left.label}{more}"


def _spent(tuning: JobFile, now: Now) -> str:
    number, gpus = len(now.trials), ""
    if any(point.gpus for point in tuning.grid.points):
        price = max(point.gpu_hour for point in tuning.grid.points)
        gpus = f"; an hour of a GPU counts as {price:g} core-hours"
        gpus = gpus if price else "; hours of its GPUs are not counted (--gpu-hour)"
    return (
        f"spent: {now.spent_core_h:.3g} of {tuning.core_hours:g} core-hours on {number} "
        f"run{'s' * (number != 1)} of {len(tuning.grid.points)} points{gpus}"
    )


def _describe_whole_grid(found: Outcome, now: Now) -> list[str]:
    if not found.grid_core_h:
        return []
    share = now.spent_core_h / found.grid_core_h
    return [
        f"each point once, whole, would cost about {found.grid_core_h:.3g} core-hours; this tuning "
        f"spent {share:.0%} of that"
    ]


def _next(tuning: JobFile, found: Outcome) -> list[str]:
    there = format_path(tuning.paths.folder)
    lines = [f"every run of it: hpcncf report {there}"]
    if found.advice:
        file = format_path(tuning.paths.best)
        lines = [f"go on with: hpcncf submit {file}", *lines]
    return lines


EPILOG = """\
A program is tried for some seconds with other cores, threads, workers and remedies. Its losses
must stay the same. The call ends with what to ask for and what to change.
Of a job file, each call submits the next runs; repeat it, or use --wait, until the best is found.
Runs lie in results/<name>-tune. Exit code 3: not finished, or the budget is spent.
example: hpcncf tune -- python train.py
example: hpcncf tune jobs/engines.yaml --budget 0.5 --wait
"""
DEFAULT_BUDGET: Final = 0.5
# Rounds of the same runs sent again: then something is wrong that sending does not mend.
IN_VAIN: Final = 3
OBJECTIVES: Final = {
    "knee": "the fastest whose epoch costs at most 1.4 times the cheapest's, as the report advises",
    "fastest": "the fewest seconds for an epoch",
    "cheapest": "the fewest core-hours for an epoch",
}


def positive(text: str) -> float:
    """A number above 0, of any unit."""
    with contextlib.suppress(ValueError):
        if 0 < float(text) < 1e9:
            return float(text)
    raise argparse.ArgumentTypeError(f"expected a number above 0, came {text}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "job", nargs="+", metavar="JOB.yaml | -- COMMAND", help="a job file, or a program"
    )
    add_setting_argument(parser, "override a setting, as in -s training.epochs=1; may be repeated")
    parser.add_argument(
        "--budget",
        type=positive,
        metavar="CORE_HOURS",
        help="what all of its runs may cost together (default of a program: 0.5)",
    )
    parser.add_argument(
        "--cores", type=int, metavar="N", help="most cores of a program (default: the usable ones)"
    )
    parser.add_argument(
        "--mem-gb", type=positive, default=8.0, help="memory of a program's trials under Slurm"
    )
    parser.add_argument("--site", help="site file for a program's trials under Slurm")
    parser.add_argument(
        "--gpu-hour",
        type=positive,
        default=0.0,
        metavar="CORE_HOURS",
        help="what an hour of a GPU counts for in the budget and in cost; needed where some points "
        "have GPUs and others none, else the budget counts core-hours alone",
    )
    parser.add_argument(
        "--objective",
        choices=list(OBJECTIVES),
        default="knee",
        help="at held quality; "
        + "; ".join(f"{name}: {meaning}" for name, meaning in OBJECTIVES.items()),
    )
    parser.add_argument("--wait", action="store_true", help="go on until the best is known")
    parser.add_argument(
        "--cluster",
        choices=["auto", "local", "slurm"],
        default="auto",
        help="auto: slurm where there is sbatch, else local (default)",
    )
    parser.add_argument(
        "--results", type=Path, metavar="DIR", help="default: results/<the job's name>-tune"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of sentences")


def run(args: argparse.Namespace) -> int:
    from hpcncf.launch.submit import choose_cluster
    from hpcncf.tune.tuning import read_state, send

    cluster = choose_cluster(args.cluster)
    if len(args.job) > 1 or not args.job[0].endswith((".yaml", ".yml")):
        args.wait = True
        tuning: Tuning = tune_program.build(args, cluster)
    else:
        tuning = _of_job_file(args, cluster)
    in_vain = 0

    def show(text: str) -> None:
        """On the way: beside the JSON, and beside a program's table."""
        print(text, file=sys.stderr if args.json or len(args.job) > 1 else sys.stdout, flush=True)

    while True:
        now = read_state(tuning)
        if now.step.kind == "done":
            return _end(args, now)
        if now.step.kind == "send":
            show(_sending(now))
            launched = send(now)
            _complain(launched)
            in_vain = 0 if now.step.asks else in_vain + 1
            if not launched.runs or in_vain > IN_VAIN:
                return _stuck(args, now)
        else:
            under_way = sum(trial.fate == "under way" for trial in now.trials)
            show(f"{now.step.why}: {plural(under_way, 'run')}")
        if not args.wait:
            return _later(args, now)
        _wait(args, now)


def _of_job_file(args: argparse.Namespace, cluster: Cluster) -> Tuning:
    from hpcncf.launch.submit import limits_of
    from hpcncf.paths import ResultPaths
    from hpcncf.tune.job_file import JobFile, grid_of, job_of

    if not args.budget:
        raise UsageError("tune: --budget CORE_HOURS is required for a job file")
    job = job_of(Path(args.job[0]), args.settings)
    warn(job)
    limits = limits_of(job, cluster)
    paths = ResultPaths((args.results or Path("results") / job.name).resolve())
    grid = grid_of(job, cluster, limits, args.gpu_hour)
    for line in grid.left_out:
        print(f"hpcncf: left out: {line}", file=sys.stderr)
    return JobFile(paths, grid, args.objective, args.budget, cluster, limits)


def _sending(now: Now) -> str:
    again = sum(trial.fate == "open" for trial in now.trials)
    number = len(now.step.asks) + again
    price = "" if now.step_core_h is None else f", about {now.step_core_h:.2g} core-hours"
    return (
        f"{now.step.why}: {plural(number, 'run')}{price} "
        f"({now.spent_core_h:.2g} of {now.tuning.core_hours:g} spent)"
    )


def _complain(launched: Launched) -> None:
    from hpcncf.launch.submit import describe_refusals

    refused = {each.run.id: each.reason for each in launched.left_out("refused")}
    for line in [*describe_refusals(refused), *launched.notes]:
        print(f"hpcncf: {line}", file=sys.stderr)


def _wait(args: argparse.Namespace, now: Now) -> None:
    """Wait for all runs under way, by their records: another call may have submitted them."""
    from hpcncf.cli.wait import wait
    from hpcncf.records.plan_file import read_plan
    from hpcncf.state import status

    paths = now.tuning.paths
    states = status.states(paths, read_plan(paths))
    asked = [state.run.id for state in states if state.state in status.UNDER_WAY]
    wait(paths, asked, args.json or len(args.job) > 1)


def _stuck(args: argparse.Namespace, now: Now) -> int:
    print(
        "hpcncf: these runs are not taken, or end without a record: see hpcncf status, then call "
        "again",
        file=sys.stderr,
    )
    return _later(args, now)


def _later(args: argparse.Namespace, now: Now) -> int:
    if args.json:
        print(json.dumps(_plain(now), indent=2))
        return 3
    there = format_path(now.tuning.paths.folder)
    print(f"look with: hpcncf status {there}\nwhen they have ended, go on: {_same(args)}")
    return 3


def _same(args: argparse.Namespace) -> str:
    words = ["hpcncf", "tune", *(args.job if len(args.job) == 1 else [])]
    words += [word for setting in args.settings for word in ("-s", setting)]
    words += ["--budget", f"{args.budget:g}"]
    words += ["--cores", str(args.cores)] * (args.cores is not None)
    words += ["--gpu-hour", f"{args.gpu_hour:g}"] * (args.gpu_hour > 0)
    words += ["--objective", args.objective] * (args.objective != "knee")
    words += ["--cluster", args.cluster] * (args.cluster != "auto")
    words += ["--results", str(args.results)] * (args.results is not None)
    words += ["--", *args.job] * (len(args.job) > 1)
    return shlex.join(words)


def _end(args: argparse.Namespace, now: Now) -> int:
    from hpcncf.records.plan_file import writing
    from hpcncf.records.schema import write_text
    from hpcncf.tune.job_file import JobFile
    from hpcncf.tune.outcome import find_outcome

    plain, words = {}, ""
    if isinstance(now.tuning, JobFile):
        found = find_outcome(now.tuning, now)
        if found and found.advice:
            with writing(now.tuning.paths.folder):
                write_text(now.tuning.paths.best, found.advice.job_yaml)
        plain, words = _plain_outcome(now, found), sentences(now.tuning, now, found)
    else:
        plain, words = tune_program.outcome(args, now)
    print(json.dumps(_plain(now) | plain, indent=2) if args.json else words)
    if now.step.chosen is None:
        return 1  # no point could be measured: calling again changes nothing
    return 0 if now.step.verified and not now.step.why else 3


def _plain(now: Now) -> dict[str, Any]:
    from hpcncf.tune.program import Programs

    grid = now.tuning.grid
    if isinstance(now.tuning, Programs):
        runs: dict[str, Any] = {"trials": tune_program.plain_trials(now)}
    else:
        of_gpu = max((point.gpu_hour for point in grid.points), default=0.0)
        listed = [{"run_id": grid.run(one.ask).id, **asdict(one)} for one in now.trials]
        runs = {"gpu_hour_core_hours": of_gpu, "runs": listed}
    return {
        "results": str(now.tuning.paths.folder),
        "step": now.step.kind,
        "why": now.step.why,
        "budget_core_hours": now.tuning.core_hours,
        "spent_core_hours": now.spent_core_h,
        **runs,
    }


def _plain_outcome(now: Now, found: Outcome | None) -> dict[str, Any]:
    if found is None:
        return {}
    kept = asdict(replace(found, advice=None)) | {"best": found.best.point.label}
    settings = now.tuning.grid.settings[found.best.point.index]
    file = str(now.tuning.paths.best) if found.advice else None
    return kept | {"settings": settings, "epoch_s": found.best.epoch_s, "job_file": file}
