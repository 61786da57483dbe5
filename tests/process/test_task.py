"""A Slurm task of several runs: one after another, each in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from conftest import within
from make_runs import tiny

from hpcncf.job.load import build_plan, load_job
from hpcncf.job.plan import Plan, Run
from hpcncf.paths import ResultPaths
from hpcncf.records.plan_file import leave_plan
from hpcncf.records.schema import End, RankRecord, read_record
from hpcncf.records.submissions import begin, cancel

JOB = """\
name: several
data: {{path: {data}}}
training: {{threads: 1, epochs: {epochs}, global_batch_size: 50}}
resources: {{runs_per_task: 3}}
grid: {{training.lr: {rates}}}
"""
# Runs that need no torch.
COMMANDS = """\
name: several
workload: {{command: [{python}, {folder}/program.py, "{{kind}}"]}}
parameters: {{kind: ends}}
resources: {{runs_per_task: 3}}
grid: {{parameters.kind: [{kinds}]}}
"""
PROGRAM = """\
import sys, time
if sys.argv[1] == "fails":
    sys.exit(3)
time.sleep(60 if sys.argv[1] == "waits" else 0)
"""
WORK = """\
import json, sys
from hpcncf.worker import task
task.work(sys.argv[1], json.loads(sys.argv[2]), False, {})
"""


# One run, and yet in a process of its own.
SEVERAL = """\
import sys, json
from pathlib import Path
from hpcncf.paths import ResultPaths
from hpcncf.worker import task
from hpcncf.records.plan_file import read_plan
paths = ResultPaths(Path(sys.argv[1]))
several = task._Several(paths, False, {})
"""
# The signal comes behind the last run.
WARNED_LATE = (
    SEVERAL
    + """
import os, signal
run_it = several._run
several._run = lambda run: (run_it(run), os.kill(os.getpid(), signal.SIGUSR2))[0]
"""
)
WORK_SEVERAL = "sys.exit(several.work(read_plan(paths).runs))\n"
BY_HAND = """\
import sys
from hpcncf.worker.__main__ import main
main([sys.argv[1]])
"""


def planned(folder: Path, rates: str, epochs: int = 1) -> tuple[ResultPaths, Plan]:
    tiny(folder / "data")
    return left_plan(folder, JOB.format(data=folder / "data", rates=rates, epochs=epochs))


def commands(folder: Path, kinds: str) -> tuple[ResultPaths, Plan]:
    (folder / "program.py").write_text(PROGRAM)
    return left_plan(folder, COMMANDS.format(python=sys.executable, folder=folder, kinds=kinds))


def left_plan(folder: Path, text: str) -> tuple[ResultPaths, Plan]:
    job = folder / "several.yaml"
    job.write_text(text)
    paths, made = ResultPaths(folder / "results"), build_plan(load_job(job), job)
    leave_plan(paths, load_job(job), made)
    return paths, made


def started(
    paths: ResultPaths, made: Plan, restart: int = 0, work: str = WORK
) -> subprocess.Popen[bytes]:
    """As a task of a Slurm step, with a scontrol that notes what it receives."""
    command = paths.folder.parent / "bin/scontrol"
    command.parent.mkdir(exist_ok=True)
    command.write_text(f'#!/bin/sh\necho "$*" >> {command.parent}/calls\n')
    command.chmod(0o755)
    known = {"SLURM_JOB_ID": "9", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}
    known |= {"SLURM_LOCALID": "0", "SLURM_STEP_ID": "0", "HPCNCF_LAUNCHED_BY": "slurm"}
    known |= {"SLURM_RESTART_COUNT": str(restart)} if restart else {}
    known["PATH"] = f"{command.parent}:{os.environ['PATH']}"
    ids = json.dumps([run.id for run in made.runs])
    return subprocess.Popen(
        [sys.executable, "-c", work, str(paths.folder), ids], env=os.environ | known
    )


def left(paths: ResultPaths, made: Plan) -> list[list[RankRecord]]:
    """The records of each run's attempts."""
    return [
        [
            read_record(path, RankRecord)
            for attempt in paths.run(run.id).attempts()
            for path in attempt.rank_records()
        ]
        for run in made.runs
    ]


def test_a_run_that_fails_does_not_keep_the_next_from_being_run(tmp_path: Path) -> None:
    paths, made = commands(tmp_path, "fails, ends")
    by_kind = sorted(made.runs, key=lambda run: run.varied["parameters.kind"], reverse=True)
    made = made.model_copy(update={"runs": by_kind})  # the plan's order is by ids of the folder
    process = started(paths, made)
    assert process.wait(timeout=120) == 3
    seen = left(paths, made)
    assert [[record.outcome for record in each] for each in seen] == [["failed"], ["completed"]]
    assert len({record.pid for each in seen for record in each} - {process.pid}) == 2


def test_asked_to_stop_it_begins_no_further_run_and_goes_on_when_it_is_put_back(
    tmp_path: Path,
) -> None:
    paths, made = planned(tmp_path, "[0.001, 0.002]", epochs=40)
    first = started(paths, made)
    progress = paths.run(made.runs[0].id).attempt(1).progress

    def trains() -> bool:
        return progress.exists() and json.loads(progress.read_text())["phase"] != "startup"

    assert within(120, trains)
    first.send_signal(signal.SIGUSR2)
    assert first.wait(timeout=120) == 128 + signal.SIGUSR2
    (record,) = [record for each in left(paths, made) for record in each]
    assert record.outcome == "stopped"
    assert record.error["message"].endswith("; put back into the queue, time 1 of 3")
    assert (tmp_path / "bin/calls").read_text() == "requeue 9\n"
    assert started(paths, made, restart=1).wait(timeout=120) == 0
    seen = left(paths, made)
    outcomes = sorted([record.outcome for record in each] for each in seen)
    assert outcomes == [["completed"], ["stopped", "completed"]]


def trains(paths: ResultPaths, run: Run) -> bool:
    progress = paths.run(run.id).attempt(1).progress
    return progress.exists() and json.loads(progress.read_text())["phase"] != "startup"


def test_what_a_user_cancelled_is_no_failure_of_its_task(tmp_path: Path) -> None:
    paths, made = commands(tmp_path, "waits")
    begin(paths, "slurm", [made.runs[0].id], again=False)
    process = started(paths, made, work=SEVERAL + WORK_SEVERAL)
    assert within(120, lambda: trains(paths, made.runs[0]))
    cancel(paths, [made.runs[0].id])
    assert process.wait(timeout=120) == 0
    end = read_record(paths.run(made.runs[0].id).attempt(1).end, End)
    assert end.reason == "cancelled"


def test_a_task_with_nothing_left_to_do_is_not_put_back(tmp_path: Path) -> None:
    paths, made = commands(tmp_path, "ends")
    process = started(paths, made, work=WARNED_LATE + WORK_SEVERAL)
    assert process.wait(timeout=120) == 0
    assert not (tmp_path / "bin/calls").exists()


def test_a_warning_that_comes_when_all_is_done_makes_no_failure_of_it(tmp_path: Path) -> None:
    """While Python ends, a signal that it handled would kill it."""
    paths, made = planned(tmp_path, "[0.001]")
    warned = "\nimport os\nos.system('(while kill -USR2 $PPID; do :; done) 2>/dev/null &')\n"
    for work in (WORK + warned, BY_HAND + warned):
        process = started(paths, made, work=work)
        assert process.wait(timeout=120) == 0
    (records,) = left(paths, made)
    assert [record.outcome for record in records] == ["completed"]
