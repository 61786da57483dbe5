"""`hpcncf plan`: show the runs of a job file; nothing is changed."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from hpcncf.cli.output import print_json, warn
from hpcncf.text import pluralize
from hpcncf.worker.__main__ import add_setting_argument

if TYPE_CHECKING:
    from hpcncf.job.plan import Plan, Run
    from hpcncf.job.spec import JobSpec
    from hpcncf.paths import ResultPaths
    from hpcncf.slurm.site import Site

SCRIPTS = {
    "--sbatch": "print exactly what sbatch will get, of every array or of that one",
    "--by-hand": "print a plain batch script for sbatch; of several arrays, that one's",
}
LAUNCHERS = {
    "srun": "srun starts each rank",
    "torchrun": "srun starts one torchrun on each node, which starts the ranks",
    "hpcncf": "srun starts one process, which starts runs side by side, each on its own cores",
}
# An interpreter whose first argument may be a script, and how scripts' names end.
INTERPRETER: Final = re.compile(r"(python|pypy)[\d.]*|bash|sh|julia|Rscript|torchrun|perl")
SCRIPTS_END: Final = (".py", ".sh", ".jl", ".R", ".pl")
# Of more runs, the repeats are not listed.
MOST_RUNS = 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    job_arguments(parser)
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="print JSON instead of tables")
    for name, text in SCRIPTS.items():
        shown.add_argument(name, nargs="?", type=int, const=0, metavar="ARRAY", help=text)
    parser.add_argument(
        "--results",
        type=Path,
        metavar="DIR",
        help="where the runs' records are, or will be (default: results/<the job's name>)",
    )


def warn_of_job(job: JobSpec) -> None:
    from hpcncf.job.engine_fallback import describe_engine_fallback, missing_native_engine
    from hpcncf.job.expand import repeated_values, unused_excludes

    reason = missing_native_engine(job)
    fallback = [describe_engine_fallback(reason)] if reason else []
    warn(*unused_excludes(job), *repeated_values(job), *fallback)


def missing_programs(runs: Sequence[Run]) -> list[str]:
    """Warn about programs, or scripts of an interpreter, that do not exist here."""
    found: dict[str, None] = {}
    for run in runs:
        if not run.words or isinstance(run.workload, str):
            continue
        folder, (program, *arguments) = Path(run.workload.folder), run.words
        path = str(folder / program) if "/" in program else program
        if shutil.which(path) is None:
            found[f"{path}: no such program here"] = None
        script = next((word for word in arguments if not word.startswith("-")), "")
        flags = arguments[: arguments.index(script)] if script else []
        is_script = INTERPRETER.fullmatch(Path(program).name) and not {"-m", "-c"} & {*flags}
        if is_script and script.endswith(SCRIPTS_END) and not (folder / script).exists():
            found[f"{folder / script}: no such file here"] = None
    return list(found)


def incomplete_packs(plan: Plan) -> list[str]:
    """Warn about requests that reserve resources for more runs than share them."""
    from hpcncf.job.packs import packs_by_resources

    lines = []
    for packs in packs_by_resources(plan.active()):
        asked, runs = packs[0][0].resources, len(packs[-1])
        if runs < asked.side_by_side:
            key = "runs_per_gpu" if asked.runs_per_gpu > 1 else "runs_per_node"
            lines.append(
                f"resources.{key}: {asked.side_by_side} runs share a request of {asked.node_cores} "
                f"cores and {asked.node_mem_gb:g} GB, but one has only {runs} of them. Set repeats "
                f"to a multiple of {asked.side_by_side}, or lower {key}"
            )
    return lines


def job_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", type=Path, metavar="JOB.yaml", help="the job file")
    add_setting_argument(parser, "override a setting, as in -s training.epochs=1; may be repeated")


def run(args: argparse.Namespace) -> int:
    from hpcncf.job import load
    from hpcncf.launch import submit
    from hpcncf.paths import ResultPaths
    from hpcncf.slurm.site import load_site

    job = load.load_job(args.job, args.settings)
    plan = load.build_plan(job, args.job, args.settings)
    site = load_site(job.site)
    warn_of_job(job)
    warn(
        *incomplete_packs(plan),
        *submit.find_warnings(plan.active(), submit.choose_cluster("auto")),
        *missing_programs(plan.active()),
    )
    paths = ResultPaths((args.results or Path("results") / job.name).resolve())
    if args.sbatch is not None or args.by_hand is not None:
        _warn(plan)
        from hpcncf.cli.batch_scripts import show

        show(args, job, site, plan, paths)
    elif args.json:
        print_json("plan", _plain(job, site, plan, paths))
    else:
        _show(job, site, plan, paths)
    return 0


def _warn(plan: Plan) -> None:
    for command in _unprepared(plan):
        sys.stderr.write(f"the data is not prepared, so the runs' ids are provisional: {command}\n")


def _arrays_plan(job: JobSpec, site: Site, plan: Plan) -> list[dict[str, Any]]:
    from hpcncf.launch.job_arrays import build_tasks, group_by_resources
    from hpcncf.slurm.submitit_parameters import parameters

    return [
        {
            "tasks": len(tasks),
            "launcher": "hpcncf" if (asked := tasks[0][0].resources).packed else asked.launcher,
            "side_by_side": asked.side_by_side,
            "parameters": parameters(asked, site, job.name, exclusive=job.exclusive),
            "runs": [run.id for task in tasks for run in task],
        }
        for tasks in group_by_resources(build_tasks(plan.active()))
    ]


def _plain(job: JobSpec, site: Site, plan: Plan, paths: ResultPaths) -> dict[str, Any]:
    from hpcncf.cli.batch_scripts import find_refusals
    from hpcncf.job.plan import max_core_hours

    done = _complete(plan.active(), paths)
    return {
        "job": job.name,
        "runs": [run.model_dump(mode="json") for run in plan.active()],
        "arrays": _arrays_plan(job, site, plan),
        "core_hours_at_most": max_core_hours(plan.active()),
        "core_hours_left": estimate_core_hours(plan.active(), done),
        "complete": list(done),
        "refused": find_refusals(site, plan.active()),
        "data_missing": _unprepared(plan),
    }


def _complete(runs: Sequence[Run], paths: ResultPaths) -> dict[str, float]:
    """Core-hours of each complete run in the results folder, by run id."""
    from hpcncf.collect.resource_columns import elapsed
    from hpcncf.state.decide import is_complete, last_attempt

    last = [(run, last_attempt(paths.run(run.id))) for run in runs]
    return {
        run.id: run.resources.cores * elapsed(attempt.ranks) / 3600
        for run, attempt in last
        if attempt and is_complete(run, attempt)
    }


def estimate_core_hours(runs: Sequence[Run], done: Mapping[str, float]) -> float | None:
    """Estimate the core-hours of the runs not in `done`; None if no run is complete.

    `done` maps complete runs to core-hours. A run takes the median of its own configuration,
    else the median per core of all complete runs.
    """
    from hpcncf.job.identity import configuration_id

    hours: dict[str, list[float]] = defaultdict(list)
    per_core = [done[run.id] / run.resources.cores for run in runs if run.id in done]
    for run in runs:
        if run.id in done:
            hours[configuration_id(run)].append(done[run.id])
    if not per_core:
        return None
    usual = median(per_core)
    return sum(
        median(known)
        if (known := hours.get(configuration_id(run)))
        else usual * run.resources.cores
        for run in runs
        if run.id not in done
    )


def _unprepared(plan: Plan) -> list[str]:
    """List the commands that prepare the missing data folders."""
    from hpcncf.data.manifest import prepare_command

    missing = [run.data for run in plan.active() if run.data and run.data_key is None]
    return list(dict.fromkeys(prepare_command(data.dataset, Path(data.path)) for data in missing))


def _show(job: JobSpec, site: Site, plan: Plan, paths: ResultPaths) -> None:
    from hpcncf.cli.batch_scripts import find_refusals
    from hpcncf.cli.output import ID, filled, format_path, table_layout, usual_values, varies
    from hpcncf.job.plan import max_core_hours
    from hpcncf.launch.submit import describe_refusals

    runs, arrays = plan.active(), _arrays_plan(job, site, plan)
    asked = pluralize(len(runs), "run")
    print(f"job {job.name}: {asked}, at most {max_core_hours(runs):.2f} core-hours")
    done = _complete(runs, paths)
    if done:
        left = max_core_hours([run for run in runs if run.id not in done])
        where, expected = format_path(paths.folder), estimate_core_hours(runs, done) or 0.0
        print(
            f"complete in {where}: {len(done)}; left: about {expected:.2g} core-hours by their "
            f"times, at most {left:.2f}"
        )
    print()
    usual = usual_values(runs)
    first = [run for run in runs if run.repeat == 0] if len(runs) > MOST_RUNS else runs
    if len(first) < len(runs):
        print(f"each of these {len(first)} runs has {job.repeats} repeats (--json lists all):\n")
    rows = [[run.id[:ID], varies(run, usual), _resources(run)] for run in first]
    print(table_layout(["run", "varies", "resources"], rows))
    for number, array in enumerate(arrays, start=1):
        several = len(array["runs"]) > array["tasks"]
        packed = f" of {len(array['runs'])} runs" if several else ""
        packed += f", {array['side_by_side']} side by side" if array["side_by_side"] > 1 else ""
        tasks = f"{pluralize(array['tasks'], 'task')}"
        print(f"\narray {number}: {tasks}{packed}, submitit parameters")
        for key, value in array["parameters"].items():
            if key != "slurm_setup":
                print(f"  {key}: {value}")
        print(f"  launcher: {LAUNCHERS[array['launcher']]}")
    for line in describe_refusals(find_refusals(site, runs)):
        print(f"\n{filled(f'left out: {line}')}")
    print("\n--sbatch prints the whole scripts")
    for command in _unprepared(plan):
        print(f"\nthe data is not prepared, so the runs' ids are provisional: {command}")


def _resources(run: Run) -> str:
    asked = run.resources
    parts = [
        f"{asked.nodes} nodes" if asked.nodes > 1 else "",
        f"{pluralize(asked.world_size, 'rank')} x {pluralize(asked.cpus_per_task, 'core')}",
        f"{asked.gpus_per_node} GPUs per node" if asked.gpus_per_node else "",
        f"{asked.mem_gb:g} GB, {asked.timeout_min} min",
    ]
    return ", ".join(part for part in parts if part)
