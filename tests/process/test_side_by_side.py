"""A Slurm task whose runs are worked at side by side: each on its own cores, with its own end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import within

from hpcncf.job.load import build_plan, load_job
from hpcncf.job.plan import Plan, Run
from hpcncf.monitor.cgroup import usable_cpus
from hpcncf.paths import ResultPaths
from hpcncf.records.plan_file import leave_plan
from hpcncf.records.schema import End, RankRecord, read_record
from hpcncf.records.submissions import begin, cancel

pytestmark = pytest.mark.skipif(len(usable_cpus()) < 2, reason="two runs want a core each")
# What waits ends when it is asked to, and at once when its job is started again.
PROGRAM = """\
import os, pathlib, signal, sys, time
for reported in (signal.SIGUSR2, signal.SIGTERM):
    signal.signal(reported, lambda *_: sys.exit(0))
kind = sys.argv[1]
print("I am one that", kind)
pathlib.Path(os.environ["HPCNCF_OUTPUT"], "begun").touch()
if kind == "fails":
    sys.exit(3)
while kind != "ends" and "SLURM_RESTART_COUNT" not in os.environ:
    time.sleep(0.05)
"""
JOB = """\
name: packed
workload: {command: [PYTHON, program.py, '{kind}']}
parameters: {kind: ends}
resources: {runs_per_node: 2}
grid: {parameters.kind: [KINDS]}
"""
WORK = """\
import json, sys
from hpcncf.worker import task
task.work(sys.argv[1], json.loads(sys.argv[2]), False, {})
"""


def planned(folder: Path, *kinds: str) -> tuple[ResultPaths, Plan]:
    job = folder / "packed.yaml"
    job.write_text(JOB.replace("KINDS", ", ".join(kinds)).replace("PYTHON", sys.executable))
    (folder / "program.py").write_text(PROGRAM)
    paths, made = ResultPaths(folder / "results"), build_plan(load_job(job), job)
    leave_plan(paths, load_job(job), made)
    return paths, made


def started(paths: ResultPaths, made: Plan, restart: int = 0) -> subprocess.Popen[bytes]:
    """As the one task of a Slurm step, with a scontrol that notes what it receives."""
    command = paths.folder.parent / "bin/scontrol"
    command.parent.mkdir(exist_ok=True)
    command.write_text(f'#!/bin/sh\necho "$*" >> {command.parent}/calls\n')
    command.chmod(0o755)
    known = {"SLURM_JOB_ID": "9", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}
    known |= {"SLURM_LOCALID": "0", "SLURM_STEP_ID": "0", "HPCNCF_LAUNCHED_BY": "slurm"}
    known |= {"SLURM_CPUS_PER_TASK": "2", "SLURM_JOB_CPUS_PER_NODE": str(len(usable_cpus()))}
    known |= {"SLURM_RESTART_COUNT": str(restart)} if restart else {}
    known["PATH"] = f"{command.parent}:{os.environ['PATH']}"
    ids = json.dumps([run.id for run in made.runs])
    return subprocess.Popen(
        [sys.executable, "-c", WORK, str(paths.folder), ids], env=os.environ | known
    )


def left(paths: ResultPaths, made: Plan) -> dict[str, list[RankRecord]]:
    """Kind -> the records of its attempts."""
    return {
        run.varied["parameters.kind"]: [
            read_record(path, RankRecord)
            for attempt in paths.run(run.id).attempts()
            for path in attempt.rank_records()
        ]
        for run in made.runs
    }


def begun(paths: ResultPaths, run: Run) -> bool:
    return (paths.run(run.id).attempt(1).output / "begun").exists()


def test_one_that_fails_ends_no_other_and_each_has_its_own_core_record_and_log(
    tmp_path: Path,
) -> None:
    paths, made = planned(tmp_path, "fails", "ends")
    assert started(paths, made).wait(timeout=120) == 3
    seen = left(paths, made)
    (failed,), (done,) = seen["fails"], seen["ends"]
    assert (failed.outcome, done.outcome) == ("failed", "completed")
    assert [len(failed.cores.cpus), len(done.cores.cpus)] == [1, 1]
    assert failed.cores.cpus != done.cores.cpus
    assert (done.launched_by, done.slurm_job_id, done.cores.allocated) == ("slurm", "9", 1)
    assert sorted(done.packed.runs) == sorted(run.id for run in made.runs)
    assert paths.run(done.run_id).attempt(1).log(0).read_text().startswith("I am one that ends\n")
    assert read_record(paths.run(failed.run_id).attempt(1).end, End).exit_codes == [3]


def test_warned_they_all_stop_the_job_is_put_back_once_and_they_go_on(tmp_path: Path) -> None:
    paths, made = planned(tmp_path, "waits", "rests")
    first = started(paths, made)
    assert within(120, lambda: all(begun(paths, run) for run in made.runs))
    first.send_signal(signal.SIGUSR2)
    assert first.wait(timeout=120) == 128 + signal.SIGUSR2
    assert (tmp_path / "bin/calls").read_text() == "requeue 9\n"
    assert started(paths, made, restart=1).wait(timeout=120) == 0
    outcomes = [[record.outcome for record in each] for each in left(paths, made).values()]
    assert outcomes == [["stopped", "completed"]] * 2


def test_one_that_is_cancelled_ends_alone_and_is_no_failure(tmp_path: Path) -> None:
    paths, made = planned(tmp_path, "waits", "ends")
    begin(paths, "slurm", [run.id for run in made.runs], again=False)
    process = started(paths, made)
    assert within(120, lambda: all(begun(paths, run) for run in made.runs))
    (waiting,) = [run for run in made.runs if run.varied["parameters.kind"] == "waits"]
    cancel(paths, [waiting.id])
    assert process.wait(timeout=120) == 0
    assert read_record(paths.run(waiting.id).attempt(1).end, End).reason == "cancelled"
    assert [record.outcome for record in left(paths, made)["ends"]] == ["completed"]
